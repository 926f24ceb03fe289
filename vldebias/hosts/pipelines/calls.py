"""Record the calls of a diffusers pipeline's text encoders, and rewrite a call's prompts.

A pipeline processes the states that an encoder returns: it may remove templates, join layers, pad
or build lists. A token's position in the result is therefore found by experiment: the encoders run
once, then the pipeline runs again on their outputs with that token's state changed. The row that
changes belongs to the token, whatever precedes or follows it.
"""

from __future__ import annotations

import math
import operator
import re
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsInt

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten  # no public API

from vldebias.errors import InvalidInputError
from vldebias.hosts.call_log import NEXT
from vldebias.hosts.pipelines.source import NEGATIVE
from vldebias.hosts.reading import replaced

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BESIDE = re.compile("mask|ids$|_len|seqlens|editing|num_")
"""Matches names of masks, positions and lengths, which `encode_prompt` returns too."""

_NUMBERS = frozenset(["", *(f"_{n}" for n in range(10))])  # "prompt", "prompt_2", ...
_NO_LIMIT = 1_000_000  # in tokens; tokenizers without a limit report 10^30

Tokens = list[int] | slice
"""Token positions: one in each row of a batch, or the same positions in all rows."""

EMBEDDING = re.compile(f"(?!{NEGATIVE.pattern})(?!.*({BESIDE.pattern})).*(embed|states|hidden)")
"""Matches names of prompt embeddings."""

PICTURES = (
    *("image", "image_reference", "image_latents", "cond_image", "ref_image", "reference_images"),
    *("video", "video_latents", "mask_image", "mask_video", "control_mask"),
    *("conditions", "reference_conditions"),
)
"""Names of arguments for images or videos to edit. Images for a ControlNet, an adapter or an
IP-Adapter only guide the generation."""

Embedding = tuple[Tensor, Callable[[Tensor], object]]
"""Embeddings (b, tokens, d) or (b, d), and a function that restores their original format."""


# ---- text encoders


class Call(NamedTuple):
    """Store the inputs and the output of one call of a text encoder.

    Attributes:
        ids: token ids (b, tokens).
        mask: the ids' attention mask, or None.
        output: the encoder's output.
    """

    ids: Tensor
    mask: Tensor | None
    output: object


@contextmanager
def traced(
    encoders: Mapping[str, nn.Module],
) -> Iterator[tuple[dict[str, list[Call]], dict[str, list[Call]]]]:
    """Yield the recorded calls and the calls to replay, each by the name of the text encoder.

    Only calls in this thread are recorded, in order. While the dict of calls to replay has calls
    for an encoder, the encoder does not run, but returns the outputs of these calls one by one.
    """
    calls = {name: list[Call]() for name in encoders}
    replies = dict[str, list[Call]]()
    thread = threading.get_ident()

    def forward(
        name: str, original: Callable[..., object], /, *args: object, **kwargs: object
    ) -> object:
        if threading.get_ident() != thread:
            return original(*args, **kwargs)
        if replies.get(name):
            return replies[name].pop(0).output
        output = original(*args, **kwargs)
        ids = kwargs.get("input_ids", args[0] if args else None)
        if isinstance(ids, Tensor) and ids.ndim == 2 and not replies:
            mask = kwargs.get("attention_mask")
            calls[name].append(Call(ids, mask if isinstance(mask, Tensor) else None, output))
        return output

    with ExitStack() as stack:
        for name, encoder in encoders.items():
            traced_forward = partial(forward, name, encoder.forward)
            stack.enter_context(replaced(encoder, "forward", traced_forward))
        yield calls, replies


def changed_states(tokens: Tokens, length: int, value: object) -> object:
    """Return an encoder output with the states of some tokens changed.

    Args:
        tokens: the tokens to change.
        length: number of tokens in the call.
        value: the output, or a part of it. Only float tensors (b, length, d) or (length, b, d) are
            changed.
    """
    if isinstance(value, SimpleNamespace):
        return SimpleNamespace(**tree_map(partial(changed_states, tokens, length), vars(value)))
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.ndim < 3:
        return value
    if length not in value.shape[:2]:
        return value
    changed = value.clone()
    by_row = changed if value.shape[1] == length else changed.transpose(0, 1)
    rows = slice(None) if isinstance(tokens, slice) else torch.arange(len(by_row))
    by_row[rows, tokens] = -by_row[rows, tokens] - 1
    return changed


