"""Define re-rankings, which act on the results of a search, for lists of methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vldebias.methods.declared import Declaration, reranking_declaration
from vldebias.methods.method import Method, get_method


@dataclass(frozen=True)
class Rerank:
    """Re-rank results to even shares, or to the gallery's shares, by the model's zero-shot labels.

    Nothing is attached to a model: `vldebias.rerank` does it, and `vldebias.evaluate` compares it
    with methods that edit queries.

    Args:
        edit: name of the method that edits the queries first, "none" to leave them unchanged.
        order: see `vldebias.rerank`.
    """

    edit: str = "none"
    order: Literal["quota", "fair"] = "quota"

    @property
    def declaration(self) -> Declaration:
        """Return name, title, source and needs, including those of the edit."""
        return reranking_declaration(get_method(self.edit).declaration, self.order)

    @property
    def name(self) -> str:
        """Return "rerank", after the name of the edit and before an order other than the quota."""
        return self.declaration.name

    def with_images(self) -> Rerank:
        """Return the re-ranking whose edit is fitted to reference images."""
        return Rerank(get_method(self.edit).with_images().name, self.order)


Compared = Method | Rerank
"""A method or a re-ranking, which evaluations compare."""

RERANKINGS = {
    reranking.name: reranking for reranking in (Rerank(), Rerank(order="fair"), Rerank("default"))
}
"""Name -> re-ranking, for evaluations."""


def get_compared(method: str | Compared | None, *, reference: object = None) -> Compared:
    """Return a method or re-ranking for an evaluation, by its name or itself.

    Args:
        method: a method or a re-ranking, or the name of one; None: the default.
        reference: reference images; with them, the method's form for images is returned.

    Raises:
        InvalidInputError: there is no method of this name.
    """
    if isinstance(method, str) and method in RERANKINGS:
        method = RERANKINGS[method]
    if isinstance(method, Rerank):
        return method if reference is None else method.with_images()
    return get_method(method, reference=reference)
