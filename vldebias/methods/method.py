"""What a method is, which ones there are, and the problem that it is given.

A method of your own is an object with the attributes of `Method` and `fit`; register it with `register_method`, or name
it as an entry point of the group "vldebias.methods", and every command, evaluator and page takes it by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias import gone
from vldebias.edit import Edit
from vldebias.errors import (
    ClassSignalWarning,
    InvalidInputError,
    UnsupportedHostError,
    WideEditWarning,
    warn,
)
from vldebias.hosts import Host, resolve
from vldebias.hosts.side import IMAGE, TEXT, roles_of
from vldebias.methods.bound import Bound
from vldebias.methods.boundary import Boundary
from vldebias.methods.diagnostics import Diagnostics, class_cosine, signal_kept, text_diagnostics
from vldebias.methods.reference import Reference
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet, load_prompts
from vldebias.registry import Registry

Prompts = str | Path | PromptSet | Sequence[str | Path | PromptSet]

LAM_OF_MODELS = 1000.0  # Table 7.3: all experiments on discriminative models
LAM_OF_PIPELINES = 500.0  # sections 7.5 and 7.6: equalisation without P0
WIDE = 1 / 4 * 1 / 10  # share of a space whose loss changes other prompts: a quarter of it shrunk by a tenth


class Need(StrEnum):
    """What a method cannot do without."""

    SPURIOUS = "spurious prompts"
    PAIRS = "prompt pairs"
    VALUES = "words for each value"
    IMAGES = "unlabelled images"
    LABELS = "labelled images"
    JUDGED = "judged images"
    TRAINING = "training"


class Method(ABC):
    """How an edit is fitted to a problem.

    Attributes:
        name: by which it is asked for. title: what a report calls it. source: paper and equation.
        color: of its bars and lines, as matplotlib reads it.
        needs: see `Need`. has_lam: whether a weight of the prompt pairs changes it. own_lam: whether it has one of its
            own, which the one lam that an evaluation gives all its methods does not replace.
        pipelines, models: whether it is for text-to-image pipelines, and for image-text models.
        side: what of an image-text model its edits act on (`Edit.side`).
        delegates: its edits carry the name of another method, which it chose or wraps.
        listed: whether `vldebias methods` shows it without --all; not what another of the list does as well or better.
    """

    name: str
    title: str
    source: str
    color: str = "0.5"
    needs: frozenset[Need] = frozenset()
    has_lam: bool = False
    own_lam: bool = False
    pipelines: bool = True
    models: bool = True
    delegates: bool = False
    side: str = "text"
    listed: bool = True

    @abstractmethod
    def fit(self, problem: Problem, role: str) -> Edit:
        """The edit for one role of the problem's host; `Problem.fit` calls it and fills in where it belongs.

        Raises:
            InvalidInputError, PromptSetError: the problem lacks what the method needs.
        """

    def check(self, problem: Problem) -> None:
        """Refuse a problem of the wrong kind of host, or without what the method needs, before anything is embedded.

        Raises:
            UnsupportedHostError, InvalidInputError, PromptSetError: with the remedy.
        """
        host = problem.host
        if host.generative and not self.pipelines:
            raise UnsupportedHostError(
                f"{host.name}: method {self.name!r} is for image-text models, where images are ranked; for pipelines "
                "use 'cali' or 'steer'"
            )
        if not host.generative and not self.models:
            raise UnsupportedHostError(
                f"{host.name} draws no images; method {self.name!r} is for pipelines, and vldebias.fit_shares for "
                "retrieval"
            )
        for need in Need:
            if need in self.needs:
                problem.require(need, self.name)

    def read(self, problem: Problem, show: Show) -> Method:
        """The method with what it wants to know of judged images; it then needs none (`Need.JUDGED`).

        show: draws prompts with a method and has them judged: prompt -> share of each value, in the order of the set;
            a prompt whose images show none of them is left out. Every call is a round of its own.

        Raises:
            InvalidInputError: images that tell nothing.
        """
        raise InvalidInputError(f"method {self.name!r} reads no judged images; fit it as it is")

    def settings(self) -> dict[str, Any]:
        """What tells it from others of its name: plain values for JSON."""
        return {}

    @property
    def uses_images(self) -> bool:
        """Whether it is fitted on images of a reference, labelled or not."""
        return bool(self.needs & {Need.IMAGES, Need.LABELS})

    def for_host(self, host: Host) -> Method:
        """The method that this one stands for on a host where a lam is asked for; itself, but for presets."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self, 'name', None)!r})"


