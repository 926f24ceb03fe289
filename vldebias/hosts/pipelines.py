"""Read from a diffusers pipeline what `encode_prompt` returns and what its text encoders receive.

The return statement of `encode_prompt` names its outputs in all of diffusers: `prompt_embeds`,
`negative_prompt_embeds`, `pooled_prompt_embeds`, `prompt_attention_mask`. `__call__` calls it once,
or again for the negative prompt. A pipeline whose prompt reaches the model by another way as well
is refused: an edit or a rewritten prompt at `encode_prompt` would silently miss half of it, or all.

An encoder returns states; the pipeline cuts templates off, joins layers, pads, builds lists. The
place of a token in the result is found by a test: the encoders run once, then the pipeline runs
again on their outputs with the state of that token changed. The row that changed is that of the
token, whatever comes before or after it.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten  # torch has no public one

from vldebias.errors import UnsupportedHostError

REMEDY = "describe the function that gives its embeddings with vldebias.hosts.custom"
NEGATIVE = re.compile("negative|uncond|neg_|nc_")
"""Matches names of outputs for the negative prompt."""
BESIDE = re.compile("mask|ids$|_len|seqlens|editing|num_")
"""Matches names of masks, positions and lengths, which are returned with the embeddings."""

EMBEDDING = re.compile(f"(?!{NEGATIVE.pattern})(?!.*({BESIDE.pattern})).*(embed|states|hidden)")
"""Matches names of embeddings of the prompt."""


# ---- its source
# ------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """Hold what is read of the source of a pipeline class.

    returns: names of the values that `encode_prompt` returns, in order; "" for a value without a
    name. calls, negatives: number of calls of it in `__call__`, and how many of them are for the
    negative prompt alone.
    framed: `__call__` calls `check_inputs` before it encodes and `prepare_latents` afterwards.
    """

    returns: tuple[str, ...]
    calls: int = 1
    negatives: int = 0
    framed: bool = False


@cache
def source_of(kind: Any) -> Source:
    """Read the class of a pipeline; raise UnsupportedHostError where its prompt has another way to
    the model."""

    def refuse(why: str) -> UnsupportedHostError:
        return UnsupportedHostError(f"{kind.__name__}: {why}; {REMEDY}")

    encode = getattr(kind, "encode_prompt", None)
    takes = (
        [name for name in inspect.signature(encode).parameters if name != "self"]
        if callable(encode)
        else []
    )
    if "prompt" not in takes:
        raise refuse("it has no encode_prompt that takes `prompt`")
    encodes = [
        vars(base)["encode_prompt"] for base in kind.__mro__ if "encode_prompt" in vars(base)
    ]
    # Of each call of encode_prompt in `__call__`: the name that it gets, or "negative_prompt".
    prompts: list[str] = []
    trees, ahead = dict[Any, Any](), [*encodes, kind.__call__]
    while ahead:  # `__call__` and what it calls, but for what `encode_prompt` does
        function = ahead.pop()
        try:
            tree: Any = ast.parse(
                textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
            ).body[0]
        except (OSError, TypeError, SyntaxError) as error:
            raise refuse(
                f"the source of {function!r} cannot be read ({error}), so the way of a prompt is"
                " unknown"
            ) from error
        trees[function], me = tree, tree.args.args[0].arg if tree.args.args else ""
        for node in (
            one for one in ast.walk(tree) if isinstance(one, ast.Call) and function not in encodes
        ):
            owner, _, name = ast.unparse(node.func).rpartition(".")
            if (owner == me and "text_encoder" in name) or (
                name == "encode_prompt" and owner not in ("", me)
            ):
                raise refuse(
                    f"{tree.name} calls {ast.unparse(node.func)}: a change at encode_prompt misses"
                    " some prompts"
                )
            if name == "encode_prompt" and function is kind.__call__:
                given = dict(zip(takes, node.args, strict=False)) | {
                    one.arg: one.value for one in node.keywords
                }
                made = [
                    one.targets[0]
                    for one in ast.walk(tree)
                    if isinstance(one, ast.Assign) and one.value is node
                ]
                kept = {
                    _name(one) for target in made for one in getattr(target, "elts", [target])
                } - {"_"}
                negative = kept and all(map(NEGATIVE.match, kept))
                prompts.append(
                    "negative_prompt" if negative else _name(given.get("prompt")) or "prompt"
                )
            called = getattr(kind, name, None) if owner == me else None
            if not owner and node.args and ast.unparse(node.args[0]) == me:
                called = inspect.unwrap(function).__globals__.get(name)
            if inspect.isfunction(called) and called not in trees and called not in ahead:
                ahead.append(called)
    strangers = set(prompts) - {"prompt", "negative_prompt"} if len(prompts) > 1 else set()
    for _, method in inspect.getmembers(kind, inspect.isfunction):
        code = inspect.unwrap(method).__code__
        if "encode_prompt" in code.co_names:
            strangers |= {"source_prompt", "target_prompt"} & set(code.co_varnames)
    if strangers:
        raise refuse(
            f"it also encodes {', '.join(sorted(strangers))}, which cannot be told from the prompt"
        )
    before, call, after = ast.unparse(trees[kind.__call__]).rpartition("self.encode_prompt(")
    framed = "self.prepare_latents(" in after and "self.prepare_latents(" not in before
    framed = framed and "self.check_inputs(" in before.partition(call)[0]
    if "negative_prompt" in prompts and not framed:
        raise refuse(
            "it encodes the prompt and the negative prompt in two calls that cannot be told apart"
        )
    for method in encodes:  # of a class, then of its bases as long as it returns what they return
        returned = [one for one in ast.walk(trees[method]) if isinstance(one, ast.Return)]
        value = max(returned, key=lambda one: one.lineno).value or ast.Tuple([])
        if not ast.unparse(value).startswith("super().encode_prompt("):
            break
    names = tuple(map(_name, value.elts if isinstance(value, ast.Tuple) else [value]))
    return Source(names, len(prompts), prompts.count("negative_prompt"), framed)


def _name(node: Any) -> str:
    """Return the variable in an expression, also in x.to(device) and in x if guided else None; ""
    without one."""
    while not isinstance(node, ast.Name):
        inside = [
            n
            for part in ("value", "func", "body")
            if isinstance(n := getattr(node, part, None), ast.AST)
        ]
        if not inside:
            return ""
        node = inside[0]
    return node.id


# ---- its text encoders
# -------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """Hold one call of an encoder: ids (b, tokens), their mask, and the output."""

    ids: Tensor
    mask: Tensor | None
    output: Any


@contextmanager
def traced(
    encoders: Mapping[str, nn.Module],
) -> Iterator[tuple[dict[str, list[Call]], dict[str, list[Call]]]]:
    """Record the calls of text encoders in this thread inside the block, by name and in order.

    Calls that are put into the second dict are returned in their turn in place of running the
    encoder.
    """
    calls, again = {name: list[Call]() for name in encoders}, dict[str, list[Call]]()
    thread = threading.get_ident()

    def forward(name: str, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        mine = threading.get_ident() == thread
        if mine and again.get(name):
            return again[name].pop(0).output
        output, ids = original(*args, **kwargs), kwargs.get("input_ids", args[0] if args else None)
        if mine and not again and isinstance(ids, Tensor) and ids.ndim == 2:
            calls[name].append(Call(ids, kwargs.get("attention_mask"), output))
        return output

    with ExitStack() as stack:
        for name, encoder in encoders.items():
            place, own = (encoder, "forward"), vars(encoder).get("forward")
            stack.callback(
                partial(delattr, *place) if own is None else partial(setattr, *place, own)
            )
            encoder.forward = partial(forward, name, encoder.forward)
        yield calls, again


def turned(tokens: int | slice, length: int, value: Any) -> Any:
    """Return an output of an encoder with the states of some tokens changed, if it is of floats for
    `length` tokens."""
    if isinstance(value, SimpleNamespace):
        return SimpleNamespace(**tree_map(partial(turned, tokens, length), vars(value)))
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.ndim < 3:
        return value
    if length not in value.shape[:2]:
        return value
    changed = value.clone()
    part = changed[:, tokens] if value.shape[1] == length else changed[tokens]
    part.copy_(-part - 1)
    return changed


def image_ids(encoder: Any) -> list[int]:
    """Return the ids of tokens that stand for an image, for an encoder that gets some."""
    ids = (
        getattr(getattr(encoder, "config", None), one, None)
        for one in ("image_token_id", "vision_end_token_id")
    )
    return [one for one in ids if isinstance(one, int)]


def up_to_last(mask: Tensor) -> Tensor:
    """Return (b, tokens), true up to the last true one of each row."""
    return mask.bool().flip(1).cumsum(1).flip(1) > 0


def image_tokens(
    calls: Mapping[str, list[Call]], encoders: Mapping[str, nn.Module], length: int
) -> Tensor | None:
    """Return (b, length) for states of encoders, true up to the last token of an image before the
    prompt; or None."""
    for name, call in ((name, made[-1]) for name, made in calls.items() if made):
        real = (torch.ones_like(call.ids) if call.mask is None else call.mask) != 0
        image = real & torch.isin(call.ids, call.ids.new_tensor(image_ids(encoders[name])))
        if image.any():
            counts = real.sum(1)  # rows are padded on the right to the longest
            starts = counts - counts.max() + length - (real & ~up_to_last(image)).sum(1)
            return (
                torch.arange(length, device=starts.device)
                < torch.where(image.any(1), starts, 0)[:, None]
            )
    return None


# ---- its embeddings
# -------------------------------------------------------------------------------------


def opened(value: Any) -> Any:
    """Return embeddings as a tensor (b, tokens, d) or (b, d), and a function that gives a tensor
    their form.

    They may be such a tensor, a list of rows (tokens, d), a list of such lists, or (b, tokens,
    layers, d), whose layers are read as one vector. Return None for anything else.
    """
    if isinstance(value, Tensor):
        if value.ndim == 4 and value.is_floating_point():
            return value.flatten(-2), lambda flat: flat.unflatten(-1, value.shape[-2:])
        return (
            (value, lambda same: same)
            if value.ndim in (2, 3) and value.is_floating_point()
            else None
        )
    rows, form = tree_flatten(value)
    plain = all(
        isinstance(row, Tensor) and row.ndim == 2 and row.is_floating_point() for row in rows
    )
    if not rows or not plain or not isinstance(value, list | tuple):
        return None

    def close(changed: Tensor) -> Any:
        return tree_unflatten(
            [one[: len(row)] for one, row in zip(changed, rows, strict=True)], form
        )

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


def same_values(one: Any, other: Any) -> bool:
    """Tell whether two values are equal: tensors, or nests of them."""
    (mine, form), (theirs, other_form) = tree_flatten(one), tree_flatten(other)
    pairs = [(a, b) for a, b in zip(mine, theirs, strict=False) if a is not b]
    return form == other_form and all(
        type(a) is type(b) and bool(torch.equal(a, b) if isinstance(a, Tensor) else a == b)
        for a, b in pairs
    )


# ---- the arguments of a call
# -------------------------------------------------------------------------------------


def listed(prompt: Any) -> list[str]:
    """Return one prompt or several as a list."""
    return [prompt] if isinstance(prompt, str) else list(prompt or ())


def copied(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call with lists of their own: some pipelines write into theirs."""
    return {name: list(one) if isinstance(one, list) else one for name, one in call.items()}


