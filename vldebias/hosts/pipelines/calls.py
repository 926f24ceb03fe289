"""Read what the text encoders of a diffusers pipeline receive, and rewrite the prompts of a call.

An encoder returns states; the pipeline cuts templates off, joins layers, pads, builds lists. The
place of a token in the result is found by a test: the encoders run once, then the pipeline runs
again on their outputs with the state of that token changed. The row that changed is that of the
token, whatever comes before or after it.
"""

from __future__ import annotations

import math
import re
import sys
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten  # torch has no public one

from vldebias.hosts.pipelines.source import NEGATIVE
from vldebias.hosts.records import NEXT

BESIDE = re.compile("mask|ids$|_len|seqlens|editing|num_")
"""Matches names of masks, positions and lengths, which are returned with the embeddings."""

_NO_LIMIT = 1_000_000  # tokens: tokenizers without a limit say 10^30

Tokens = list[int] | slice
"""Places of tokens: one in each row of a batch, or the same of all rows."""

EMBEDDING = re.compile(f"(?!{NEGATIVE.pattern})(?!.*({BESIDE.pattern})).*(embed|states|hidden)")
"""Matches names of embeddings of the prompt."""


# ---- its text encoders
# -------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """Hold one call of an encoder: ids (b, tokens), their mask, and the output."""

    ids: Tensor
    mask: Tensor | None
    output: object


