"""Serve diffusers pipelines: edit the outputs of `encode_prompt`, or rewrite prompts before it
reads them.

`encode_prompt` is public, returns the conditional and the negative prompt apart, and is called by
every kind of pipeline, img2img, inpaint and ControlNet included. Its source names what it returns
(`vldebias.hosts.pipelines.calls`): an embedding that depends on the prompt is a role and is edited,
"negative_" + its name is that of the negative prompt. The method is replaced on the one pipeline,
as an attribute that `del` removes: modules, adapters, offload hooks and `save_pretrained` are
unaffected, and so are pipelines that share the modules.

As in the paper's generation experiments, every token of the conditional prompt is edited, the
negative branch not, and edits are fitted on the state of the end-of-text token (Chuang et al.,
2023, section 7.5 of the thesis). Encoders that read a chat have the end of the turn in its place,
or the last token of the prompt where nothing follows.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils._pytree import tree_map  # torch has no public one

from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError, warn
from vldebias.hosts.attachment import INSIDE, Attachment
from vldebias.hosts.clip.merge import fold_into_readers
from vldebias.hosts.edits import EditAttachment
from vldebias.hosts.hooks import Around, Original, hook_methods
from vldebias.hosts.host import TEXTS, TOKENIZING, Host, during, reading
from vldebias.hosts.pipelines.calls import (
    BESIDE,
    EMBEDDING,
    Call,
    Part,
    Tokens,
    changed_states,
    characters_read,
    copied,
    count_of,
    image_ids,
    image_tokens,
    images_per_prompt,
    listed,
    opened,
    running_call,
    same_values,
    set_texts,
    texts_of,
    texts_of_images,
    traced,
)
from vldebias.hosts.pipelines.embedded import KnownEmbeddings, Origin, rows_of
from vldebias.hosts.pipelines.source import REMEDY, Source, parameters_of_call, source_of
from vldebias.hosts.records import CallRecord, raise_failures
from vldebias.hosts.values import PromptAttachment
from vldebias.projection.projection import CalibratedProjection

PROBES = ("a cat", "two dogs", "the sun")  # they end in different tokens
LONG = "an old stone bridge over a quiet river"  # short enough for encoders of a few tokens
BATCH = 16  # prompts: the attention of T5-XXL over 16 x 256 tokens fits beside its weights
# Fitted with what a call uses by default: T5 reads its padding, Gemma an instruction before the
# prompt.
_CALL_DEFAULTS = (
    "max_sequence_length",
    "complex_human_instruction",
    "prompt_template",
    "text_encoder_out_layers",
)
# Arguments that ask for another space.
_LAYERS = ("clip_skip", "text_encoder_out_layers", "return_index")

_CALLED: ContextVar[tuple[object, list[str], bool] | None] = ContextVar(
    "vldebias_called", default=None
)
"""The pipeline whose call runs in this thread or task, its prompts, and whether they were
encoded."""
_ENCODE: ContextVar[Callable[[list[str]], tuple[Any, ...]] | None] = ContextVar(
    "vldebias_encode", default=None
)
"""Encodes other prompts as the current call encodes its own."""

EMBEDDINGS = "embeddings"
"""The reason of images whose embeddings were passed and are not known."""
SHARED = (
    "it encodes a prompt once for all of its images, so with {count} above 1 they share one value;"
    " to balance them, pass a list with the prompt once for each image"
)


@dataclass(frozen=True, eq=False)
class Encoded:
    """Hold what `encode_prompt` returns for prompts.

    Attributes:
        result: the returned values. changed: the same where states of tokens were changed, for each
            change.
        ids: encoder -> the token ids of each prompt. lengths: encoder -> their length with padding.
    """

    result: tuple[object, ...]
    changed: list[tuple[object, ...]]
    ids: dict[str, list[list[int]]]
    lengths: dict[str, int]

    def states(self, part: Part) -> Tensor:
        """Return the embedding of a part, (b, tokens, d) or (b, d)."""
        return cast("Tensor", opened(self.result[part.place])[0][:, part.tokens])

    def places_of_ends(self, part: Part) -> Tensor | None:
        """Return the places (b,) of the tokens that end the prompts, among those of a part.

        These are the tokens whose state the first change changed most. None where a prompt has
        none.
        """
        changed = opened(self.changed[0][part.place])[0][:, part.tokens]
        distances = (self.states(part).double() - changed.double()).norm(dim=-1)
        if not distances.any(dim=1).all():
            return None
        return cast("Tensor", distances.argmax(dim=1))


class DiffusersHost(Host):
    """Serve a pipeline by the embeddings that its `encode_prompt` returns for a prompt.

    Tensors that the caller passes in (`prompt_embeds`, `pooled_prompt_embeds`) are not edited: edit
    those with `attachment.apply("sequence", prompt_embeds)`. Embeddings of a negative prompt that
    you make yourself with `pipe.encode_prompt(negative)` belong inside `attachment.disabled()`.
    """

    library = "diffusers"
    generative = True
    rewrites = True

    def __init__(
        self,
        pipe: Any,
        tokenizer: object = None,
        negative: bool = False,
        source: Source | None = None,
    ) -> None:
        self.name = type(pipe).__name__
        self._pipe = pipe
        self.negative = negative
        origin = getattr(pipe, "name_or_path", None) or getattr(
            pipe, "_pretrained_model_name_or_path", None
        )
        self.model_id = str(origin or "") or None
        kind = cast("Any", type(pipe))
        self.source = source or source_of(kind)
        if source is None:
            parameters = parameters_of_call(kind)
        else:
            parameters = dict(inspect.signature(type(pipe).__call__).parameters)
        self.defaults = {}
        for name, parameter in parameters.items():
            if parameter.default is not parameter.empty:
                self.defaults[name] = parameter.default
        self.edits_images = _edits_images(pipe, parameters)
        self.encoders = {}
        self._seeing_encoders = {}  # those that get images with the prompt
        for name, component in pipe.components.items():
            if "text_encoder" in name and isinstance(component, nn.Module):
                self.encoders[name] = component
                if image_ids(component):
                    self._seeing_encoders[name] = component
        # torch.compile wraps what it compiles
        self.text_modules = tuple(
            getattr(encoder, "_orig_mod", encoder) for encoder in self.encoders.values()
        )
        self.exclusive_modules = (pipe,)
        self.shared_modules = self.text_modules
        self._known = KnownEmbeddings()
        self._tails: dict[str, int] = {}  # by encoder: tokens after the last one of a prompt
        # By encoder, of the first of PROBES and of LONG: tokens with padding.
        self._lengths: list[dict[str, int]] = []

    # ---- roles
    # ---------------------------------------------------------------------------------------------

    @property
    def roles(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the roles: the outputs of `encode_prompt` that depend on the prompt."""
        return tuple(part.role for part in self.parts)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Return the embeddings to edit, found by encoding a few prompts.

        Raises:
            UnsupportedHostError: something depends on the prompt and cannot be read: an edit would
                miss it.
        """
        if self.source.calls - self.source.negatives > 1:
            raise self.refusal(
                "it calls encode_prompt several times for one prompt, with results that share names"
            )
        probes = [self.encode([probe], ()) for probe in PROBES]
        for name in probes[0].ids:
            # The ids that all probes have in common at their end. They may be of the prompts too;
            # the token that ends a prompt is not of the tail.
            reversed_rows = [probe.ids[name][0][::-1] for probe in probes]
            columns = zip(*reversed_rows, strict=False)
            common = list(takewhile(lambda column: len(set(column)) == 1, columns))
            self._tails[name] = max(len(common) - 1, 0)

        # Change the state of the token that ends the prompt, then those of all tokens of one
        # encoder after the other.
        changes: list[dict[str, Tokens]] = [{}]
        changes += [{name: slice(None)} for name in self.encoders]
        short = probes[0]
        long = self.encode([LONG], changes)
        self._lengths = [short.lengths, long.lengths]
        names = self.source.returns
        if len(names) != len(short.result):
            raise self.refusal(
                f"encode_prompt returned {len(short.result)} values, its source names {len(names)}"
            )
        parts: list[Part] = []
        for index, name in enumerate(names):
            is_constant = same_values(short.result[index], long.result[index])
            if not is_constant and not BESIDE.search(name):
                parts += self._read_parts(index, name, short, long, parts)
        if not parts:
            raise self.refusal("nothing that encode_prompt returns depends on the prompt")
        self._refuse_joined_branches(parts)
        return tuple(parts)

    def _refuse_joined_branches(self, parts: Sequence[Part]) -> None:
        """Refuse a pipeline that returns the prompt and the negative prompt in one tensor."""
        encode = getattr(self._pipe, "encode_prompt", lambda: None)
        parameters = inspect.signature(encode).parameters
        if not {"negative_prompt", "do_classifier_free_guidance"} <= parameters.keys():
            return
        results = []
        for negative in PROBES[:2]:
            encoded = self.encode(
                [LONG], (), do_classifier_free_guidance=True, negative_prompt=[negative]
            )
            results.append(encoded.result)
        for part in parts:
            first = results[0][part.place]
            second = results[1][part.place]
            if len(opened(first)[0]) != 1 or not same_values(first, second):
                raise self.refusal(f"under guidance {part.name} holds the negative prompt as well")

    def refusal(self, why: str) -> UnsupportedHostError:
        """Return the error for a pipeline that cannot be read."""
        return UnsupportedHostError(
            f"{self.name}: {why}. Balanced prompts may still serve it; for edits, {REMEDY}"
        )

    def _read_parts(
        self, index: int, name: str, short: Encoded, long: Encoded, known: Sequence[Part]
    ) -> list[Part]:
        """Return the parts of one value that `encode_prompt` returns: itself, or a segment for each
        encoder whose tokens it holds.

        Args:
            index, name: place and name of the value.
            short, long: two encoded prompts; the long one again with changed states.
            known: the parts before it.

        Raises:
            UnsupportedHostError: the value is no embedding with a row for each token.
        """
        tensor = self._embedding(index, name, long)
        changes = [(opened(result[index])[0] != tensor)[0] for result in long.changed]
        self._check_last_token(name, changes[0])
        kind = "sequence" if tensor.ndim == 3 else "pooled"
        # The role is the kind, with the ending of the name where another value is of that kind:
        # "prompt_embeds" is the "sequence", and "prompt_embeds_2" with it "sequence.2".
        role = kind
        if any(part.role.partition(".")[0] == kind for part in known):
            ending = name.removeprefix("pooled_").removeprefix("prompt_embeds")
            role += ending.replace("_", ".")
        twin = None
        for place, returned_name in enumerate(self.source.returns):
            if returned_name in (f"negative_{name}", f"uncond_{name}"):
                twin = place
                break
        undivided = [Part(role, name, index, twin)]
        if kind == "pooled":
            return undivided
        segments = _segments(dict(zip(self.encoders, changes[1:], strict=True)))
        if not segments:
            raise self.refusal(
                f"{name} is not made of the states that its text encoders give for token ids"
            )
        is_padded = long.lengths == short.lengths and tensor.shape[1] > max(long.lengths.values())
        if len(segments) == 1 and not is_padded:
            return undivided
        parts = []
        for encoder, tokens in segments.items():
            config = getattr(self.encoders[encoder], "config", None)
            model = str(getattr(config, "model_type", encoder)).partition("_")[0]
            parts.append(Part(f"{role}.{model}", name, index, twin, tokens))
        return parts

    def _embedding(self, index: int, name: str, encoded: Encoded) -> Tensor:
        """Return one value that `encode_prompt` returns for a prompt, (1, tokens, d) or (1, d).

        Raises:
            UnsupportedHostError: it is no embedding of one prompt.
        """
        value = opened(encoded.result[index])
        if not EMBEDDING.match(name) or value is None or len(value[0]) != 1:
            raise self.refusal(
                f"{name or 'a value without a name'} at place {index} of what encode_prompt returns"
                " depends on the prompt; expected an embedding by its name, (1, tokens, d) or"
                " (1, d)"
            )
        return value[0]

    def _check_last_token(self, name: str, change: Tensor) -> None:
        """Refuse an embedding in which the state of the last token is not a row.

        change: (tokens, d) or (d,), true where the changed state changed the embedding. Where
        widths are the last axis, one changed token changes a whole row.
        """
        is_sequence = change.ndim == 2
        row = change[int(change.sum(-1).argmax())] if is_sequence else change
        share = float(row.float().mean())
        # A pooled vector may depend on other tokens alone.
        if share < 0.2 and (is_sequence or share > 0):
            raise self.refusal(
                f"changing the state of the last token changes {share:.0%} of a row of {name};"
                " expected (b, tokens, d) with one row for each token, or (b, d)"
            )

    # ---- reading
    # ---------------------------------------------------------------------------------------------

    def encode(
        self,
        prompts: list[str],
        changes: Sequence[Mapping[str, Tokens]] = ({},),
        **settings: object,
    ) -> Encoded:
        """Encode prompts without guidance; again with tokens of encoders changed, for {} the last
        of each prompt.

        Raises:
            UnsupportedHostError: the pipeline fails on prompts alone, or returns no tuple.
        """
        changed_results: list[tuple[object, ...]] = []
        try:
            if "device" not in settings:  # diffusers searches all modules for it, at each call
                settings["device"] = self._pipe._execution_device
            with TOKENIZING, reading(*self.text_modules), traced(self.encoders) as (calls, replies):
                result = self.call(prompts, **settings)
                if not isinstance(result, tuple | list):
                    raise self.refusal(
                        f"encode_prompt returned a {type(result).__name__}, not a tuple"
                    )
                first_calls = {name: made[0] for name, made in calls.items() if made}
                ids, ends = self._ids_and_ends(first_calls)
                for change in changes:
                    _prepare_replies(replies, calls, change or ends)
                    changed_results.append(tuple(self.call(prompts, **settings)))
        except VldebiasError:
            raise
        except Exception as error:  # a pipeline may raise anything
            raise self.refusal(
                f"encode_prompt fails on a prompt alone ({type(error).__name__}:"
                f" {str(error)[:150]}); are its text encoders loaded?"
            ) from error
        lengths = {name: call.ids.shape[1] for name, call in first_calls.items()}
        return Encoded(tuple(result), changed_results, ids, lengths)

    def _ids_and_ends(
        self, calls: Mapping[str, Call]
    ) -> tuple[dict[str, list[list[int]]], dict[str, Tokens]]:
        """Return by encoder the ids of each prompt's tokens, and the place of the last one of the
        prompt itself."""
        ids = dict[str, list[list[int]]]()
        ends = dict[str, Tokens]()
        for name, call in calls.items():
            tokenizer = getattr(self._pipe, name.replace("text_encoder", "tokenizer"), None)
            inner = getattr(tokenizer, "tokenizer", tokenizer)
            pad = getattr(inner, "pad_token_id", None)
            end = getattr(inner, "eos_token_id", None)
            ids[name] = []
            places_of_ends = []
            for number, row in enumerate(call.ids.tolist()):
                # The places that hold tokens and no padding: by the mask, else by the ids.
                if call.mask is not None:
                    places = call.mask[number].nonzero().flatten().tolist()
                else:
                    # Up to the first end, since some tokenizers pad with it; where they pad with
                    # another token, the text may go on after an end.
                    last = row.index(end) if end in row else len(row) - 1
                    places = list(range(last + 1))
                    if pad != end:
                        places_after = range(last + 1, len(row))
                        places += [place for place in places_after if row[place] != pad]
                ids[name].append([row[place] for place in places])
                places_of_ends.append(places[-1 - self._tails.get(name, 0)])
            ends[name] = places_of_ends
        return ids, ends

    def call(self, prompts: list[str], **settings: object) -> Any:
        """Return the output of `encode_prompt` for prompts; leave out arguments that it lacks."""
        parameters = inspect.signature(self._pipe.encode_prompt).parameters
        arguments: dict[str, object] = {}
        for name, parameter in parameters.items():
            is_required = parameter.default is parameter.empty
            if is_required and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                arguments[name] = None
        for name in _CALL_DEFAULTS:
            if name in self.defaults:
                arguments[name] = self.defaults[name]
        arguments |= {
            "prompt": list(prompts),
            "do_classifier_free_guidance": False,
            "guidance_scale": 1.0,
            "batch_size": len(prompts),
            "num_images_per_prompt": 1,
            "num_videos_per_prompt": 1,
        }
        arguments |= copied(settings)
        if "device" not in settings:
            arguments["device"] = self._pipe._execution_device
        accepted = {name: value for name, value in arguments.items() if name in parameters}
        return self._pipe.encode_prompt(**accepted)

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Return the state of the token that ends each prompt, or the pooled vector; one pass gives
        all roles."""
        if role not in self.roles:
            raise InvalidInputError(
                f"{self.name}: expected a role of {list(self.roles)}, got {role!r}"
            )
        rows = {}
        device = self._pipe._execution_device  # diffusers searches all modules for it
        size = BATCH if self.reads_batches else 1
        texts = list(prompts)
        # A fingerprint asks for these next; where the last batch has room, they cost nothing.
        known = vars(self).get("memory", {})
        has_room = -len(texts) % size >= len(TEXTS)
        if has_room and (role, TEXTS[0]) not in known:
            texts += [text for text in TEXTS if text not in texts]
        for start in range(0, len(texts), size):
            batch = texts[start : start + size]
            # A batch of another size rounds otherwise: what is read of a prompt must not depend on
            # how many are read with it, else a resumed run gives other pictures.
            filled = batch + batch[-1:] * (size - len(batch))
            encoded = self.encode(filled, device=device)
            for part in self.parts:
                states = encoded.states(part)
                if states.ndim == 3:
                    ends = encoded.places_of_ends(part)
                    if ends is None:
                        raise self.refusal(
                            f"the end of a prompt is not among the tokens of {part.name}"
                        )
                    states = states[torch.arange(len(states)), ends]
                unit = normalize(states[: len(batch)].to("cpu", torch.float64), dim=-1)
                rows.update(
                    {(part.role, prompt): row for prompt, row in zip(batch, unit, strict=True)}
                )
        return rows

    @cached_property
    def reads_batches(self) -> bool:
        """Return whether prompts that are read together have the rows that they have alone.

        They have where every encoder pads any prompt to one length, so that its padding is the
        same, and gets the prompts of a call at once.
        """
        parts = self.parts
        short, long = self._lengths
        if short != long:
            return False
        try:
            both = self.encode([PROBES[0], LONG], ())
        except VldebiasError:  # the pipeline takes one prompt
            return False
        if both.lengths != short:
            return False
        if any(len(ids) != 2 for ids in both.ids.values()):
            return False
        return all(len(both.states(part)) == 2 for part in parts)

    # ---- attaching
    # ---------------------------------------------------------------------------------------------

    def install(self, attachment: EditAttachment) -> Callable[[], None]:
        """Edit what `encode_prompt` returns, on this pipeline alone."""
        encode = partial(self._encode_edited, attachment)
        return hook_methods(attachment, self._pipe, {"encode_prompt": encode, **self.frame()})

    def install_prompts(self, attachment: PromptAttachment) -> Callable[[], None]:
        """Rewrite prompts before `encode_prompt` reads them, on this pipeline alone."""

        def finish(original: Callable[..., None], call: inspect.BoundArguments) -> None:
            original(*call.args, **call.kwargs)
            raise_failures()

        hooks: dict[str, Around] = {"encode_prompt": partial(self._encode_balanced, attachment)}
        if attachment.log.on_call is not None and self.source.ends:
            hooks["maybe_free_model_hooks"] = finish
        return hook_methods(attachment, self._pipe, hooks | self.frame())

    def frame(self) -> dict[str, Around]:
        """Return hooks of the methods between which a call of the pipeline encodes its prompts.

        If the negative prompt is encoded by a separate call of `encode_prompt`, they show which
        call that is: `check_inputs` gets the prompt before it is encoded, and `prepare_latents`
        runs after it. Empty if one call encodes both prompts.
        """
        if not self.source.framed or self.source.calls <= 1:
            return {}

        def begin(original: Original, call: inspect.BoundArguments) -> object:
            _CALLED.set((self._pipe, listed(call.arguments.get("prompt")), False))
            return original(*call.args, **call.kwargs)

        def end(original: Original, call: inspect.BoundArguments) -> object:
            _CALLED.set(None)
            return original(*call.args, **call.kwargs)

        return {"check_inputs": begin, "prepare_latents": end}

    def _encode_balanced(
        self, attachment: PromptAttachment, original: Original, bound: inspect.BoundArguments
    ) -> object:
        """Call `encode_prompt` with a value in the prompt of each image."""
        call = bound.arguments
        # "prompt" in each call of most pipelines, which encode both prompts in one.
        encoded = self.encoded_text(call)
        with TOKENIZING, during(INSIDE):
            if encoded != "negative prompt" and call.get("prompt") is not None:
                # `encode_prompt` gets no generator: the call of the pipeline has it.
                running = running_call(self._pipe)
                texts = attachment.rewrite_texts(
                    texts_of_images(call),
                    images_per_prompt(call),
                    again=encoded == "prompt again",
                    read=self.readers(call),
                    seeds=None if running is None else running.get("generator"),
                    is_encoding=running is None,
                )
                set_texts(call, texts)
                count = count_of(self.defaults)
                parameters = inspect.signature(type(self._pipe).encode_prompt).parameters
                if count and not count_of(parameters) and attachment.acts:
                    attachment.warn_once(SHARED.format(count=count))
            elif encoded != "negative prompt":
                self._record_embeddings(attachment, call)
            result = original(*bound.args, **bound.kwargs)
        is_encoding = running_call(self._pipe) is None
        record = attachment.log.last
        # Without a record of its values nothing is known of a balanced prompt.
        if is_encoding and record is not None:
            self._remember(call, result, record)
        # Inside a call of the pipeline, failures are raised when its pictures are finished.
        if attachment.log.on_call is not None and (is_encoding or not self.source.ends):
            raise_failures()
        return result

    def _encode_edited(
        self, attachment: EditAttachment, original: Original, bound: inspect.BoundArguments
    ) -> object:
        """Call `encode_prompt`, and edit the embeddings that it returns."""
        call = bound.arguments
        is_negative = self.encoded_text(call) == "negative prompt"
        received = copied(call)

        # For an edit that puts prompts in other words, which the call encodes as its own.
        def encode(prompts: list[str]) -> Any:
            call.update(received)
            set_texts(call, texts_of_images(call) | {"prompt": prompts})
            return original(*bound.args, **bound.kwargs)

        has_text = is_negative or call.get("prompt") is not None
        if not has_text:
            self._warn_of_embeddings(attachment, call)
        with TOKENIZING, during(INSIDE), during(_ENCODE, encode):
            if has_text and self._seeing_encoders:
                result, shown = self._encode_seen(original, bound)
            else:
                result = original(*bound.args, **bound.kwargs)
                shown = None
            if has_text:
                result = self.project(attachment, result, received, is_negative, shown)
        if running_call(self._pipe) is None:
            self._remember(call, result, None)
        return result

    def _encode_seen(
        self, original: Original, bound: inspect.BoundArguments
    ) -> tuple[tuple[Any, ...], Tensor | None]:
        """Call `encode_prompt` of a pipeline whose encoders may get an image with the prompt.

        Returns:
            What it returned, and (b, tokens), true for tokens that show an image, which are not
            edited; None without an image.
        """
        seeing = self._seeing_encoders
        with traced(seeing) as (calls, _):
            result = original(*bound.args, **bound.kwargs)
        return result, image_tokens(calls, seeing, result[self.parts[0].place])

    def encoded_text(self, call: Mapping[str, object]) -> str:
        """Return what a call of `encode_prompt` encodes: the "prompt", the "prompt again" with
        another encoder, or the "negative prompt".

        Of the encodings in one call of the pipeline the first of the prompt is the prompt's. Texts
        alone cannot tell, since both prompts may be equal; nor can the number of calls, after an
        error.
        """
        current_call = _CALLED.get()
        if current_call is None or current_call[0] is not self._pipe:
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
        """Return the embeddings (b, tokens, d) of the conditional prompt in a result of
        `encode_prompt`."""
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
        """Remember embeddings that a caller gets, and the values that are in them."""
        if call.get("prompt") is None:
            return
        for name, value in zip(self.source.returns, result, strict=False):
            if EMBEDDING.match(name):
                self._known.remember(value, record)
                return

    def _origins(self, call: Mapping[str, object]) -> list[Origin | None] | None:
        """Return where the embeddings that a call passes come from, None for unknown ones; None
        where it passes nothing to encode."""
        if not any(isinstance(value, Tensor | list) for value in call.values()):
            return None
        for name, value in call.items():
            if EMBEDDING.match(name) and rows_of(value):
                return self._known.find(value)
        return []

    def _warn_of_embeddings(self, attachment: Attachment, call: Mapping[str, object]) -> None:
        """Warn of a call that passes embeddings of unknown origin, which are not edited."""
        origins = self._origins(call)
        if origins is not None and (None in origins or not origins):
            attachment.warn_once(
                "the call passes embeddings that this pipeline's encode_prompt has not given out"
                " since it was attached, or that were changed since: they are used as they are. To"
                f" edit them, pass attachment.apply({self.roles[0]!r}, prompt_embeds)"
            )

    def _record_embeddings(self, attachment: PromptAttachment, call: Mapping[str, object]) -> None:
        """Record a call that passes embeddings instead of a prompt, with what is known of their
        prompts; warn where nothing is, and where images share a value."""
        origins = self._origins(call)
        if origins is None:
            return
        count = images_per_prompt(call)
        rows: list[tuple[object, ...]] = []
        has_originals = False
        for origin in origins:
            row: tuple[object, ...] = ("", "", None, EMBEDDINGS, (), "")
            known, number = origin or (None, 0)
            if known is not None:
                has_originals = has_originals or known.originals is not None
                row = (
                    known.prompts[number],
                    known.written[number],
                    known.values[number],
                    known.reasons[number],
                    known.people[number],
                    # Of what was not rewritten, the prompt is the original.
                    (known.originals or known.prompts)[number],
                )
            rows += [row] * count
        columns = list(zip(*rows, strict=True)) if rows else [()] * 6
        prompts, written, values, reasons, people, originals = columns
        record = CallRecord(
            prompts,
            written,
            values,
            reasons,
            people,
            attachment.seed,
            originals=originals if has_originals else None,
        )
        attachment.log.add(record)
        if None in origins or not origins:
            attachment.warn_once(
                "the call passes embeddings that this pipeline's encode_prompt has not given out"
                " since it was attached, or that were changed since: they are used as they are, and"
                " which values are in them is not known. Pass prompts, or embeddings of"
                " vldebias.balance_prompts(...).prompts"
            )
        elif count > 1 and any(value is not None for value in record.values):
            attachment.warn_once(
                "the images of one embedding share the value that was written into its prompt; to"
                " balance them, encode the prompt once for each image:"
                " pipe.encode_prompt([prompt] * images, ...)"
            )

    def readers(self, call: Mapping[str, Any]) -> dict[str, Callable[[str], int]]:
        """Return for each text argument of a call how many characters its tokenizers read, the
        maximum over several.

        A tokenizer reads the text of its own number (`tokenizer_2` reads `prompt_2`), or `prompt`
        if that is not given.
        """
        length = call.get("max_sequence_length") or self.defaults.get("max_sequence_length")
        tokenizers: dict[str, list[Any]] = {}
        for name, tokenizer in self._pipe.components.items():
            if not re.fullmatch(r"tokenizer(_\d)?", name) or tokenizer is None:
                continue
            argument = name.replace("tokenizer", "prompt")
            if call.get(argument) is None:
                argument = "prompt"
            inner = getattr(tokenizer, "tokenizer", tokenizer)
            tokenizers.setdefault(argument, []).append(inner)

        def most_read(argument: str, text: str) -> int:
            most = 0
            for inner in tokenizers[argument]:
                most = max(most, characters_read(inner, length, text))
            return most

        return {argument: partial(most_read, argument) for argument in tokenizers}

    def project(
        self,
        attachment: EditAttachment,
        result: Any,
        call: Mapping[str, Any],
        negative: bool = False,
        shown: Any = None,
    ) -> Any:
        """Return the output of `encode_prompt` for `call`, its parts edited; the same object where
        nothing changed.

        negative: the call is for the negative prompt alone. shown: (b, tokens), true for those that
        show an image.
        """
        values = list(result)
        is_changed = False
        for part in self.parts:
            # The embedding of the prompt, and that of the negative prompt.
            sides = [
                (part.place, "", self.negative or not negative, shown),
                (part.twin, "negative_", self.negative, None),
            ]
            for place, prefix, is_edited, mask in sides:
                # Embeddings that the caller passes in stay.
                if place is None or not is_edited or call.get(prefix + part.name) is not None:
                    continue
                embedding = opened(values[place])
                if embedding is None:  # no guidance, no negative branch
                    continue
                tensor, close = embedding
                segment = tensor[:, part.tokens]
                texts = partial(texts_of, call, prefix + "prompt")
                changed = attachment.apply(part.role, segment, texts)
                if changed is segment:
                    continue
                is_changed = True
                if mask is not None and tensor.ndim == 3:
                    # Tokens that show an image stay, in each of the images of a prompt.
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
        """Refuse a call that asks for states of other layers than were fitted: another space, often
        of the same width."""
        for name in _LAYERS:
            if call.get(name) is None:
                continue
            requested = _plain_list(call[name])
            fitted = _plain_list(self.defaults.get(name))
            if requested == fitted or (fitted is None and requested == 0):  # 0 is as without it
                continue
            raise InvalidInputError(
                f"{self.name}: the edit was fitted with {name}={self.defaults.get(name)}, the call"
                f" got {name}={call[name]}, which is another space; leave it out, or encode inside"
                " attachment.disabled()"
            )

    def reworded(
        self, edit: Any, role: str, z: Tensor, prompts: Sequence[str], strength: float
    ) -> Tensor:
        """Return edited embeddings, see `Host.reworded`; other wordings are encoded as the call
        encodes the prompts."""
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
                    f"{self.name}: method {edit.method!r}: the other wordings have states"
                    f" {tuple(rows.shape)}, the prompts {tuple(z.shape)}; write the words into the"
                    " prompts instead"
                )
            rows_of_wording.append(rows)
        wordings = torch.stack(rows_of_wording, dim=1)
        return cast("Tensor", edit.combined(z, wordings, strength))

    def merge(self, edits: Mapping[str, CalibratedProjection], strength: float) -> Sequence[object]:
        """Fold the edits into the layers that read the embeddings; warn where the negative prompt
        was not edited."""
        changed = fold_into_readers(self._pipe, edits, strength)
        has_twin = any(part.twin is not None for part in self.parts)
        has_negative = self.source.negatives or has_twin
        if strength and not self.negative and has_negative:
            warn(
                f"{self.name}: weights cannot tell the two branches of guidance apart, so merge()"
                " changed the negative prompt too, the empty one included. With guidance it"
                " generates what an attachment with negative=True does, not what this one did;"
                " where that matters, keep the attachment"
            )
        return changed


