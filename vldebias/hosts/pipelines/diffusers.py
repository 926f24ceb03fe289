"""Support diffusers pipelines: edit the outputs of `encode_prompt`, or rewrite its prompts.

`encode_prompt` is public, returns the embeddings of the prompt and the negative prompt separately,
and is called by pipelines of every kind, including img2img, inpaint and ControlNet. The names of
its outputs are parsed from the pipeline's source (`vldebias.hosts.pipelines.source`). Each output
that depends on the prompt is a role and is edited; the output with "negative_" before its name
belongs to the negative prompt. The method is replaced on this one pipeline only, as an attribute
that `del` removes. Modules, adapters, offload hooks and `save_pretrained` are unaffected, and so
are other pipelines that share the modules.

As in the authors' code for generation (Chuang et al., 2023; section 7.5 of the thesis), every token
of the prompt is edited and the negative prompt is not, and edits are fitted on the state of the
end-of-text token. For chat encoders, the end of the turn is used instead, or the last
token of the prompt if nothing follows it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError, warn
from vldebias.hosts.adapters import adapters_length
from vldebias.hosts.attachment import INSIDE
from vldebias.hosts.call_log import NEXT, CallRecord, raise_failures
from vldebias.hosts.clip.merge import fold_into_readers
from vldebias.hosts.edits import EditAttachment
from vldebias.hosts.hooks import Around, Original, hook_methods
from vldebias.hosts.pipelines.calls import (
    EMBEDDING,
    characters_read,
    copied,
    count_of,
    edited_images,
    image_tokens,
    images_per_prompt,
    listed,
    opened,
    receives,
    running_call,
    set_texts,
    texts_of,
    texts_of_images,
    traced,
)
from vldebias.hosts.pipelines.embedded import KnownEmbeddings, Origin, rows_of
from vldebias.hosts.pipelines.reading import PipelineReader
from vldebias.hosts.pipelines.source import Source
from vldebias.hosts.reading import TOKENIZING, during
from vldebias.hosts.values import PromptAttachment
from vldebias.projection.edit import Rewording
from vldebias.projection.projection import CalibratedProjection

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline
    from transformers import PreTrainedTokenizerBase

# Arguments that select a different embedding space.
_LAYERS = ("clip_skip", "text_encoder_out_layers", "return_index")

_CALLED: ContextVar[tuple[object, list[str], bool] | None] = ContextVar(
    "vldebias_called", default=None
)
"""The pipeline running in this thread or task, its prompts, and whether they have been encoded."""
_ENCODE: ContextVar[Callable[[list[str]], Sequence[object]] | None] = ContextVar(
    "vldebias_encode", default=None
)
"""Function that encodes other prompts in the same way as the current call's own prompts."""

SEVERAL_PROMPTS = "one video with several prompts"
"""The reason recorded for a video that has several prompts, all of which show the same person."""
POSITIONS = "token_indices count the words of the prompt"
"""The reason recorded for a call that refers to positions in its prompt."""
EMBEDDINGS = "embeddings"
"""The reason recorded for images generated from embeddings whose prompt is unknown."""
_RECORDED = "vldebias recorded"
"""Marks a running call, among its variables, once its record has been logged."""
SHARED = (
    "it encodes a prompt once for all of its images, so with {count} above 1, they share a value;"
    " to balance them, pass a list that contains the prompt once per image"
)


