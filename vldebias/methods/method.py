"""Define methods, the problems that they are fitted to, and the registry of all methods.

Register your own method with `register_method`, or as an entry point of the group
"vldebias.methods": every command, evaluator and page then accepts its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edits.edit import Edit
from vldebias.edits.projection import CalibratedProjection
from vldebias.errors import (
    ClassSignalWarning,
    InvalidInputError,
    UnsupportedHostError,
    WideEditWarning,
    warn,
)
from vldebias.hosts import Host, resolve
from vldebias.methods.bounded import bounded
from vldebias.methods.reference import Reference
from vldebias.prompts import PromptSet, load_prompts
from vldebias.registry import Registry

LAM_OF_MODELS = 1000.0  # Table 7.3: all experiments on discriminative models
LAM_OF_PIPELINES = 500.0  # sections 7.5 and 7.6: equalisation without P0
WIDE = (
    1 / 4 * 1 / 10
)  # share of a space whose loss changes other prompts: a quarter of it shrunk by a tenth

Prompts = str | Path | PromptSet | Sequence[str | Path | PromptSet]


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
        name: identifier for users. title: label in reports. source: paper and equation. color: of
            its bars in plots.
        needs: see `Need`. has_lam: whether it takes `lam`, a weight of the prompt pairs.
        pipelines, models: whether it is for text-to-image pipelines, and for image-text models.
        side: which embeddings of an image-text model its edits change (`Edit.side`).
        delegates: its edits carry the name of another method, which it chose or wraps.
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

    @abstractmethod
    def fit(self, problem: Problem, role: str) -> Edit:
        """Fit the edit for one role of the problem's host; `Problem.fit` calls it and adds the
        provenance."""

    def check(self, problem: Problem) -> None:
        """Refuse a problem with the wrong kind of host or without required inputs, before anything
        is embedded.

        Raises:
            UnsupportedHostError, InvalidInputError: the message says what to do.
        """
        host = problem.host
        if not (self.pipelines if host.generative else self.models):
            kinds = (
                ("image-text models", "method='cali'")
                if host.generative
                else ("pipelines", "another method")
            )
            raise UnsupportedHostError(
                f"{host.name}: method {self.name!r} is only for {kinds[0]}; use {kinds[1]}"
            )
        if Need.SPURIOUS in self.needs and not any(one.spurious for one in problem.attributes):
            raise InvalidInputError(
                f"{problem.label}: method {self.name!r} needs spurious prompts, and the set has"
                " none; use method='cali'"
            )
        for prompts in problem.attributes if Need.VALUES in self.needs else ():
            prompts.by_value()
        if self.needs & {Need.IMAGES, Need.LABELS} and problem.reference is None:
            labels = (
                ", with labels= or the model's own zero-shot labels"
                if Need.LABELS in self.needs
                else ""
            )
            raise InvalidInputError(
                f"method {self.name!r} needs images: pass reference=, image features (n, d) of this"
                f" model{labels}"
            )

    def with_images(self) -> Method:
        """Return the method for a problem with reference images; closed forms get a term of the
        image means."""
        return self

    @property
    def uses_images(self) -> bool:
        """Return whether it is fitted to reference images, labelled or not."""
        return bool(self.needs & {Need.IMAGES, Need.LABELS})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self, 'name', None)!r})"


METHODS: Registry[Method] = Registry("method", "vldebias.methods", Method)
register_method = METHODS.register
"""Register a method under its name for every command, evaluator and page of this process; return
it."""


def get_method(method: str | Method | None, *, lam: Any = None, reference: Any = None) -> Method:
    """Return the method for the arguments of `debias` and `evaluate`: by its name, itself, or the
    default for None.

    Raises:
        InvalidInputError: no method of this name; or a lam for a method that takes none.
    """
    chosen = (
        method
        if isinstance(method, Method)
        else METHODS["default" if method is None else str(method)]
    )
    if lam is not None and (method is None or not chosen.has_lam):
        having = ", ".join(name for name, one in METHODS.items() if one.has_lam)
        of = "no method is named" if method is None else f"method {chosen.name!r} takes no lam"
        raise InvalidInputError(f"lam={lam!r}: {of}; name a method that takes one: {having}")
    return chosen if reference is None else chosen.with_images()


@dataclass(eq=False)
class Problem:
    """Hold the input of a method: a host, prompt sets, and optionally images.

    Args:
        host: a model, a pipeline, a `Host`, which embeds every prompt once, or a mapping from
            prompt to embedding.
        sets: prompt sets or their names, solved jointly. label: their joined names. stated_words:
            of all of them.
        lam: weight of the prompt pairs, one or one per set; None: the method's default.
        reference: images, with labels or without, as features or a `Reference`.
        max_loss: the most that a neutral text may lose, 1 - its cosine with itself afterwards.
        neutral: texts that do not state the attribute; none: the class prompts of the sets.

    Attributes:
        attributes: one set per attribute: a set over several attributes is solved as its parts, one
            term each.

    Raises:
        InvalidInputError: no prompt set, images that the host cannot use, or a bound outside [1e-6,
            1).
    """

    host: Any
    sets: Any
    _: KW_ONLY
    lam: Any = None
    reference: Any = None
    max_loss: float | None = None
    neutral: Sequence[str] = ()

    def __post_init__(self) -> None:
        host: Host = resolve(self.host)
        if self.reference is not None and host.generative:
            raise InvalidInputError(
                f"{host.name}: reference= needs images and texts in one embedding space, which a"
                " pipeline lacks; use method='cali', which needs prompts alone"
            )
        sets = tuple(
            map(load_prompts, self.sets if isinstance(self.sets, (list, tuple)) else [self.sets])
        )
        if not sets:
            raise InvalidInputError("prompts: expected at least one prompt set, got an empty list")
        if self.max_loss is not None and not (
            isinstance(self.max_loss, float) and 1e-6 <= self.max_loss < 1
        ):
            raise InvalidInputError(
                f"max_loss: expected a number in [1e-6, 1), such as 0.02, got {self.max_loss!r}"
            )
        if not isinstance(self.reference, Reference | None):
            self.reference = Reference(self.reference, labels=getattr(self.reference, "labels", {}))
        self.host, self.sets, self.lam = (
            host,
            sets,
            tuple(self.lam) if isinstance(self.lam, list) else self.lam,
        )
        self.label = "+".join(one.name for one in sets)
        self.attributes = tuple(part for one in sets for part in one.parts or (one,))
        self.stated_words = tuple(dict.fromkeys(word for one in sets for word in one.stated_words))
        classes = dict.fromkeys(
            text for one in sets for text in (*one.classes, *one.held_out_classes)
        )
        self.neutral = tuple(self.neutral or classes)

    def zero_shot(self, prompt_set: PromptSet, role: str) -> Tensor:
        """Return zero-shot classifier weights (a, d): the mean text of each value of an attribute,
        at length 1."""
        means = [self.host.embed(texts, role).mean(0) for texts in prompt_set.by_value().values()]
        return normalize(torch.stack(means), dim=1)

    def fit(self, method: str | Method, role: str) -> Edit:
        """Fit the edit of `method` for `role` within the bound, and record its provenance.

        Raises:
            InvalidInputError, UnsupportedHostError: the method refuses the problem, or a bound is
                set and the edit is not a projection.

        Warns:
            ClassSignalWarning: it removes more than half of the distance between the classes.
            WideEditWarning: it removes more of a pipeline's text states than shrinking a quarter of
                all directions by a tenth would.
        """
        chosen = get_method(method)
        host = self.host
        chosen.check(self)
        if self.max_loss is not None and not self.neutral:
            raise InvalidInputError(
                f"{self.label}: max_loss needs class prompts, and the set has none; add some"
            )
        edit: Edit = chosen.fit(self, role)
        origin: dict[str, Any] = {} if chosen.delegates else {"method": chosen.name}
        if self.max_loss is not None:
            edit = bounded(edit.stamped(**origin), host.embed(self.neutral, role), self.max_loss)
            origin = {"max_loss": self.max_loss}
        if Need.LABELS in chosen.needs:
            origin |= {
                "uses_images": True,
                "labels": "given" if self.reference.labels else "zero-shot",
            }
        edit = edit.stamped(
            space=host.space(role),
            model_id=host.model_id,
            fingerprint=host.fingerprint(role),
            image_fingerprint=host.image_fingerprint,
            prompts=self.label,
            prompts_hash="+".join(one.hash for one in self.sets),
            stated_words=self.stated_words,
            **origin,
        )
        if not isinstance(edit, CalibratedProjection) or not edit.left.numel():
            return edit
        for prompts in (one for one in self.sets if len(one.classes) > 1):
            kept, cosine = class_signal(host.embed(prompts.classes, role), edit)
            if kept is not None and kept < 0.5:
                instead = "method='cali', " if edit.spurious_rank else ""
                warn(
                    f"{prompts.name}: {edit.method} keeps {kept:.0%} of the distance between the"
                    f" classes and a cosine of {cosine:.2f} between a class prompt and its"
                    f" projection; compare accuracy before and after, or use {instead}a smaller lam"
                    " or strength",
                    ClassSignalWarning,
                )
        most = WIDE * edit.dim
        if host.generative and edit.removed > max(
            most, 2 * len(self.attributes) + 0.5
        ):  # some two for an attribute
            warn(
                f"{edit.method} removes {edit.removed:.1f} of {edit.dim} directions, more than"
                f" {most:.1f}: other prompts, such as 'A photo of a good person.', may generate"
                " something else. Generate some to check, or lower lam, fit fewer pairs, or use"
                " method='difference'",
                WideEditWarning,
            )
        return edit


def class_signal(classes: Tensor, edit: Edit) -> tuple[float | None, float]:
    """Return the share of the distance between classes (k, d) that is left, None if it was 0, and
    their mean cosine."""
    before, after = (float(torch.pdist(rows).sum()) for rows in (classes, edit(classes)))
    return after / before if before else None, float(
        torch.cosine_similarity(classes, edit(classes), dim=-1).mean()
    )