def _edits_images(pipe: object, parameters: Mapping[str, object]) -> bool:
    """Return whether a pipeline changes a given picture or video; with a ControlNet or an adapter
    it is only guided by one."""
    if {"mask_image", "control_image", "strength", "video"} & parameters.keys():
        return True
    is_guided = False
    for name in ("controlnet", "adapter"):
        is_guided = is_guided or getattr(pipe, name, None) is not None
    return "image" in parameters and not is_guided


def _prepare_replies(
    replies: dict[str, list[Call]],
    calls: Mapping[str, list[Call]],
    tokens_of_encoder: Mapping[str, Tokens],
) -> None:
    """Let encoders reply with their recorded outputs, with the states of some tokens of their first
    calls changed."""
    for name, calls_of_encoder in calls.items():
        replies[name] = list(calls_of_encoder)
    for name, tokens in tokens_of_encoder.items():
        if replies.get(name):
            call = replies[name][0]
            change = partial(changed_states, tokens, call.ids.shape[1])
            replies[name][0] = call._replace(output=tree_map(change, call.output))


def _segments(change_of_encoder: Mapping[str, Tensor]) -> dict[str, slice]:
    """Return the tokens of an embedding that hold the states of each encoder, in their order.

    change_of_encoder: encoder -> (tokens, d), true where its states are. Encoders whose states
    stand at the same places (their widths are joined) are one segment, by the first of them. A
    segment reaches to the next; a single one ends with its tokens.
    """
    places_of_encoder: dict[str, set[int]] = {}
    for encoder, change in change_of_encoder.items():
        places = set(change.any(-1).nonzero().flatten().tolist())
        for known_places in places_of_encoder.values():
            if known_places & places:
                known_places |= places
                break
        else:
            if places:
                places_of_encoder[encoder] = places
    ordered = sorted(places_of_encoder, key=lambda encoder: min(places_of_encoder[encoder]))
    if len(ordered) == 1:
        return {ordered[0]: slice(0, max(places_of_encoder[ordered[0]]) + 1)}
    segments = {}
    start = 0
    for number, encoder in enumerate(ordered, start=1):
        stop = None  # of the last: the end
        if number < len(ordered):
            stop = min(places_of_encoder[ordered[number]])
        segments[encoder] = slice(start, stop)
        start = stop or 0
    return segments


def _plain_list(value: object) -> object:
    """Return a tuple or list as a list, everything else as it is."""
    return list(value) if isinstance(value, list | tuple) else value
