"""Diffusers pipelines: projections on what `encode_prompt` returns, by role.

`encode_prompt` is public, returns the conditional and the negative prompt apart, and is what img2img, inpaint and
ControlNet pipelines call too. It is wrapped as an attribute of the one pipeline, which `del` removes again: modules,
adapters, offload hooks and `save_pretrained` never notice, and pipelines that share the modules stay as they are.

As in the paper's generation experiments, every token of the conditional prompt is projected, the negative branch is
not, and projections are fitted on the state of the end-of-text token (Chuang et al., 2023, section 7.5 of the thesis).
Encoders that read a chat have an end of the turn in its place, see `vldebias.hosts.prompt_end`; every token that
`encode_prompt` returns is projected there too, a system message included, save what shows a conditioning image.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cached_property
from types import FrameType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from vldebias.edit import Edit, Fingerprint, Guidance
from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError, warn
from vldebias.hosts.base import Apply, Host, Texts
from vldebias.hosts.diffusers_families import family_of, list_families, list_pipelines, register_family
from vldebias.hosts.family import CROSS_ATTENTION, Family, Part, opened
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.hosts.first_step import begin, check_begins, first_step_similarity, twin_of
from vldebias.hosts.guidance import GuideSeam
from vldebias.hosts.merge import fold_into_readers, merge_marker, readers, write_merge_marker
from vldebias.hosts.prompt_end import PROBES, Reading, last_true, recorded, tokens_after_prompt
from vldebias.hosts.seam import Installed, MethodSeam, Seam, reading
from vldebias.hosts.steps import StepSeam, checked_window
from vldebias.prompts import list_prompts, load_prompts

__all__ = [
    "CROSS_ATTENTION",
    "DiffusersHost",
    "Family",
    "Part",
    "diffusers_host",
    "list_families",
    "list_pipelines",
    "register_family",
]

_BATCH = 32
_SKIP = "@clip_skip="
# Fitted with what a call uses by default: T5 reads its padding, Gemma an instruction before the prompt.
_LAYERS = "text_encoder_out_layers"
_CALL_DEFAULTS = ("max_sequence_length", "complex_human_instruction", "prompt_template", _LAYERS)
# Two prompts and how near to the first the mean of both begins. All roles of a call ask for the same ones; calls share
# none, since weights may have changed and another thread may be in the middle of its own.
_Beginnings = dict[tuple[str, str], float]
_CALL: ContextVar[_Beginnings] = ContextVar("vldebias_beginnings")
# Text encoders and what each was called with.
_Readings = Mapping[str, Sequence[Reading]]


class DiffusersHost(Host):
    """A pipeline, seen as the tensors of its `encode_prompt`.

    Under `clip_skip` a tensor comes from an earlier layer; its role is then "sequence@clip_skip=2", with a
    projection of its own, fitted when a call first needs it. Tensors that the caller passes in (`prompt_embeds`,
    `pooled_prompt_embeds`) are left alone: project those with `attachment.apply("sequence", prompt_embeds)`; for SD3
    "sequence.clip" on the first `pipe.tokenizer_max_length` tokens and "sequence.t5" on the others. Embeddings of a
    negative prompt that you make yourself with `pipe.encode_prompt(negative)` belong inside `attachment.disabled()`.
    """

    library = "diffusers"
    generative = True
    held: ClassVar[tuple[str, ...]] = ("_pipe", "_encoders", "_steps", "_guided")

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None, *, negative: bool = False) -> Self:
        """The host for a pipeline of one of the families of `list_pipelines()`, or a subclass.

        negative: project the negative prompt too.

        Raises:
            UnsupportedHostError: unknown class, no `encode_prompt`, or text encoders that are not loaded.
        """
        family = family_of(model)
        if not callable(getattr(model, "encode_prompt", None)):
            raise UnsupportedHostError(
                f"{type(model).__name__} has no encode_prompt, expected for family {family.name}"
            )
        return cls(model, family, negative)

    def __init__(self, pipe: Any, family: Family, negative: bool) -> None:
        self.name = type(pipe).__name__
        origin = getattr(pipe, "name_or_path", None)
        self.model_id = str(origin) if origin else None
        self._pipe = pipe
        self._family = family
        self.negative = negative
        self._parts = tuple(p for p in family.parts if any(getattr(pipe, n, None) is not None for n in p.encoders))
        missing = [" or ".join(p.encoders) for p in family.parts if p not in self._parts and not p.optional]
        if missing:
            raise UnsupportedHostError(
                f"{self.name}: {', '.join(missing)} is not loaded, so prompts cannot be embedded; load the pipeline "
                "with its text encoders, or apply a fitted projection to the prompt_embeds that you pass to it"
            )
        self.roles = tuple(part.role for part in self._parts)
        self.masked = family.masked or any(part.mask is not None for part in self._parts)
        names = dict.fromkeys(name for part in self._parts for name in part.encoders)
        encoders = [e for name in names if (e := getattr(pipe, name, None)) is not None]
        self._encoders = [getattr(e, "_orig_mod", e) for e in encoders]  # torch.compile wraps what it compiles
        self._after_prompt: dict[str, int] = {}
        self._beginnings: _Beginnings | None = {}  # of fits; None while attached: weights may change at any time
        # A template's prompts are read one by one: with others beside them some encoders read more padding.
        self._batch = 1 if any(part.template for part in self._parts) else _BATCH
        self.beside_image = any(part.beside_image for part in self._parts)
        self._steps: StepSeam | None = None
        self._guided: GuideSeam | None = None
        self.exclusive_modules = (pipe,)
        self.shared_modules = tuple(self._encoders)

    def space(self, role: str) -> str:
        """ "StableDiffusionXL.pooled": by family, so that text-to-image and inpainting share it."""
        self._find(role)
        return f"{self._family.name}.{role}"

    @cached_property
    def _fingerprint(self) -> Fingerprint | None:
        mark = weights_fingerprint(*self._encoders)
        if mark is None:
            warn(
                f"{self.name}: the weights of the text encoders are offloaded, so they have no fingerprint and a "
                "projection is not checked against them; attach before enable_sequential_cpu_offload() to have it"
            )
        return mark

    def fingerprint(self) -> Fingerprint | None:
        """Fingerprint of the text encoders; None, with a warning, where their weights are offloaded to meta tensors."""
        return self._fingerprint

    # ---- embedding -------------------------------------------------------------------------------------------

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """The state of the end-of-text token, or the pooled vector, of each prompt; one pass gives all roles."""
        _, skip = self._find(role)
        rows: dict[tuple[str, str], Tensor] = {}
        for batch, part, result, readings in self._encoded(prompts, skip):
            states = self._end_states(part, result, batch, readings).to("cpu", torch.float64)
            units = torch.nn.functional.normalize(states, dim=-1)
            rows |= {(_role(part, skip), p): unit for p, unit in zip(batch, units, strict=True)}
        return rows

    def _encoded(self, prompts: Sequence[str], skip: int | None) -> Iterator[tuple[list[str], Part, Any, _Readings]]:
        """Batch by batch, each part with what `encode_prompt` returns and what the encoders were given for that."""
        for start in range(0, len(prompts), self._batch):
            batch = list(prompts[start : start + self._batch])
            for when in dict.fromkeys(part.when for part in self._parts):
                with reading(*self._encoders), self.recorded(self._pipe) as readings:
                    result = self._encode(list(batch), skip, when)
                yield from ((batch, part, result, readings) for part in self._parts if part.when == when)

    def _encode(self, prompts: list[str], skip: int | None, when: tuple[str, Any] | None) -> Any:
        """What the pipeline itself makes of prompts, without guidance."""
        return self._pipe.encode_prompt(**self._arguments(prompts, skip) | dict([when] if when else []))

    @contextmanager
    def recorded(self, pipe: Any) -> Iterator[_Readings]:
        """What the encoders of templates of the pipeline, or its copy, are given inside."""
        with ExitStack() as stack:
            names = [_loaded(pipe, part) for part in self._parts if part.template]
            yield {name: stack.enter_context(recorded(getattr(pipe, name))) for name in dict.fromkeys(names)}

    def sequences(self, prompts: Sequence[str], role: str) -> tuple[Tensor, Tensor]:
        """See `Host.sequences`; the prompts of a batch that are shorter than others end in zeros."""
        part, skip = self._find(role)
        states: list[Tensor] = []
        for _, one, result, _ in self._encoded(prompts, skip):
            if one is part:
                tensor = self._tensor(part, result)
                tensor = tensor[:, None] if tensor.ndim == 2 else tensor[:, slice(*self._bounds(part))]
                states += tensor.double().cpu()
        tokens = torch.nn.utils.rnn.pad_sequence(states, batch_first=True)
        ends = torch.nn.functional.cosine_similarity(tokens, self.embed(prompts, role)[:, None], dim=-1).argmax(1)
        return tokens, ends

    def first_step_similarity(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        """See `Host.first_step_similarity`, by `vldebias.hosts.first_step`; whatever is attached has no part in it."""
        check_begins(self._pipe)
        known = _CALL.get(self._beginnings)
        known = {} if known is None else known
        if all(pair in known for pair in pairs):
            return torch.tensor([known[pair] for pair in pairs], dtype=torch.float64)
        twin = DiffusersHost(twin_of(self._pipe), self._family, negative=False)

        def begun(first: str, second: str) -> Tensor:
            def mean(role: str, embeddings: Tensor, texts: Texts | None) -> Tensor:
                if first == second:
                    return embeddings
                other = self.sequences([second], role)[0].to(embeddings)
                return (embeddings + (other[:, 0] if embeddings.ndim == 2 else other)) / 2

            take_off = twin.install(mean)
            try:
                return begin(twin._pipe, first)
            finally:
                take_off()

        shares = first_step_similarity(pairs, begun)
        known.update(zip(pairs, shares.tolist(), strict=True))
        return shares

    def forget(self) -> None:
        """See `Host.forget`; what is begun is forgotten too."""
        super().forget()
        self._beginnings = {}

    def _arguments(self, prompts: list[str], skip: int | None) -> dict[str, Any]:
        """Arguments for the `encode_prompt` of this release: what it has no parameter for is left out."""
        arguments: dict[str, Any] = {self._family.texts[0]: prompts, "clip_skip": skip}
        arguments |= {"device": self._pipe._execution_device, "do_classifier_free_guidance": False}
        arguments |= {"num_images_per_prompt": 1, "num_videos_per_prompt": 1, "batch_size": len(prompts)}
        arguments["guidance_scale"] = 1.0
        call = inspect.signature(type(self._pipe).__call__).parameters
        arguments |= {n: p.default for n, p in call.items() if n in _CALL_DEFAULTS and p.default is not p.empty}
        parameters = inspect.signature(self._pipe.encode_prompt).parameters
        required = [n for n, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        return dict.fromkeys(required) | {name: value for name, value in arguments.items() if name in parameters}

    def _end_states(self, part: Part, result: Any, prompts: list[str], readings: _Readings) -> Tensor:
        tensor = self._tensor(part, result)
        if tensor.ndim == 2:
            return tensor
        tensor = tensor[:, slice(*self._bounds(part))]
        mask = None if part.mask is None else result[part.mask]  # some give none where all prompts are as long
        if part.template:
            last = self._ends_inside(part, result[part.index], tensor.shape[1], mask, readings)
        else:
            last = self._end_positions(part, prompts, tensor.shape[1]) if mask is None else last_true(mask)
        return tensor[torch.arange(len(tensor), device=tensor.device), last.to(tensor.device)]

    def _ends_inside(self, part: Part, value: Any, length: int, mask: Tensor | None, readings: _Readings) -> Tensor:
        """Place of the token that ends a prompt inside a template, of one prompt."""
        name = _loaded(self._pipe, part)
        if name not in self._after_prompt:
            probed: list[Reading] = []
            for probe in PROBES:
                *_, (*_, kept) = self._encoded([probe], None)
                probed += kept[name][-1:]
            self._after_prompt[name] = tokens_after_prompt(probed)
        if mask is None and isinstance(value, Tensor):
            mask = readings[name][-1].mask[:, -length:]  # where the output is shorter, the start was cut off
        ends = torch.tensor([length - 1]) if mask is None else last_true(mask)
        return ends - self._after_prompt[name]

    def _tensor(self, part: Part, result: Any) -> Tensor:
        value = result[part.index] if isinstance(result, (tuple, list)) and len(result) > part.index else None
        inside = opened(value, part.stack)
        if inside is not None:
            return inside[0]
        raise UnsupportedHostError(
            f"{self.name}: expected a tensor (b, d) or (b, tokens, d) at place {part.index} of what encode_prompt "
            f"returns, as in family {self._family.name}, got {type(value).__name__}; describe this class with "
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
        return 1 + is_end.int().argmax(1) if is_end.any(1).all() else last_true(tokens.attention_mask)

    # ---- the seam --------------------------------------------------------------------------------------------

    def install(self, apply: Apply) -> Callable[[], None]:
        """Wrap `encode_prompt` on this pipeline alone; the returned function puts back what was there."""
        Seam.refuse_copy(vars(self._pipe).values())
        hooks = self._step_by_step(apply)
        seam = _EncodePrompt(self, apply)
        seam.put_on()
        self._beginnings = None
        self._guided = GuideSeam(self, apply) if self.guides else None
        return Installed([one for one in (seam, self._steps, self._guided) if one is not None], hooks)

    @property
    def guides(self) -> bool:  # type: ignore[override]
        """See `Host.guides`: a UNet that is told its prompt by one tensor alone, in a call that tells its guidance."""
        guided = hasattr(type(self._pipe), "guidance_scale") and getattr(self._pipe, "unet", None) is not None
        return guided and self._family.name == "StableDiffusion"

    def guide(self, states: Tensor, images: int, added: Guidance) -> None:
        """See `Host.guide`."""
        if self._guided is None:
            super().guide(states, images, added)
        else:
            self._guided.begin(states, images, added)

    def within(self, steps: Any) -> Self:
        """See `Host.within`; whether the denoiser is given the embeddings step by step is seen at the second step."""
        self.window = checked_window(steps)
        return self

    def _step_by_step(self, apply: Apply) -> list[RemovableHandle]:
        """Put the seam of a window of steps on, where there is one."""
        self._steps = None if self.window is None else StepSeam(self, apply)
        return [] if self._steps is None else self._steps.put_on()

    def text_modules(self) -> list[torch.nn.Module]:
        """The text encoders."""
        return self._encoders

    def project(self, apply: Apply, result: Any, call: Mapping[str, Any], second: bool, readings: _Readings) -> Any:
        """What `encode_prompt` returned for `call`, its parts projected; the same object where nothing changed.

        second: the call is for the negative prompt, see `Family.twice`.
        readings: what the encoders were given, where tokens may show an image.
        """
        out = list(result)
        if self._guided is not None and all(call.get(part.given) is None for part in self._parts):
            self._guided.clear()
        positive = self._family.texts
        negative = [f"negative_{name}" for name in positive]
        for part in self._parts:
            if part.when is not None and call.get(part.when[0]) != part.when[1]:
                continue
            if (self.negative or not second) and call.get(part.given) is None:
                role = _role(part, call.get("clip_skip"))
                shown = self._shown(part, result, readings)
                out[part.index] = self._apply(apply, part, role, out[part.index], lambda: _texts(call, positive), shown)
            if self.negative and part.negative is not None and call.get(f"negative_{part.given}") is None:
                # the negative prompt never takes part in clip_skip
                twin = out[part.negative]
                out[part.negative] = self._apply(apply, part, part.role, twin, lambda: _texts(call, negative))
        edited = any(a is not b for a, b in zip(out, result, strict=True))
        if edited:
            self._check_layers(call)
        if self._steps is not None and self._steps.active:
            turns = [part.when[0] for part in self._parts if part.when is not None]
            key = (second, *(call.get(name) for name in turns))
            brought = any(call.get(part.given) is not None for part in self._parts)
            out = list(self._steps.take(result, out, key, anew=not second and not turns, brought=brought))
        return type(result)(out) if any(a is not b for a, b in zip(out, result, strict=True)) else result

    def _check_layers(self, call: Mapping[str, Any]) -> None:
        """Refuse states of other layers than were fitted: another space, often of the same width."""
        fitted, layers = self._default(_LAYERS), call.get(_LAYERS)
        if fitted is not None and layers is not None and tuple(layers) != tuple(fitted):
            raise InvalidInputError(
                f"{self.name}: the projection was fitted with {_LAYERS}={tuple(fitted)}, the call got "
                f"{tuple(layers)}; leave it at its default, or encode inside attachment.disabled()"
            )

    def _default(self, argument: str) -> Any:
        """What a call of the pipeline uses where it is given no such argument; None where it takes none."""
        known = inspect.signature(type(self._pipe).__call__).parameters.get(argument)
        return None if known is None else known.default

    def _apply(self, apply: Apply, part: Part, role: str, value: Any, texts: Texts, shown: Tensor | None = None) -> Any:
        """A part, projected; shown: (b, tokens), true for those of an image, which are left alone."""
        if value is None or (isinstance(value, list) and not value):  # no guidance, no negative branch
            return value
        inside = opened(value, part.stack)
        if inside is None:
            raise UnsupportedHostError(
                f"{self.name}: expected a tensor or a list of tensors for {part.role!r}, got {type(value).__name__}"
            )
        tensor, close = inside
        start, stop = self._bounds(part)
        segment = tensor[:, start:stop] if (start, stop) != (0, None) else tensor
        projected = apply(role, segment, texts)
        if projected is segment:
            return value
        if shown is not None:
            projected = torch.where(shown[..., None], segment, projected)
        if segment is tensor:
            return close(projected)
        after = tensor[:, stop:] if stop is not None else tensor[:, :0]
        return close(torch.cat([tensor[:, :start], projected, after], dim=1))

    def _shown(self, part: Part, result: Any, readings: _Readings) -> Tensor | None:
        """(b, tokens), true up to the last token of an image; None where the encoder was given none."""
        calls = [call for name in part.encoders for call in readings.get(name, ())]
        if not part.beside_image or not calls:
            return None
        encoded = calls[-1]
        marks = [getattr(encoded.config, mark, None) for mark in ("image_token_id", "vision_end_token_id")]
        ids = torch.tensor([mark for mark in marks if mark is not None], device=encoded.ids.device)
        image = torch.isin(encoded.ids, ids) & (encoded.mask != 0)
        places = torch.arange(image.shape[1], device=image.device)
        text = ((places > last_true(image)[:, None]) & (encoded.mask != 0)).sum(1)  # tokens after the image, per prompt
        text = torch.where(image.any(1), text, image.shape[1])
        tensor, mask = result[part.index], result[part.mask] if part.mask is not None else None
        text = text.to(tensor.device).repeat_interleave(len(tensor) // len(text))
        ends = torch.full_like(text, tensor.shape[1]) if mask is None else last_true(mask) + 1
        return torch.arange(tensor.shape[1], device=tensor.device) < (ends - text)[:, None]

    def _bounds(self, part: Part) -> tuple[int, int | None]:
        """First token of a part and the one after its last, None for the end."""
        start, stop = (None if name is None else int(getattr(self._pipe, name)) for name in (part.start, part.stop))
        return start or 0, stop

    def _find(self, role: str) -> tuple[Part, int | None]:
        """The part and the clip_skip of a role such as "sequence" or "sequence@clip_skip=2"."""
        name, _, skip = role.partition(_SKIP)
        for part in self._parts:
            if part.role == name and (not skip or (part.layered and skip.isdecimal() and int(skip))):
                return part, int(skip) if skip else None
        raise InvalidInputError(f"{self.name}: expected a role of {list(self.roles)}, got {role!r}")

    # ---- merge -----------------------------------------------------------------------------------------------

    def merge(self, edits: Mapping[str, Edit], strength: float) -> None:
        """Fold the edits into the layers that read the embeddings.

        Warns:
            VldebiasWarning: the attachment spared the negative prompt; weights cannot, and by how much it moves.
        """
        fold_into_readers(self._pipe, self._parts, {role: edit.folded() for role, edit in edits.items()}, strength)
        guided = self._family.twice or any(part.negative is not None for part in self._parts)
        if guided and strength and not self.negative:
            moves = "; ".join(self._moves(role, edit, strength) for role, edit in edits.items())
            warn(
                f"{self.name}: weights cannot tell the two branches of guidance apart, so merge() changed the negative "
                f"prompt too, the empty one included ({moves}). With guidance it draws what an attachment with "
                "negative=True draws, not what this one drew; where that matters, keep the attachment"
            )

    def _moves(self, role: str, edit: Edit, strength: float) -> str:
        """How far the empty prompt and the class prompts of an edit are moved by it, as shares of their length."""
        names = [name for name in (edit.provenance.prompts or "").split("+") if name in list_prompts()]
        classes = [prompt for name in names for prompt in load_prompts(name).classes][:_BATCH]

        def moved(prompts: list[str]) -> float:
            states, _ = self.sequences(prompts, role)
            return float((edit(states, strength) - states).norm() / states.norm())

        shown, prompts = ("class prompts", classes) if classes else ("'a photo of a person'", ["a photo of a person"])
        return f"{role}: the states of '' move by {moved(['']):.1%} of their length, of {shown} by {moved(prompts):.1%}"

    def mark(self, note: str) -> None:
        """In the configs of the denoiser and of what else reads the embeddings."""
        for model in readers(self._pipe, self._parts):
            write_merge_marker(model, note)

    def marked(self) -> str | None:
        """What one of the models of the pipeline says."""
        return next((m for model in self._pipe.components.values() if (m := merge_marker(model)) is not None), None)


diffusers_host = DiffusersHost.of


class _EncodePrompt(MethodSeam):
    """Stands in for `encode_prompt` of one pipeline; a deep copy of the pipeline gets one for itself."""

    def __init__(self, host: DiffusersHost, apply: Apply) -> None:
        super().__init__(host.name, apply, host._pipe, "encode_prompt")
        self._host = host

    def take_off(self) -> None:
        """Put back what was there.

        Raises:
            VldebiasError: something else stands there.
        """
        if vars(self.owner).get("encode_prompt") is not self:
            raise VldebiasError(f"{self.name}: something else replaced encode_prompt; take that off first")
        super().take_off()
        self._host._beginnings = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.active:
            return self.original(*args, **kwargs)
        # Before the call: some put the template into the list of prompts that they were given.
        call = {n: list(v) if isinstance(v, list) else v for n, v in self.bind(*args, **kwargs).arguments.items()}
        family = self._host._family
        second = family.twice and _is_second(self.owner, call, sys._getframe(1), family.parts[0].given)
        watched: AbstractContextManager[_Readings]
        watched = self._host.recorded(self.owner) if self._host.beside_image else nullcontext({})
        with watched as readings:
            result = self.original(*args, **kwargs)
        token = _CALL.set({})
        try:
            return self._host.project(self.apply, result, call, second, readings)
        finally:
            _CALL.reset(token)


def _is_second(pipe: Any, call: Mapping[str, Any], caller: FrameType, given: str) -> bool:
    """Does `pipe.__call__` ask for its negative prompt, in a call of its own?

    The strings cannot tell, both prompts may be equal, and counting calls goes wrong after an exception. What does:
    `__call__` passes its own `prompt_embeds` (`given`) the first time; the second time these are already the first
    result, and it passes `negative_prompt_embeds` in their place, or nothing.
    """
    inside = caller.f_code.co_name == "__call__" and caller.f_locals.get("self") is pipe
    return inside and caller.f_locals.get(given) is not call.get(given)


def _loaded(pipe: Any, part: Part) -> str:
    """Name of the encoder that makes a part."""
    return next(name for name in part.encoders if getattr(pipe, name, None) is not None)


def _role(part: Part, skip: int | None) -> str:
    """clip_skip=0 is the layer that is read without clip_skip."""
    return f"{part.role}{_SKIP}{skip}" if skip and part.layered else part.role


def _texts(call: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """One text per prompt of a call, its prompts for several encoders joined: any of them may state the attribute."""
    prompts = [call[name] for name in names if call.get(name) is not None]
    columns = [[value] if isinstance(value, str) else list(value) for value in prompts] or [[""]]
    rows = max(len(column) for column in columns)
    return [" | ".join(column[row % len(column)] for column in columns) for row in range(rows)]
