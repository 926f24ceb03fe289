"""debias() and fit_projection(): presets and dispatch, the whole path from a prompt set to an attachment."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vldebias.attachment import Attachment, refuse_second
from vldebias.diagnostics import Diagnostics, class_cosine, diagnose, signal_kept
from vldebias.errors import ClassSignalWarning, InvalidInputError
from vldebias.hosts import Host, resolve
from vldebias.projection import CalibratedProjection, PairScatter
from vldebias.prompts import PromptSet, load_prompts
from vldebias.stated import StatedWords

__all__ = ["METHODS", "debias", "fit_projection", "fit_projections", "inspect"]

METHODS = ("orth", "orth-cali", "cali")
Prompts = str | Path | PromptSet | Sequence[str | Path | PromptSet]


@dataclass(frozen=True)
class Preset:
    """Method and lambda of the paper for one kind of host."""

    method: str
    lam: float


CLASSIFIER = Preset("orth-cali", 1000.0)  # Table 7.3: all experiments on discriminative models
GENERATOR = Preset("cali", 500.0)  # section 7.5 and 7.6: equalisation without P0


def debias(
    host: Any,
    prompts: Prompts | CalibratedProjection | Mapping[str, CalibratedProjection],
    *,
    method: str | None = None,
    lam: float | Sequence[float] | None = None,
    strength: float = 1.0,
    keep_stated: bool = True,
    negative: bool = False,
    tokenizer: Any = None,
) -> Attachment:
    """Attach a projection that mitigates what `prompts` describe to the text embeddings of `host`.

    Args:
        host: an open_clip model, a transformers image-text model, or a diffusers pipeline.
        prompts: name of a prompt set (`vldebias.list_prompts()`), a path to a YAML file, a PromptSet, or a list of
            these, solved jointly; or fitted projections: one, or a mapping from role to projection.
        method: "orth" (P0), "orth-cali" (Lemma 7.1) or "cali" (Lemma 7.2). Default: the paper's, "cali" with
            lam = 500 for pipelines and "orth-cali" with lam = 1000 for models.
        lam: weight of the prompt pairs; one value, or one per prompt set.
        strength: share of the projection in [0, 1]; 0 is bit-identical to no attachment.
        keep_stated: leave prompts alone that name an attribute word of the set ("a photo of a female doctor").
        negative: project the negative prompt of a pipeline as well. Default: untouched, as in the paper.
        tokenizer: the model's tokenizer, where it cannot be found from the model.

    Returns:
        An Attachment: `.remove()`, `.disabled()`, with-statement, `.strength`, `.projections`, `.merge()`.

    Raises:
        AlreadyAttachedError, UnsupportedHostError, PromptSetError, ProjectionMismatchError, InvalidInputError.

    >>> attachment = debias(model, "gender", tokenizer=tokenizer)  # doctest: +SKIP
    """
    target = resolve(host, tokenizer=tokenizer, negative=negative)
    refuse_second(target)
    if isinstance(prompts, (CalibratedProjection, Mapping)):
        return _attach_fitted(target, prompts, method, lam, strength, keep_stated)
    fit = _Fit.of(target, prompts, method, lam)
    gate = StatedWords(fit.stated_words) if keep_stated and fit.stated_words else None
    projections = {role: fit.solve(role) for role in target.roles}
    return Attachment(target, projections, strength=strength, gate=gate, fit_role=fit.solve, label=fit.label)


def fit_projections(
    host: Any,
    prompts: Prompts,
    *,
    method: str | None = None,
    lam: float | Sequence[float] | None = None,
    tokenizer: Any = None,
) -> dict[str, CalibratedProjection]:
    """The projections that `debias` would attach, by role, without attaching them."""
    target = resolve(host, tokenizer=tokenizer)
    fit = _Fit.of(target, prompts, method, lam)
    return {role: fit.solve(role) for role in target.roles}


def fit_projection(
    host: Any,
    prompts: Prompts,
    *,
    method: str | None = None,
    lam: float | Sequence[float] | None = None,
    tokenizer: Any = None,
    role: str | None = None,
) -> CalibratedProjection:
    """The projection for one role of `host`; `role` may be left out where the host has a single one."""
    target = resolve(host, tokenizer=tokenizer)
    if role is None and len(target.roles) > 1:
        raise InvalidInputError(
            f"{target.name} has the roles {list(target.roles)}: choose one with role=, or use fit_projections for all"
        )
    return _Fit.of(target, prompts, method, lam).solve(role or target.roles[0])


def inspect(
    host: Any,
    prompts: str | Path | PromptSet,
    *,
    method: str | None = None,
    lam: float | None = None,
    tokenizer: Any = None,
) -> dict[str, Diagnostics]:
    """What the projection of one prompt set does to its own texts, by role, without any image (Tables 7.1 and 7.6)."""
    target = resolve(host, tokenizer=tokenizer)
    prompt_set = load_prompts(prompts)
    fit = _Fit.of(target, prompt_set, method, lam)
    return {role: fit.diagnose(role, fit.solve(role), prompt_set) for role in target.roles}


@dataclass(frozen=True)
class _Fit:
    """One fitting problem: which sets, which method, on which host. Every prompt is embedded once per role."""

    host: Host
    sets: tuple[PromptSet, ...]
    method: str
    lam: float | tuple[float, ...]
    rows: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, host: Host, prompts: Prompts, method: str | None, lam: float | Sequence[float] | None) -> _Fit:
        preset = GENERATOR if host.generative else CLASSIFIER
        method = method or preset.method
        if method not in METHODS:
            raise InvalidInputError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
        given = [prompts] if isinstance(prompts, (str, Path, PromptSet)) else list(prompts)
        sets = tuple(load_prompts(p) for p in given)
        if not sets:
            raise InvalidInputError("prompts: expected at least one prompt set, got an empty list")
        chosen = preset.lam if lam is None else lam
        return cls(host, sets, method, tuple(chosen) if isinstance(chosen, Sequence) else float(chosen))

    @property
    def label(self) -> str:
        return "+".join(s.name for s in self.sets)

    @property
    def attributes(self) -> tuple[PromptSet, ...]:
        """One set per attribute: a set over several attributes is solved as its parts, one term each."""
        return tuple(part for s in self.sets for part in (s.parts or (s,)))

    @property
    def stated_words(self) -> tuple[str, ...]:
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
        scatters = [] if self.method == "orth" else [self._scatter(s, role) for s in self.attributes]
        projection = replace(
            CalibratedProjection.solve(scatters, self._spurious(role), self.lam),
            space=self.host.space(role),
            model_id=self.host.model_id,
            fingerprint=self.host.fingerprint(),
            prompts=self.label,
            prompts_hash="+".join(s.hash for s in self.sets),
            stated_words=self.stated_words,
        )
        for prompt_set in self.sets:
            if len(prompt_set.classes) > 1:
                _warn_of_lost_signal(projection, prompt_set, self.embed(prompt_set.classes, role))
        return projection

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

    def _spurious(self, role: str) -> Tensor | None:
        if self.method == "cali":
            return None
        prompts = list(dict.fromkeys(p for s in self.attributes for p in s.spurious))
        if not prompts:
            raise InvalidInputError(
                f"{self.label}: method {self.method!r} needs spurious prompts and the set has none; use method='cali'"
            )
        return self.embed(prompts, role)

    def _scatter(self, prompt_set: PromptSet, role: str) -> PairScatter:
        self.embed(chain.from_iterable(prompt_set.groups), role)  # in full batches, not one group at a time
        return PairScatter.from_groups([self.embed(group, role) for group in prompt_set.groups])


def _warn_of_lost_signal(projection: CalibratedProjection, prompt_set: PromptSet, classes: Tensor) -> None:
    kept = signal_kept(classes, projection)
    if kept is not None and kept < 0.5:
        instead = "" if projection.method == "cali" else "method='cali', "
        warnings.warn(
            f"{prompt_set.name}: {projection.method} keeps {kept:.0%} of the distance between the classes and a "
            f"cosine of {class_cosine(classes, projection):.2f} between a class prompt and its projection; "
            f"compare accuracy before and after, or use {instead}a smaller lam or strength",
            ClassSignalWarning,
            stacklevel=4,
        )


def _attach_fitted(
    target: Host,
    given: CalibratedProjection | Mapping[str, CalibratedProjection],
    method: str | None,
    lam: float | Sequence[float] | None,
    strength: float,
    keep_stated: bool,
) -> Attachment:
    """Attach projections that were fitted before, after checking that they belong to this host."""
    if method is not None or lam is not None:
        raise InvalidInputError("method and lam belong to fitting; a fitted projection carries its own")
    projections = dict(given) if isinstance(given, Mapping) else {target.roles[0]: given}
    missing = [r for r in target.roles if r not in projections]
    if missing:
        raise InvalidInputError(
            f"{target.name} projects the roles {list(target.roles)}; missing {missing}: "
            "pass a mapping from role to projection"
        )
    for role, projection in projections.items():
        target.check(role, projection)
    words = tuple(dict.fromkeys(w for p in projections.values() for w in p.stated_words))
    gate = StatedWords(words) if keep_stated and words else None
    label = "+".join(dict.fromkeys(p.prompts or "projection" for p in projections.values()))
    return Attachment(target, projections, strength=strength, gate=gate, label=label)
