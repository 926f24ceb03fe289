"""DeAR: a residual that is added to images, trained so that an adversary cannot read the attribute."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, normalize

from vldebias.edit import Edit
from vldebias.methods.labelled import labelled
from vldebias.methods.method import Method, Need, Problem, register_method
from vldebias.methods.rivals.edits import Residual


class DeAR(Method):
    """An additive residual against an adversary, after Seth et al. (2023); trained on the features, within a minute.

    The adversary, linear, learns to read each attribute by cross-entropy. The residual learns to leave it with even
    probabilities, and to be small: mean over attributes of CE(even, adversary(x + r(x))) + keep |r(x)|^2. They take
    turns, a step of the residual after `ahead` of the adversary. Like DeAR in its parts, ours in size and schedule; a
    deeper adversary moved images further and read the attribute as well as before, on images that it had not seen.

    It does not carry over as the closed forms do: on a second model (FairFace, RN50, held-out halves) the skew that it
    left was above that of no edit, .36 for .33, with .24 on the images that it was fitted to.

    Args:
        hidden: width of the residual. keep: weight of the residual's length. steps, ahead: as above.
        batch: images of a step. seed: of everything that is drawn.
    """

    name, title, source = "dear", "additive residual (as DeAR)", "Seth et al., 2023"
    color, pipelines, side, listed = "#8c564b", False, "image", False
    needs = frozenset({Need.LABELS, Need.VALUES, Need.TRAINING})

    def __init__(
        self, hidden: int = 128, keep: float = 20.0, steps: int = 200, ahead: int = 3, batch: int = 128, seed: int = 0
    ) -> None:
        self.hidden, self.keep, self.steps, self.ahead = hidden, keep, steps, ahead
        self.batch, self.seed = batch, seed

    def fit(self, problem: Problem, role: str) -> Edit:
        """The trained residual."""
        images = labelled(problem, role)
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            torch.manual_seed(self.seed)
            codes, sizes = [code.clone() for code in images.codes], [len(values) for values in images.values]
            return self._trained(images.rows.float(), codes, sizes)

    def _trained(self, rows: Tensor, codes: list[Tensor], sizes: list[int]) -> Residual:
        width = rows.shape[1]
        down, up = nn.Linear(width, self.hidden), nn.Linear(self.hidden, width, bias=False)
        nn.init.zeros_(up.weight)
        heads = nn.ModuleList([nn.Linear(width, size) for size in sizes])
        against = torch.optim.AdamW(heads.parameters(), lr=1e-3, weight_decay=0.1)
        learner = torch.optim.Adam([*down.parameters(), *up.parameters()], lr=1e-3)
        optimizer: torch.optim.Optimizer
        scale = width**0.5  # an adversary of unit rows would start with outputs that are all alike
        for step in range(self.steps * (self.ahead + 1)):
            chosen = torch.randint(len(rows), (self.batch,))
            x = rows[chosen]
            residual = up(torch.tanh(down(x)))
            seen = scale * normalize(x + residual, dim=1)
            own = [code[chosen] for code in codes]
            if step % (self.ahead + 1) < self.ahead:
                losses = [cross_entropy(head(seen), c, ignore_index=-1) for head, c in zip(heads, own, strict=True)]
                optimizer = against
            else:
                even = [-log_softmax(head(seen), 1).mean() / len(heads) for head in heads]
                losses = [*even, self.keep * residual.square().sum(1).mean()]
                optimizer = learner
            against.zero_grad()
            learner.zero_grad()
            torch.stack(losses).sum().backward()
            optimizer.step()
        return Residual(down.weight.detach(), down.bias.detach(), up.weight.detach())


register_method(DeAR())
