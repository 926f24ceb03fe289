"""The projection of a prompt set while a model trains: in its text path, and the pair differences that it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.api import fit_projections
from vldebias.errors import InvalidInputError
from vldebias.projection import CalibratedProjection
from vldebias.prompts import load_prompts
from vldebias.training.sampling import numpy_generator
from vldebias.training.scores import text_features

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

PAIRS = 16  # prompt pairs that a step compares


class TextDebias(nn.Module):
    """What a prompt set asks of a training. The buffer `matrix` (d, d), the projection of now, is part of a checkpoint.

    Args:
        towers: the model as it is loaded, whose pair differences are the ones to keep.
        prompts: a prompt set by name or path.
        every: steps between two fits of the projection to the model as it is then; 0 leaves the texts alone.
        keep: weight of the change of the pair differences; 0 leaves it out.
        seed: of the pairs that a step compares.

    Raises:
        InvalidInputError: a set without pairs, of which nothing could be kept; a projection that is no matrix.
    """

    matrix: Tensor

    def __init__(self, towers: Towers, prompts: str, *, every: int = 0, keep: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.prompts, self.every, self.keep, self.seed = load_prompts(prompts), every, keep, seed
        self._towers = [towers]  # no module of this one
        sides = [text for pair in self.prompts.pairs for text in pair]
        if keep and not sides:
            raise InvalidInputError(f"keep_pairs: the prompt set {self.prompts.name!r} has no pairs to keep")
        features = text_features(towers, sides or self.prompts.texts[:1], 256)
        self.register_buffer("matrix", torch.eye(features.shape[1], device=features.device))
        self.before = features.unflatten(0, (-1, 2)).diff(dim=1)[:, 0] if keep else None
        self.tokens = towers.tokenize(sides) if keep else {}
        self.chosen = torch.arange(0)

    def at(self, step: int) -> None:
        """Fits the projection where a step begins with one, and draws the pairs that it compares."""
        if self.every and step % self.every == 0:
            self.matrix.copy_(self.fitted().to(self.matrix))
        if self.before is not None:
            drawn = numpy_generator("kept pairs", self.seed, step).permutation(len(self.before))[:PAIRS]
            self.chosen = torch.from_numpy(drawn)

    def fitted(self) -> Tensor:
        """P (d, d) of the model as it is now, as `vldebias.debias` would attach it."""
        (towers,) = self._towers
        edit = fit_projections(towers.model, self.prompts, tokenizer=towers.tokenizer)["joint"]
        if not isinstance(edit, CalibratedProjection):
            raise InvalidInputError(f"debias_during: expected a projection, the default method made {edit!r}")
        return edit.matrix()

    def forward(self, texts: Tensor) -> Tensor:
        """Text features (b, d) after the projection, in their precision; as they are where none is fitted."""
        return texts @ self.matrix.T.to(texts.dtype) if self.every else texts

    def drift(self) -> Tensor:
        """The mean over the chosen pairs of the squared change of their difference (), with gradients."""
        (towers,) = self._towers
        assert self.before is not None
        rows = (2 * self.chosen[:, None] + torch.arange(2)).flatten()
        tokens = {name: part[rows].to(towers.device) for name, part in self.tokens.items()}
        now = normalize(towers.text(tokens).float(), dim=-1).unflatten(0, (-1, 2)).diff(dim=1)[:, 0]
        return (now - self.before[self.chosen.to(self.before.device)].to(now)).square().sum(1).mean()
