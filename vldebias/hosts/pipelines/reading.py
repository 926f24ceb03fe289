"""Read a pipeline's embeddings and determine which encoder produces which of their tokens.

The output of `encode_prompt` is compared for a few prompts: a value that depends on the prompt is
an embedding. The embedding's parts are found by rerunning the pipeline on the recorded encoder
outputs, with the states of some tokens changed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils._pytree import tree_map  # no public API

from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError
from vldebias.hosts.host import TEXTS, Host
from vldebias.hosts.pipelines.calls import (
    BESIDE,
    EMBEDDING,
    PICTURES,
    Call,
    Part,
    Tokens,
    changed_states,
    copied,
    image_ids,
    opened,
    same_values,
    tensor_of,
    traced,
)
from vldebias.hosts.pipelines.source import REMEDY, Source, parameters_of_call, source_of
from vldebias.hosts.reading import TOKENIZING, reading

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

PROBES = ("a cat", "two dogs", "the sun")  # prompts with different last tokens
LONG = "an old stone bridge over a quiet river"  # short enough for encoders with small limits
# Number of prompts per batch. T5-XXL's attention over 16 x 256 tokens needs less memory than its
# weights.
BATCH = 16
# Edits are fitted with the default arguments of a pipeline call, with which T5 also encodes padding
# and Gemma also encodes an instruction before the prompt.
_CALL_DEFAULTS = (
    "max_sequence_length",
    "complex_human_instruction",
    "prompt_template",
    "text_encoder_out_layers",
)
# Matches names of pipeline classes whose task requires an image or video.
_EDITING_TASK = re.compile(
    "Img2Img|Depth2Img|Pix2Pix|Inpaint|Edit|Fill|Layered|Refiner|Upscale|SuperResolution|I2VGen"
    "|ImageTo|VideoTo"
)


@dataclass(frozen=True, eq=False)
class Encoded:
    """Store the output of `encode_prompt` for some prompts.

    Attributes:
        result: the values that `encode_prompt` returned.
        changed: the values that it returned after each change to token states.
        ids: for each encoder, the token ids of each prompt.
        lengths: for each encoder, the number of ids, including padding.
    """

    result: tuple[object, ...]
    changed: list[tuple[object, ...]]
    ids: dict[str, list[list[int]]]
    lengths: dict[str, int]

    def states(self, part: Part) -> Tensor:
        """Return the embedding of a part, (b, tokens, d) or (b, d)."""
        return tensor_of(self.result[part.place])[:, part.tokens]

    def places_of_ends(self, part: Part) -> Tensor | None:
        """Return the positions (b,) of the tokens that end the prompts, among a part's tokens.

        These are the tokens whose embeddings differ most after the first entry of `changed`.
        Returns None if no token of a prompt differs.
        """
        changed = tensor_of(self.changed[0][part.place])[:, part.tokens]
        distances = (self.states(part).double() - changed.double()).norm(dim=-1)
        return distances.argmax(dim=1) if distances.any(dim=1).all() else None


class PipelineReader(Host):
    """Read the embeddings that a pipeline's `encode_prompt` returns.

    Attributes:
        pipe: the diffusers pipeline.
        negative: whether the negative prompt is edited too.
        source: facts parsed from the source of the pipeline's class.
        defaults: default values of the pipeline call's arguments.
        encoders: the text encoders by component name.
        pictures: names of the call's arguments for images or videos to edit.
    """

    generative = True
    rewrites = True

    def __init__(
        self,
        pipe: DiffusionPipeline,
        negative: bool = False,
        source: Source | None = None,
    ) -> None:
        self.name = type(pipe).__name__
        self.pipe = pipe
        self.negative = negative
        origin = getattr(pipe, "name_or_path", None) or getattr(
            pipe, "_pretrained_model_name_or_path", None
        )
        self.model_id = str(origin or "") or None
        kind: object = type(pipe)
        self.source = source or source_of(kind)
        if source is None:
            parameters = parameters_of_call(kind)
        else:
            parameters = dict(inspect.signature(type(pipe).__call__).parameters)
        self.defaults: dict[str, object] = {}
        for name, parameter in parameters.items():
            if parameter.default is not parameter.empty:
                self.defaults[name] = parameter.default
        components = [name for name, component in pipe.components.items() if component is not None]
        self.pictures = picture_arguments(parameters, components)
        self.needs_picture = needs_picture(type(pipe), parameters, self.pictures)
        self.encoders: dict[str, nn.Module] = {}
        self._seeing_encoders: dict[str, nn.Module] = {}  # encoders that also receive images
        for name, component in pipe.components.items():
            if "text_encoder" in name and isinstance(component, nn.Module):
                self.encoders[name] = component
                if image_ids(component):
                    self._seeing_encoders[name] = component
        # torch.compile wraps compiled modules.
        self.text_modules = tuple(
            getattr(encoder, "_orig_mod", encoder) for encoder in self.encoders.values()
        )
        self.exclusive_modules = (pipe,)
        self.shared_modules = self.text_modules
        # For each encoder, the number of tokens after the last token of a prompt.
        self._tails: dict[str, int] = {}
        # For the first of PROBES and for LONG, each encoder's number of tokens including padding.
        self._lengths: list[dict[str, int]] = []

    # ---- roles

    @property
    def roles(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the roles: the outputs of `encode_prompt` that depend on the prompt."""
        return tuple(part.role for part in self.parts)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Return the embeddings to edit, determined by encoding a few prompts.

        Raises:
            UnsupportedHostError: If an output depends on the prompt but cannot be read, so that an
                edit would miss it.
        """
        if self.source.calls - self.source.negatives > 1:
            raise self.refusal(
                "it calls encode_prompt several times for one prompt, and the calls' results have"
                " the same names, so they cannot be told apart"
            )
        probes = [self.encode([probe], ()) for probe in PROBES]
        for name in probes[0].ids:
            # Count the trailing ids that all probes share, except the first of these ids, which
            # ends the prompt.
            reversed_rows = [probe.ids[name][0][::-1] for probe in probes]
            columns = zip(*reversed_rows, strict=False)
            common = list(takewhile(lambda column: len(set(column)) == 1, columns))
            self._tails[name] = max(len(common) - 1, 0)

        # Change the state of the token that ends the prompt, then the states of all tokens, one
        # encoder at a time.
        changes: list[dict[str, Tokens]] = [{}]
        changes += [{name: slice(None)} for name in self.encoders]
        short = probes[0]
        long = self.encode([LONG], changes)
        self._lengths = [short.lengths, long.lengths]
        names = self.source.returns
        if len(names) != len(short.result):
            raise self.refusal(
                f"encode_prompt returned {len(short.result)} values, but its source names"
                f" {len(names)}"
            )
        parts: list[Part] = []
        for index, name in enumerate(names):
            is_constant = same_values(short.result[index], long.result[index])
            if not is_constant and not BESIDE.search(name):
                parts += self._read_parts(index, name, short, long, parts)
        if not parts:
            raise self.refusal("no output of encode_prompt depends on the prompt")
        self._refuse_joined_branches(parts)
        return tuple(parts)

    def _refuse_joined_branches(self, parts: Sequence[Part]) -> None:
        """Reject a pipeline that returns the prompt and the negative prompt in one tensor."""
        encode_prompt = getattr(self.pipe, "encode_prompt", lambda: None)
        parameters = inspect.signature(encode_prompt).parameters
        if not {"negative_prompt", "do_classifier_free_guidance"} <= parameters.keys():
            return
        encode = partial(self.encode, [LONG], (), do_classifier_free_guidance=True)
        results = [encode(negative_prompt=[negative]).result for negative in PROBES[:2]]
        for part in parts:
            first, second = (result[part.place] for result in results)
            if len(tensor_of(first)) != 1 or not same_values(first, second):
                raise self.refusal(f"{part.name} contains the negative prompt if guidance is on")

    def refusal(self, why: str) -> UnsupportedHostError:
        """Return the error to raise for a pipeline whose source cannot be analysed."""
        return UnsupportedHostError(
            f"{self.name}: {why}. Balanced prompts may still work; for edits, {REMEDY}"
        )

    def _read_parts(
        self, index: int, name: str, short: Encoded, long: Encoded, known: Sequence[Part]
    ) -> list[Part]:
        """Return the parts of one `encode_prompt` output: itself, or a segment per encoder.

        Args:
            index: index of the value in the output.
            name: name of the value.
            short: an encoded prompt.
            long: a longer encoded prompt, also with changed states.
            known: the parts of the preceding values.

        Raises:
            UnsupportedHostError: If the value is not an embedding with one row per token.
        """
        tensor = self._embedding(index, name, long)
        changes = [(tensor_of(result[index]) != tensor)[0] for result in long.changed]
        self._check_last_token(name, changes[0])
        kind = "sequence" if tensor.ndim == 3 else "pooled"
        # The role is the kind of embedding. If a second value is of the same kind, its role has the
        # suffix of its name: "prompt_embeds" is "sequence", and "prompt_embeds_2" is "sequence.2".
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
            raise self.refusal(f"{name} does not consist of the states of its text encoders")
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
        """Return one `encode_prompt` output for a prompt, (1, tokens, d) or (1, d).

        Raises:
            UnsupportedHostError: If it is not an embedding of one prompt.
        """
        value = opened(encoded.result[index])
        if not EMBEDDING.match(name) or value is None or len(value[0]) != 1:
            raise self.refusal(
                f"{name or 'an unnamed value'} at position {index} in the output of encode_prompt"
                " depends on the prompt; expected a value with 'embed' in its name, of shape (1,"
                " tokens, d) or (1, d)"
            )
        return value[0]

    def _check_last_token(self, name: str, change: Tensor) -> None:
        """Reject an embedding in which the last token's state does not fill one row.

        If the last axis is the width, changing one token changes an entire row.

        Args:
            name: name of the embedding.
            change: mask (tokens, d) or (d,), true where the changed state affected the embedding.
        """
        is_sequence = change.ndim == 2
        row = change[int(change.sum(-1).argmax())] if is_sequence else change
        share = float(row.float().mean())
        # A pooled vector may depend only on other tokens.
        if share < 0.2 and (is_sequence or share > 0):
            raise self.refusal(
                f"{name} does not have one row per token: a change of the last token changes"
                f" {share:.0%} of a row; expected shape (b, tokens, d), or (b, d)"
            )

    # ---- reading

    def encode(
        self,
        prompts: list[str],
        changes: Sequence[Mapping[str, Tokens]] = ({},),
        **settings: object,
    ) -> Encoded:
        """Encode prompts without guidance, once unchanged and once for each of `changes`.

        Args:
            prompts: one prompt per row of the batch.
            changes: for each further run, the tokens whose states to change, by encoder. {} changes
                the state of each prompt's last token.
            settings: additional arguments of `encode_prompt`.

        Raises:
            UnsupportedHostError: If the pipeline fails for these prompts, or does not return a
                tuple.
        """
        for name, component in self.pipe.components.items():
            is_encoder = name.startswith("text_encoder") and component is not None
            if is_encoder and not isinstance(component, nn.Module):
                raise self.refusal(
                    f"its text encoder is not a torch module (components[{name!r}] is a"
                    f" {type(component).__name__}, as for ONNX or OpenVINO)"
                )
        changed_results: list[tuple[object, ...]] = []
        try:
            if "device" not in settings:  # diffusers would search all modules for the device
                settings["device"] = self.pipe._execution_device
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
        except Exception as error:  # a pipeline may raise any exception
            raise self.refusal(
                f"encode_prompt fails for a single prompt ({type(error).__name__}:"
                f" {str(error)[:150]}); are its text encoders loaded?"
            ) from error
        lengths = {name: call.ids.shape[1] for name, call in first_calls.items()}
        return Encoded(tuple(result), changed_results, ids, lengths)

    def _ids_and_ends(
        self, calls: Mapping[str, Call]
    ) -> tuple[dict[str, list[list[int]]], dict[str, Tokens]]:
        """Return, for each encoder, the ids of each prompt and the position of its last token."""
        ids = dict[str, list[list[int]]]()
        ends = dict[str, Tokens]()
        for name, call in calls.items():
            tokenizer = getattr(self.pipe, name.replace("text_encoder", "tokenizer"), None)
            inner = getattr(tokenizer, "tokenizer", tokenizer)
            pad = getattr(inner, "pad_token_id", None)
            end = getattr(inner, "eos_token_id", None)
            ids[name] = []
            places_of_ends = []
            for number, row in enumerate(call.ids.tolist()):
                # Positions of tokens other than padding, from the mask if available, otherwise from
                # the ids.
                if call.mask is not None:
                    places = call.mask[number].nonzero().flatten().tolist()
                else:
                    # Stop at the first end token, because some tokenizers pad with it. If they pad
                    # with a different token, the text may continue after an end token.
                    last = row.index(end) if end in row else len(row) - 1
                    places = list(range(last + 1))
                    if pad != end:
                        places_after = range(last + 1, len(row))
                        places += [place for place in places_after if row[place] != pad]
                ids[name].append([row[place] for place in places])
                places_of_ends.append(places[-1 - self._tails.get(name, 0)])
            ends[name] = places_of_ends
        return ids, ends

    def call(self, prompts: list[str], **settings: object) -> Sequence[object]:
        """Call `encode_prompt` for prompts, omitting arguments that it does not accept.

        Args:
            prompts: one prompt per row of the batch.
            settings: additional arguments, which override the defaults for fitting.
        """
        parameters = inspect.signature(self.pipe.encode_prompt).parameters
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
            arguments["device"] = self.pipe._execution_device
        accepted = {name: value for name, value in arguments.items() if name in parameters}
        return self.pipe.encode_prompt(**accepted)

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        if role not in self.roles:
            raise InvalidInputError(
                f"{self.name}: expected one of the roles {list(self.roles)}, got {role!r}"
            )
        rows = {}
        # Look up the device only once, because diffusers searches all modules for it.
        device = self.pipe._execution_device
        size = BATCH if self.reads_batches else 1
        texts = list(prompts)
        # The fingerprint will need these texts, which cost nothing if the last batch has room.
        has_room = -len(texts) % size >= len(TEXTS)
        if has_room and (role, TEXTS[0]) not in self.memory.rows:
            texts += [text for text in TEXTS if text not in texts]
        for start in range(0, len(texts), size):
            batch = texts[start : start + size]
            # Rounding depends on the batch size. A prompt's row must not depend on how many prompts
            # are encoded together, or a resumed run would generate different images.
            filled = batch + batch[-1:] * (size - len(batch))
            encoded = self.encode(filled, device=device)
            for part in self.parts:
                states = encoded.states(part)
                if states.ndim == 3:
                    ends = encoded.places_of_ends(part)
                    if ends is None:
                        raise self.refusal(
                            f"the token that ends a prompt is not among the tokens of {part.name}"
                        )
                    states = states[torch.arange(len(states)), ends]
                unit = normalize(states[: len(batch)].to("cpu", torch.float64), dim=-1)
                for prompt, row in zip(batch, unit, strict=True):
                    rows[part.role, prompt] = row
        return rows

    @cached_property
    def reads_batches(self) -> bool:
        """Return whether encoding prompts together gives the same rows as one by one.

        This requires every encoder to pad all prompts to the same length and to receive all of a
        call's prompts at once.
        """
        parts = self.parts
        short, long = self._lengths
        if short != long:
            return False
        try:
            both = self.encode([PROBES[0], LONG], ())
        except VldebiasError:  # the pipeline accepts only one prompt
            return False
        is_one_call = both.lengths == short and all(len(ids) == 2 for ids in both.ids.values())
        return is_one_call and all(len(both.states(part)) == 2 for part in parts)


def picture_arguments(parameters: Collection[str], components: Collection[str]) -> tuple[str, ...]:
    """Return the names of a pipeline call's arguments for images or videos to edit.

    With a ControlNet or an adapter, `image` only guides the generation, unless `control_image` is
    a separate argument.

    Args:
        parameters: names of the call's parameters.
        components: names of the pipeline's components.
    """
    names = [name for name in PICTURES if name in parameters]
    has_guide = "controlnet" in components or "adapter" in components
    if has_guide and "image" in names and "control_image" not in parameters:
        names.remove("image")
    return tuple(names)


def needs_picture(
    kind: type, parameters: Mapping[str, inspect.Parameter], pictures: Collection[str]
) -> bool:
    """Return whether a pipeline class cannot run without an image or video.

    The signature alone does not show this, because many classes declare `image=None` and raise an
    error if it is missing. In diffusers, the names of these classes contain their task.

    Args:
        kind: the pipeline class.
        parameters: the parameters of its call.
        pictures: the names returned by `picture_arguments`.
    """
    if any(parameters[name].default is inspect.Parameter.empty for name in pictures):
        return True
    names = [base.__name__ for base in kind.__mro__ if "Pipeline" in base.__name__]
    return bool(pictures) and any(map(_EDITING_TASK.search, names))


def _prepare_replies(
    replies: dict[str, list[Call]],
    calls: Mapping[str, list[Call]],
    tokens_of_encoder: Mapping[str, Tokens],
) -> None:
    """Queue recorded outputs for encoders to replay, with the states of some tokens changed.

    Args:
        replies: the calls that each encoder replays; filled by this function.
        calls: the recorded calls of each encoder.
        tokens_of_encoder: the tokens to change in each encoder's first call.
    """
    for name, calls_of_encoder in calls.items():
        replies[name] = list(calls_of_encoder)
    for name, tokens in tokens_of_encoder.items():
        if replies.get(name):
            call = replies[name][0]
            change = partial(changed_states, tokens, call.ids.shape[1])
            replies[name][0] = call._replace(output=tree_map(change, call.output))


def _segments(change_of_encoder: Mapping[str, Tensor]) -> dict[str, slice]:
    """Return, for each encoder in order, the tokens of an embedding that come from its states.

    Encoders whose states are at the same positions, concatenated along the width, form one segment,
    named after the first of them. Each segment extends to the start of the next one, and the last
    to the end of the embedding. If there is only one segment, it ends with its last token.

    Args:
        change_of_encoder: for each encoder, a mask (tokens, d) that is true where its states are.
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
        stop = None  # the last segment extends to the end
        if number < len(ordered):
            stop = min(places_of_encoder[ordered[number]])
        segments[encoder] = slice(start, stop)
        start = stop or 0
    return segments
