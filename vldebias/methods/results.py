"""Name what acts on the results of a search, so that lists of methods can include it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vldebias.methods.declared import Declaration, of_reranking
from vldebias.methods.method import Method, get_method


@dataclass(frozen=True)
class Rerank:
    """Re-rank results to even shares, or those of the gallery, by the model's zero-shot labels.

    Nothing is attached to a model: `vldebias.evaluate` compares it with methods that edit queries,
    and `vldebias.rerank` does it.

    Args:
        edit: name of the method that edits the queries before, "none" for the queries as they are.
        order: see `vldebias.rerank`.
    """

    edit: str = "none"
    order: Literal["quota", "fair"] = "quota"

    @property
    def declaration(self) -> Declaration:
        """Return name, title, source and needs, those of the edit included."""
        return of_reranking(get_method(self.edit).declaration, self.order)

    @property
    def name(self) -> str:
        """Return "rerank", with the edit before it and an order other than the quota after it."""
        return self.declaration.name

    def with_images(self) -> Rerank:
        """Return the re-ranking whose edit is fitted to reference images."""
        return Rerank(get_method(self.edit).with_images().name, self.order)


Compared = Method | Rerank
"""What an evaluation compares."""

RERANKINGS = {
    reranking.name: reranking for reranking in (Rerank(), Rerank(order="fair"), Rerank("default"))
}
"""Name -> re-ranking, for evaluations."""


def get_compared(method: str | Compared | None, *, reference: object = None) -> Compared:
    """Return what an evaluation compares, by its name or itself.

    Args:
        method: a method or a re-ranking, or the name of one; None: the default.
        reference: reference images; if there are any, the form of the method for them is returned.

    Raises:
        InvalidInputError: there is no method of this name.
    """
    if isinstance(method, str) and method in RERANKINGS:
        method = RERANKINGS[method]
    if isinstance(method, Rerank):
        return method if reference is None else method.with_images()
    return get_method(method, reference=reference)