def count_of(call: Mapping[str, Any]) -> str | None:
    """Return the name of the argument that sets how many images each prompt has."""
    return next((name for name in call if re.fullmatch(r"num_\w+_per_prompt", name)), None)


def texts_of(call: Mapping[str, Any], name: str) -> list[str]:
    """Return one text per prompt of a call, those for several encoders joined: any of them may
    state the attribute."""
    columns = [
        listed(call[n]) for n in call if re.fullmatch(rf"{name}(_\d)?", n) and call[n] is not None
    ] or [[""]]
    columns = [column or [""] for column in columns]
    return [
        " | ".join(column[row % len(column)] for column in columns)
        for row in range(max(map(len, columns)))
    ]


def rewrite_call(call: dict[str, Any], rewrite: Callable[..., list[str]]) -> None:
    """Put one new prompt per image into the arguments of a call; negative prompts stay, repeated as
    needed.

    rewrite: prompts -> new ones; with `again=True` of the second prompts of the same images.
    """
    count, texts = count_of(call), listed(call["prompt"])
    images = int(call.get(count or "") or 1)
    each = [text for text in texts for _ in range(images)]
    single, written = isinstance(call["prompt"], str), rewrite(each)
    alone = single and len(each) == 1
    call["prompt"] = written[0] if alone else written
    for name, value in call.items():
        negative = name.startswith("negative_prompt")
        if (
            not re.fullmatch(r"(negative_prompt|prompt)(_\d)?", name)
            or name == "prompt"
            or value is None
        ):
            continue
        own = listed(value)
        if not negative or ((single or not isinstance(value, str)) and len(own) == len(texts)):
            own = [
                text for text in (own * len(texts) if len(own) == 1 else own) for _ in range(images)
            ]
            own = own if negative else rewrite(own, again=True)
            call[name] = own[0] if alone else own
    if count is not None:
        call[count] = 1
    if isinstance(call.get("batch_size"), int):
        call["batch_size"] = len(each)