def image_ids(encoder: object) -> list[int]:
    """Return the ids of tokens that represent an image, for an encoder that receives images."""
    config = getattr(encoder, "config", None)
    ids = [getattr(config, name, None) for name in ("image_token_id", "vision_end_token_id")]
    return [token_id for token_id in ids if isinstance(token_id, int)]


def up_to_last(mask: Tensor) -> Tensor:
    """Return a mask (b, tokens) that is true up to the last true value of each row."""
    return mask.bool().flip(1).cumsum(1).flip(1) > 0


def image_tokens(
    calls: Mapping[str, list[Call]], encoders: Mapping[str, nn.Module], states: object
) -> Tensor | None:
    """Find the image tokens that precede the prompt in an encoder's input.

    Args:
        calls: the recorded calls of each encoder, by name.
        encoders: the text encoders by component name.
        states: the embeddings that the pipeline computed from the encoders' outputs.

    Returns:
        Mask (b, tokens), true up to the last image token, or None if no encoder received an image.
    """
    embedding = opened(states)
    for name, calls_of_encoder in calls.items():
        if embedding is None or not calls_of_encoder:
            continue
        call = calls_of_encoder[-1]
        mask = torch.ones_like(call.ids) if call.mask is None else call.mask
        is_token = mask != 0
        is_image = is_token & torch.isin(call.ids, call.ids.new_tensor(image_ids(encoders[name])))
        if is_image.any():
            length = embedding[0].shape[1]
            counts = is_token.sum(1)  # shorter rows are padded on the right
            tokens_after = (is_token & ~up_to_last(is_image)).sum(1)
            starts = counts - counts.max() + length - tokens_after
            starts = torch.where(is_image.any(1), starts, 0)
            return torch.arange(length, device=starts.device) < starts[:, None]
    return None


# ---- embeddings


def opened(value: object) -> Embedding | None:
    """Return embeddings as a tensor, with a function that restores their original format.

    The embeddings may be a tensor (b, tokens, d) or (b, d), a list of rows (tokens, d), a list of
    such lists, or a tensor (b, tokens, layers, d), whose layers are joined. Returns None for
    anything else.
    """
    if isinstance(value, Tensor):
        if not value.is_floating_point() or value.ndim not in (2, 3, 4):
            return None
        if value.ndim == 4:
            return value.flatten(-2), lambda flat: flat.unflatten(-1, value.shape[-2:])
        return value, lambda tensor: tensor
    rows, form = tree_flatten(value)
    if not rows or not isinstance(value, list | tuple):
        return None
    for row in rows:
        if not isinstance(row, Tensor) or row.ndim != 2 or not row.is_floating_point():
            return None

    def close(changed: Tensor) -> object:
        without_padding = [new[: len(row)] for new, row in zip(changed, rows, strict=True)]
        return tree_unflatten(without_padding, form)

    return pad_sequence(rows, batch_first=True), close


def tensor_of(value: object) -> Tensor:
    """Return the tensor of embeddings that are in one of the formats accepted by `opened`."""
    embedding = opened(value)
    assert embedding is not None  # the value is known to be an embedding
    return embedding[0]


class Part(NamedTuple):
    """Describe an embedding returned by `encode_prompt`, or a segment of its tokens.

    Attributes:
        role: role of the embedding as a host names it, such as "sequence" or "pooled".
        name: name of the returned value, such as "prompt_embeds".
        place: position among the returned values.
        twin: position of the negative prompt's embedding, or None.
        tokens: the tokens in the segment.
    """

    role: str
    name: str
    place: int
    twin: int | None
    tokens: slice = slice(None)


def same_values(first: object, second: object) -> bool:
    """Return whether two tensors, or nested containers of tensors, are equal.

    Args:
        first: a tensor, or a nested container of tensors.
        second: the value to compare with `first`.
    """
    first_leaves, first_form = tree_flatten(first)
    second_leaves, second_form = tree_flatten(second)
    if first_form != second_form:
        return False
    for first_leaf, second_leaf in zip(first_leaves, second_leaves, strict=True):
        if first_leaf is second_leaf:  # identity also covers NaN
            continue
        if type(first_leaf) is not type(second_leaf):
            return False
        equal = torch.equal if isinstance(first_leaf, Tensor) else operator.eq
        if not equal(first_leaf, second_leaf):
            return False
    return True


