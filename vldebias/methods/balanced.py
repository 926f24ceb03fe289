"""Balance the prompts of a pipeline before they are encoded: state a sampled value in the prompt of each image.

The model itself stays biased, and stereotypes that it associates with a stated value appear with the word.
`vldebias.balance_prompts` writes the same prompts for pipelines that cannot be attached to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

from vldebias.errors import InvalidInputError
from vldebias.methods.method import Method, Need, Problem, Prompts, register_method
from vldebias.prompts import Balancer

NO_EDIT = (
    "balanced prompts are prompts, not an edit of embeddings, so there is nothing to fit, inspect, save or merge; "
    "method='cali' fits an edit, and vldebias.balance_prompts writes the prompts"
)


class Balanced(Method):
    """State a sampled value of the attribute in the prompt of each image of a pipeline.

    Args:
        shares: value -> share of the images; None: even shares. seed: of the sampling.
        find: prompt -> character offset at which the words are written, or None to leave it alone; by default the
            subject is found by grammar (`vldebias.balance_prompts`).
    """

    name, title, source = "balanced-prompts", "values stated in the prompts", "prompt augmentation; this package"
    color, needs, models, rewrites = "#31708f", frozenset({Need.VALUES}), False, True

    def __init__(
        self,
        *,
        shares: Mapping[str, float] | None = None,
        seed: int = 0,
        find: Callable[[str], int | None] | None = None,
    ) -> None:
        self.shares, self.seed, self.find = shares, seed, find

    def balancer(self, prompts: Prompts) -> Balancer:
        """Return a `Balancer` that rewrites the prompts of successive calls."""
        return Balancer(prompts, shares=self.shares, seed=self.seed, find=self.find)

    def fit(self, problem: Problem, role: str) -> NoReturn:
        """Raise an error, because balanced prompts have no edit to fit."""
        raise InvalidInputError(f"method {self.name!r}: {NO_EDIT}")


register_method(Balanced())
