"""Serve the cross-attentions of a pipeline's denoiser: record what they read of prompts, and edit
it for the images of a call.

Hooks stand behind every cross-attention; no module and no processor is replaced. They act on the
rows of the conditional prompt alone, which are found by their content: what the denoiser receives
is compared with the embeddings that `encode_prompt` returned for this call, so the order and the
number of the branches of guidance do not matter. Which value an image gets is dealt where the
prompt is encoded, by the same rules as balanced prompts, and no word is written.

A cross-attention is told by what it does: if all tokens of the text are equal, its output is the
same at every position of the picture. Joint attention (SD3, FLUX) mixes picture and text in one
softmax, and has none.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import finalize, ref

import torch
from torch import Tensor, nn

from vldebias.edits.cross_attention import CrossAttentionEdit, LayerMap, joint, steer
from vldebias.edits.edit import Edit, Fingerprint
from vldebias.errors import InvalidInputError, ProjectionMismatchError, UnsupportedHostError
from vldebias.hosts.attachment import GIVEN, INSIDE, Attachment
from vldebias.hosts.host import (
    BARE,
    TOKENIZING,
    Hook,
    Host,
    during,
    hook_methods,
    weights_fingerprint,
)
from vldebias.hosts.pipelines.calls import (
    EMBEDDING,
    copied,
    count_of,
    opened,
    rewrite_call,
    running_call,
)
from vldebias.hosts.records import CallRecord, raise_failures
from vldebias.hosts.seeds import indices_of

DENOISER = re.compile(r"(unet|transformer|prior)(_\d)?")
"""Matches the names of the components of a pipeline that denoise."""
_KEPT_TIMES = 200  # maps of so many times are kept ready

_CALL: ContextVar[Call | None] = ContextVar("vldebias_denoised", default=None)
"""What was encoded last in this thread or task, and is denoised now."""
_PLAN: ContextVar[Plan | None] = ContextVar("vldebias_plan", default=None)
"""What the hooks do in the present pass through the denoiser."""
_RECORD: ContextVar[dict[str, Tensor] | None] = ContextVar("vldebias_record", default=None)
"""In a pass that only reads: layer -> its mean responses, (batch, d)."""
UNREAD = ("unknown language",)
"""Reasons for which balanced prompts leave a text alone because they cannot read it."""


@dataclass
class Call:
    """Hold the encoded prompts of one call of a pipeline.

    owner: who encoded them. embeddings: (different, tokens, d) for each encoding. images: for each
    of the different rows the numbers of its images, in order. texts, values: of the images; a value
    or None for each edit. passes, matched: how often the denoiser ran, and got a row of these.
    received: the tensor that it got last, and its rows. unread: the images whose prompts no rule
    reads, about which the gate decides in the first pass; columns: their texts, by argument.
    """

    owner: object
    embeddings: list[Tensor]
    images: list[list[int]]
    texts: list[str] = field(default_factory=list)
    values: list[tuple[Any, ...]] = field(default_factory=list)
    passes: int = 0
    matched: int = 0
    received: tuple[Tensor, dict[int, int]] | None = None
    unread: list[bool] = field(default_factory=list)
    columns: dict[str, list[str]] = field(default_factory=dict)

    @property
    def firsts(self) -> list[int]:
        """Return the first image of each different row."""
        return [images[0] for images in self.images]


class Group(NamedTuple):
    """Hold rows of a batch for which the same edits act: which of them, and for each row the number
    of its value of each, among the effects of all that act."""

    rows: list[int]
    acting: tuple[bool, ...]
    values: list[list[int]]


class Plan(NamedTuple):
    """Hold what is changed in one pass through the denoiser, its time and the size of its batch."""

    groups: list[Group]
    time: float
    batch: int


class _FirstPassError(Exception):
    """End a call of a pipeline after the first pass through its denoiser."""


class CrossAttentionHost(Host):
    """Serve the cross-attentions of a pipeline; a role is an attribute, named by its prompt set.

    pipeline: the host of the same pipeline for its prompts.
    """

    library = ""
    generative = True
    rewrites = True

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.name = pipeline.name
        self.model_id = pipeline.model_id
        self.edits_images = pipeline.edits_images
        self.text_modules = pipeline.text_modules
        self.exclusive_modules = pipeline.exclusive_modules
        self.shared_modules = pipeline.shared_modules
        self.roles = ()
        self.pipe = pipeline.exclusive_modules[0]
        self.denoisers: dict[str, nn.Module] = {}
        for name, component in self.pipe.components.items():
            if not DENOISER.fullmatch(name) or not isinstance(component, nn.Module):
                continue
            if hasattr(component, "_orig_mod"):
                raise UnsupportedHostError(
                    f"{self.name}: its {name} is compiled, and compiled code does not notice hooks"
                    " that come later; attach first, then compile"
                )
            self.denoisers[name] = component
        if not self.denoisers:
            raise UnsupportedHostError(
                f"{self.name}: expected a denoiser as component `unet` or `transformer`, got"
                f" {list(self.pipe.components)}; use method='balanced-prompts'"
            )

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Refuse: what cross-attention reads depends on time and noise, see `responses`."""
        raise InvalidInputError(
            f"{self.name}: cross-attention has no embedding of a prompt; use `responses`"
        )

    def at(self, side: str) -> Any:
        """Return the host of the same pipeline at another side."""
        return self if side == "denoiser" else self.pipeline.at(side)

    def space(self, role: str) -> str:
        """Return the name of the space of a role."""
        return f"diffusers.cross-attention.{role}"

    def fingerprint(self, role: str | None = None) -> Fingerprint | None:
        """Return the fingerprint of the denoisers' weights."""
        memory = vars(self).setdefault("memory", {})
        if "denoiser" not in memory:
            memory["denoiser"] = weights_fingerprint(*self.denoisers.values())
        mark: Fingerprint | None = memory["denoiser"]
        return mark

    def check(self, role: str, edit: Edit) -> None:
        """Raise ProjectionMismatchError for an edit of another kind, of layers that the denoiser
        lacks, or of other weights."""
        refit = 'fit again with vldebias.debias(pipe, prompts, method="cross-attention")'
        if not isinstance(edit, CrossAttentionEdit):
            raise ProjectionMismatchError(
                f"{self.name}: got {type(edit).__name__}, which does not act in cross-attention;"
                f" {refit}"
            )
        known = dict(self._modules())
        missing = [name for name, _ in edit.layers if name not in known]
        fitted = edit.provenance.fingerprint
        if missing:
            why = f"is of layers that this denoiser lacks ({missing[0]})"
        elif fitted is not None and not fitted.matches(self.fingerprint()):
            why = f"was fitted on other weights ({edit.model_id or 'unnamed model'})"
        else:
            return
        raise ProjectionMismatchError(f"{self.name}: the edit {why}; {refit}")

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules of the denoisers by the name of component and module."""
        for component, denoiser in self.denoisers.items():
            for name, module in denoiser.named_modules():
                yield f"{component}.{name}", module

    # ---- fitting

    def responses(
        self, prompts: Sequence[str], noise: Sequence[int], steps: int, **options: Any
    ) -> Responses:
        """Generate prompts and return what each cross-attention gave for them, the mean over
        positions.

        Args:
            prompts: one for each image. noise: seeds of their generators. steps: of the scheduler.
            options: of the pipeline.

        Raises:
            UnsupportedHostError: the denoiser has no cross-attention.
        """
        if "layers" not in vars(self).setdefault("memory", {}):
            self.memory["layers"] = self._found_layers(prompts[0], **options)
        layers: list[str] = self.memory["layers"]
        recorder = Recorder(self, layers)
        modules = dict(self._modules())
        handles = recorder.hooks_of_denoisers()
        for name in layers:
            hook = partial(recorder.record, name)
            handles.append(modules[name].register_forward_hook(hook))
        try:
            self._draw(recorder, prompts, noise, steps, **options)
        finally:
            for handle in handles:
                handle.remove()
        responses = recorder.responses()
        self.memory["widths"] = responses.layers
        return responses

    @property
    def layers_and_widths(self) -> tuple[tuple[str, int], ...]:
        """Return name and width of each cross-attention, once responses were recorded."""
        layers: tuple[tuple[str, int], ...] = self.memory["widths"]
        return layers

    def first_responses(self, prompts: Sequence[str], steps: int, **options: Any) -> Tensor:
        """Return (prompts, d) the responses of the first pass, as `responses`; the pipeline is
        stopped after it."""

        def stop(*_: Any) -> None:
            raise _FirstPassError

        handles = [
            denoiser.register_forward_hook(stop, prepend=False)
            for denoiser in self.denoisers.values()
        ]
        try:
            return self.responses(prompts, list(range(len(prompts))), steps, **options).rows[-1]
        finally:
            for handle in handles:
                handle.remove()

    def _found_layers(self, prompt: str, **options: Any) -> list[str]:
        """Return the names of the cross-attentions, in the order in which they run."""
        recorder = Recorder(self, [])
        handles = recorder.hooks_of_denoisers()
        for name, module in self._modules():
            if "attn" in name.rpartition(".")[2] or "ttention" in type(module).__name__:
                hook = partial(recorder.probe, name)
                handles.append(module.register_forward_hook(hook, with_kwargs=True))
        try:
            self._draw(recorder, [prompt], [0], 2, **options)
        finally:
            for handle in handles:
                handle.remove()
        if not recorder.layers:
            raise UnsupportedHostError(
                f"{self.name}: its denoiser has no cross-attention that reads the prompt alone"
                " and gets what encode_prompt returned (SD3, FLUX and others join picture and text"
                " in one attention, where the text has no output of its own); use"
                " method='balanced-prompts', the default"
            )
        return recorder.layers

    def _draw(
        self,
        recorder: Recorder,
        prompts: Sequence[str],
        noise: Sequence[int],
        steps: int,
        **options: Any,
    ) -> None:
        """Run the pipeline with the recorder around `encode_prompt`."""
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in noise]
        takes = inspect.signature(type(self.pipe).__call__).parameters
        count = count_of(takes)
        call: dict[str, Any] = {"num_inference_steps": steps, "output_type": "latent"}
        if count is not None:
            call[count] = 1
        call = {name: value for name, value in call.items() if name in takes}
        encode = self.pipe.encode_prompt
        before = vars(self.pipe).get("encode_prompt")

        def recorded(*args: Any, **kwargs: Any) -> Any:
            with during(INSIDE):
                result = encode(*args, **kwargs)
            recorder.note(result)
            return result

        self.pipe.encode_prompt = recorded
        modes = [(module, module.training) for module in self.denoisers.values()]
        bars = dict(getattr(self.pipe, "_progress_bar_config", {}))
        self.pipe.set_progress_bar_config(**{**bars, "disable": True})
        try:
            for module, _ in modes:
                module.eval()
            stopped = suppress(_FirstPassError)
            with torch.no_grad(), during(BARE), TOKENIZING, stopped:
                self.pipe(prompt=list(prompts), generator=generators, **call | options)
        finally:
            self.pipe.set_progress_bar_config(**bars)
            for module, training in modes:
                module.train(training)
            if before is None:
                del self.pipe.encode_prompt
            else:
                self.pipe.encode_prompt = before

    def embeddings_of(self, result: Any) -> list[Tensor]:
        """Return the embeddings of the conditional prompt, (b, tokens, d), among what
        `encode_prompt` returned."""
        embeddings = []
        for name, value in zip(self.pipeline.source.returns, result, strict=False):
            if value is None or not EMBEDDING.match(name) or "pooled" in name:
                continue
            found = opened(value)
            if found is not None and found[0].ndim == 3:
                embeddings.append(found[0])
        return embeddings

    # ---- attaching

    def install(self, attachment: Attachment) -> Callable[[], None]:
        """Hook the cross-attentions and `encode_prompt`; the returned function takes all off."""
        steering = Steering(attachment, self)
        modules = dict(self._modules())
        handles = []
        for denoiser in self.denoisers.values():
            hook = Reach(steering, "begin")
            handles.append(denoiser.register_forward_pre_hook(hook, with_kwargs=True))
            hook = Reach(steering, "end")
            handles.append(denoiser.register_forward_hook(hook, always_call=True))
        for name in steering.layers:
            hook = Reach(steering, "change", name)
            handles.append(modules[name].register_forward_hook(hook))
        # The denoiser may be that of other pipelines, and outlive this one.
        for handle in handles:
            finalize(steering, handle.remove).atexit = False
        methods: dict[str, Any] = {"encode_prompt": steering.encode}
        source = self.pipeline.source
        if source.framed and source.calls > 1:
            methods |= self.pipeline.frame()
        if hasattr(self.pipe, "maybe_free_model_hooks"):  # which ends the call of a pipeline
            methods["maybe_free_model_hooks"] = steering.finish
        restore = hook_methods(attachment, self.pipe, methods)

        def take_off() -> None:
            restore()
            for handle in handles:
                handle.remove()

        return take_off


def rows_of(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, int]:
    """Return row of the denoiser's batch -> image, for the rows that hold a prompt of the call.

    The p-th row with an embedding belongs to the p-th image that has it; where there are more rows
    than images they repeat, as with a second conditional branch.
    """
    for value in (*args, *kwargs.values()):
        if call.received is not None and value is call.received[0]:
            return call.received[1]
        if not isinstance(value, Tensor) or value.ndim != 3 or not value.is_floating_point():
            continue
        for embedding in call.embeddings:
            if embedding.shape[1:] != value.shape[1:]:
                continue
            found: dict[int, int] = {}
            is_equal = _equal_rows(value, embedding.to(value.device, value.dtype))
            for number, images in enumerate(call.images):
                rows = [row for row in range(len(value)) if is_equal[row][number]]
                for place, row in enumerate(rows):
                    found[row] = images[place % len(images)]
            if found:
                call.received = (value, found)
                return found
    return {}


def _equal_rows(rows: Tensor, embeddings: Tensor) -> list[list[bool]]:
    """Return for each row (b, tokens, d) which of the embeddings (n, tokens, d) it equals."""
    equal = [(rows == embedding).flatten(1).all(1) for embedding in embeddings]
    result: list[list[bool]] = torch.stack(equal, dim=1).tolist()
    return result


def batch_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the size of the batch that a denoiser receives."""
    sizes = [1]
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.ndim >= 3:
            sizes.append(len(value))
    return max(sizes)