# ---- arguments of a call


def listed(prompt: Any) -> list[str]:
    """Return one or several prompts as a list."""
    return [prompt] if isinstance(prompt, str) else list(prompt or ())


def copied(call: Mapping[str, object]) -> dict[str, object]:
    """Copy a call's arguments and their lists, because some pipelines modify them."""
    arguments = {}
    for name, value in call.items():
        arguments[name] = list(value) if isinstance(value, list) else value
    return arguments


def running_call(pipe: object) -> MutableMapping[str, object] | None:
    """Return the variables of the pipeline's `__call__` running in this thread, or None.

    `encode_prompt` does not receive the call's generator. A subclass may pass `**options` to its
    base, so the innermost `__call__` with a generator is used.
    """
    found = None
    for variables in _running_calls(pipe):
        found = variables
        if "generator" in variables:
            break
    return found


def receives(pipe: object, argument: str) -> bool:
    """Return whether a running `__call__` of the pipeline or of its base received an argument.

    Args:
        pipe: the pipeline.
        argument: the name of the argument.
    """
    return any(variables.get(argument) is not None for variables in _running_calls(pipe))


def _running_calls(pipe: object) -> Iterator[MutableMapping[str, object]]:
    """Yield the variables of the pipeline's running `__call__`s, innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__call__" and code.co_argcount:
            variables = frame.f_locals
            if variables.get(code.co_varnames[0]) is pipe:
                yield variables
        frame = frame.f_back


def count_of(call: Mapping[str, object]) -> str | None:
    """Return the name of the argument that sets the number of images per prompt."""
    for name in call:
        if re.fullmatch(r"num_\w+_per_prompt", name):
            return name
    return None


def texts_of(call: Mapping[str, object], name: str) -> list[str]:
    """Return one text per prompt of a call, joining the texts for several encoders.

    Any of these texts may state the attribute.

    Args:
        call: the call's arguments by name.
        name: "prompt" or "negative_prompt".
    """
    columns = []
    for argument, value in call.items():
        if argument.removeprefix(name) in _NUMBERS and value is not None:
            columns.append(listed(value) or [""])
    if not columns:
        return [""]
    rows = range(max(map(len, columns)))
    return [NEXT.join(column[row % len(column)] for column in columns) for row in rows]


def characters_read(tokenizer: PreTrainedTokenizerBase, length: int | None, text: str) -> int:
    """Return how many characters of a text fit within a tokenizer's limit, up to the end of a word.

    Args:
        tokenizer: a transformers tokenizer; tokenizers from other libraries are assumed to have no
            limit.
        length: maximum number of tokens in the call, if below the tokenizer's own limit. If None,
            only that limit applies.
        text: the prompt as the user wrote it.
    """
    limit = min(getattr(tokenizer, "model_max_length", None) or 0, length or math.inf)
    has_limit = 0 < limit <= _NO_LIMIT and hasattr(tokenizer, "is_fast")
    # A token has at least one byte, so a short text fits within the limit.
    if not has_limit or len(text.encode()) < limit - 2:
        return len(text)
    if not tokenizer.is_fast:
        return _end_of_words_that_fit(tokenizer, int(limit), text)
    tokens = tokenizer(
        text, truncation=True, max_length=int(limit), return_offsets_mapping=True, verbose=False
    )
    end = max(stop for _, stop in tokens["offset_mapping"])
    if not text[end:].strip():
        return len(text)
    while end and text[end - 1].isalnum() and text[end].isalnum():
        end -= 1
    return end


def _end_of_words_that_fit(tokenizer: PreTrainedTokenizerBase, limit: int, text: str) -> int:
    """Return the end of the last word that fits within `limit` tokens.

    It is found by bisection, because Python tokenizers in transformers 4 do not report token
    positions.
    """
    ends = [word.end() for word in re.finditer(r"[^\W_]+|[^\w\s]|_", text)]

    def is_too_long(end: int) -> bool:
        return len(tokenizer(text[:end], verbose=False)["input_ids"]) > limit

    count = bisect_left(ends, True, key=is_too_long)
    if count == len(ends):
        return len(text)
    return ends[count - 1] if count else 0


def images_per_prompt(call: Mapping[str, object]) -> int:
    """Return the number of images that a call generates per prompt, 1 by default."""
    count = call.get(count_of(call) or "")
    return (int(count) if isinstance(count, SupportsInt) else 0) or 1


def edited_images(
    pictures: Sequence[str], arguments: Mapping[str, object], call: Mapping[str, object]
) -> list[bool]:
    """Return, for each image of a call, whether it is an edit of an input image or video.

    If a list contains an entry for each prompt, such as `image=[image, None]`, each entry applies
    to its prompt. In any other form, an image applies to all prompts.

    Args:
        pictures: names of the arguments for images or videos.
        arguments: the call's arguments by name.
        call: the arguments that contain the prompts.
    """
    prompts = len(listed(call["prompt"]))
    is_edit = [False] * prompts
    for name in pictures:
        value = arguments.get(name)
        entries = value if isinstance(value, list | tuple) and len(value) == prompts else [value]
        for prompt in range(prompts):
            is_edit[prompt] = is_edit[prompt] or _is_picture(entries[prompt % len(entries)])
    images = range(images_per_prompt(call))
    return [edit for edit in is_edit for _ in images]


def _is_picture(value: object) -> bool:
    """Return whether a value is an image, or a list that contains one."""
    if isinstance(value, list | tuple):
        return any(map(_is_picture, value))
    return value is not None


def texts_of_images(call: Mapping[str, object], argument: str = "prompt") -> dict[str, list[str]]:
    """Return a call's text arguments, expanded to one text per image.

    Args:
        call: the call's arguments by name.
        argument: "prompt", for `prompt`, `prompt_2`, ..., or "negative_prompt".
    """
    prompts = len(listed(call["prompt"]))
    images = images_per_prompt(call)
    texts_of_argument: dict[str, list[str]] = {}
    for name, value in call.items():
        if name.removeprefix(argument) not in _NUMBERS or value is None:
            continue
        texts = listed(value)
        if len(texts) == 1:  # the same text for all prompts
            texts = texts * prompts
        wrong = [text for text in texts if not isinstance(text, str)]
        if wrong:
            raise InvalidInputError(f"{name}: got {wrong[0]!r}; expected a string for each image")
        texts_of_argument[name] = [text for text in texts for _ in range(images)]
    return texts_of_argument


def set_texts(call: dict[str, object], texts: Mapping[str, list[str]]) -> None:
    """Set one text per image in a call's arguments, so that it generates one image per prompt.

    Negative prompts are repeated as needed. If no text changes, the call is left unchanged, with
    one prompt for several images, so that the text encoder receives exactly the same batch as
    without an attachment.

    Args:
        call: the arguments by name, changed in place.
        texts: for each text argument, one text per image, in the form that `texts_of_images`
            returns.
    """
    if texts == texts_of_images(call):
        return
    count_name = count_of(call)
    is_text = isinstance(call["prompt"], str) and len(texts["prompt"]) == 1
    for name, value in {**texts, **_repeated_negatives(call)}.items():
        # One prompt for one image remains a string.
        call[name] = value[0] if is_text and isinstance(value, list) else value
    if count_name is not None:
        call[count_name] = 1
    if isinstance(call.get("batch_size"), int):
        call["batch_size"] = len(texts["prompt"])


def _repeated_negatives(call: Mapping[str, object]) -> dict[str, object]:
    """Return negative prompts and embeddings, repeated per image if they were passed per prompt.

    The pipeline would repeat them by the number of images per prompt, but `set_texts` sets this
    number to 1.
    """
    prompts = len(listed(call["prompt"]))
    is_single = isinstance(call["prompt"], str)
    repeated: dict[str, object] = {}
    for name, texts in texts_of_images(call, "negative_prompt").items():
        # The pipeline itself applies a single text to all prompts in a list.
        is_for_each = is_single or not isinstance(call[name], str)
        if is_for_each and len(listed(call[name])) == prompts:
            repeated[name] = texts
    for name, value in call.items():
        if not name.startswith("negative_") or not isinstance(value, Tensor):
            continue
        if len(value) == prompts:
            repeated[name] = value.repeat_interleave(images_per_prompt(call), dim=0)
    return repeated
