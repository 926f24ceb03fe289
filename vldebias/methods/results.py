"""Name what acts on the results of a search, so that lists of methods can hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from vldebias.errors import InvalidInputError
from vldebias.methods.method import Method, Need, Problem, get_method, register_method


@dataclass(frozen=True, repr=False)
class Rerank(Method):
    """Re-rank results to even shares, or those of the gallery, by the model's zero-shot labels.

    Only a search has results: `vldebias.evaluate` measures it beside edits of queries, and
    `vldebias.rerank` does it.

    Args:
        edit: name of the method that edits the queries before, "none" for the queries as they are.
        order: "quota" or "fair", see `vldebias.rerank`.
    """

    edit: str = "none"
    order: str = "quota"
    pipelines = False
    color = "#7b5ea7"

    @property
    def name(self) -> str:  # type: ignore[override]
        """Return "rerank", with the edit before it and an order other than the quota after it."""
        name = "rerank" if self.order == "quota" else f"rerank-{self.order}"
        return name if self.edit == "none" else f"{self.edit}+{name}"

    @property
    def title(self) -> str:  # type: ignore[override]
        """Return the label in reports."""
        title = "re-ranked results" if self.order == "quota" else "results re-ranked by FA*IR"
        return title if self.edit == "none" else f"{self.edit}, then {title}"

    @property
    def source(self) -> str:  # type: ignore[override]
        """Return the source of the order."""
        origin = "this package" if self.order == "quota" else "Zehlike et al., 2017"
        return f"{origin}; vldebias.rerank"

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """Return what the edit needs, and words for the values."""
        return frozenset({Need.VALUES}) | get_method(self.edit).needs

    def with_images(self) -> Rerank:
        """Return the method for problems with reference images, which its edit is fitted to."""
        return Rerank(get_method(self.edit).with_images().name, self.order)

    def fit(self, problem: Problem, role: str) -> NoReturn:
        """Raise an error, because there is no edit to fit."""
        raise InvalidInputError(
            f"method {self.name!r} changes no model: it acts on the results of a search; use"
            " vldebias.rerank(scores, k, features=..., prompts=..., model=...)"
        )


register_method(Rerank())
register_method(Rerank(order="fair"))
register_method(Rerank("default"))
