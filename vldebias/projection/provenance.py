"""Record how an edit was fitted, and what the default decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, with_config

from vldebias.projection.fingerprint import Fingerprint

Word = Annotated[str, Field(max_length=200)]
_Lam = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Choice(BaseModel, frozen=True, extra="forbid"):
    """Record what the default decided for one role, and why.

    Attributes:
        prompts: the names of the prompt sets.
        method: the name of the attached method, or "default: none" if nothing is attached.
        lam: the weight of the prompt pairs, or 0 if nothing is attached.
        reason: a sentence that states what was tested and on which data. If nothing is attached, it
            also states what to do.
        change: the change in the gap in that test with its 95% interval, as (value, low, high), or
            None if nothing was tested. The gap is measured between images grouped by zero-shot
            value, or between texts. The gap between true values may be smaller.
    """

    attribute: str
    method: str
    lam: _Lam | tuple[_Lam, ...]
    reason: str
    change: tuple[float, float, float] | None = None

    def __str__(self) -> str:
        """Return the decision and its reason as one line."""
        return f"{self.attribute}: {self.method}. {self.reason}"


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Provenance:
    """Record how and on which model an edit was fitted, for comparison with the host.

    Attributes:
        method: the name of the method, such as "cali+equalise".
        lam: the weight of the prompt pairs, or one weight per attribute.
        space: the name of the edited space, as returned by `Host.space`.
        model_id: the model name, such as a hub id or a checkpoint.
        fingerprint: the fingerprint of the text encoders.
        image_fingerprint: the fingerprint of the image encoder.
        prompts: the names of the prompt sets, joined by "+".
        attribute_hash: the hashes of the prompt sets, joined by "+".
        stated_words: the attribute words of the prompt sets.
        uses_images: whether the edit was also fitted on images, so that image encoders are compared
            too.
        labels: the source of the image labels ("given" or "zero-shot"), or None if the method does
            not use labels.
        max_loss: the bound on the loss that the edit satisfies (`debias(max_loss=)`), or None.
        choice: what the default decided and why, or None.
        declined: the default's decisions not to edit for other prompt sets that were passed.
    """

    method: Annotated[str, Field(min_length=1, max_length=200)]
    lam: _Lam | tuple[_Lam, ...] = 0.0
    space: str | None = None
    model_id: str | None = None
    fingerprint: Fingerprint | None = None
    image_fingerprint: Fingerprint | None = None
    attribute: str | None = None
    attribute_hash: str | None = None
    stated_words: tuple[Word, ...] = ()
    uses_images: bool = False
    labels: str | None = None
    max_loss: Annotated[float, Field(gt=0, lt=1)] | None = None
    choice: Choice | None = field(default=None, repr=False)
    declined: tuple[Choice, ...] = field(default=(), repr=False)