def time_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    """Return the timestep that a denoiser receives; None where it receives none."""
    value = kwargs.get("timestep")
    if value is None and len(args) > 1:
        value = args[1]
    if isinstance(value, Tensor):
        return float(value.flatten()[0])
    return None if value is None else float(value)


def at_time(timestep: Any, time: float) -> Any:
    """Return a timestep of the same form at another time."""
    return torch.full_like(timestep, time) if isinstance(timestep, Tensor) else time


def images_of_rows(embedding: Tensor) -> tuple[list[int], list[list[int]]]:
    """Return the first row of each different embedding (b, tokens, d), and for each of them the
    rows that are equal to it."""
    firsts: list[int] = []
    images: list[list[int]] = []
    for row in range(len(embedding)):
        for place, first in enumerate(firsts):
            if torch.equal(embedding[row], embedding[first]):
                images[place].append(row)
                break
        else:
            firsts.append(row)
            images.append([row])
    return firsts, images


class Responses(NamedTuple):
    """Hold recorded responses: times (t,) ascending, rows (t, prompts, d) float64, and the name and
    width of each layer, whose widths make d."""

    times: Tensor
    rows: Tensor
    layers: tuple[tuple[str, int], ...]


@dataclass
class Recorder:
    """Record what cross-attentions give for the conditional prompts while a pipeline runs.

    layers: their names; found by `probe` where there are none yet.
    """

    host: CrossAttentionHost
    layers: list[str]
    call: Call | None = None
    time: float = 0.0
    batch: int = 1
    rows: dict[int, int] = field(default_factory=dict)
    sums: dict[tuple[float, str], Tensor] = field(default_factory=dict)

    def hooks_of_denoisers(self) -> list[Any]:
        """Hook the denoisers, so that each pass finds its rows and its time."""
        return [
            denoiser.register_forward_pre_hook(self.begin, with_kwargs=True)
            for denoiser in self.host.denoisers.values()
        ]

    def note(self, result: Any) -> None:
        """Remember what `encode_prompt` returned: of the first encoding of a call, and of a second
        one where both are of the prompt."""
        embeddings = self.host.embeddings_of(result)
        is_second = self.call is not None and not self.call.passes
        if is_second and self.host.pipeline.source.negatives:
            return
        if is_second and self.call is not None:
            self.call.embeddings += [rows[self.call.firsts] for rows in embeddings]
        elif embeddings:
            firsts, images = images_of_rows(embeddings[0])
            self.call = Call(self, [rows[firsts] for rows in embeddings], images)

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Find the rows and the time of a pass."""
        self.rows = {}
        time = time_of(args, kwargs)
        if self.call is not None and time is not None:
            self.call.passes += 1
            self.time = time
            self.batch = batch_of(args, kwargs)
            self.rows = rows_of(self.call, args, kwargs)

    def record(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        """Keep the mean over positions of the conditional rows, one for each prompt."""
        if not self.rows:
            return
        copies = max(len(output) // self.batch, 1)  # frames of a video
        blocks = output.unflatten(0, (-1, copies)).flatten(1, 2)
        means = blocks[list(self.rows)].float().mean(1).double().cpu()
        images = list(self.rows.values())
        rows = []
        for image in range(max(images) + 1):
            rows.append(means[[place for place, shown in enumerate(images) if shown == image]])
        self.sums[self.time, name] = torch.stack([block.mean(0) for block in rows])

    def probe(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Note a module that gives one output for the picture, the same at every position where all
        tokens of the text are equal."""
        if not self.rows or name in self.layers or not isinstance(output, Tensor):
            return
        signature = inspect.signature(module.forward)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return
        text = bound.arguments.get("encoder_hidden_states")
        picture = next(iter(bound.arguments.values()), None)
        if isinstance(text, tuple):  # beside the embeddings of a picture (IP-Adapter)
            text = text[0]
        if not isinstance(text, Tensor) or text is picture or text.ndim != 3:
            return
        if output.ndim != 3 or output.shape[1] == 1 or len(output) < len(text):
            return
        bound.arguments["encoder_hidden_states"] = text[:, :1].expand_as(text)
        again = module.forward(*bound.args, **bound.kwargs)
        spread = (again - again[:, :1]).abs().max()
        if float(spread) <= 1e-3 * float(again.abs().max()) + 1e-6:
            self.layers.append(name)

    def responses(self) -> Responses:
        """Return everything that was recorded."""
        if not self.sums:
            raise UnsupportedHostError(
                f"{self.host.name}: its denoiser does not receive what encode_prompt returned, so"
                " the rows of the prompt cannot be told; use method='balanced-prompts', the default"
            )
        times = sorted({time for time, _ in self.sums})
        blocks = []
        for time in times:
            blocks.append(torch.cat([self.sums[time, name] for name in self.layers], dim=1))
        widths = [self.sums[times[0], name].shape[1] for name in self.layers]
        layers = tuple(zip(self.layers, widths, strict=True))
        return Responses(torch.tensor(times, dtype=torch.float64), torch.stack(blocks), layers)


