"""Name what acts on the results of a search, so that lists of methods can hold it."""

from __future__ import annotations

from typing import NoReturn

from vldebias.errors import InvalidInputError
from vldebias.methods.method import Method, Need, Problem, register_method


class Rerank(Method):
    """Re-rank results to even shares, or those of the gallery, by the model's zero-shot labels.

    Only a search has results: `vldebias.evaluate` measures it beside edits of queries, and
    `vldebias.rerank` does it.
    """

    name = "rerank"
    title = "re-ranked results"
    source = "this package; vldebias.rerank"
    color = "#7b5ea7"
    needs = frozenset({Need.VALUES})
    pipelines = False
    acts_on_results = True

    def fit(self, problem: Problem, role: str) -> NoReturn:
        """Raise an error, because there is no edit to fit."""
        raise InvalidInputError(
            f"method {self.name!r} changes no model: it acts on the results of a search; use"
            " vldebias.rerank(scores, k, features=..., prompts=..., model=...)"
        )


register_method(Rerank())