class DiffusersHost(PipelineReader):
    """Support a pipeline through the embeddings that its `encode_prompt` returns.

    Tensors that the caller passes (`prompt_embeds`, `pooled_prompt_embeds`) are not edited; edit
    those with `attachment.apply("sequence", prompt_embeds)`. To encode a negative prompt with
    `pipe.encode_prompt(negative)`, call it inside `attachment.disabled()`.
    """

    library = "diffusers"

    def __init__(
        self,
        pipe: DiffusionPipeline,
        tokenizer: object = None,
        negative: bool = False,
        source: Source | None = None,
    ) -> None:
        super().__init__(pipe, negative, source)
        self._known = KnownEmbeddings()

    def install(self, attachment: EditAttachment) -> Callable[[], None]:
        """Run `_encode_edited` instead of `encode_prompt`, on this pipeline only."""
        encode = partial(self._encode_edited, attachment)
        return hook_methods(attachment, self.pipe, {"encode_prompt": encode, **self.frame()})

    def install_prompts(self, attachment: PromptAttachment) -> Callable[[], None]:
        """Run `_encode_balanced` instead of `encode_prompt`, on this pipeline only."""

        def finish(original: Callable[..., None], call: inspect.BoundArguments) -> None:
            original(*call.args, **call.kwargs)
            raise_failures()

        hooks: dict[str, Around] = {"encode_prompt": partial(self._encode_balanced, attachment)}
        if attachment.log.on_call is not None and self.source.ends:
            hooks["maybe_free_model_hooks"] = finish
        return hook_methods(attachment, self.pipe, hooks | self.frame())

    def frame(self) -> dict[str, Around]:
        """Return hooks for the methods that a pipeline call runs before and after encoding.

        If the negative prompt is encoded by a separate call to `encode_prompt`, the hooks show
        which call that is: `check_inputs` receives both prompts before they are encoded, and
        `prepare_latents` runs afterwards. There are no hooks if one call encodes both prompts.
        """
        if not self.source.framed or self.source.calls <= 1:
            return {}

        def begin(original: Original, call: inspect.BoundArguments) -> object:
            _CALLED.set((self.pipe, listed(call.arguments.get("prompt")), False))
            return original(*call.args, **call.kwargs)

        def end(original: Original, call: inspect.BoundArguments) -> object:
            _CALLED.set(None)
            return original(*call.args, **call.kwargs)

        return {"check_inputs": begin, "prepare_latents": end}

    def _encode_balanced(
        self, attachment: PromptAttachment, original: Original, bound: inspect.BoundArguments
    ) -> object:
        """Call `encode_prompt` with prompts returned by `attachment.rewrite_texts`."""
        call = bound.arguments
        # In most pipelines this is always "prompt", because one call encodes both prompts.
        encoded = self.encoded_text(call)
        with TOKENIZING, during(INSIDE, True):
            if encoded != "negative prompt" and call.get("prompt") is not None:
                # Only the pipeline call receives a generator, not `encode_prompt`.
                running = running_call(self.pipe)
                if running is not None and self._has_several_prompts(running, call):
                    self._record_once(attachment, running, call, SEVERAL_PROMPTS)
                elif running is not None and receives(self.pipe, "token_indices"):
                    self._record_once(attachment, running, call, POSITIONS)
                else:
                    self._balance(attachment, running, call, is_again=encoded == "prompt again")
            elif encoded != "negative prompt":
                self._record_embeddings(attachment, call)
            result = original(*bound.args, **bound.kwargs)
        is_encoding = running_call(self.pipe) is None
        record = attachment.log.last
        # Remember only recorded calls, because the values of a balanced prompt are unknown
        # otherwise.
        if is_encoding and record is not None:
            self._remember(call, result, record)
        # If the end of the pipeline call is hooked, that hook raises the failures of `on_call` once
        # the images are finished.
        if attachment.log.on_call is not None and (is_encoding or not self.source.ends):
            raise_failures()
        return result

    def _balance(
        self,
        attachment: PromptAttachment,
        running: Mapping[str, object] | None,
        call: dict[str, object],
        is_again: bool,
    ) -> None:
        """Insert sampled values into the texts of an `encode_prompt` call."""
        columns = texts_of_images(call)
        edits = []  # a pipeline that only edits images balances the prompts of all of them
        if not self.needs_picture:
            edits = edited_images(self.pictures, {**(running or {}), **call}, call)
        texts = attachment.rewrite_texts(
            columns,
            edits=edits,
            again=is_again,
            read=self.readers(call),
            seeds=None if running is None else running.get("generator"),
            is_encoding=running is None,
        )
        set_texts(call, texts)
        if self._shared_count and attachment.acts:
            attachment.warn_once(SHARED.format(count=self._shared_count))

    def _has_several_prompts(
        self, running: Mapping[str, object], call: Mapping[str, object]
    ) -> bool:
        """Return whether the texts of an `encode_prompt` call belong to parts of one video.

        Examples are a prompt per frame (AnimateDiff with `enable_free_noise`), or per window. The
        pipeline then encodes more texts than it received prompts, or texts that it did not receive.
        """
        given = running.get("prompt")
        if self.source.loops or isinstance(given, Mapping):
            return True
        if given is None:
            return False
        prompts = listed(given)
        texts = listed(call["prompt"])
        return len(texts) > len(prompts) or not any(text in prompts for text in texts)

    def _record_once(
        self,
        attachment: PromptAttachment,
        running: MutableMapping[str, object],
        call: Mapping[str, object],
        reason: str,
    ) -> None:
        """Record why the running call is left unchanged, when it encodes its first text."""
        if _RECORDED in running:
            return
        running[_RECORDED] = True
        given = running.get("prompt") or call["prompt"]
        prompts = list(given.values()) if isinstance(given, Mapping) else listed(given)
        if self.source.loops or isinstance(given, Mapping):
            prompts = [NEXT.join(prompts)]
        images = [text for text in prompts for _ in range(images_per_prompt(running))]
        attachment.rewrite_texts({"prompt": images}, left=reason)

    @cached_property
    def _shared_count(self) -> str | None:
        """The name of the call's number of images, if `encode_prompt` does not take it."""
        parameters = inspect.signature(type(self.pipe).encode_prompt).parameters
        return None if count_of(parameters) else count_of(self.defaults)

    def _encode_edited(
        self, attachment: EditAttachment, original: Original, bound: inspect.BoundArguments
    ) -> object:
        """Call `encode_prompt`, and edit the embeddings that it returns."""
        call = bound.arguments
        is_negative = self.encoded_text(call) == "negative prompt"
        received = copied(call)

        # Edits that average over several wordings of a prompt call this function.
        def encode(prompts: list[str]) -> Sequence[object]:
            call.update(received)
            set_texts(call, texts_of_images(call) | {"prompt": prompts})
            return original(*bound.args, **bound.kwargs)

        scale = call.get("lora_scale")
        if scale not in (None, 1) and attachment.acts and adapters_length(self.text_modules):
            attachment.warn_once(
                f"the call scales the LoRA by {scale}, but the edit was fitted without this scale;"
                " call pipe.set_adapters(name, scale) before attaching, not in the call"
            )
        has_text = is_negative or call.get("prompt") is not None
        origins = None if has_text else self._origins(call)
        if origins is not None and (None in origins or not origins):
            attachment.warn_once(
                "the call received embeddings that this pipeline's encode_prompt has not returned"
                " since attaching, or that were modified afterwards, so they are used unedited. To"
                f" edit them, pass attachment.apply({self.roles[0]!r}, prompt_embeds) instead"
            )
        result: list[object] | tuple[object, ...]
        shown = None
        with TOKENIZING, during(INSIDE, True), during(_ENCODE, encode):
            seeing = self._seeing_encoders
            if has_text and seeing:
                with traced(seeing) as (calls, _):
                    result = original(*bound.args, **bound.kwargs)
                # Tokens that represent an image must not be edited.
                shown = image_tokens(calls, seeing, result[self.parts[0].place])
            else:
                result = original(*bound.args, **bound.kwargs)
            if has_text:
                result = self.project(attachment, result, received, is_negative, shown)
        if running_call(self.pipe) is None:
            self._remember(call, result, None)
        return result

    def encoded_text(self, call: Mapping[str, object]) -> str:
        """Return what an `encode_prompt` call encodes.

        The result is "prompt" for the first encoding in a pipeline call, "prompt again" if a second
        encoder encodes the same prompt, and "negative prompt" otherwise. The text alone does not
        distinguish the two prompts, because they may be equal. Nor does the number of calls, which
        is wrong after an error.
        """
        current_call = _CALLED.get()
        if current_call is None or current_call[0] is not self.pipe:
            return "prompt"
        pipe, prompts, is_encoded = current_call
        texts = listed(call.get("prompt"))
        if texts == prompts and not is_encoded:
            _CALLED.set((pipe, prompts, True))
            return "prompt"
        if self.source.negatives:
            return "negative prompt"
        if texts == prompts:
            return "prompt again"
        return "prompt"

    def embeddings_of(self, result: Sequence[object]) -> list[Tensor]:
        """Extract the prompt embeddings (b, tokens, d) from an output of `encode_prompt`."""
        embeddings = []
        for name, value in zip(self.source.returns, result, strict=False):
            if value is None or not EMBEDDING.match(name) or "pooled" in name:
                continue
            embedding = opened(value)
            if embedding is not None and embedding[0].ndim == 3:
                embeddings.append(embedding[0])
        return embeddings

    def _remember(
        self, call: Mapping[str, object], result: Sequence[object], record: CallRecord | None
    ) -> None:
        """Remember embeddings that `encode_prompt` returned, with the record of their values."""
        if call.get("prompt") is None:
            return
        for name, value in zip(self.source.returns, result, strict=False):
            if EMBEDDING.match(name):
                self._known.remember(value, record)
                return

    def _origins(self, call: Mapping[str, object]) -> list[Origin | None] | None:
        """Return the origin of each embedding passed to a call, or None if it is unknown.

        The result is None if the call has nothing to encode.
        """
        if not any(isinstance(value, Tensor | list) for value in call.values()):
            return None
        for name, value in call.items():
            if EMBEDDING.match(name) and rows_of(value):
                return self._known.find(value)
        return []

    def _record_embeddings(self, attachment: PromptAttachment, call: Mapping[str, object]) -> None:
        """Record a call that receives embeddings instead of a prompt, with their prompts if known.

        Warns if the prompts are unknown, or if images share a value.
        """
        origins = self._origins(call)
        if origins is None:
            return
        count = images_per_prompt(call)
        rows: list[tuple[object, ...]] = []
        for origin in origins:
            row: tuple[object, ...] = ("", "", None, EMBEDDINGS, ())
            known, image = origin or (None, 0)
            if known is not None:
                facts = (known.prompts, known.written, known.values, known.reasons, known.people)
                row = tuple(fact[image] for fact in facts)
            rows += [row] * count
        columns = list(zip(*rows, strict=True)) if rows else [()] * 5
        prompts, written, values, reasons, people = columns
        record = CallRecord(prompts, written, values, reasons, people, attachment.seed)
        attachment.log.add(record)
        if None in origins or not origins:
            attachment.warn_once(
                "the call received embeddings that this pipeline's encode_prompt has not"
                " returned since attaching, or that were modified afterwards, so they are used"
                " unchanged and their values are unknown. Pass prompts, or embeddings of"
                " vldebias.balance_prompts(...).prompts"
            )
        elif count > 1 and any(value is not None for value in record.values):
            attachment.warn_once(
                "images generated from one embedding share the value that was inserted into its"
                " prompt; to balance them, encode the prompt once per image:"
                " pipe.encode_prompt([prompt] * images, ...)"
            )

    def readers(self, call: Mapping[str, object]) -> dict[str, Callable[[str], int]]:
        """Return, for each text argument of a call, a function that counts the characters read.

        The count is the maximum over the pipeline's tokenizers. A tokenizer reads the text argument
        with the same number (`tokenizer_2` reads `prompt_2`), or `prompt` if that is not passed.
        """
        length = call.get("max_sequence_length") or self.defaults.get("max_sequence_length")
        limit = length if isinstance(length, int) else None
        tokenizers: dict[str, list[PreTrainedTokenizerBase]] = {}
        for name, tokenizer in self.pipe.components.items():
            if not re.fullmatch(r"tokenizer(_\d)?", name) or tokenizer is None:
                continue
            argument = name.replace("tokenizer", "prompt")
            if call.get(argument) is None:
                argument = "prompt"
            inner = getattr(tokenizer, "tokenizer", tokenizer)
            tokenizers.setdefault(argument, []).append(inner)

        def most_read(argument: str, text: str) -> int:
            return max(characters_read(inner, limit, text) for inner in tokenizers[argument])

        return {argument: partial(most_read, argument) for argument in tokenizers}

    def project(
        self,
        attachment: EditAttachment,
        result: list[object] | tuple[object, ...],
        call: Mapping[str, object],
        negative: bool = False,
        shown: Tensor | None = None,
    ) -> list[object] | tuple[object, ...]:
        """Return the output of `encode_prompt` with edited embeddings.

        Args:
            attachment: the attachment that applies the edits.
            result: the output of `encode_prompt`.
            call: the arguments of the `encode_prompt` call.
            negative: whether the call only encodes the negative prompt.
            shown: a mask (b, tokens) that is true for tokens that represent an image, or None if
                there is no image.

        Returns:
            The edited output, or `result` itself if nothing changed.
        """
        values = list(result)
        is_changed = False
        for part in self.parts:
            # Embeddings of the prompt and the negative prompt.
            sides = [
                (part.place, "", self.negative or not negative, shown),
                (part.twin, "negative_", self.negative, None),
            ]
            for place, prefix, is_edited, mask in sides:
                # Embeddings passed by the caller stay unchanged.
                if place is None or not is_edited or call.get(prefix + part.name) is not None:
                    continue
                embedding = opened(values[place])
                if embedding is None:  # without guidance there is no negative branch
                    continue
                tensor, close = embedding
                segment = tensor[:, part.tokens]
                texts = partial(texts_of, call, prefix + "prompt")
                changed = attachment.apply(part.role, segment, texts)
                if changed is segment:
                    continue
                is_changed = True
                if mask is not None and tensor.ndim == 3:
                    # Tokens that represent an image stay unchanged. The mask has one row per
                    # prompt, so repeat it for each of the prompt's images.
                    repeats = len(tensor) // len(mask)
                    stays = mask.to(tensor.device).repeat_interleave(repeats, 0)
                    changed = torch.where(stays[..., None], segment, changed)
                edited = tensor.clone()
                edited[:, part.tokens] = changed
                values[place] = close(edited)
        if not is_changed:
            return result
        self._refuse_other_layers(call)
        return type(result)(values)

    def _refuse_other_layers(self, call: Mapping[str, object]) -> None:
        """Reject a call that selects the states of layers other than the fitted ones.

        Their states form a different space, often of the same width.
        """
        for name in _LAYERS:
            if call.get(name) is None:
                continue
            requested = _plain_list(call[name])
            fitted = _plain_list(self.defaults.get(name))
            # 0 selects the same layer as None.
            if requested not in (fitted, 0 if fitted is None else fitted):
                raise InvalidInputError(
                    f"{self.name}: the edit was fitted with {name}={self.defaults.get(name)}, but"
                    f" the call has {name}={call[name]}, which selects a different space; omit it,"
                    " or encode inside attachment.disabled()"
                )

    def reworded(
        self, edit: Rewording, role: str, z: Tensor, prompts: Sequence[str], strength: float
    ) -> Tensor:
        encode = _ENCODE.get()
        if encode is None:
            return super().reworded(edit, role, z, prompts, strength)
        part = self.parts[self.roles.index(role)]
        rows_of_wording = []
        for wording in zip(*(edit.wordings(prompt) for prompt in prompts), strict=True):
            embedding = opened(encode(list(wording))[part.place])
            rows = z if embedding is None else embedding[0][:, part.tokens]
            if rows.shape != z.shape:
                raise InvalidInputError(
                    f"{self.name}: method {edit.method!r}: the wordings' states have shape"
                    f" {tuple(rows.shape)}, but the prompts' states have {tuple(z.shape)}; insert"
                    " the words into the prompts instead"
                )
            rows_of_wording.append(rows)
        wordings = torch.stack(rows_of_wording, dim=1)
        return edit.combined(z, wordings, strength)

    def merge(self, edits: Mapping[str, CalibratedProjection], strength: float) -> Sequence[object]:
        changed = fold_into_readers(self.pipe, edits, strength)
        has_twin = any(part.twin is not None for part in self.parts)
        has_negative = self.source.negatives or has_twin
        if strength and not self.negative and has_negative:
            warn(
                f"{self.name}: weights cannot distinguish the two branches of guidance, so the"
                " merged edit also changes the negative prompt, even an empty one. With guidance,"
                " this is the same as negative=True; to avoid it, keep the edit attached instead"
            )
        return changed


def _plain_list(value: object) -> object:
    """Return a tuple or list as a list, and anything else unchanged."""
    return list(value) if isinstance(value, list | tuple) else value
