"""What checks of chapter 04 and of its lab say of likely mistakes, known by their results."""

from course_utils.launcher.language import N_

SAME_ORDER = N_(
    "These are the weights of a training that reads the digits in the same order in every "
    "epoch: tell the sampler each epoch before it begins, by `set_epoch(epoch)`."
)
OWN_ORDERS = N_(
    "These are the weights of a training with `shuffle=True`, and the difference isn't "
    "rounding: each rank reads all digits, in an order of its own. Deal them out with a "
    "`DistributedSampler`."
)
BATCH_NOT_DIVIDED = N_(
    "These are the weights of global batches that are as many times too large as there are "
    "ranks: each rank takes its share of the global batch."
)
SUM_OF_LOSSES = N_(
    "These are the sums of the ranks' losses. The loss of the global batch is their mean, since "
    "all ranks have equally many samples."
)
UNLIKE_THE_MEAN = N_(
    "This is what a comparison with the ranks' mean comes to. A mean is rounded: three times a "
    "number, divided by 3, may be a different number. Compare what the ranks have with each "
    "other, such as the largest with the smallest."
)
