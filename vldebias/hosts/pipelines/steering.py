"""Set values in a denoiser's cross-attention layers while a pipeline runs.

Each image's value is sampled when the prompt is encoded, by the same rules as for balanced prompts,
but the prompt is not rewritten. A hook runs after every cross-attention layer; no module or
processor is replaced.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from typing import SupportsIndex
from weakref import ref

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError
from vldebias.hosts.adapters import inner_module
from vldebias.hosts.attachment import INSIDE
from vldebias.hosts.call_log import CallRecord, raise_failures
from vldebias.hosts.hooks import Hook, Original, outside_compiled_code
from vldebias.hosts.pipelines.caches import cache_of, refuse_dropped_rows
from vldebias.hosts.pipelines.calls import copied, listed, running_call, texts_of_images
from vldebias.hosts.pipelines.diffusers import DiffusersHost
from vldebias.hosts.pipelines.passes import (
    Arguments,
    EncodedPrompts,
    Keywords,
    batch_of,
    text_output,
    time_of,
)
from vldebias.hosts.reading import TOKENIZING, during
from vldebias.hosts.seeds import indices_of
from vldebias.hosts.values import DenoiserAttachment
from vldebias.projection.cross_attention_edit import CrossAttentionEdit

_KEPT_TIMES = 200  # maximum number of timesteps for which effects are cached

_CALL: ContextVar[SampledCall | None] = ContextVar("vldebias_denoised", default=None)
"""The call whose prompts were most recently encoded in this thread or task."""
_PLAN: ContextVar[Plan | None] = ContextVar("vldebias_plan", default=None)
"""The changes that the hooks make in the current pass through the denoiser."""
_RECORD: ContextVar[dict[str, Tensor] | None] = ContextVar("vldebias_record", default=None)
"""Each layer's mean responses (batch, d), which the hooks record in a pass without changes."""


@dataclass
class SampledCall:
    """Store the prompts of one pipeline call and the values of its images.

    Attributes:
        owner: the `Steering` that sampled the values.
        prompts: the encoded prompts.
        texts: the prompts as they were passed.
        values: for each image, one entry per edit: a value, or None for no change.
        asks_gate: whether the call has embeddings instead of prompts, so that the gate decides in
            the first pass.
        passes: number of passes through the denoiser.
        matched: number of passes that contained rows of these prompts.
    """

    owner: object
    prompts: EncodedPrompts
    texts: list[str]
    values: list[tuple[object, ...]] = field(default_factory=list)
    asks_gate: bool = False
    passes: int = 0
    matched: int = 0

    def key(self, image: int) -> int:
        """Return a number derived from an image's prompt embedding.

        The number distinguishes prompts, so that values are balanced for each prompt.
        """
        prompts = self.prompts
        number = next(i for i, images in enumerate(prompts.images) if image in images)
        values = prompts.embeddings[0][number].detach().float().cpu().contiguous()
        return int(hashlib.sha256(values.numpy().tobytes()).hexdigest()[:8], 16)


class Plan:
    """Store the batch rows of one denoiser pass, and the values assigned to them.

    Attributes:
        time: timestep of the pass.
        batch: batch size of the pass.
        groups: for each combination of acting edits, as a tuple of booleans, the batch rows (n,) on
            which these edits act, and the indices (n, acting) of each row's values among the
            effects of these edits.
    """

    def __init__(self, time: float, batch: int) -> None:
        self.time = time
        self.batch = batch
        self.groups: dict[tuple[bool, ...], tuple[Tensor, Tensor]] = {}

    def add(
        self, edits: Sequence[CrossAttentionEdit], call: SampledCall, rows: Mapping[int, int]
    ) -> None:
        """Add batch rows with the values of their images.

        Args:
            edits: the fitted edits, one per attribute.
            call: the pipeline call in which the pass runs.
            rows: a mapping from batch row to the index of its image.
        """
        assert call.prompts.received is not None  # the tensor in which the rows were found
        device = call.prompts.received[0].device
        rows_of_group: dict[tuple[bool, ...], list[int]] = {}
        numbers_of_group: dict[tuple[bool, ...], list[list[int]]] = {}
        for row, image in rows.items():
            values = call.values[image]
            acting = tuple(value is not None for value in values)
            if any(acting):
                rows_of_group.setdefault(acting, []).append(row)
                numbers_of_group.setdefault(acting, []).append(numbers_of(edits, values))
        for acting, members in rows_of_group.items():
            numbers = torch.tensor(numbers_of_group[acting], device=device)
            self.groups[acting] = (torch.tensor(members, device=device), numbers)