class Around(Method):
    """Says of itself what another method says."""

    def __init__(self, given: Any) -> None:
        names = ("title", "source", "color", "needs", "has_lam", "own_lam", "pipelines", "models", "delegates", "side")
        for name in ("name", *names, "listed"):
            setattr(self, name, getattr(given, name, getattr(Method, name, None)))


class _Adapted(Around):
    """An object that has the attributes of a method, and `fit`, without deriving from it."""

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self.given = given

    def fit(self, problem: Problem, role: str) -> Edit:
        edit: Edit = self.given.fit(problem, role)
        return edit

    def read(self, problem: Problem, show: Show) -> Method:
        return _as_method(getattr(self.given, "read", super().read)(problem, show))

    def settings(self) -> dict[str, Any]:
        own: dict[str, Any] = getattr(self.given, "settings", super().settings)()
        return own


def _as_method(given: Any) -> Method:
    missing = [name for name in ("name", "title", "source") if not hasattr(given, name)]
    if missing or not callable(getattr(given, "fit", None)) or isinstance(given, type):
        raise InvalidInputError(
            "method: expected an object with name, title, source and fit(problem, role), as vldebias.methods.Method "
            f"describes, got {given!r}" + (f" without {', '.join(missing)}" if missing else "")
        )
    return given if isinstance(given, Method) else _Adapted(given)


METHODS = Registry(
    "method", "vldebias.methods", lambda given: ((method := _as_method(given)).name, method), went=gone.METHODS
)


def register_method(method: Method) -> Method:
    """Make a method known by its name, to every command, evaluator and page of this process; returns it.

    Raises:
        InvalidInputError: attributes are missing, or another method has the name.
    """
    return METHODS.register(method)


def get_method(method: Any) -> Method:
    """A method by its name; a Method comes back unchanged, another object with `fit` as one.

    Raises:
        InvalidInputError: no method of this name; the message lists them, or says what to take for one that went.
    """
    return _as_method(method) if hasattr(method, "fit") else METHODS.named(method)


