"""Define re-rankings, which are listed and evaluated like methods but act on search results."""

from __future__ import annotations

from dataclasses import dataclass

from vldebias.methods.declared import Declaration, reranking_declaration
from vldebias.methods.method import Method, get_method


@dataclass(frozen=True)
class Rerank:
    """Re-rank results to the groups' shares in the gallery, using predicted groups.

    Nothing is attached to a model. `vldebias.rerank` performs the re-ranking, and
    `vldebias.evaluate` compares it with methods that edit queries.

    Args:
        edit: name of the method that edits the queries first, or "none" to leave them unchanged.
    """

    edit: str = "none"

    @property
    def declaration(self) -> Declaration:
        """Return the re-ranking's declaration, which also depends on the edit."""
        return reranking_declaration(get_method(self.edit).declaration)

    @property
    def name(self) -> str:
        """Return the name, such as "rerank" or "difference+rerank"."""
        return self.declaration.name

    def with_images(self) -> Rerank:
        """Return this re-ranking with its edit fitted to reference images."""
        return Rerank(get_method(self.edit).with_images().name)


Compared = Method | Rerank
"""A method or re-ranking that evaluations compare."""

RERANKINGS = {reranking.name: reranking for reranking in (Rerank(), Rerank("default"))}
"""The re-rankings for evaluations, by name."""


def get_compared(method: str | Compared | None, *, reference: object = None) -> Compared:
    """Return a method or re-ranking for an evaluation, given by name or as an object.

    Args:
        method: a method or re-ranking, or its name. If None, the default is used.
        reference: reference images. If passed, the method's variant for images is returned.

    Raises:
        InvalidInputError: If no method has this name.
    """
    if isinstance(method, str) and method in RERANKINGS:
        method = RERANKINGS[method]
    if isinstance(method, Rerank):
        return method if reference is None else method.with_images()
    return get_method(method, reference=reference)
