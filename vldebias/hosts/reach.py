"""Where what `encode_prompt` returns goes: a call of the pipeline, as far as the first model that reads it.

No model but the text encoders computes anything: the first other one that is called is looked at and stopped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vldebias.errors import UnsupportedHostError
from vldebias.hosts.family import Family, opened
from vldebias.hosts.first_step import twin_of
from vldebias.hosts.prompt_end import PROBES
from vldebias.hosts.seam import bare

Encode = Callable[..., Any]


class _Reached(Exception):  # noqa: N818 - nothing went wrong
    """A model is called with these tensors."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.given = given


def check_reach(pipe: Any, family: Family) -> None:
    """Refuse a family by which an edit would change nothing, or half of what the prompt says.

    Raises:
        UnsupportedHostError: the call cannot be tried on a prompt alone; a part is not read by the model behind
            `encode_prompt`; or the prompt reaches that by another way too.
    """
    name, encoders = type(pipe).__name__, {one for part in family.parts for one in part.encoders}
    original = twin_of(pipe).encode_prompt

    def given(prompt: str, encode: Encode) -> list[Tensor]:
        return first_inputs(pipe, prompt, encode, [getattr(pipe, one, None) for one in encoders])

    def of_the_first(*args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(original).bind(*args, **kwargs)
        prompts = call.arguments.get("prompt")
        if _is_of(prompts, PROBES[1]):
            call.arguments["prompt"] = PROBES[0] if isinstance(prompts, str) else [PROBES[0]]
        return original(*call.args, **call.kwargs)

    def other(index: int) -> Encode:
        def encode(*args: Any, **kwargs: Any) -> Any:
            result = list(original(*args, **kwargs))
            inside = opened(result[index])
            if inside is not None and _is_of(inspect.signature(original).bind(*args, **kwargs).arguments.get("prompt")):
                result[index] = inside[1](-inside[0] - 1)
            return tuple(result)

        return encode

    first = given(PROBES[0], original)
    if not same_tensors(first, given(PROBES[0], original)):
        raise UnsupportedHostError(f"{name}: two calls from one noise differ, so where the prompt goes is unseen")
    if not same_tensors(first, given(PROBES[1], of_the_first)):
        raise UnsupportedHostError(f"{name}: the prompt reaches its denoiser beside encode_prompt too")
    for part in family.parts:
        if same_tensors(first, given(PROBES[0], other(part.index))):
            raise UnsupportedHostError(
                f"{name}: its denoiser does not read what encode_prompt returns at place {part.index}, {part.role!r}"
            )


def asks_for_another(pipe: Any, encoders: list[Any]) -> bool:
    """Does a call ask `encode_prompt` for another prompt beside its own, an empty one that it guides away from?

    Raises:
        UnsupportedHostError: as `first_inputs`; or it asks several times for its own.
    """
    original, asked = twin_of(pipe).encode_prompt, list[bool]()

    def noted(*args: Any, **kwargs: Any) -> Any:
        prompt = inspect.signature(original).bind(*args, **kwargs).arguments.get("prompt")
        asked.extend([] if prompt is None else [_is_of(prompt)])  # none with embeddings that are brought along
        return original(*args, **kwargs)

    first_inputs(pipe, PROBES[0], noted, encoders)
    if sum(asked) > 1:
        raise UnsupportedHostError(
            f"{type(pipe).__name__}: it calls encode_prompt {sum(asked)} times for one prompt, in different ways"
        )
    return not all(asked)


def first_inputs(pipe: Any, prompt: str, encode: Encode, encoders: list[Any]) -> list[Tensor]:
    """What the first model after `encode_prompt` is given, where `encode` stands in for that.

    Raises:
        UnsupportedHostError: the call needs more than a prompt, fails, or ends before; no scheduler.
    """
    name, twin, inside, asked = type(pipe).__name__, twin_of(pipe), False, False
    if getattr(pipe, "scheduler", None) is None:
        raise UnsupportedHostError(f"{name}: it has no scheduler, so that a call cannot be followed to its first step")

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside, asked
        inside = True
        try:
            return encode(*args, **kwargs)
        finally:
            inside, asked = False, True

    def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if asked and not inside:
            raise _Reached([one.detach().clone() for one in tensors_in((args, kwargs))])

    takes = inspect.signature(type(pipe).__call__).parameters
    needed = [n for n, p in takes.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD][1:]
    if missing := [one for one in needed if one != "prompt"]:
        raise UnsupportedHostError(
            f"{name}: its call needs {', '.join(missing)} beside the prompt, and cannot be tried"
        )
    usual: dict[str, Any] = {
        "num_inference_steps": 2,
        "output_type": "latent",
        "generator": torch.Generator().manual_seed(0),
    }
    usual |= {"use_resolution_binning": False, "clean_caption": False}
    call = {key: value for key, value in usual.items() if key in takes}
    twin.encode_prompt = stand_in
    models = [one for one in pipe.components.values() if isinstance(one, nn.Module)]
    hooks = [
        model.register_forward_pre_hook(stop, with_kwargs=True)
        for model in models
        if all(model is not one for one in encoders)
    ]
    try:
        with torch.no_grad(), bare():
            twin(prompt=prompt, **call)
    except _Reached as reached:
        return reached.given
    except Exception as error:  # a pipeline that nobody knows raises what it likes
        raise UnsupportedHostError(
            f"{name}: a call with a prompt alone fails ({type(error).__name__}: {str(error)[:200]}), so that where "
            "the prompt goes cannot be seen"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    raise UnsupportedHostError(
        f"{name}: no model of its is called after encode_prompt, so nothing reads what it returns"
    )


def _is_of(given: Any, prompt: str = PROBES[0]) -> bool:
    return given == prompt or (isinstance(given, list | tuple) and list(given) == [prompt])


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Of a tensor itself, of lists and mappings, however deep, theirs."""
    if isinstance(value, Tensor):
        yield value
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from tensors_in(one)


def same_tensors(one: list[Tensor], other: list[Tensor]) -> bool:
    """As many, of the same shapes and values."""
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )
