"""One fitting problem: which prompt sets, which method, on which host, perhaps with unlabelled images."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.bounded import Bound, bounded, neutral_prompts
from vldebias.diagnostics import Diagnostics, class_cosine, diagnose, signal_kept
from vldebias.equalise import GroupMeans, MeansReport, Reference, group_means
from vldebias.errors import ClassSignalWarning, InvalidInputError, ReferenceWarning
from vldebias.hosts import Host
from vldebias.projection import CalibratedProjection, PairScatter
from vldebias.prompts import PromptSet, load_prompts
from vldebias.values import value_prompts

if TYPE_CHECKING:
    from vldebias.choice import Choice

__all__ = ["ALL_METHODS", "CLASSIFIER", "GENERATOR", "METHODS", "Fit", "Prompts"]

METHODS = ("orth", "orth-cali", "cali")  # of the paper
ALL_METHODS = (*METHODS, "difference", "equalise")
AUTO = "auto"  # as method, as lam or as both: chosen from texts and unlabelled images (vldebias.choosing)
Prompts = str | Path | PromptSet | Sequence[str | Path | PromptSet]
_UNSTABLE = 0.8  # cosine between the mean differences of two halves of the reference images
_UNSURE = 0.1  # expected share of wrong pseudo-labels of a value


@dataclass(frozen=True)
class Preset:
    """Method and lambda of the paper for one kind of host."""

    method: str
    lam: float


CLASSIFIER = Preset("orth-cali", 1000.0)  # Table 7.3: all experiments on discriminative models
GENERATOR = Preset("cali", 500.0)  # section 7.5 and 7.6: equalisation without P0


@dataclass(frozen=True)
class Fit:
    """Every prompt is embedded once per role, every reference image is read once."""

    host: Host
    sets: tuple[PromptSet, ...]
    method: str
    lam: float | tuple[float, ...] | str
    reference: Reference | None = None
    bound: Bound | None = None
    rows: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)  # role -> what "auto" chose

    @classmethod
    def of(
        cls,
        host: Host,
        prompts: Prompts,
        method: str | None,
        lam: float | Sequence[float] | str | None,
        reference: Reference | None = None,
        bound: Bound | None = None,
    ) -> Fit:
        """The problem with the presets of the host filled in.

        Raises:
            InvalidInputError: an unknown method, no prompt set, or images that the method or the host cannot use.
        """
        preset = GENERATOR if host.generative else CLASSIFIER
        method = method or ("cali" if reference is not None else preset.method)
        if method not in (*ALL_METHODS, AUTO):
            raise InvalidInputError(f"method: expected one of {', '.join((*ALL_METHODS, AUTO))}, got {method!r}")
        if isinstance(lam, str) and lam != AUTO:
            raise InvalidInputError(f"lam: expected a number, one per prompt set, or 'auto', got {lam!r}")
        if method == "equalise" and reference is None:
            raise InvalidInputError(
                "method 'equalise' uses unlabelled images alone: pass reference=, image features (n, d) of this model"
            )
        if reference is not None and host.generative:
            raise InvalidInputError(
                f"{host.name}: its text embeddings share no space with images, so there is nothing to compare "
                "reference images with; use method='cali', which needs prompts alone"
            )
        given = [prompts] if isinstance(prompts, (str, Path, PromptSet)) else list(prompts)
        sets = tuple(load_prompts(p) for p in given)
        if not sets:
            raise InvalidInputError("prompts: expected at least one prompt set, got an empty list")
        chosen = (AUTO if method == AUTO else preset.lam) if lam is None else lam
        if isinstance(chosen, str):
            return cls(host, sets, method, chosen, reference, bound)
        lams = tuple(float(x) for x in chosen) if isinstance(chosen, Sequence) else float(chosen)
        return cls(host, sets, method, lams, reference, bound)

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

    def embed(self, prompts: Iterable[str], role: str) -> Tensor:
        """(n, d) embeddings of `prompts`; only those not seen before go through the host."""
        wanted = list(prompts)
        new = [p for p in dict.fromkeys(wanted) if (role, p) not in self.rows]
        if new:
            self.rows.update(zip(((role, p) for p in new), self.host.embed(new, role), strict=True))
        return torch.stack([self.rows[role, p] for p in wanted])

    def solve(self, role: str) -> CalibratedProjection:
        """The projection for `role`, with all that says where it belongs."""
        if AUTO in (self.method, self.lam):
            from vldebias.choosing import choose

            self.choices[role] = choose(self, role)
            solved = self.choices[role].projection
        else:
            solved = self.solution(role)
        projection = replace(
            solved,
            space=self.host.space(role),
            model_id=self.host.model_id,
            fingerprint=self.host.fingerprint(),
            image_fingerprint=self.host.image_fingerprint(),
            prompts=self.label,
            prompts_hash="+".join(s.hash for s in self.sets),
            stated_words=self.stated_words,
        )
        for prompt_set in self.sets:
            if len(prompt_set.classes) > 1:
                _warn_of_lost_signal(projection, prompt_set, self.embed(prompt_set.classes, role))
        return projection

    def terms(self, role: str) -> tuple[list[PairScatter], list[PairScatter]]:
        """The scatter of each attribute's prompt pairs, and that of its image means; empty where not asked for."""
        with_pairs = self.method in ("orth-cali", "cali", AUTO)
        texts = [self._scatter(s, role) for s in self.attributes] if with_pairs else []
        images = [self._image_scatter(s, role) for s in self.attributes] if self.reference is not None else []
        return texts, images

    def solution(
        self, role: str, terms: tuple[list[PairScatter], list[PairScatter]] | None = None
    ) -> CalibratedProjection:
        """The closed form from `terms` (fitted here by default), within the bound; it does not say where it belongs."""
        texts, images = self.terms(role) if terms is None else terms
        solved = CalibratedProjection.solve([*texts, *images], self._removed(role), self._lams(texts, images))
        named = self.method if not images or self.method == "equalise" else f"{self.method}+equalise"
        projection = replace(solved, method=named)
        if self.bound is None:
            return projection
        return bounded(projection, self.embed(neutral_prompts(self.sets, self.bound.neutral), role), self.bound)

    def diagnose(self, role: str, projection: CalibratedProjection, prompt_set: PromptSet) -> Diagnostics:
        """The diagnostics that the texts of `prompt_set` allow."""

        def pairs(of: Sequence[tuple[str, str]]) -> Tensor:
            return self.embed(chain.from_iterable(of), role).unflatten(0, (len(of), 2))

        return diagnose(
            projection,
            pairs=pairs(prompt_set.pairs),
            held_out=pairs(prompt_set.held_out_pairs) if prompt_set.held_out_pairs else None,
            classes=self.embed(prompt_set.classes, role) if prompt_set.classes else None,
            spurious=self.embed(prompt_set.spurious, role) if prompt_set.spurious else None,
        )

    def means(self, prompt_set: PromptSet, role: str) -> GroupMeans:
        """Means of the reference images, split by the zero-shot values of `prompt_set`."""
        assert self.reference is not None
        values = {value: self.embed(prompts, role) for value, prompts in value_prompts(prompt_set).items()}
        classes = None
        if self.reference.within_classes and len(prompt_set.classes) > 1:
            classes = dict(zip(prompt_set.classes, self.class_texts(prompt_set, role), strict=True))
        return group_means(values, classes, self.reference)

    def class_texts(self, prompt_set: PromptSet, role: str) -> Tensor:
        """Texts (k, d) that tell pseudo-classes apart, calibrated by the prompt pairs where there are any.

        A biased class text reads the attribute: groups inside such classes would be chosen by what is to be equalised.
        """
        rows = self.embed(prompt_set.classes, role)
        if not prompt_set.groups:
            return rows
        return CalibratedProjection.solve([self._scatter(prompt_set, role)], None, CLASSIFIER.lam)(rows)

    def _lams(self, texts: Sequence[PairScatter], images: Sequence[PairScatter]) -> float | list[float]:
        """One weight per term: that of the prompts, repeated for the images unless they have their own."""
        assert not isinstance(self.lam, str)  # "auto" is decided before anything is solved
        if not images:
            return list(self.lam) if isinstance(self.lam, tuple) else self.lam
        of_sets = self.lam if isinstance(self.lam, tuple) else (self.lam,) * len(images)
        own = self.reference.lam if self.reference is not None else None
        of_images = of_sets if own is None else (own,) * len(images)
        return [*(of_sets if texts else ()), *of_images]

    def _removed(self, role: str) -> Tensor | None:
        """Rows (m, d) whose span P0 removes, or None."""
        if self.method in ("cali", "equalise"):
            return None
        if self.method == "difference":
            return torch.cat([self._differences(s, role) for s in self.attributes])
        prompts = list(dict.fromkeys(p for s in self.attributes for p in s.spurious))
        if not prompts:
            raise InvalidInputError(
                f"{self.label}: method {self.method!r} needs spurious prompts and the set has none; use method='cali'"
            )
        return self.embed(prompts, role)

    def _differences(self, prompt_set: PromptSet, role: str) -> Tensor:
        """(a, d) texts of the a attribute values minus their mean: what tells them apart, not what they share."""
        values = [self.embed(prompts, role).mean(0) for prompts in value_prompts(prompt_set).values()]
        rows = normalize(torch.stack(values), dim=1)
        return rows - rows.mean(0)

    def _scatter(self, prompt_set: PromptSet, role: str) -> PairScatter:
        self.embed(chain.from_iterable(prompt_set.groups), role)  # in full batches, not one group at a time
        return PairScatter.from_groups([self.embed(group, role) for group in prompt_set.groups])

    def _image_scatter(self, prompt_set: PromptSet, role: str) -> PairScatter:
        means = self.means(prompt_set, role)
        scatter = means.scatter()
        _warn_of_weak_reference(prompt_set.name, means.report())
        return scatter


