"""The novel and the small GPT: what a lesson takes for granted of them."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from course_material.language import SmallGPT, novel
from course_utils import WorkerError, launch


def test_the_novel_is_the_novel():
    tokens, alphabet = novel()
    text = "".join(alphabet[token] for token in tokens.tolist())
    assert text.startswith("Chapter 1\n\nIt is a truth universally acknowledged")
    assert (len(tokens), len(alphabet), tokens.dtype) == (99_872, 72, torch.int64)


def test_no_guess_looks_ahead():
    torch.manual_seed(0)
    model, tokens = SmallGPT(9, width=8), torch.arange(8)[None]
    other = tokens.clone()
    other[0, 5:] = 8
    scores, others = model(tokens), model(other)
    assert scores.shape == (1, 8, 9)
    assert torch.equal(scores[0, :5], others[0, :5])
    assert not torch.allclose(scores[0, 5:], others[0, 5:])


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_is_the_embedding_if_tied(tied):
    model = SmallGPT(9, width=8, tied=tied)
    assert (model.head.weight is model.embedding.weight) == tied
    assert ("head.weight" in dict(model.named_parameters())) != tied


def test_it_learns_in_double_as_well():
    torch.manual_seed(0)
    tokens, alphabet = novel()
    model = SmallGPT(len(alphabet), width=16, depth=1).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    windows, losses = tokens[: 8 * 65].view(8, 65), []
    for _ in range(20):
        loss = cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1


def test_an_input_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match="context of 64"):
        SmallGPT(9, width=8)(torch.zeros(1, 65, dtype=torch.int64))


def test_an_error_inside_the_model_is_told_at_the_learners_line():
    def train():
        return SmallGPT(9, width=8)(torch.zeros(1, 65, dtype=torch.int64))

    with pytest.raises(WorkerError, match="context of 64") as caught:
        launch(train, world_size=1, backend="gloo")
    assert "test_language.py" in str(caught.value)
    assert "language.py, line" not in str(caught.value).replace("test_language.py", "")
