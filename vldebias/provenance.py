"""Record the provenance of an edit: method, prompts, the weights that it was fitted on, and what "auto" chose."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import ConfigDict, Field, with_config

_TOLERANCE = 5e-3  # rounding to bfloat16 moves a tensor by 1.6e-3 of its norm; fine-tuning by a per cent or more
_TOLERANCE_OF_ONE = 1.5e-2  # for a single tensor: rounding reaches it in none of a million
_TOLERANCE_OF_TEXTS = 4e-2  # bfloat16 moves what an encoder makes of a text by 1 to 2 per cent of its length

Lam = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_strict = with_config(ConfigDict(extra="forbid", strict=True))


def _plain(given: Any) -> dict[str, Any]:
    """Plain values of a dataclass, for JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(given)))
    return plain


@_strict
@dataclass(frozen=True)
class Fingerprint:
    """Identify weights by two numbers for each tensor (`vldebias.hosts.fingerprint`).

    structure: hash of names and shapes. norms, waves: length, and product with a fixed vector, of up to 16 tensors.
    tensors: the same for every tensor, compared if both fingerprints have it.
    adapters: norm of all LoRA weights added to them, 0 without; they do not make the weights differ.
    texts: a few numbers of the embeddings of each of three texts; empty if no text could be embedded.
    """

    structure: str
    norms: tuple[float, ...]
    waves: tuple[float, ...]
    adapters: float = 0.0
    tensors: tuple[tuple[float, float], ...] = ()
    texts: tuple[tuple[float, ...], ...] = ()

    def matches(self, other: Fingerprint | None) -> bool:
        """Return whether both could be of the same weights; True if the other fingerprint is None."""
        if other is None:
            return True
        whole = bool(self.tensors and other.tensors)
        mine, others = (
            one.tensors if whole else tuple(zip(one.norms, one.waves, strict=True)) for one in (self, other)
        )
        if self.structure != other.structure or len(mine) != len(others):
            return False
        scales = [max(a, b, 1e-3) for (a, _), (b, _) in zip(mine, others, strict=True)]
        for number in (0, 1):  # the norms, then the waves
            off = [abs(a[number] - b[number]) / s for a, b, s in zip(mine, others, scales, strict=True)]
            if math.hypot(*off) > _TOLERANCE * math.sqrt(len(off)) or (whole and max(off) > _TOLERANCE_OF_ONE):
                return False
        if not self.texts or len(self.texts) != len(other.texts) or not self.same_adapters(other):
            return True
        moved = (math.dist(a, b) / max(math.hypot(*a), 1e-6) for a, b in zip(self.texts, other.texts, strict=True))
        return max(moved) < _TOLERANCE_OF_TEXTS

    def same_adapters(self, other: Fingerprint | None) -> bool:
        """Return whether both have the same adapters, or none; True if the other is None."""
        return other is None or math.isclose(self.adapters, other.adapters, rel_tol=_TOLERANCE)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {key: value for key, value in _plain(self).items() if value or key in ("structure", "norms", "waves")}

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Fingerprint | None:
        """Return the fingerprint that `to_dict` was called on; None stays None."""
        return None if given is None else cls(**{key: _tuples(value) for key, value in given.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


@_strict
@dataclass(frozen=True)
class Choice:
    """Hold what "auto" chose for one role and why: `method` and `lam`, "none" if no method is predicted to help.

    candidates: the prediction for each method and lam: "gap", as a share of the gap without an edit (1 is no
    change), "gaps" by kind of evidence, "change" with its 95 % interval, "loss" of cosine of the neutral texts, and
    "refused", why it could not be chosen, or "".
    evidence: kind ("texts", "images") -> its numbers of rows and folds. settings: of the bound and the resamples.
    """

    prompts: str
    method: str
    lam: Lam | tuple[Lam, ...]
    reason: str
    candidates: tuple[Mapping[str, Any], ...]
    evidence: Mapping[str, Mapping[str, int]]
    settings: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return _plain(self)

    def __str__(self) -> str:
        """Return the decision and the table of candidates, best first."""
        lines = [f"{self.prompts}: auto: {self.method}. {self.reason}"]
        for c in sorted(self.candidates, key=lambda c: (bool(c["refused"]), c["gap"])):
            change = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*c["change"])
            name = f"{c['method']} lam={c['lam']}"
            told = f"gap {c['gap']:.3f}, change {change}, loss {c['loss']:.3f}"
            lines.append(f"{name:<32}{told}  {c['refused']}".rstrip())
        return "\n".join(lines)


@_strict
@dataclass(frozen=True)
class Provenance:
    """Record how and on which model an edit was fitted; attaching compares it with the host.

    Attributes:
        method: name of the method, such as "cali+equalise". lam: its weight, or one per prompt set.
        space: which tensor of which host. model_id: name of the model, such as a hub id or a checkpoint.
        fingerprint, image_fingerprint: of the text encoders, and of the image encoder.
        prompts, prompts_hash: names and hashes of the prompt sets, joined by "+". stated_words: their words.
        uses_images: fitted on images as well, so the image encoder is compared.
        labels: "given" or "zero-shot", where the labels of those images come from; None for a method without labels.
        max_loss: the bound on the loss that it satisfies (`vldebias.Bound`), or None.
        choice: what "auto" chose and why, or None.
    """

    method: Annotated[str, Field(min_length=1, max_length=200)]
    lam: Lam | tuple[Lam, ...] = 0.0
    space: str | None = None
    model_id: str | None = None
    fingerprint: Fingerprint | None = None
    image_fingerprint: Fingerprint | None = None
    prompts: str | None = None
    prompts_hash: str | None = None
    stated_words: tuple[str, ...] = ()
    uses_images: bool = False
    labels: str | None = None
    max_loss: Annotated[float, Field(gt=0, lt=1)] | None = None
    choice: Choice | None = field(default=None, repr=False)
