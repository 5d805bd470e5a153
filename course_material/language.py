"""A novel, letter by letter, and a small GPT that learns to continue it."""

from importlib.resources import files

import torch
from torch import nn

from course_utils.launcher.language import _


def novel() -> tuple[torch.Tensor, str]:
    """Read the first twelve chapters of Jane Austen's Pride and Prejudice (1813, public domain).

    Returns:
        The text as numbers of characters, (length,) int64, and the alphabet that they point into.
    """
    text = files(__package__).joinpath("pride_and_prejudice.txt").read_text(encoding="utf-8")
    alphabet = "".join(sorted(set(text)))
    place = {character: number for number, character in enumerate(alphabet)}
    return torch.tensor([place[character] for character in text]), alphabet


class SmallGPT(nn.Module):
    """GPT-2's layout (Radford et al., 2019) in small: decoder blocks with the norm first.

    Its head is its embedding (Press and Wolf, 2017), unless `tied` is false.

    Args:
        alphabet: Number of characters.
        width: Numbers per token, a multiple of four, which is the number of heads.
        depth: Number of blocks.
        context: The longest input, in tokens.
    """

    def __init__(
        self, alphabet: int, width: int = 64, depth: int = 2, context: int = 64, tied: bool = True
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, width)
        self.position = nn.Embedding(context, width)
        kind = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, **kind)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, alphabet, bias=False)
        for embedding in (self.embedding, self.position):
            nn.init.normal_(embedding.weight, std=0.02)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Guess each next token: (batch, length) int64 to scores (batch, length, alphabet).

        Raises:
            ValueError: The input is longer than the context.
        """
        length, context = tokens.shape[1], len(self.position.weight)
        if length > context:
            raise ValueError(
                _(
                    "{length} tokens do not fit into a context of {context}",
                    length=length,
                    context=context,
                )
            )
        past = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        past = past.to(self.norm.weight.dtype)
        hidden = self.embedding(tokens) + self.position.weight[:length]
        for block in self.blocks:
            hidden = block(hidden, src_mask=past, is_causal=True)
        return self.head(self.norm(hidden))
