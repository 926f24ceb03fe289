"""Diffusers pipelines: projections on what `encode_prompt` returns, by role.

`encode_prompt` is public, returns the conditional and the negative prompt apart, and is what img2img, inpaint and
ControlNet pipelines call too. It is wrapped as an attribute of the one pipeline, which `del` removes again: modules,
adapters, offload hooks and `save_pretrained` never notice, and pipelines that share the modules stay as they are.

As in the paper's generation experiments, every token of the conditional prompt is projected, the negative branch is
not, and projections are fitted on the state of the end-of-text token (Chuang et al., 2023, section 7.5 of the thesis).
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from vldebias.attachment import Apply, Texts
from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError, VldebiasWarning
from vldebias.fingerprint import weights_fingerprint
from vldebias.hosts.base import Host
from vldebias.hosts.diffusers_families import CROSS_ATTENTION, Family, Part, family_of, list_pipelines, register_family
from vldebias.projection import CalibratedProjection

__all__ = ["CROSS_ATTENTION", "DiffusersHost", "Family", "Part", "list_pipelines", "register_family", "wrap"]

_BATCH = 32
_SKIP = "@clip_skip="
# Fitted with what a call uses by default: T5 reads its padding, Gemma an instruction before the prompt.
_CALL_DEFAULTS = ("max_sequence_length", "complex_human_instruction")


def wrap(pipe: Any, *, negative: bool = False) -> DiffusersHost:
    """A pipeline as a host.

    Args:
        pipe: a pipeline of one of the families of `list_pipelines()`, or a subclass.
        negative: project the negative prompt too.

    Raises:
        UnsupportedHostError: unknown class, no `encode_prompt`, or text encoders that are not loaded.
    """
    return DiffusersHost(pipe, family_of(pipe), negative)


class DiffusersHost(Host):
    """A pipeline, seen as the tensors of its `encode_prompt`.

    Under `clip_skip` a tensor comes from an earlier layer; its role is then "sequence@clip_skip=2", with a
    projection of its own, fitted when a call first needs it. Tensors that the caller passes in (`prompt_embeds`,
    `pooled_prompt_embeds`) are left alone: project those with `attachment.apply("sequence", prompt_embeds)`; for SD3
    "sequence.clip" on the first `pipe.tokenizer_max_length` tokens and "sequence.t5" on the others. Embeddings of a
    negative prompt that you make yourself with `pipe.encode_prompt(negative)` belong inside `attachment.disabled()`.
    """

    generative = True

    def __init__(self, pipe: Any, family: Family, negative: bool) -> None:
        if not callable(getattr(pipe, "encode_prompt", None)):
            raise UnsupportedHostError(f"{type(pipe).__name__} has no encode_prompt, expected for family {family.name}")
        self.name = type(pipe).__name__
        origin = getattr(pipe, "name_or_path", None)
        self.model_id = str(origin) if origin else None
        self._pipe = pipe
        self._family = family
        self._negative = negative
        self._parts = _loaded_parts(pipe, family)
        self.roles = tuple(part.role for part in self._parts)
        names = dict.fromkeys(name for part in self._parts for name in part.encoders)
        encoders = [e for name in names if (e := getattr(pipe, name, None)) is not None]
        self._encoders = [getattr(e, "_orig_mod", e) for e in encoders]  # torch.compile wraps what it compiles
        self.owned = (pipe,)
        self.shared = tuple(self._encoders)
        self._memo: dict[tuple[str, str], Tensor] = {}
        self._fingerprint: dict[str, Any] | None = None
        self._fingerprinted = False

    def space(self, role: str) -> str:
        """ "StableDiffusionXL.pooled": by family, so that text-to-image and inpainting share it."""
        self._find(role)
        return f"{self._family.name}.{role}"

    def fingerprint(self) -> dict[str, Any] | None:
        """Fingerprint of the text encoders; None, with a warning, where their weights are offloaded to meta tensors."""
        if not self._fingerprinted:
            self._fingerprint = weights_fingerprint(*self._encoders)
            self._fingerprinted = True
            if self._fingerprint is None:
                warnings.warn(
                    f"{self.name}: the weights of the text encoders are offloaded, so they have no fingerprint and a "
                    "projection is not checked against them; attach before enable_sequential_cpu_offload() to have it",
                    VldebiasWarning,
                    stacklevel=3,
                )
        return self._fingerprint

    # ---- embedding -------------------------------------------------------------------------------------------

    def embed(self, prompts: Sequence[str], role: str) -> Tensor:
        """L2-normalised (n, d) float64: the state of the end-of-text token, or the pooled vector, of each prompt.

        One pass of the encoders gives all roles, so the others are kept for the calls that follow while fitting.
        """
        _, skip = self._find(role)
        todo = [p for p in dict.fromkeys(prompts) if (role, p) not in self._memo]
        for start in range(0, len(todo), _BATCH):
            self._remember(todo[start : start + _BATCH], skip)
        return torch.stack([self._memo[role, p] for p in prompts])

    def _remember(self, prompts: list[str], skip: int | None) -> None:
        with torch.no_grad():
            result = _bare(self._pipe)(**self._arguments(prompts, skip))
        for part in self._parts:
            states = self._end_states(part, result, prompts).to("cpu", torch.float64)
            for prompt, state in zip(prompts, torch.nn.functional.normalize(states, dim=-1), strict=True):
                self._memo[_role(part, skip), prompt] = state

    def _arguments(self, prompts: list[str], skip: int | None) -> dict[str, Any]:
        """Arguments for the `encode_prompt` of this release: what it has no parameter for is left out."""
        wanted: dict[str, Any] = {self._family.texts[0]: prompts, "clip_skip": skip}
        wanted |= {"device": self._pipe._execution_device, "do_classifier_free_guidance": False}
        wanted |= {"num_images_per_prompt": 1, "num_videos_per_prompt": 1}
        call = inspect.signature(type(self._pipe).__call__).parameters
        wanted |= {n: p.default for n, p in call.items() if n in _CALL_DEFAULTS and p.default is not p.empty}
        parameters = inspect.signature(_bare(self._pipe)).parameters
        required = [n for n, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        return dict.fromkeys(required) | {name: value for name, value in wanted.items() if name in parameters}

    def _end_states(self, part: Part, result: Any, prompts: list[str]) -> Tensor:
        tensor = self._segment(part, self._tensor(part, result))
        if tensor.ndim == 2:
            return tensor
        masked = part.mask is not None
        last = _last_true(result[part.mask]) if masked else self._end_positions(part, prompts, tensor.shape[1])
        return tensor[torch.arange(len(tensor), device=tensor.device), last.to(tensor.device)]

    def _tensor(self, part: Part, result: Any) -> Tensor:
        found = result[part.index] if isinstance(result, (tuple, list)) and len(result) > part.index else None
        if isinstance(found, Tensor) and found.ndim in (2, 3):
            return found
        raise UnsupportedHostError(
            f"{self.name}: expected a tensor (b, d) or (b, tokens, d) at place {part.index} of what encode_prompt "
            f"returns, as in family {self._family.name}, got {type(found).__name__}; describe this class with "
            "vldebias.hosts.diffusers.register_family(Family(...))"
        )

    def _end_positions(self, part: Part, prompts: list[str], length: int) -> Tensor:
        """Place of the end-of-text token by its id, the first one, since some tokenizers pad with it as well."""
        tokenizer = next((t for name in part.tokenizers if (t := getattr(self._pipe, name, None)) is not None), None)
        if tokenizer is None:
            raise UnsupportedHostError(
                f"{self.name}: expected a tokenizer {' or '.join(part.tokenizers)}, none is loaded"
            )
        if hasattr(self._pipe, "maybe_convert_prompt"):  # a textual inversion can stand for several tokens
            prompts = self._pipe.maybe_convert_prompt(prompts, tokenizer)
        tokens = tokenizer(prompts, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        is_end = tokens.input_ids[:, 1:] == tokenizer.eos_token_id
        return 1 + is_end.int().argmax(1) if is_end.any(1).all() else _last_true(tokens.attention_mask)

    # ---- the seam --------------------------------------------------------------------------------------------

    def install(self, apply: Apply) -> Callable[[], None]:
        """Wrap `encode_prompt` on this pipeline alone; the returned function puts back what was there."""
        self._memo.clear()  # weights may change from here on
        pipe = self._pipe
        before = vars(pipe).get("encode_prompt")
        bare = pipe.encode_prompt
        signature = inspect.signature(bare)

        @functools.wraps(bare)
        def encode_prompt(*args: Any, **kwargs: Any) -> Any:
            result = bare(*args, **kwargs)
            call = signature.bind(*args, **kwargs)
            call.apply_defaults()
            second = self._family.twice and _is_second(pipe, call.arguments, sys._getframe(1))
            return self._project(apply, result, call.arguments, second)

        def uninstall() -> None:
            if vars(pipe).get("encode_prompt") is not encode_prompt:
                raise VldebiasError(f"{self.name}: something else replaced encode_prompt; take that off first")
            del pipe.encode_prompt
            if before is not None:
                pipe.encode_prompt = before

        encode_prompt.vldebias_bare = bare  # type: ignore[attr-defined]
        pipe.encode_prompt = encode_prompt
        return uninstall

    def _project(self, apply: Apply, result: Any, call: Mapping[str, Any], second: bool) -> Any:
        """The returned tuple with its parts projected; the same object where nothing changed."""
        out = list(result)
        positive = self._family.texts
        negative = [f"negative_{name}" for name in positive]
        for part in self._parts:
            if (self._negative or not second) and call.get(part.given) is None:
                role = _role(part, call.get("clip_skip"))
                out[part.index] = self._apply(apply, part, role, out[part.index], lambda: _texts(call, positive))
            if self._negative and part.negative is not None and call.get(f"negative_{part.given}") is None:
                # the negative prompt never takes part in clip_skip
                twin = out[part.negative]
                out[part.negative] = self._apply(apply, part, part.role, twin, lambda: _texts(call, negative))
        return result if all(a is b for a, b in zip(out, result, strict=True)) else type(result)(out)

    def _apply(self, apply: Apply, part: Part, role: str, tensor: Tensor | None, texts: Texts) -> Tensor | None:
        if tensor is None:  # no guidance, no negative branch
            return None
        segment = self._segment(part, tensor)
        projected = apply(role, segment, texts)
        if projected is segment:
            return tensor
        return self._with_segment(part, tensor, projected)

    def _segment(self, part: Part, tensor: Tensor) -> Tensor:
        start, stop = self._bounds(part)
        return tensor if start is stop is None else tensor[:, start:stop]

    def _with_segment(self, part: Part, tensor: Tensor, segment: Tensor) -> Tensor:
        start, stop = self._bounds(part)
        if start is stop is None:
            return segment
        before, after = tensor[:, : start or 0], tensor[:, tensor.shape[1] if stop is None else stop :]
        return torch.cat([before, segment, after], dim=1)

    def _bounds(self, part: Part) -> tuple[int | None, int | None]:
        start, stop = (None if name is None else int(getattr(self._pipe, name)) for name in (part.start, part.stop))
        return start, stop

    def _find(self, role: str) -> tuple[Part, int | None]:
        """The part and the clip_skip of a role such as "sequence" or "sequence@clip_skip=2"."""
        name, _, skip = role.partition(_SKIP)
        for part in self._parts:
            if part.role == name and (not skip or (part.layered and skip.isdecimal() and int(skip))):
                return part, int(skip) if skip else None
        raise InvalidInputError(f"{self.name}: expected a role of {list(self.roles)}, got {role!r}")

    # ---- merge -----------------------------------------------------------------------------------------------

    def merge(self, projections: Mapping[str, CalibratedProjection], strength: float) -> None:
        """Fold the projections into the layers that read the embeddings, see `vldebias.hosts.diffusers_merge`."""
        from vldebias.hosts.diffusers_merge import fold

        fold(self._pipe, self._parts, projections, strength)


def _loaded_parts(pipe: Any, family: Family) -> tuple[Part, ...]:
    """The parts whose encoders are loaded; a part that is not optional needs one of them."""

    def loaded(part: Part) -> bool:
        return any(getattr(pipe, name, None) is not None for name in part.encoders)

    missing = [" or ".join(part.encoders) for part in family.parts if not (loaded(part) or part.optional)]
    if missing:
        raise UnsupportedHostError(
            f"{type(pipe).__name__}: {', '.join(missing)} is not loaded, so prompts cannot be embedded; load the "
            "pipeline with its text encoders, or apply a fitted projection to the prompt_embeds that you pass to it"
        )
    return tuple(part for part in family.parts if loaded(part))


def _bare(pipe: Any) -> Callable[..., Any]:
    """`encode_prompt` without an attachment."""
    return getattr(pipe.encode_prompt, "vldebias_bare", pipe.encode_prompt)


def _is_second(pipe: Any, call: Mapping[str, Any], caller: FrameType) -> bool:
    """Does `pipe.__call__` ask for its negative prompt, in a call of its own?

    The strings cannot tell, both prompts may be equal, and counting calls goes wrong after an exception. What does:
    `__call__` passes its own `prompt_embeds` the first time; the second time these are already the first result,
    and it passes `negative_prompt_embeds` in their place.
    """
    inside = caller.f_code.co_name == "__call__" and caller.f_locals.get("self") is pipe
    return inside and caller.f_locals.get("prompt_embeds") is not call.get("prompt_embeds")


def _role(part: Part, skip: int | None) -> str:
    """clip_skip=0 is the layer that is read without clip_skip."""
    return f"{part.role}{_SKIP}{skip}" if skip and part.layered else part.role


def _texts(call: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """One text per prompt of a call, its prompts for several encoders joined: any of them may state the attribute."""
    given = [call[name] for name in names if call.get(name) is not None]
    columns = [[value] if isinstance(value, str) else list(value) for value in given] or [[""]]
    rows = max(len(column) for column in columns)
    return [" | ".join(column[row % len(column)] for column in columns) for row in range(rows)]


def _last_true(mask: Tensor) -> Tensor:
    """Place of the last nonzero entry in each row of (n, tokens)."""
    return mask.shape[1] - 1 - (mask != 0).flip(1).int().argmax(1)
