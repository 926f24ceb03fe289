"""Pipelines that nobody listed: what their `encode_prompt` returns is found out by asking it.

Several prompts go through it. What differs between them is made of the prompt; what differs between negative prompts is
the negative twin. Where that goes is seen in a call (`vldebias.hosts.reach`). What cannot be seen from outside is
refused: two calls that nothing tells apart, tensors of unknown form. Where the weights are that read a tensor
(`read_by`, for `merge`) is not looked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vldebias.errors import UnsupportedHostError, warn
from vldebias.hosts.diffusers import DiffusersHost
from vldebias.hosts.diffusers_families import is_new
from vldebias.hosts.family import Family, Part, opened
from vldebias.hosts.prompt_end import PROBES, recorded
from vldebias.hosts.reach import asks_for_another, check_reach
from vldebias.hosts.seam import reading

__all__ = ["PipelineHost", "propose_family", "registration"]

_PROPOSED: WeakKeyDictionary[object, Family] = WeakKeyDictionary()


class PipelineHost(DiffusersHost):
    """Any pipeline of diffusers: by the table, or by a family that is proposed for a class that nobody looked into."""

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None, *, negative: bool = False) -> Self:
        """The host for a pipeline that is listed, or that can be asked.

        Raises:
            UnsupportedHostError: it was looked at and cannot be served, or it cannot be told from outside.

        Warns:
            VldebiasWarning: the first time of a pipeline that is not listed, with the call that makes it permanent.
        """
        if not is_new(model) or not callable(getattr(model, "encode_prompt", None)):
            return super().of(model, tokenizer, negative=negative)
        try:
            family = _PROPOSED.get(model) or propose_family(model)
            host = cls(model, family, negative)
        except UnsupportedHostError as error:
            try:
                super().of(model)
            except UnsupportedHostError as unlisted:
                first, _, rest = str(unlisted).partition("\n")
                problem = str(error).removeprefix(f"{type(model).__name__}: ").partition("; describe it")[0]
                raise UnsupportedHostError(f"{first} Asked what it returns: {problem}.\n{rest}") from error
            raise
        if model not in _PROPOSED:
            _PROPOSED[model] = family
            parts = ", ".join(f"{part.role!r} at place {part.index}" for part in family.parts)
            warn(
                f"{host.name}: not listed; by what its encode_prompt returns it is taken for a family {family.name!r} "
                f"with {parts}. Look at what it draws. This makes it permanent, after `from vldebias.hosts.diffusers "
                f"import Family, Part, register_family`: {registration(family)}"
            )
        return host


def propose_family(pipe: Any) -> Family:
    """A family for the class of a pipeline, from what its `encode_prompt` returns; look at it before you register it.

    Raises:
        UnsupportedHostError: it cannot be told from outside; the message says what is in the way.

    >>> family = propose_family(pipe)  # doctest: +SKIP
    >>> print(registration(family))  # doctest: +SKIP
    """
    name = type(pipe).__name__
    encode = getattr(pipe, "encode_prompt", None)
    takes = inspect.signature(encode).parameters if callable(encode) else ()
    called = inspect.signature(type(pipe).__call__).parameters
    if "prompt" not in takes:
        raise _refusal(name, "it has no encode_prompt that takes `prompt`")
    encoders = tuple(n for n, part in pipe.components.items() if "encoder" in n and _reads(pipe, part))
    if not encoders:
        raise _refusal(name, "none of its encoders is given the ids of a prompt")
    kinds = {type(getattr(pipe, one.replace("text_encoder", "tokenizer"), None)) for one in encoders}
    if len(kinds) > 1:
        raise _refusal(
            name, f"{' and '.join(encoders)} read the prompt in different tokens, and which made what is unseen"
        )
    beside = "negative_prompt" in takes and "do_classifier_free_guidance" in takes
    asks = asks_for_another(pipe, [getattr(pipe, one) for one in encoders])
    if beside and asks:
        raise _refusal(name, "it calls encode_prompt for another prompt too, beside the negative one of the same call")
    twice = not beside and (asks or "negative_prompt" in called)
    told_apart = "prompt_embeds" in takes and {"prompt_embeds", "negative_prompt_embeds"} <= set(called)
    if twice and not told_apart:
        raise _refusal(name, "it calls encode_prompt for both prompts with nothing that tells the calls apart")
    results = [_encoded(pipe, prompt) for prompt in PROBES]
    places = _differing(results)
    negatives = _differing([_encoded(pipe, PROBES[0], negative) for negative in PROBES]) if beside else {}
    places, negatives = ({i: one for i, one in found.items() if not _is_mask(one)} for found in (places, negatives))
    flat = {i: one for i, one in enumerate(results[0]) if isinstance(one, Tensor) and one.ndim == 2}
    masks = [i for i, one in flat.items() if not one.dtype.is_floating_point]
    masked = any(len(one) == 1 and _is_mask(one) for one in flat.values())
    parts: list[Part] = []
    for place, tensor in places.items():
        twin = [i for i, one in negatives.items() if i not in places and one.ndim == tensor.ndim]
        mask = [i for i in masks if tensor.ndim == 3 and results[0][i].shape[1] == tensor.shape[1]]
        kind, number = "sequence" if tensor.ndim == 3 else "pooled", sum(p.index != place for p in parts)
        role = kind if all(part.role != kind for part in parts) else f"{kind}.{number + 1}"
        same = [part for part in parts if part.role.startswith(kind)]
        parts.append(
            Part(
                role=role,
                index=place,
                negative=twin[len(same)] if len(twin) > len(same) else None,
                mask=mask[0] if mask else None,
                template=kind == "sequence" and _inside_template(pipe, encoders),
                encoders=encoders,
                given="prompt_embeds" if kind == "sequence" else "pooled_prompt_embeds",
            )
        )
    if not parts:
        raise _refusal(name, "no (b, tokens, d) or (b, d) that encode_prompt returns depends on the prompt")
    family = Family(
        name=name.removesuffix("Pipeline"), pipelines=(name,), parts=tuple(parts), twice=twice, masked=masked
    )
    check_reach(pipe, family)
    return family


def registration(family: Family) -> str:
    """The call that makes a family permanent, as a line of Python."""

    def told(one: Any) -> str:
        changed = {f.name: getattr(one, f.name) for f in fields(one) if getattr(one, f.name) != f.default}
        inside = {n: f"({', '.join(map(told, v))},)" if n == "parts" else repr(v) for n, v in changed.items()}
        return f"{type(one).__name__}({', '.join(f'{n}={v}' for n, v in inside.items())})"

    return f"register_family({told(family)})"


def _refusal(name: str, why: str) -> UnsupportedHostError:
    return UnsupportedHostError(
        f"{name}: {why}; describe it with vldebias.hosts.diffusers.register_family(Family(...))"
    )


def _encoded(pipe: Any, prompt: str, negative: str | None = None) -> tuple[Any, ...]:
    names = [n for n, part in pipe.components.items() if "encoder" in n and isinstance(part, nn.Module)]
    if not names:
        raise _refusal(type(pipe).__name__, "no text encoder is loaded")
    unknown = Family(name="?", pipelines=(), parts=(Part(encoders=(names[0],)),))  # but for how it is called
    arguments = DiffusersHost(pipe, unknown, negative=False)._arguments([prompt], None)
    if negative is not None:
        arguments |= {"negative_prompt": [negative], "do_classifier_free_guidance": True}
    try:
        with reading(*(part for part in pipe.components.values() if isinstance(part, nn.Module))):
            result = pipe.encode_prompt(**arguments)
    except Exception as error:  # of a pipeline that nobody knows
        problem = f"{type(error).__name__}: {str(error)[:200]}"
        raise _refusal(type(pipe).__name__, f"its encode_prompt fails on a prompt alone ({problem})") from error
    if not isinstance(result, tuple | list):
        raise _refusal(type(pipe).__name__, f"its encode_prompt returns a {type(result).__name__}, not a tuple")
    return tuple(result)


def _reads(pipe: Any, part: Any) -> bool:
    """Is a component given the ids of a prompt?"""
    if not isinstance(part, nn.Module):
        return False
    with recorded(part) as readings:
        _encoded(pipe, PROBES[0])
    return bool(readings)


def _differing(results: Sequence[tuple[Any, ...]]) -> dict[int, Tensor]:
    """Place -> embeddings that are not the same in all results."""
    places = {}
    for place, values in enumerate(zip(*results, strict=True)):
        inside = [None if value is None else opened(value) for value in values]
        tensors = [one[0] for one in inside if one is not None]
        if len(tensors) < len(results) or not tensors[0].is_floating_point():
            continue
        if any(one.shape != tensors[0].shape or not torch.equal(one, tensors[0]) for one in tensors):
            places[place] = tensors[0]
    return places


def _is_mask(one: Tensor) -> bool:
    """Does a tensor of floats have two values alone, so that it says where a prompt stands and not what it says?"""
    return one.is_floating_point() and len(one.unique()) == 2


def _inside_template(pipe: Any, encoders: Sequence[str]) -> bool:
    """Are the ids that an encoder is given others than those of the prompt alone?"""
    tokenizer = getattr(pipe, "tokenizer", None)
    if tokenizer is None:
        return True
    with recorded(getattr(pipe, encoders[0])) as readings:
        _encoded(pipe, PROBES[1])
    try:
        alone = tokenizer(PROBES[1]).input_ids
    except Exception:  # of a tokenizer that is called in its own way alone; the ids tell where the prompt ends
        return True
    tokens = readings[0].ids[0][readings[0].mask[0] != 0].tolist()
    return list(tokens[: len(alone)]) != list(alone)