class Steering(Hook):
    """Sample values when prompts are encoded, and set them in the cross-attention layers.

    As a `Hook`, it prevents the hooked model from being copied.

    Args:
        attachment: the attachment that samples the values.
        pipeline: the pipeline's host.
        denoisers: the denoisers by component name.
    """

    attachment: DenoiserAttachment

    def __init__(
        self,
        attachment: DenoiserAttachment,
        pipeline: DiffusersHost,
        denoisers: Mapping[str, nn.Module],
    ) -> None:
        super().__init__(attachment)
        self.pipeline = pipeline
        self.pipe = pipeline.pipe
        self.denoisers = denoisers
        self.edits = list(attachment.projections.values())
        self.layers = list(dict.fromkeys(name for edit in self.edits for name, _ in edit.layers))
        self._effects: dict[tuple[object, ...], dict[str, Tensor]] = {}
        self._replacements: set[int] = set()  # ids of other denoisers

    # ---- values of the images

    def encode(self, original: Original, bound: inspect.BoundArguments) -> object:
        """Call `encode_prompt`, and sample a value for each image.

        Args:
            original: the original method.
            bound: the arguments of the call.
        """
        encoded = self.pipeline.encoded_text(bound.arguments)
        kept = copied(bound.arguments)
        with TOKENIZING, during(INSIDE, True):
            result = original(*bound.args, **bound.kwargs)
        encodings = self.pipeline.embeddings_of(result)
        source = self.pipeline.source
        if encoded != "negative prompt" and encodings:
            columns = [listed(kept[name]) for name in kept if re.fullmatch(r"prompt(_\d)?", name)]
            texts = list(chain.from_iterable(columns))
            known = _CALL.get()
            is_same = known is not None and known.owner is self and known.texts == texts
            encodes_again = source.calls - source.negatives > 1
            if known is not None and is_same and encodes_again and not known.passes:
                # A second encoder may process the same prompts before the denoiser runs.
                known.prompts.add(encodings)
            else:
                call = SampledCall(self, EncodedPrompts.from_rows(encodings), texts)
                self._sample(call, kept)
                _CALL.set(call)
        # If the end of the pipeline call is hooked, `finish` raises the failures of `on_call`.
        if not source.ends or running_call(self.pipe) is None:
            raise_failures()
        return result

    def finish(self, original: Original, bound: inspect.BoundArguments) -> object:
        """Discard the recorded call when the pipeline call ends.

        Args:
            original: the original method.
            bound: the arguments of the call.
        """
        _CALL.set(None)
        result = original(*bound.args, **bound.kwargs)
        raise_failures()
        return result

    def _sample(self, call: SampledCall, arguments: Mapping[str, object]) -> None:
        """Set `call.values` to a value or None for each image and edit.

        For embeddings, the gate decides in the first pass instead.
        """
        attachment = self.attachment
        count = call.prompts.count
        call.values = [(None,) * len(self.edits)] * count
        for name, denoiser in self.denoisers.items():
            present = inner_module(getattr(self.pipe, name, None))
            if present is not inner_module(denoiser):
                self._replacements.add(id(present))
                count = len(self._replacements)
                # Python shows equal warnings only once, so the count makes later ones visible.
                times = f" {count} times" if count > 1 else ""
                attachment.log.begin()
                attachment.warn_once(
                    f"pipe.{name} was replaced{times} after attaching, so nothing was changed;"
                    " call attachment.remove(), and attach again"
                )
                return
        values = attachment.given_values
        if values is not None:
            if count % max(len(values), 1):
                raise InvalidInputError(
                    f"{self.pipeline.name}: got {len(values)} values for {count} images; expected"
                    " one per image"
                )
            call.values = self._spread(values, count)
            return
        if not attachment.acts:
            return
        if arguments.get("prompt") is not None:
            attachment.sample_texts(
                texts_of_images(arguments),
                read=self.pipeline.readers(arguments),
                seeds=self._generators(),
            )
            call.values = self._spread(attachment.sampled, count)
        elif any(map(cache_of, self.denoisers.values())):
            # The gate needs an extra pass, which would change the contents of the cache.
            attachment.log.begin()
            attachment.warn_once(
                "the call passes embeddings, and the gate, which would examine the denoiser"
                " instead, does not work while a cache is enabled, so nothing was changed. Call"
                " disable_cache() on the denoiser"
            )
        elif all(edit.can_read for edit in self.edits):
            call.asks_gate = True
        else:
            attachment.log.begin()
            attachment.warn_once(
                "the call passes embeddings, and the edit has no gate to decide whether the"
                " attribute is left open, so nothing was changed; pass a plain prompt"
            )

    def _generators(self) -> object:
        """Return the generators of the running pipeline call."""
        return (running_call(self.pipe) or {}).get("generator")

    def _spread(self, values: Sequence[object], count: int) -> list[tuple[object, ...]]:
        """Return the values of `count` images, given those of the encoded rows.

        There are fewer rows than images in pipelines that encode a prompt once and repeat it later.
        """
        nothing = (None,) * len(self.edits)
        if not values or count % len(values):
            return [nothing] * count
        spread: list[tuple[object, ...]] = []
        for value in values:
            row: tuple[object, ...] = (value,)
            if len(self.edits) > 1:
                row = tuple(value) if isinstance(value, list | tuple) else nothing
            spread += [row] * (count // len(values))
        return spread

    # ---- the gate, for calls with embeddings instead of prompts

    def _sample_by_gate(
        self, call: SampledCall, rows: Mapping[int, int], record: Mapping[str, Tensor]
    ) -> None:
        """Sample values based on what the gate detects in a first pass.

        The balancer receives what the gate detects as a sentence (`_in_words`).

        Args:
            call: the current call.
            rows: the image of each row in the pass.
            record: each layer's mean responses in the first pass.
        """
        row_of_image = {image: row for row, image in rows.items()}
        texts = []
        for image in range(len(call.values)):
            texts.append(self._in_words(record, row_of_image[image], call.key(image)))
        call.asks_gate = False
        attachment = self.attachment
        indices = None
        if attachment.follow_seeds:
            indices = indices_of(self._generators(), texts)
        _, balanced = attachment.balancer.next_texts([[text] for text in texts], indices)
        call.values = self._spread(balanced.values, len(call.values))
        prompts = ("",) * len(texts)
        attachment.log.add(
            CallRecord(
                prompts,
                prompts,
                values=tuple(balanced.values),
                reasons=tuple(balanced.reasons),
                people=tuple(map(tuple, balanced.people)),
                seed=balanced.seed,
                index=None if indices is None else tuple(indices),
            )
        )

    def _read_from_noise(
        self, module: nn.Module, args: Arguments, kwargs: Keywords
    ) -> dict[str, Tensor]:
        """Return each layer's mean responses in a pass like those used for fitting.

        The pass starts from noise, at the first fitted timestep, regardless of how this call
        starts.
        """
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        picture, *_ = bound.arguments
        values = bound.arguments[picture]
        noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(0))
        bound.arguments[picture] = noise.to(values)
        time = float(self.edits[0].times[-1])
        timestep = bound.arguments["timestep"]
        is_tensor = isinstance(timestep, Tensor)
        bound.arguments["timestep"] = torch.full_like(timestep, time) if is_tensor else time
        record: dict[str, Tensor] = {}
        with during(_RECORD, record), torch.no_grad():
            module.forward(*bound.args, **bound.kwargs)
        return record

    def _in_words(self, record: Mapping[str, Tensor], row: int, key: int) -> str:
        """Return a prompt that states what the gate detects in a row of a pass.

        For example, "A photo of an old person, 123." states the age and no other attribute.
        """
        stated: list[str] = []
        phrases = ""
        shows_person = True
        for edit in self.edits:
            response = torch.cat([record[name][row] for name, _ in edit.layers])
            reads_person, value = edit.reading(response.cpu())
            shows_person = shows_person and reads_person
            if value is not None and edit.phrase:
                phrases += f" {edit.phrase[value]}"
            elif value is not None:
                stated.append(edit.adjectives.get(value, edit.words[value][0]))
        if not shows_person:
            return "A picture."
        noun = " ".join([*stated, "person"])
        article = "an" if noun[0] in "aeiou" else "a"
        return f"A photo of {article} {noun}{phrases}, {key}."

    # ---- in the denoiser

    def begin(self, module: nn.Module, args: Arguments, kwargs: Keywords) -> None:
        """Set the `Plan` of a pass (a forward pre-hook for a denoiser).

        Args:
            module: the denoiser.
            args: positional arguments of the module's call.
            kwargs: keyword arguments of the module's call.
        """
        _PLAN.set(None)
        call = _CALL.get()
        time = time_of(args, kwargs)
        if call is None or call.owner is not self or time is None or not self.attachment.acts:
            return
        if call.asks_gate:
            rows = call.prompts.rows(args, kwargs)
            # A pass without rows of the prompt processes only the negative prompt.
            if rows and _RECORD.get() is None:
                self._sample_by_gate(call, rows, self._read_from_noise(module, args, kwargs))
        if not any(map(any, call.values)):
            return
        refuse_dropped_rows(self.pipeline.name, module)
        call.passes += 1
        rows = call.prompts.rows(args, kwargs)
        call.matched += bool(rows)
        if call.passes == 2 and not call.matched:
            self.attachment.warn_once(
                "the denoiser does not receive the embeddings that encode_prompt returned, so"
                ' nothing was changed; use method="balanced-prompts"'
            )
        if rows:
            plan = Plan(time, batch_of(args, kwargs))
            plan.add(self.edits, call, rows)
            if plan.groups:
                _PLAN.set(plan)
            if call.passes == 1 and not any(edit.acts_at(time) for edit in self.edits):
                self.attachment.warn_once(
                    f"the first step is at timestep {time:g}, where cross-attention changes next"
                    " to nothing, so the values were not set; use more steps, or a scheduler with"
                    ' timestep_spacing="trailing"'
                )

    def end(self, module: nn.Module, args: object, output: object) -> None:
        """Discard the plan of the pass (a forward hook for a denoiser).

        Args:
            module: the denoiser.
            args: positional arguments of the module's call.
            output: the module's output.
        """
        _PLAN.set(None)

    def change(
        self, layer: str, module: nn.Module, args: Arguments, kwargs: Keywords, output: object
    ) -> object:
        """Apply the images' values to an output (a forward hook for a cross-attention layer).

        Args:
            layer: name of the layer.
            module: the layer.
            args: positional arguments of the module's call.
            kwargs: keyword arguments of the module's call.
            output: the module's output.

        Returns:
            The changed output, or None if it is unchanged.
        """
        if not isinstance(output, Tensor) or output.ndim != 3:
            return None
        record = _RECORD.get()
        if record is not None:
            record[layer] = text_output(module, args, kwargs, output).float().mean(1)
            return None
        plan = _PLAN.get()
        if plan is None:
            return None
        copies = len(output) // plan.batch  # the number of frames of a video
        if not copies:
            return None
        changed = output.clone()
        for acting, (rows_of_group, numbers) in plan.groups.items():
            effects = self._effects_at(plan.time, acting, output)[layer]
            rows = rows_of_group.to(output.device)
            added = effects[numbers.to(output.device)].sum(1)
            if copies > 1:
                frames = torch.arange(copies, device=output.device)
                rows = (rows[:, None] * copies + frames).flatten()
                added = added.repeat_interleave(copies, 0)
            changed[rows] += self.attachment.strength * added[:, None]
        return changed

    def _effects_at(
        self, time: float, acting: tuple[bool, ...], output: Tensor
    ) -> dict[str, Tensor]:
        """Return each layer's effects (values, d) for the values of all acting edits, in order.

        The effects have the device and dtype of `output`.
        """
        key = (time, acting, output.device, output.dtype)
        ready = self._effects.get(key)
        if ready is not None:
            return ready
        edits = [edit for edit, acts in zip(self.edits, acting, strict=True) if acts]
        parts = [edit.at(time) for edit in edits]
        ready = {name: torch.cat([part[name] for part in parts]).to(output) for name in self.layers}
        while len(self._effects) >= _KEPT_TIMES:
            self._effects.pop(next(iter(self._effects)), None)
        self._effects[key] = ready
        return ready