Show = Callable[[Method, Sequence[str]], Mapping[str, Sequence[float]]]


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be solved: on which host, for which prompt sets, perhaps with unlabelled images.

    Attributes:
        host: the model or pipeline; it embeds every prompt once.
        sets: prompt sets, solved jointly. lam: weight of the prompt pairs, one or one per set; None: the method's own.
        reference: unlabelled images. bound: most that neutral texts may lose (set by `Bounded`).
        neutral: texts that do not state the attribute; none: the class prompts of the sets.
    """

    host: Host
    sets: tuple[PromptSet, ...]
    lam: float | tuple[float, ...] | None = None
    reference: Reference | None = None
    bound: Bound | None = None
    neutral: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        host: Any,
        prompts: Prompts,
        *,
        lam: float | Sequence[float] | None = None,
        reference: Any = None,
        neutral: Sequence[str] = (),
        tokenizer: Any = None,
    ) -> Problem:
        """The problem of a model, a pipeline, a `Host` or a mapping from prompt to embedding.

        Raises:
            InvalidInputError: no prompt set, a lam that is no number, or images that the host cannot use.
        """
        target = resolve(host, tokenizer=tokenizer)
        if reference is not None and target.generative:
            raise InvalidInputError(
                f"{target.name}: its text embeddings share no space with images, so there is nothing to compare "
                "reference images with; use method='cali', which needs prompts alone"
            )
        if isinstance(prompts, (str, Path, PromptSet)) or not isinstance(prompts, Iterable):
            prompts = [prompts]
        sets = tuple(map(load_prompts, prompts))
        if not sets:
            raise InvalidInputError("prompts: expected at least one prompt set, got an empty list")
        if lam is not None:
            try:
                if isinstance(lam, bool):  # float() would read it
                    raise TypeError
                lam = tuple(float(x) for x in lam) if isinstance(lam, Sequence) else float(lam)
            except (TypeError, ValueError):
                raise InvalidInputError(f"lam: expected a number or one per prompt set, got {lam!r}") from None
        images = None if reference is None else Reference.of(reference)
        return cls(target, sets, lam, images, neutral=tuple(neutral))

    @property
    def label(self) -> str:
        """Names of the prompt sets."""
        return "+".join(s.name for s in self.sets)

    @property
    def attributes(self) -> tuple[PromptSet, ...]:
        """One set per attribute: a set over several attributes is solved as its parts, one term each."""
        return tuple(part for s in self.sets for part in (s.parts or (s,)))

    @property
    def stated_words(self) -> tuple[str, ...]:
        """Words of all sets."""
        return tuple(dict.fromkeys(w for s in self.sets for w in s.stated_words))

    @property
    def weight(self) -> float | tuple[float, ...]:
        """The lam that was given, else the paper's for this kind of host."""
        return self.lam if self.lam is not None else LAM_OF_PIPELINES if self.host.generative else LAM_OF_MODELS

    def require(self, need: Need, method: str) -> None:
        """Refuse where the problem has not what a method cannot do without; every prompt set has pairs.

        Raises:
            InvalidInputError, PromptSetError: with the remedy.
        """
        if need is Need.SPURIOUS and not any(s.spurious for s in self.attributes):
            raise InvalidInputError(f"{self.label}: P0 needs spurious prompts and the set has none; use method='cali'")
        if need is Need.VALUES:
            for prompt_set in self.attributes:
                prompt_set.by_value()
        if need in (Need.IMAGES, Need.LABELS) and self.reference is None:
            labels = ", with labels= or the model's own zero-shot labels" if need is Need.LABELS else ""
            raise InvalidInputError(
                f"method {method!r} uses {need}: pass reference=, image features (n, d) of this model{labels}"
            )
        if need is Need.JUDGED:
            raise InvalidInputError(
                f"method {method!r} uses {need}: what the pipeline draws for the prompts of the fit, read by a judge; "
                "vldebias.evaluation.readings.read_judged draws and reads them, and so do `vldebias eval` and "
                f"`vldebias debias --method {method} --judge NAME`"
            )

    def neutral_prompts(self) -> tuple[str, ...]:
        """The neutral texts: those of the bound, else those given, else the class prompts of all sets.

        Raises:
            InvalidInputError: none are given and the sets have none.
        """
        classes = dict.fromkeys(p for s in self.sets for p in (*s.classes, *s.held_out_classes))
        texts = (self.bound.neutral if self.bound is not None else ()) or self.neutral or tuple(classes)
        if not texts:
            raise InvalidInputError(
                f"{self.label}: no neutral texts: the set has no class prompts; name some, "
                "max_loss=Bound(0.02, neutral=['A photo of a doctor.', ...])"
            )
        return texts

    def embed(self, prompts: Iterable[str], role: str) -> Tensor:
        """L2-normalised float64 rows (n, d) of `prompts`."""
        return self.host.embed(list(prompts), role)

    def zero_shot(self, prompt_set: PromptSet, role: str) -> Tensor:
        """Unit rows (a, d), the mean text of each value of an attribute: the weights of a zero-shot classifier."""
        texts = prompt_set.by_value().values()
        return torch.stack([normalize(self.embed(prompts, role).mean(0), dim=0) for prompts in texts])

    def fit(self, method: str | Method, role: str) -> Edit:
        """The edit of `method` for `role`, with all that says where it belongs.

        Warns:
            ClassSignalWarning: it removes more than half of what tells the classes apart.
            WideEditWarning: of the text states of a pipeline it removes more than what shrinking a quarter of all
                directions by a tenth does.
        """
        chosen = get_method(method)
        chosen.check(self)
        host, edit = self.host, chosen.fit(self, role)
        edit = edit.stamped(
            method=edit.method if chosen.delegates else chosen.name,
            space=host.space(role),
            model_id=host.model_id,
            fingerprint=host.fingerprint(),
            image_fingerprint=host.image_fingerprint(),
            prompts=self.label,
            prompts_hash="+".join(s.hash for s in self.sets),
            stated_words=self.stated_words,
        )
        if Need.LABELS in chosen.needs and self.reference is not None:
            edit = edit.stamped(uses_images=True, labels="given" if self.reference.labels else "zero-shot")
        if isinstance(edit, CalibratedProjection):
            for prompt_set in self.sets if edit.rank else ():
                if len(prompt_set.classes) > 1:
                    _warn_of_lost_signal(edit, prompt_set, self.embed(prompt_set.classes, role))
            if host.generative:
                _warn_of_width(edit, len(self.attributes))
        return edit

    def diagnose(self, role: str, edit: Edit, prompt_set: PromptSet, images: Reference | None = None) -> Diagnostics:
        """The diagnostics that the texts of `prompt_set` allow, and unlabelled images: by default the reference.

        Raises:
            InvalidInputError: an edit that needs the seed of each image, or the prompt, and so says nothing of
                embeddings alone.
        """
        if edit.sampled:
            raise InvalidInputError(f"{edit!r} draws a value for each image; texts alone do not show what it does")
        if edit.reads_text:
            raise InvalidInputError(f"{edit!r} reads prompts; their embeddings alone do not show what it does")

        def pairs(of: Sequence[tuple[str, str]]) -> Tensor:
            return self.embed(chain.from_iterable(of), role).unflatten(0, (len(of), 2))

        figures = text_diagnostics(
            edit,
            pairs=pairs(prompt_set.pairs),
            held_out=pairs(prompt_set.held_out_pairs) if prompt_set.held_out_pairs else None,
            classes=self.embed(prompt_set.classes, role) if prompt_set.classes else None,
            spurious=self.embed(prompt_set.spurious, role) if prompt_set.spurious else None,
        )
        seen = self.reference if images is None else images
        return figures if seen is None else replace(figures, boundary=self.boundary(role, edit, prompt_set, seen))

    def boundary(self, role: str, edit: Edit, prompt_set: PromptSet, images: Reference) -> Boundary | None:
        """Where `edit`, attached, puts the boundary between the classes of a set that has two; None of other sets.

        Raises:
            InvalidInputError: no image, or features of another width than the texts.
        """
        if len(prompt_set.classes) != 2:
            return None
        acts = roles_of(edit.side)
        plain = self.embed(prompt_set.classes, role)
        texts = self.host.under(prompt_set.classes, role, edit if TEXT in acts else None)
        before, after = [plain.new_empty(0, 2)], [plain.new_empty(0, 2)]
        for rows in images.batches():
            if rows.shape[1] != plain.shape[1]:
                raise InvalidInputError(
                    f"images: features have width {rows.shape[1]}, texts {plain.shape[1]}; embed both with one model"
                )
            before.append(rows @ plain.T)
            after.append((normalize(edit.image(rows), dim=1) if IMAGE in acts else rows) @ texts.T)
        first, second = prompt_set.class_names
        return Boundary.of((first, second), torch.cat(before), torch.cat(after))


def _warn_of_width(edit: CalibratedProjection, attributes: int) -> None:
    most = WIDE * edit.dim
    # Two directions of each attribute are what one is about at least, however narrow the space.
    if edit.removed > max(most, 2 * attributes + 0.5):
        warn(
            f"{edit.method} removes {edit.removed:.1f} of {edit.dim} directions, spread over {edit.rank}; beyond "
            f"{most:.1f}, prompts outside the fit, such as 'A photo of a good person.', may be drawn as something "
            "else. Draw some; or leave out method= and lam= (the default removes less), lower lam, fit fewer pairs, "
            "or use method='difference'",
            WideEditWarning,
        )


def _warn_of_lost_signal(projection: CalibratedProjection, prompt_set: PromptSet, classes: Tensor) -> None:
    kept = signal_kept(classes, projection)
    if kept is not None and kept < 0.5:
        instead = "method='cali', " if projection.spurious_rank else ""
        warn(
            f"{prompt_set.name}: {projection.method} keeps {kept:.0%} of the distance between the classes and a "
            f"cosine of {class_cosine(classes, projection):.2f} between a class prompt and its projection; "
            f"compare accuracy before and after, or use {instead}a smaller lam or strength",
            ClassSignalWarning,
        )
