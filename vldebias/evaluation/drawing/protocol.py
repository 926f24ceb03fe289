"""Protocols of measures of drawn images: what drew them, taken over from the run that did, or from the images alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vldebias.evaluation.result import Protocol

__all__ = ["drawn_details", "drawn_protocol"]


def drawn_details(drawn: Protocol | None, variants: Iterable[str]) -> dict[str, dict[str, float]]:
    """variant -> lam and strength, as figures carry them, where the run that drew the images says so."""
    methods = drawn.methods if drawn else {}
    return {
        variant: {k: v for k, v in methods.get(variant, {}).items() if k in ("lam", "strength") and v is not None}
        for variant in variants
    }


def drawn_protocol(
    drawn: Protocol | None,
    *,
    task: str,
    title: str,
    told: str,
    prompts: Sequence[str],
    variants: Iterable[str],
    seeds: Iterable[int],
    split: str = "generated",
    n: Mapping[str, int],
    settings: Mapping[str, Any],
) -> Protocol:
    """The protocol of a measure. drawn: that of the run that drew; without it the model is not known."""
    return Protocol(
        task=task,
        title=title,
        description=told,
        model=drawn.model if drawn else "not said",
        fingerprint=drawn.fingerprint if drawn else None,
        prompts=drawn.prompts if drawn else f"the {len(prompts)} prompts of the drawn images",
        prompts_hash=drawn.prompts_hash if drawn else hashlib.sha256("\0".join(prompts).encode()).hexdigest(),
        split=split,
        methods={variant: drawn.methods.get(variant, {}) if drawn else {} for variant in variants},
        seeds=drawn.seeds if drawn else sorted(set(seeds)),
        n=dict(n),
        settings=dict(settings),
    )
