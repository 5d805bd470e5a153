"""A museum of real bugs: each was found in a public project, and is written anew for gloo.

    from course_museum import EXHIBITS

    exhibit = EXHIBITS["validation_of_uneven_length"]
    print(exhibit.story, exhibit.link, exhibit.question)
    exhibit.judge(exhibit.bug)  # what real ranks say of it
    exhibit.judge(my_cure)  # only a real cure passes

No line of the projects is copied. A cure may look as it likes: it is run in real ranks, on fresh
numbers, and compared with what a single process finds.
"""

import importlib

from course_museum.exhibit import Exhibit

NAMES = (
    "validation_of_uneven_length",
    "stops_on_its_own",
    "order_of_a_dictionary",
    "labels_of_nobody",
    "gradient_of_a_sum",
    "gradient_of_a_gather",
    "loss_of_a_part",
    "model_without_its_wrapper",
    "sum_of_norms",
    "counted_on_every_rank",
    "mean_of_means",
    "the_same_epoch_again",
)


def _open() -> dict[str, Exhibit]:
    exhibits = {}
    for name in NAMES:
        module = importlib.import_module(f"course_museum.{name}")
        exhibits[name] = module.EXHIBIT
    return exhibits


EXHIBITS = _open()