@contextmanager
def traced(
    encoders: Mapping[str, nn.Module],
) -> Iterator[tuple[dict[str, list[Call]], dict[str, list[Call]]]]:
    """Record the calls of text encoders in this thread inside the block, by name and in order.

    Calls that are put into the second dict are returned in their turn in place of running the
    encoder.
    """
    calls = {name: list[Call]() for name in encoders}
    replies = dict[str, list[Call]]()
    thread = threading.get_ident()

    def forward(name: str, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return original(*args, **kwargs)
        if replies.get(name):
            return replies[name].pop(0).output
        output = original(*args, **kwargs)
        ids = kwargs.get("input_ids", args[0] if args else None)
        if isinstance(ids, Tensor) and ids.ndim == 2 and not replies:
            calls[name].append(Call(ids, kwargs.get("attention_mask"), output))
        return output

    with ExitStack() as stack:
        for name, encoder in encoders.items():
            if "forward" in vars(encoder):  # a hook of another library
                stack.callback(partial(setattr, encoder, "forward", vars(encoder)["forward"]))
            else:
                stack.callback(partial(delattr, encoder, "forward"))
            encoder.forward = partial(forward, name, encoder.forward)
        yield calls, replies


def changed_states(tokens: Tokens, length: int, value: object) -> object:
    """Return an output of an encoder with the states of tokens changed, if it is of floats for
    `length` tokens: (b, length, d), or (length, b, d)."""
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
    """Return the ids of tokens that stand for an image, for an encoder that gets some."""
    config = getattr(encoder, "config", None)
    ids = [getattr(config, name, None) for name in ("image_token_id", "vision_end_token_id")]
    return [token_id for token_id in ids if isinstance(token_id, int)]


def up_to_last(mask: Tensor) -> Tensor:
    """Return (b, tokens), true up to the last true one of each row."""
    return mask.bool().flip(1).cumsum(1).flip(1) > 0


def image_tokens(
    calls: Mapping[str, list[Call]], encoders: Mapping[str, nn.Module], states: object
) -> Tensor | None:
    """Return (b, tokens) for states that encoders gave, true up to the last token of an image
    before the prompt; None where no encoder saw an image."""
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
            counts = is_token.sum(1)  # rows are padded on the right to the longest
            tokens_after = (is_token & ~up_to_last(is_image)).sum(1)
            starts = counts - counts.max() + length - tokens_after
            starts = torch.where(is_image.any(1), starts, 0)
            return torch.arange(length, device=starts.device) < starts[:, None]
    return None


# ---- its embeddings
# -------------------------------------------------------------------------------------


def opened(value: object) -> Any:
    """Return embeddings as a tensor (b, tokens, d) or (b, d), and a function that gives a tensor
    their form.

    They may be such a tensor, a list of rows (tokens, d), a list of such lists, or (b, tokens,
    layers, d), whose layers are read as one vector. Return None for anything else.
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
        rows_without_padding = [
            changed_row[: len(row)] for changed_row, row in zip(changed, rows, strict=True)
        ]
        return tree_unflatten(rows_without_padding, form)

    return pad_sequence(rows, batch_first=True), close


class Part(NamedTuple):
    """Describe an embedding that `encode_prompt` returns, or a segment of its tokens.

    role: "sequence", "pooled", ... name, place: in the returned values. twin: place of that of the
    negative prompt.
    tokens: of the segment.
    """

    role: str
    name: str
    place: int
    twin: int | None
    tokens: slice = slice(None)


def same_values(first: object, second: object) -> bool:
    """Tell whether two values are equal: tensors, or nests of them."""
    first_leaves, first_form = tree_flatten(first)
    second_leaves, second_form = tree_flatten(second)
    if first_form != second_form:
        return False
    for first_leaf, second_leaf in zip(first_leaves, second_leaves, strict=True):
        if first_leaf is second_leaf:  # a value is equal to itself, also NaN
            continue
        if type(first_leaf) is not type(second_leaf):
            return False
        if isinstance(first_leaf, Tensor):
            is_equal = torch.equal(first_leaf, second_leaf)
        else:
            is_equal = bool(first_leaf == second_leaf)
        if not is_equal:
            return False
    return True


# ---- the arguments of a call
# -------------------------------------------------------------------------------------


def listed(prompt: Any) -> list[str]:
    """Return one prompt or several as a list."""
    return [prompt] if isinstance(prompt, str) else list(prompt or ())


def copied(call: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of a call with lists of their own: some pipelines write into theirs."""
    arguments = {}
    for name, value in call.items():
        arguments[name] = list(value) if isinstance(value, list) else value
    return arguments


def running_call(pipe: object) -> Mapping[str, object] | None:
    """Return the variables of the pipeline's `__call__` that runs in this thread; None outside of
    one.

    `encode_prompt` does not get the generator of the call. A subclass may take
    `**options` for its base: the innermost `__call__` with a generator is read.
    """
    found = None
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__call__" and code.co_argcount:
            variables = frame.f_locals
            if variables.get(code.co_varnames[0]) is pipe:
                found = variables
                if "generator" in variables:
                    break
        frame = frame.f_back  # type: ignore[assignment]
    return found


def count_of(call: Mapping[str, object]) -> str | None:
    """Return the name of the argument that sets how many images each prompt has."""
    for name in call:
        if re.fullmatch(r"num_\w+_per_prompt", name):
            return name
    return None


def texts_of(call: Mapping[str, object], name: str) -> list[str]:
    """Return one text per prompt of a call, those for several encoders joined: any of them may
    state the attribute."""
    columns = []
    for argument, value in call.items():
        if re.fullmatch(rf"{name}(_\d)?", argument) and value is not None:
            columns.append(listed(value) or [""])
    if not columns:
        return [""]
    texts = []
    for row in range(max(map(len, columns))):
        texts_of_row = []
        for column in columns:
            texts_of_row.append(column[row % len(column)])
        texts.append(NEXT.join(texts_of_row))
    return texts


def characters_read(tokenizer: Any, length: int | None, text: str) -> int:
    """Return how many characters of a text a tokenizer reads before it stops, at the end of a word.

    Args:
        tokenizer: of transformers; of another one, all is read.
        length: the most tokens that the call allows, beside the tokenizer's own; or None.
    """
    limit = min(getattr(tokenizer, "model_max_length", None) or 0, length or math.inf)
    has_limit = 0 < limit <= _NO_LIMIT and hasattr(tokenizer, "is_fast")
    # A token holds a byte at least, so a short text is read whole.
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


def _end_of_words_that_fit(tokenizer: Any, limit: int, text: str) -> int:
    """Return where the last word ends up to which a text has at most `limit` tokens.

    Found by halving: the tokenizers of transformers 4 that are written in Python do not say where
    their tokens stand.
    """
    ends = [word.end() for word in re.finditer(r"[^\W_]+|[^\w\s]|_", text)]

    def is_too_long(end: int) -> bool:
        return len(tokenizer(text[:end], verbose=False)["input_ids"]) > limit

    count = bisect_left(ends, True, key=is_too_long)
    if count == len(ends):
        return len(text)
    return ends[count - 1] if count else 0


def images_per_prompt(call: Mapping[str, Any]) -> int:
    """Return how many images a call makes of each prompt."""
    return int(call.get(count_of(call) or "") or 1)


def texts_of_images(call: Mapping[str, object], argument: str = "prompt") -> dict[str, list[str]]:
    """Return the text arguments of a call, `prompt`, `prompt_2`, ..., each as one text per
    image."""
    prompts = len(listed(call["prompt"]))
    texts_of_argument: dict[str, list[str]] = {}
    for name, value in call.items():
        if not re.fullmatch(rf"{argument}(_\d)?", name) or value is None:
            continue
        texts = listed(value)
        if len(texts) == 1:  # one for all prompts
            texts = texts * prompts
        texts_of_argument[name] = []
        for text in texts:
            texts_of_argument[name] += [text] * images_per_prompt(call)
    return texts_of_argument


def set_texts(call: dict[str, object], texts: Mapping[str, list[str]]) -> None:
    """Put one text per image into the arguments of a call; negative prompts stay, repeated as
    needed.

    A call in which no text changes is left as it is, with one prompt for several images: the text
    encoder then sees the very batch that it would see without.

    Args:
        call: the arguments by name, which are changed in place.
        texts: name of the argument -> one text per image, see `texts_of_images`.
    """
    if texts == texts_of_images(call):
        return
    count_name = count_of(call)
    is_text = isinstance(call["prompt"], str) and len(texts["prompt"]) == 1
    for name, value in {**texts, **_repeated_negatives(call)}.items():
        # A single prompt for a single image stays a text.
        call[name] = value[0] if is_text and isinstance(value, list) else value
    if count_name is not None:
        call[count_name] = 1
    if isinstance(call.get("batch_size"), int):
        call["batch_size"] = len(texts["prompt"])


def _repeated_negatives(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the negative prompts and their embeddings that are given one for each prompt, as one
    for each image.

    The pipeline repeats them by the number of images of a prompt, which becomes 1.
    """
    prompts = len(listed(call["prompt"]))
    is_single = isinstance(call["prompt"], str)
    repeated: dict[str, Any] = {}
    for name, texts in texts_of_images(call, "negative_prompt").items():
        # A single text beside a list of prompts goes to all images by itself.
        is_for_each = is_single or not isinstance(call[name], str)
        if is_for_each and len(listed(call[name])) == prompts:
            repeated[name] = texts
    for name, value in call.items():
        is_negative = name.startswith("negative_") and isinstance(value, Tensor)
        if is_negative and len(value) == prompts:
            repeated[name] = value.repeat_interleave(images_per_prompt(call), dim=0)
    return repeated
