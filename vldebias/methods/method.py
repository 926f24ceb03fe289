"""Define methods, the problems that they are fitted to, and the registry of all methods.

Register your own method with `register_method`, or as an entry point of the group
"vldebias.methods": every command, evaluator and page then accepts its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import (
    ClassSignalWarning,
    InvalidInputError,
    UnsupportedHostError,
    WideEditWarning,
    warn,
)
from vldebias.hosts import resolve
from vldebias.methods.bounded import bounded
from vldebias.methods.reference import Reference
from vldebias.projection.edit import Edit
from vldebias.projection.projection import CalibratedProjection
from vldebias.prompts import PromptSet, load_prompts
from vldebias.utils.registry import Registry

LAM_OF_MODELS = 1000.0  # Table 7.3: all experiments on discriminative models
LAM_OF_PIPELINES = 500.0  # sections 7.5 and 7.6: equalisation without P0
# Share of a space whose loss changes other prompts: a quarter of it, shrunk by a tenth.
WIDE = 1 / 4 * 1 / 10
# So many directions for each attribute are never called wide: some two hold its values.
NARROW = 2
# Warn where less than this share of the distance between classes is kept.
CLASS_SIGNAL_KEPT = 0.5

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
        if host.generative and not self.pipelines:
            raise UnsupportedHostError(
                f"{host.name}: method {self.name!r} is only for image-text models; use"
                " method='cali'"
            )
        if not host.generative and not self.models:
            raise UnsupportedHostError(
                f"{host.name}: method {self.name!r} is only for pipelines; use another method"
            )
        if Need.SPURIOUS in self.needs and not any(part.spurious for part in problem.attributes):
            raise InvalidInputError(
                f"{problem.label}: method {self.name!r} needs spurious prompts, and the set has"
                " none; use method='cali'"
            )
        if Need.VALUES in self.needs:
            for prompt_set in problem.attributes:
                prompt_set.by_value()  # raises where the set names no values
        if self.uses_images and problem.reference is None:
            labels = ""
            if Need.LABELS in self.needs:
                labels = ", with labels= or the model's own zero-shot labels"
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
    if isinstance(method, Method):
        chosen = method
    elif method is None:
        chosen = METHODS["default"]
    else:
        chosen = METHODS[str(method)]
    # The default chooses its own lam, and would ignore one that is passed.
    if lam is not None and method is None:
        _refuse_lam(lam, "no method is named")
    if lam is not None and not chosen.has_lam:
        _refuse_lam(lam, f"method {chosen.name!r} takes no lam")
    if reference is None:
        return chosen
    return chosen.with_images()


def _refuse_lam(lam: Any, reason: str) -> NoReturn:
    """Raise InvalidInputError for a lam that the method does not take; name those that take one."""
    names = [name for name, method in METHODS.items() if method.has_lam]
    raise InvalidInputError(
        f"lam={lam!r}: {reason}; name a method that takes one: {', '.join(names)}"
    )


@dataclass(eq=False)
class Problem:
    """Hold the input of a method: a host, prompt sets, and optionally images.

    Args:
        host: a model, a pipeline, a `Host`, which embeds every prompt once, or a mapping from
            prompt to embedding.
        sets: prompt sets or their names, solved jointly. label: their joined names. stated_words:
            of all of them.
        lam: weight of the prompt pairs, one or one per set, which all attributes of the set get;
            None: the method's default.
        reference: images, with labels or without, as features or a `Reference`.
        max_loss: the most that a neutral text may lose, 1 - its cosine with itself afterwards.
        neutral: texts that do not state the attribute; none: the class prompts of the sets.

    Attributes:
        attributes: one set per attribute: a set over several attributes is solved as its parts, one
            term each.

    Raises:
        InvalidInputError: no prompt set, or one twice; weights for another number of sets, images
            that the host cannot use, or a bound outside [1e-6, 1).
    """

    host: Any
    sets: Any
    _: KW_ONLY
    lam: Any = None
    reference: Any = None
    max_loss: float | None = None
    neutral: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.host = resolve(self.host)
        names = self.sets if isinstance(self.sets, (list, tuple)) else [self.sets]
        if not names:
            raise InvalidInputError("prompts: expected at least one prompt set, got an empty list")
        self.sets = tuple(load_prompts(name) for name in names)
        self._check_reference_and_bound()
        if hasattr(self.lam, "tolist"):  # a tensor or an ndarray
            self.lam = self.lam.tolist()
        if isinstance(self.lam, list):
            self.lam = tuple(self.lam)
        if isinstance(self.lam, tuple) and len(self.lam) != len(self.sets):
            raise InvalidInputError(
                f"lam: expected one value or one per prompt set ({len(self.sets)}), got {self.lam}"
            )
        self.label = "+".join(prompt_set.name for prompt_set in self.sets)

        # What all sets hold together, each word and text once, in the order of the sets.
        attributes: list[PromptSet] = []
        stated_words: dict[str, None] = {}
        class_prompts: dict[str, None] = {}
        hashes: list[str] = []
        for prompt_set in self.sets:
            # Its pairs would count twice.
            if prompt_set.hash in hashes:
                raise InvalidInputError(
                    f"prompts: got the prompt set {prompt_set.name!r} twice in {self.label!r};"
                    " expected each set once"
                )
            hashes.append(prompt_set.hash)
            # "fairface" is gender, race and age: one term each, or the one of most pairs decides.
            attributes += prompt_set.parts or [prompt_set]
            stated_words |= dict.fromkeys(prompt_set.stated_words)
            class_prompts |= dict.fromkeys(prompt_set.classes)
            class_prompts |= dict.fromkeys(prompt_set.held_out_classes)
        self.attributes = tuple(attributes)
        self.stated_words = tuple(stated_words)
        self.neutral = tuple(self.neutral or class_prompts)

    def _check_reference_and_bound(self) -> None:
        """Refuse images that the host cannot use and a bound outside its range; read features as a
        `Reference`."""
        if self.reference is not None and self.host.generative:
            raise InvalidInputError(
                f"{self.host.name}: reference= needs images and texts in one embedding space, which"
                " a pipeline lacks; use method='cali', which needs prompts alone"
            )
        is_bound = isinstance(self.max_loss, Real) and 1e-6 <= self.max_loss < 1
        if self.max_loss is not None and not is_bound:
            raise InvalidInputError(
                f"max_loss: expected a number in [1e-6, 1), such as 0.02, got {self.max_loss!r}"
            )
        if not isinstance(self.reference, Reference | None):
            self.reference = Reference(self.reference, labels=getattr(self.reference, "labels", {}))

    @property
    def weight(self) -> Any:
        """Return the weight of the prompt pairs, `lam` or that of the paper; where `lam` has one
        per set, a tuple with one per attribute."""
        if self.lam is None:
            return LAM_OF_PIPELINES if self.host.generative else LAM_OF_MODELS
        if not isinstance(self.lam, tuple):
            return self.lam
        weights = list[Any]()
        for prompt_set, lam in zip(self.sets, self.lam, strict=True):
            weights += [lam] * len(prompt_set.parts or [prompt_set])
        return tuple(weights)

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
        chosen.check(self)
        if self.max_loss is not None and not self.neutral:
            raise InvalidInputError(
                f"{self.label}: max_loss needs class prompts, and the set has none; add some"
            )
        edit: Edit = chosen.fit(self, role)
        # A preset leaves the name of the method that it chose.
        if not chosen.delegates:
            edit = edit.with_provenance(method=chosen.name)
        if self.max_loss is not None:
            neutral_rows = self.host.embed(self.neutral, role)
            edit = bounded(edit, neutral_rows, self.max_loss)
            edit = edit.with_provenance(max_loss=float(self.max_loss))
        if Need.LABELS in chosen.needs:
            labels = "given" if self.reference.labels else "zero-shot"
            edit = edit.with_provenance(uses_images=True, labels=labels)
        edit = edit.with_provenance(
            space=self.host.space(role),
            model_id=self.host.model_id,
            fingerprint=self.host.fingerprint(role),
            image_fingerprint=self.host.image_fingerprint,
            prompts=self.label,
            prompts_hash="+".join(prompt_set.hash for prompt_set in self.sets),
            stated_words=self.stated_words,
        )
        # Rewritten prompts and per-query edits have no one matrix to say this of.
        if isinstance(edit, CalibratedProjection) and edit.left.numel():
            self._warn_of_losses(edit, role)
        return edit

    def _warn_of_losses(self, edit: CalibratedProjection, role: str) -> None:
        """Warn of each set whose classes lose half of their distance or more, and of an edit of a
        pipeline that removes so much of the space that other prompts change."""
        for prompt_set in self.sets:
            if len(prompt_set.classes) < 2:
                continue
            kept, cosine = class_signal(self.host.embed(prompt_set.classes, role), edit)
            if kept is None or kept >= CLASS_SIGNAL_KEPT:
                continue
            instead = "method='cali', " if edit.spurious_rank else ""
            warn(
                f"{prompt_set.name}: {edit.method} keeps {kept:.0%} of the distance between the"
                f" classes and a cosine of {cosine:.2f} between a class prompt and its"
                f" projection; compare accuracy before and after, or use {instead}a smaller lam"
                " or strength",
                ClassSignalWarning,
            )
        wide = WIDE * edit.dim
        # Half a direction more, for what shrinks without being removed.
        narrow = NARROW * len(self.attributes) + 0.5
        if self.host.generative and edit.removed > max(wide, narrow):
            warn(
                f"{edit.method} removes {edit.removed:.1f} of {edit.dim} directions, more than"
                f" {wide:.1f}: other prompts, such as 'A photo of a good person.', may generate"
                " something else. Generate some to check, or lower lam, fit fewer pairs, or use"
                " method='difference'",
                WideEditWarning,
            )


def class_signal(classes: Tensor, edit: Edit) -> tuple[float | None, float]:
    """Return the share of the distance between classes (k, d) that is left, None if it was 0, and
    their mean cosine."""
    edited = edit(classes)
    cosine = float(torch.cosine_similarity(classes, edited, dim=-1).mean())
    # Over all pairs of classes.
    distance_before = float(torch.pdist(classes).sum())
    if not distance_before:
        return None, cosine
    return float(torch.pdist(edited).sum()) / distance_before, cosine