class WeakHook:
    """Call a `Steering` method while the object exists, as a hook on modules shared by pipelines.

    Args:
        steering: the `Steering`, which is referenced weakly.
        method: name of the `Steering` method to call.
        arguments: arguments to pass before the hook's own arguments.
    """

    def __init__(self, steering: Steering, method: str, *arguments: object) -> None:
        self._steering = ref(steering)
        self._method = method
        self._arguments = arguments

    @outside_compiled_code("torch would recompile it for every timestep")
    def __call__(self, *call: object) -> object:
        """Call the method with the hook's arguments."""
        steering = self._steering()
        if steering is None:
            return None
        return getattr(steering, self._method)(*self._arguments, *call)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        steering = self._steering()
        if steering is None:
            return super().__reduce_ex__(protocol)
        return steering.__reduce_ex__(protocol)  # raises an error


def numbers_of(edits: Sequence[CrossAttentionEdit], values: Sequence[object]) -> list[int]:
    """Return the index of an image's value in the effects of each acting edit.

    Args:
        edits: the fitted edits, one per attribute.
        values: a value for each edit, or None if the edit does not act.
    """
    numbers = []
    start = 0
    for edit, value in zip(edits, values, strict=True):
        if value is None:
            continue
        if value not in edit.words:
            raise InvalidInputError(
                f"{edit.attribute}: got the value {value!r}; expected one of {list(edit.values)}"
            )
        numbers.append(start + edit.values.index(value))
        start += len(edit.values)
    return numbers
