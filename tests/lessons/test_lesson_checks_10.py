"""What a learner writes in chapter 10: an optimiser that averages gradients under fit()."""

import labs
import pytest
import together
import torch
import torch.distributed as dist

from course_lessons import chapter_10
from course_utils import check

LESSON = labs.ROOT / "source/lessons/10_keras.py"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def keras():
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KERAS_BACKEND", "torch")
        patched.setenv("KERAS_TORCH_DEVICE", "cpu")
        yield pytest.importorskip("keras")


def _mean(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)


def unchanged(gradients, step, model_weights):
    step(gradients)


def summed(gradients, step, model_weights):
    for gradient in gradients:
        dist.all_reduce(gradient)
    step(gradients)


def too_late(gradients, step, model_weights):
    step(gradients)
    _mean(gradients)


def weights_instead(gradients, step, model_weights):
    step(gradients)
    _mean(model_weights())


def rank_0s(gradients, step, model_weights):
    for gradient in gradients:
        dist.broadcast(gradient, src=0)
    step(gradients)


def first_one_only(gradients, step, model_weights):
    _mean(gradients[:1])
    step(gradients)


def copies(gradients, step, model_weights):
    _mean([gradient.clone() for gradient in gradients])
    step(gradients)


def divided_twice(gradients, step, model_weights):
    _mean(gradients)
    step([gradient / dist.get_world_size() for gradient in gradients])


def always_two_ranks(gradients, step, model_weights):
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= 2
    step(gradients)


def no_step(gradients, step, model_weights):
    _mean(gradients)


def step_on_rank_0(gradients, step, model_weights):
    _mean(gradients)
    if dist.get_rank() == 0:
        step(gradients)


def sum_then_divided(gradients, step, model_weights):
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    step(gradients)


def in_one_message(gradients, step, model_weights):
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    _mean([flat])
    parts = flat.split([gradient.numel() for gradient in gradients])
    step([part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)])


def by_gathering(gradients, step, model_weights):
    means = []
    for gradient in gradients:
        every = [torch.zeros_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(every, gradient.contiguous())
        means.append(torch.stack(every).mean(dim=0))
    step(means)


WRONG = [
    unchanged, summed, too_late, weights_instead, rank_0s, first_one_only, copies, divided_twice,
    always_two_ranks, no_step, step_on_rank_0,
]  # fmt: skip
RIGHT = [sum_then_divided, in_one_message, by_gathering]


def optimizer(keras, apply):
    """An Adam that applies gradients as one of the functions above says."""

    class Answer(keras.optimizers.Adam):
        def apply(self, gradients, trainable_variables=None):
            def step(means):
                super(Answer, self).apply(means, trainable_variables)

            def model_weights():
                known = trainable_variables or self._trainable_variables
                return [variable.value.detach() for variable in known]

            apply([gradient.detach() for gradient in gradients], step, model_weights)

    Answer.__name__ = apply.__name__
    return Answer


def test_the_check_rejects_each_wrong_optimizer(keras, subtests):
    wrong = [chapter_10.fitting(optimizer(keras, apply), keras) for apply in WRONG]
    right = chapter_10.fitting(optimizer(keras, sum_then_divided), keras)
    together.reject(subtests, right, wrong, chapter_10.fit_options(keras))


def test_other_right_optimizers_pass(keras):
    right = [chapter_10.fitting(optimizer(keras, apply), keras) for apply in RIGHT]
    options = chapter_10.fit_options(keras) | labs.PATIENT | {"world_sizes": (3,)}
    together.accept(right, options)


def test_the_chapters_own_optimizer_passes_and_its_stub_is_not_attempted(keras):
    wanted = ("def average(", "class AveragingAdam(", "class AveragingAdamDone(")
    names = {"__name__": "__main__", "keras": keras, "dist": dist}
    for number, source in enumerate(labs.sources(LESSON)):
        if any(text in source for text in wanted):
            labs.run(source.partition("check(")[0], f"<lesson 10 {number}>", names)
    options = chapter_10.fit_options(keras) | labs.PATIENT | {"world_sizes": (2,)}
    done = check(chapter_10.fitting(names["AveragingAdamDone"], keras), **options)
    assert done.require()
    stub = check(chapter_10.fitting(names["AveragingAdam"], keras), **options)
    assert stub.state == "not attempted"


def test_parting_ranks_are_drawn_right_or_wrong(keras, capsys):
    chapter_10.draw_parting(keras, optimizer(keras, in_one_message))
    assert "the ranks stay equal" in capsys.readouterr().out
    chapter_10.draw_parting(keras, optimizer(keras, unchanged))
    assert "the ranks part" in capsys.readouterr().out


def test_with_kerass_own_adam_the_ranks_part_in_the_first_step(keras):
    assert chapter_10._distances_by_step(keras, keras.optimizers.Adam)[0] > 0
