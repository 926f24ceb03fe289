"""Define the base class of methods, and the registry of all methods.

Register your own method with `register_method`, or as an entry point of the group "vldebias.methods": every command,
evaluator and page then accepts its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.registry import Registry

if TYPE_CHECKING:
    from vldebias.methods.problem import Problem

LAM_OF_MODELS = 1000.0  # Table 7.3: all experiments on discriminative models
LAM_OF_PIPELINES = 500.0  # sections 7.5 and 7.6: equalisation without P0


class Need(StrEnum):
    """List the inputs that a method may require."""

    SPURIOUS = "spurious prompts"
    PAIRS = "prompt pairs"
    VALUES = "words for each value"
    IMAGES = "unlabelled images"
    LABELS = "labelled images"


class Method(ABC):
    """Fit an edit to a problem.

    Attributes:
        name: identifier for users. title: label in reports. source: paper and equation.
        color: matplotlib colour of its bars and lines.
        needs: see `Need`. has_lam: whether it takes `lam`, a weight of the prompt pairs.
        pipelines, models: whether it is for text-to-image pipelines, and for image-text models.
        side: which embeddings of an image-text model its edits change (`Edit.side`).
        delegates: its edits carry the name of another method, which it chose or wraps.
        rewrites: it rewrites the prompts of a pipeline and has no edit of embeddings.
    """

    name: str
    title: str = ""
    source: str = ""
    color: str = "0.5"
    needs: frozenset[Need] = frozenset()
    has_lam: bool = False
    pipelines: bool = True
    models: bool = True
    delegates: bool = False
    side: str = "text"
    rewrites: bool = False

    @abstractmethod
    def fit(self, problem: Problem, role: str) -> Edit:
        """Fit the edit for one role of the problem's host; `Problem.fit` calls it and adds the provenance."""

    def check(self, problem: Problem) -> None:
        """Refuse a problem with the wrong kind of host or without required inputs, before anything is embedded.

        Raises:
            UnsupportedHostError, InvalidInputError, PromptSetError: the message says what to do.
        """
        host, sets = problem.host, problem.attributes
        if host.generative and not self.pipelines:
            raise UnsupportedHostError(
                f"{host.name}: method {self.name!r} is for image-text models, where images are ranked; for pipelines "
                "use 'cali'"
            )
        if not host.generative and not self.models:
            raise UnsupportedHostError(
                f"{host.name} generates no images; method {self.name!r} is for pipelines, and vldebias.fit_shares for "
                "retrieval"
            )
        if Need.SPURIOUS in self.needs and not any(s.spurious for s in sets):
            raise InvalidInputError(
                f"{problem.label}: P0 needs spurious prompts and the set has none; use method='cali'"
            )
        if Need.VALUES in self.needs:
            for prompts in sets:
                prompts.by_value()
        if self.uses_images and problem.reference is None:
            need = Need.LABELS if Need.LABELS in self.needs else Need.IMAGES
            labels = ", with labels= or the model's own zero-shot labels" if need is Need.LABELS else ""
            raise InvalidInputError(
                f"method {self.name!r} uses {need}: pass reference=, image features (n, d) of this model{labels}"
            )

    def settings(self) -> dict[str, Any]:
        """Return the settings that distinguish it from other methods of its name, as plain values for JSON."""
        return {}

    @property
    def uses_images(self) -> bool:
        """Return whether it is fitted to reference images, labelled or not."""
        return bool(self.needs & {Need.IMAGES, Need.LABELS})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self, 'name', None)!r})"


METHODS: Registry[Method] = Registry("method", "vldebias.methods", Method)


def register_method(method: Method) -> Method:
    """Register a method under its name for every command, evaluator and page of this process; return it.

    Raises:
        InvalidInputError: it is not a Method, attributes are missing, or the name is taken.
    """
    return METHODS.register(method)


def get_method(method: Any) -> Method:
    """Return a method by its name; a Method comes back unchanged.

    Raises:
        InvalidInputError: no method of this name; the message lists them.
    """
    return method if isinstance(method, Method) else METHODS.named(method)
