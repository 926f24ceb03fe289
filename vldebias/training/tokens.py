"""Captions as the text tower reads them, each text tokenised once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["MOST_TEXTS", "TokenTable", "Tokenize", "Tokens", "tokens_of"]

Tokenize = Callable[[Sequence[str]], Mapping[str, Tensor]]
"""Captions -> arguments of the text tower, (b, length) each, all of one length whatever the captions."""

Tokens = Callable[[Tensor], dict[str, Tensor]]
"""Rows (b,) of a data set -> arguments of the text tower for their captions."""

MOST_TEXTS = 200_000  # different captions that are kept tokenised: some 120 MB at CLIP's 77 tokens
_CHUNK = 10_000


@dataclass(frozen=True, eq=False)
class TokenTable:
    """Tokens of n captions of u different texts.

    texts: argument of the text tower -> (u, length). row: (n,) integers, the text of each caption.
    """

    texts: Mapping[str, Tensor]
    row: Tensor

    @classmethod
    def of(cls, captions: Sequence[str], tokenize: Tokenize) -> TokenTable:
        """Tokenises every different text once."""
        number = {text: i for i, text in enumerate(dict.fromkeys(captions))}
        unique = list(number)
        parts = [tokenize(unique[first : first + _CHUNK]) for first in range(0, len(unique), _CHUNK)]
        texts = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return cls(texts, torch.tensor([number[text] for text in captions]))

    def __call__(self, rows: Tensor) -> dict[str, Tensor]:
        """Tokens of the captions of some rows, (b, length) each."""
        found = self.row.index_select(0, rows)
        return {name: values.index_select(0, found) for name, values in self.texts.items()}


def tokens_of(captions: Sequence[str], tokenize: Tokenize, most: int = MOST_TEXTS) -> Tokens:
    """A table of all captions where there are at most `most` different ones, else tokens made when asked for."""
    if len(set(captions)) <= most:
        return TokenTable.of(captions, tokenize)
    return lambda rows: dict(tokenize([captions[i] for i in rows.tolist()]))