def _warn_of_weak_reference(name: str, report: MeansReport) -> None:
    """Say where the split of the images rests on too little; `eval/beyond.py` shows what it does then."""
    unsure = max(report.expected_error.values())
    if report.stability < _UNSTABLE:
        doubt = (
            f"two halves of the reference images give different directions (cosine {report.stability:.2f}); the images "
            "are too few, or do not differ in this attribute"
        )
    elif unsure > _UNSURE:
        doubt = (
            f"the model doubts {unsure:.0%} of its own labels of the reference images, so their groups may differ in "
            "something else"
        )
    else:
        return
    warnings.warn(f"{name}: {doubt}: measure before you rely on it", ReferenceWarning, stacklevel=6)


def _warn_of_lost_signal(projection: CalibratedProjection, prompt_set: PromptSet, classes: Tensor) -> None:
    kept = signal_kept(classes, projection)
    if kept is not None and kept < 0.5:
        instead = "" if projection.method.startswith("cali") else "method='cali', "
        warnings.warn(
            f"{prompt_set.name}: {projection.method} keeps {kept:.0%} of the distance between the classes and a "
            f"cosine of {class_cosine(classes, projection):.2f} between a class prompt and its projection; "
            f"compare accuracy before and after, or use {instead}a smaller lam or strength",
            ClassSignalWarning,
            stacklevel=4,
        )