class Steering(Hook):
    """Deal values to the images of a call where its prompts are encoded, and set them in the
    cross-attentions; copies of a hooked model are refused."""

    def __init__(self, attachment: Attachment, host: CrossAttentionHost) -> None:
        super().__init__(attachment)
        self.host = host
        edits: list[Any] = list(attachment.projections.values())
        self.edits: list[CrossAttentionEdit] = edits
        self.layers = list(dict.fromkeys(name for edit in edits for name, _ in edit.layers))
        self._maps: dict[Any, Any] = {}

    # ---- which values the images get

    def encode(self, original: Any, bound: inspect.BoundArguments) -> Any:
        """Call `encode_prompt`, and deal values to the images of its prompts."""
        call = bound.arguments
        turn = self.host.pipeline._turn_of(call)
        kept = copied(call)
        with TOKENIZING, during(INSIDE):
            result = original(*bound.args, **bound.kwargs)
        if turn != "negative":
            self._deal(kept, result)
        # Inside of a call it is raised when the pictures are made.
        is_ended = self.host.pipeline.source.ends
        if not is_ended or running_call(self.host.pipe) is None:
            raise_failures()
        return result

    def finish(self, original: Any, bound: inspect.BoundArguments) -> Any:
        """Forget the call of the pipeline at its end."""
        _CALL.set(None)
        result = original(*bound.args, **bound.kwargs)
        raise_failures()
        return result

    def _deal(self, call: dict[str, Any], result: Any) -> None:
        """Remember the embeddings of a call, and the value of each of its images."""
        embeddings = self.host.embeddings_of(result)
        if not embeddings:
            return
        texts = _texts_of(call)
        known = _CALL.get()
        is_known = known is not None and known.owner is self and not known.passes
        if is_known and known is not None and known.texts == texts and self.encodes_again:
            # A second encoder reads the same prompts before the denoiser runs.
            known.embeddings += [rows[known.firsts] for rows in embeddings]
            return
        firsts, images = images_of_rows(embeddings[0])
        different = [rows[firsts] for rows in embeddings]
        made = Call(self, different, images, texts)
        self._deal_values(made, call, len(embeddings[0]))
        _CALL.set(made)

    @property
    def encodes_again(self) -> bool:
        """Tell whether the pipeline encodes a prompt several times in a call."""
        source = self.host.pipeline.source
        return bool(source.calls - source.negatives > 1)

    def _deal_values(self, made: Call, call: dict[str, Any], rows: int) -> None:
        """Deal a value or None of each edit to each row of the embeddings, or leave that to the
        first pass where a prompt cannot be read."""
        attachment = self.attachment
        made.values = [(None,) * len(self.edits)] * rows
        given = GIVEN.get()
        if given is not None and given[0] is attachment:
            if rows % max(len(given[1]), 1):
                raise InvalidInputError(
                    f"{self.host.name}: {len(given[1])} values for {rows} images; expected one each"
                )
            made.values = self._spread(given[1], rows)
        elif attachment.acts and call.get("prompt") is None:
            self._leave_to_gate(made, {}, [True] * rows)
        elif attachment.acts:
            found: dict[str, list[str]] = {}

            def look(columns: dict[str, list[str]]) -> dict[str, list[str]]:
                found.update(columns)
                return columns

            rewrite_call(dict(call), look)
            unread = [self._is_unread(text) for text in next(iter(found.values()))]
            if any(unread):
                self._leave_to_gate(made, found, unread)
            else:
                attachment.rewrite_texts(
                    found, read=self.host.pipeline._read(call), seeds=self._generators()
                )
                made.values = self._spread(attachment.sampled, rows)

    def _generators(self) -> Any:
        """Return the generators of the call of the pipeline that runs."""
        return (running_call(self.host.pipe) or {}).get("generator")

    def _spread(self, values: Sequence[Any], rows: int) -> list[tuple[Any, ...]]:
        """Return a value or None of each edit for each row; some pipelines encode a prompt once and
        repeat it later."""
        nothing = (None,) * len(self.edits)
        if not values or rows % len(values):
            return [nothing] * rows
        spread: list[tuple[Any, ...]] = []
        for value in values:
            row = (value,) if len(self.edits) == 1 else tuple(value or nothing)
            spread += [row] * (rows // len(values))
        return spread

    def _is_unread(self, text: str) -> bool:
        """Tell whether the rules cannot read a text at all."""
        (reasons,) = self.attachment.balancer.at(text, 0).reasons
        reasons = reasons if isinstance(reasons, tuple) else (reasons,)
        return all(reason in UNREAD for reason in reasons)

    def _leave_to_gate(self, made: Call, columns: dict[str, list[str]], unread: list[bool]) -> None:
        """Let the gate read the images that no rule reads, in the first pass."""
        if all(edit.can_read for edit in self.edits):
            made.columns = columns
            made.unread = unread
            return
        self.attachment.log.begin()
        self.attachment.warn_once(
            "the call passes embeddings or a prompt that cannot be read, and the edit has no gate"
            " to tell whether a value is open; nothing was changed"
        )

    def _decide(self, call: Call, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Deal values to the images of a call whose prompts no rule reads: the gate reads a first
        pass of the denoiser, and what it finds is said in plain words to the balancer."""
        unread, call.unread = call.unread, []
        rows = rows_of(call, args, kwargs)
        if not rows:  # a pass of the negative prompt alone
            call.unread = unread
            return
        record = self._read_from_noise(module, args, kwargs)
        row_of_image = {image: row for row, image in rows.items()}
        texts = []
        for image, is_unread in enumerate(unread):
            if not is_unread:
                texts.append([column[image] for column in call.columns.values()])
                continue
            row = row_of_image[image]
            texts.append([self._in_words(record, row, self._key(call, image))])
        width = max(map(len, texts))
        padded = [row + row[-1:] * (width - len(row)) for row in texts]
        joined = [" | ".join(dict.fromkeys(row)) for row in texts]
        attachment = self.attachment
        indices = indices_of(self._generators(), joined) if attachment.follow_seeds else None
        _, balanced = attachment.balancer.next_texts(padded, indices)
        call.values = self._spread(balanced.values, len(call.values))
        given = [""] * len(texts)
        if call.columns:
            columns = zip(*call.columns.values(), strict=True)
            given = [" | ".join(dict.fromkeys(row)) for row in columns]
        prompts = tuple(given)
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

    def _read_from_noise(self, module: nn.Module, args: Any, kwargs: Any) -> dict[str, Tensor]:
        """Return layer -> mean responses of a pass as in the fit: from noise, at the first of its
        times, whatever this call starts from."""
        time = float(self.edits[0].times[-1])
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        picture, *_ = bound.arguments
        values = bound.arguments[picture]
        noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(0))
        bound.arguments[picture] = noise.to(values)
        bound.arguments["timestep"] = at_time(bound.arguments["timestep"], time)
        record: dict[str, Tensor] = {}
        with during(_RECORD, record), torch.no_grad():
            module.forward(*bound.args, **bound.kwargs)
        return record

    def _in_words(self, record: Mapping[str, Tensor], row: int, key: int) -> str:
        """Return what the gate reads of a row of a pass as a prompt: "A photo of an old person,
        123." is open but for its age."""
        stated: list[str] = []
        behind = ""
        is_person = True
        for edit in self.edits:
            response = torch.cat([record[name][row] for name, _ in edit.layers])
            is_of_person, value = edit.reading(response.cpu())
            is_person = is_person and is_of_person
            if value is not None and edit.phrase:
                behind += f" {edit.phrase[value]}"
            elif value is not None:
                stated.append(edit.adjectives.get(value, edit.words[value][0]))
        if not is_person:
            return "A picture."
        noun = " ".join([*stated, "person"])
        article = "an" if noun[0] in "aeiou" else "a"
        return f"A photo of {article} {noun}{behind}, {key}."

    def _key(self, call: Call, image: int) -> int:
        """Return a number that follows from the embedding of an image, so that each prompt is
        dealt to evenly."""
        number = next(i for i, images in enumerate(call.images) if image in images)
        values = call.embeddings[0][number].detach().float().cpu().contiguous()
        return int(hashlib.sha256(values.numpy().tobytes()).hexdigest()[:8], 16)

    # ---- in the denoiser

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Plan a pass through the denoiser."""
        call = _CALL.get()
        _PLAN.set(None)
        is_ours = call is not None and call.owner is self
        if not is_ours or call is None or not self.attachment.acts:
            return
        time = time_of(args, kwargs)
        if time is not None and any(call.unread) and _RECORD.get() is None:
            self._decide(call, module, args, kwargs)
        if time is None or all(not any(row) for row in call.values):
            return
        call.passes += 1
        found = rows_of(call, args, kwargs)
        if found:
            call.matched += 1
        elif call.passes == 2 and not call.matched:
            self.attachment.warn_once(
                "the denoiser does not receive the embeddings that encode_prompt returned, so"
                ' nothing was changed; use method="balanced-prompts"'
            )
        groups: dict[tuple[bool, ...], Group] = {}
        for row, image in found.items():
            values = call.values[image]
            acting = tuple(value is not None for value in values)
            group = groups.setdefault(acting, Group([], acting, []))
            group.rows.append(row)
            group.values.append(numbers_of(self.edits, values))
        groups.pop((False,) * len(self.edits), None)
        if groups:
            _PLAN.set(Plan(list(groups.values()), time, batch_of(args, kwargs)))

    def end(self, module: nn.Module, args: Any, output: Any) -> None:
        """End the pass."""
        _PLAN.set(None)

    def change(self, layer: str, module: nn.Module, args: Any, output: Any) -> Any:
        """Return the output of a cross-attention with the values of its images; None leaves it."""
        record = _RECORD.get()
        if record is not None and isinstance(output, Tensor) and output.ndim == 3:
            record[layer] = output.float().mean(1)
            return None
        plan = _PLAN.get()
        if plan is None or not isinstance(output, Tensor) or output.ndim != 3:
            return None
        copies = len(output) // plan.batch  # frames of a video
        if not copies:
            return None
        changed = output.clone()
        form = self.edits[0].form
        for group in plan.groups:
            layer_map = self._map(plan.time, layer, group.acting, output)
            if layer_map is None:
                continue
            basis, center, effects = layer_map
            target = center + effects[torch.tensor(group.values, device=output.device)].sum(1)
            rows = torch.tensor(group.rows, device=output.device)
            if copies > 1:
                frames = torch.arange(copies, device=output.device)
                rows = (rows[:, None] * copies + frames).flatten()
                target = target.repeat_interleave(copies, 0)
            strength = self.attachment.strength
            changed[rows] = steer(output[rows], basis, target, form, strength)
        return changed

    def _map(
        self, time: float, layer: str, acting: tuple[bool, ...], output: Tensor
    ) -> LayerMap | None:
        """Return the joint map of the edits that act, on the device and in the precision of an
        output; None for a layer without a direction."""
        key = (time, acting, output.device, output.dtype)
        ready = self._maps.get(key)
        if ready is None:
            ready = {}
            of_edits = [
                edit.at(time) for edit, acts in zip(self.edits, acting, strict=True) if acts
            ]
            for name in self.layers:
                of_layer = joint([maps[name] for maps in of_edits])
                if of_layer.basis.shape[1]:
                    ready[name] = LayerMap(*(part.to(output) for part in of_layer))
            while len(self._maps) >= _KEPT_TIMES:
                self._maps.pop(next(iter(self._maps)), None)
            self._maps[key] = ready
        found: LayerMap | None = ready.get(layer)
        return found


class Reach:
    """Call a method of a `Steering` as long as it lives: a hook of modules that pipelines share.

    arguments: what the method gets before those of the hook.
    """

    def __init__(self, steering: Steering, method: str, *arguments: Any) -> None:
        self._steering = ref(steering)
        self._method = method
        self._arguments = arguments

    def __call__(self, *call: Any) -> Any:
        """Return what the method returns for the arguments of the hook."""
        steering = self._steering()
        if steering is None:
            return None
        return getattr(steering, self._method)(*self._arguments, *call)

    def __reduce_ex__(self, protocol: Any) -> Any:
        steering = self._steering()
        if steering is None:
            return super().__reduce_ex__(protocol)
        return steering.__reduce_ex__(protocol)  # refuses


def numbers_of(edits: Sequence[CrossAttentionEdit], values: Sequence[Any]) -> list[int]:
    """Return the numbers of an image's values among the effects of the edits that act."""
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


def _texts_of(call: Mapping[str, Any]) -> list[str]:
    """Return the texts of a call's prompts, those of all arguments."""
    texts: list[str] = []
    for name, value in call.items():
        if re.fullmatch(r"prompt(_\d)?", name) and value is not None:
            texts += [value] if isinstance(value, str) else list(value)
    return texts
