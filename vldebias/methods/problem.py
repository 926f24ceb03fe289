"""Define the input of a method: a host, prompt sets, and optionally images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError
from vldebias.hosts import Host, resolve
from vldebias.methods.bounded import Bound, bounded
from vldebias.methods.diagnostics import warn_of_what_is_lost
from vldebias.methods.method import LAM_OF_MODELS, LAM_OF_PIPELINES, Method, Need, get_method
from vldebias.methods.reference import Reference
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet, load_prompts

Prompts = str | Path | PromptSet | Sequence[str | Path | PromptSet]


@dataclass(frozen=True, eq=False)
class Problem:
    """Hold the input of a method: a host, prompt sets, and optionally images.

    Attributes:
        host: the model or pipeline; it embeds every prompt once.
        sets: prompt sets, solved jointly.
        lam: weight of the prompt pairs, one or one per set; None: the method's default.
        reference: images, with labels or without. bound: largest loss allowed for neutral texts.
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
        max_loss: float | Bound | None = None,
        neutral: Sequence[str] = (),
        tokenizer: Any = None,
    ) -> Problem:
        """Make a problem from a model, a pipeline, a `Host` or a mapping from prompt to embedding.

        Raises:
            InvalidInputError: no prompt set, or images that the host cannot use.
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
        lam = tuple(lam) if isinstance(lam, Sequence) and not isinstance(lam, str) else lam
        if not (reference is None or isinstance(reference, Reference)):
            reference = Reference(reference, labels=getattr(reference, "labels", {}))
        bound = max_loss if max_loss is None or isinstance(max_loss, Bound) else Bound(max_loss)
        return cls(target, sets, lam, reference, bound, tuple(neutral))

    @property
    def label(self) -> str:
        """Return the joined names of the prompt sets."""
        return "+".join(s.name for s in self.sets)

    @property
    def attributes(self) -> tuple[PromptSet, ...]:
        """Return one set per attribute: a set over several attributes is solved as its parts, one term each."""
        return tuple(part for s in self.sets for part in (s.parts or (s,)))

    @property
    def stated_words(self) -> tuple[str, ...]:
        """Return the words of all sets by which a prompt states the attribute."""
        return tuple(dict.fromkeys(w for s in self.sets for w in s.stated_words))

    @property
    def weight(self) -> float | tuple[float, ...]:
        """Return the lam that was given, else the paper's for this kind of host."""
        return self.lam if self.lam is not None else LAM_OF_PIPELINES if self.host.generative else LAM_OF_MODELS

    def neutral_prompts(self) -> tuple[str, ...]:
        """Return the neutral texts: those of the bound, else those given, else the class prompts of all sets.

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
        """Return L2-normalised float64 rows (n, d) of `prompts`."""
        return self.host.embed(list(prompts), role)

    def zero_shot(self, prompt_set: PromptSet, role: str) -> Tensor:
        """Return zero-shot classifier weights (a, d): the mean text of each value of an attribute, at length 1."""
        texts = prompt_set.by_value().values()
        return torch.stack([normalize(self.embed(prompts, role).mean(0), dim=0) for prompts in texts])

    def fit(self, method: str | Method, role: str) -> Edit:
        """Fit the edit of `method` for `role` within the bound, and record its provenance.

        Raises:
            InvalidInputError, PromptSetError, UnsupportedHostError: the method refuses the problem, or a bound is set
                and the edit is not a projection.

        Warns:
            ClassSignalWarning: it removes more than half of the distance between the classes.
            WideEditWarning: it removes more of a pipeline's text states than shrinking a quarter of all directions by
                a tenth would.
        """
        chosen = get_method(method)
        chosen.check(self)
        host, edit = self.host, chosen.fit(self, role)
        edit, labels = self.bounded(edit if chosen.delegates else edit.stamped(method=chosen.name), role), {}
        if Need.LABELS in chosen.needs and self.reference is not None:
            labels = {"uses_images": True, "labels": "given" if self.reference.labels else "zero-shot"}
        edit = edit.stamped(
            space=host.space(role),
            model_id=host.model_id,
            fingerprint=host.fingerprint(role),
            image_fingerprint=host.image_fingerprint,
            prompts=self.label,
            prompts_hash="+".join(s.hash for s in self.sets),
            stated_words=self.stated_words,
            max_loss=None if self.bound is None else self.bound.loss,
            **labels,
        )
        if isinstance(edit, CalibratedProjection) and edit.rank:
            warn_of_what_is_lost(edit, self.sets, role, host)
        return edit

    def bounded(self, edit: Edit, role: str) -> Edit:
        """Return the edit, weakened until it satisfies the bound on the neutral texts.

        Raises:
            InvalidInputError: the edit is not a projection, or there are no neutral texts.
        """
        if self.bound is None:
            return edit
        if not isinstance(edit, CalibratedProjection):
            raise InvalidInputError(
                f"max_loss: method {edit.method!r} gives {edit!r}, which is no projection whose lam could be "
                "lowered; leave max_loss out and lower strength= instead"
            )
        return bounded(edit, self.embed(self.neutral_prompts(), role), self.bound)
