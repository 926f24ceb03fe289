"""Read from a diffusers pipeline what `encode_prompt` returns and what its text encoders receive.

The return statement of `encode_prompt` names its outputs in all of diffusers: `prompt_embeds`,
`negative_prompt_embeds`, `pooled_prompt_embeds`, `prompt_attention_mask`. `__call__` calls it once, or again for
the negative prompt. A pipeline whose prompt reaches the model by another way as well is refused: an edit or a rewritten
prompt at `encode_prompt` would silently miss half of it, or all.

An encoder returns states; the pipeline cuts templates off, joins layers, pads, builds lists. The place of a token in
the result is found by a test: the encoders run once, then the pipeline runs again on their outputs with the state of
that token changed. The row that changed is that of the token, whatever comes before or after it.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vldebias.errors import UnsupportedHostError

REMEDY = "describe the function that gives its embeddings with vldebias.hosts.custom"
NEGATIVE = re.compile("negative|uncond|neg_|nc_")
"""What names of the negative prompt begin with."""
BESIDE = re.compile("mask|ids$|_len|seqlens|editing|num_")
"""What is in names of masks, positions and lengths, which stand beside the embeddings."""

EMBEDDING = re.compile(f"(?!{NEGATIVE.pattern})(?!.*({BESIDE.pattern})).*(embed|states|hidden)")
"""Names of what a prompt becomes."""

Tokens = int | slice


# ---- its source ------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """Hold what is read of the source of a pipeline class.

    returns: names of the values that `encode_prompt` returns, in order; "" for a value without a name.
    calls, negatives: number of calls of it in `__call__`, and how many of them are for the negative prompt alone.
    framed: `__call__` calls `check_inputs` before it encodes and `prepare_latents` afterwards.
    """

    returns: tuple[str, ...]
    calls: int = 1
    negatives: int = 0
    framed: bool = False


@cache
def source_of(kind: Any) -> Source:
    """Read the class of a pipeline.

    Raises:
        UnsupportedHostError: no source, no `encode_prompt` that takes `prompt`, or a prompt with another way to the
            model; the message says which.
    """

    def refuse(why: str) -> UnsupportedHostError:
        return UnsupportedHostError(f"{kind.__name__}: {why}; {REMEDY}")

    def tree_of(method: Any) -> Any:
        try:
            return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(method)))).body[0]
        except (OSError, TypeError, SyntaxError) as error:
            name = getattr(method, "__name__", method)
            why = f"the source of {name} cannot be read ({error}), and it says what the pipeline does with a prompt"
            raise refuse(why) from None

    encode = getattr(kind, "encode_prompt", None)
    if not callable(encode) or "prompt" not in inspect.signature(encode).parameters:
        raise refuse("it has no encode_prompt that takes `prompt`")
    parameters, sites = [name for name in inspect.signature(encode).parameters if name != "self"], []
    seen, ahead = {encode}, [kind.__call__]
    while ahead:  # `__call__` and what it calls, but for what `encode_prompt` does
        function = ahead.pop()
        tree = tree_of(function)
        me = tree.args.args[0].arg if tree.args.args else ""
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            owner, _, name = ast.unparse(node.func).rpartition(".")
            way = ""
            if owner == me and "text_encoder" in name:
                way = f"{tree.name} calls {ast.unparse(node.func)} beside encode_prompt"
            elif owner and name == "encode_prompt":
                way = _way_around(tree, node) if owner == me else f"{tree.name} calls {ast.unparse(node.func)}"
                if function is kind.__call__:
                    sites.append(_site(parameters, tree, node))
            if way:
                raise refuse(f"{way}, so that what is done at encode_prompt would not reach every prompt")
            called = getattr(kind, name, None) if owner == me else None
            if not owner and node.args and ast.unparse(node.args[0]) == me:
                called = inspect.unwrap(function).__globals__.get(name)
            if inspect.isfunction(called) and called not in seen:
                seen.add(called)
                ahead.append(called)
    strangers = [prompt for prompt, negative in sites if len(sites) > 1 and not negative and prompt != "prompt"]
    for _, method in inspect.getmembers(kind, inspect.isfunction):
        code = inspect.unwrap(method).__code__
        if "encode_prompt" in code.co_names:
            strangers += [name for name in code.co_varnames if name in ("source_prompt", "target_prompt")]
    if strangers:
        raise refuse(f"it encodes {strangers[0]!r} beside the prompt, and nothing tells the two apart")
    text, negatives = ast.unparse(tree_of(kind.__call__)), sum(negative for _, negative in sites)
    before, after = text.partition("self.encode_prompt(")[0], text.rpartition("self.encode_prompt(")[2]
    framed = "self.check_inputs(" in before and "self.prepare_latents(" in after
    framed = framed and "self.prepare_latents(" not in before
    if negatives and not framed:
        raise refuse("it encodes both prompts in two calls that nothing tells apart")
    kinds, value = iter(kind.__mro__), ast.parse("super().encode_prompt()", mode="eval").body
    while isinstance(value, ast.Call) and ast.unparse(value.func) == "super().encode_prompt":
        method = next(vars(base)["encode_prompt"] for base in kinds if "encode_prompt" in vars(base))
        returns = (one for one in ast.walk(tree_of(method)) if isinstance(one, ast.Return))
        value = max(returns, key=lambda one: one.lineno).value or ast.Tuple([])
    names = tuple(map(_name, value.elts if isinstance(value, ast.Tuple) else [value]))
    return Source(names, len(sites), negatives, framed)


def _name(node: Any) -> str:
    """Return the variable in an expression, also in x.to(device) and in x if guided else None; "" without one."""
    while not isinstance(node, ast.Name):
        inside = [n for part in ("value", "func", "body") if isinstance(n := getattr(node, part, None), ast.AST)]
        if not inside:
            return ""
        node = inside[0]
    return node.id


def _site(parameters: list[str], tree: Any, call: ast.Call) -> tuple[str, bool]:
    """Return the name that a call of encode_prompt gets as its prompt, and whether it is the negative one alone."""
    given = dict(zip(parameters, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
    asked = given.get("prompt")
    prompt = asked.id if isinstance(asked, ast.Name) else "prompt"
    targets = [one.targets[0] for one in ast.walk(tree) if isinstance(one, ast.Assign) and one.value is call]
    names = [_name(one) for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
    kept = [name for name in names if name != "_"]
    return prompt, prompt == "negative_prompt" or (bool(kept) and all(map(NEGATIVE.match, kept)))


def _way_around(tree: Any, call: ast.Call) -> str:
    """Return why the result of a call of encode_prompt is not used for every prompt alone; "" where it is."""
    for node in ast.walk(tree):
        if call not in ast.walk(node):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else []:
            if any(isinstance(part, ast.Attribute | ast.Subscript) for part in ast.walk(target)):
                return f"it keeps what encode_prompt gives in {ast.unparse(target)}"
        if isinstance(node, ast.If | ast.IfExp) and call not in ast.walk(node.test):
            inside = list(ast.walk(node.test))  # whether there is a prompt may be asked, and no more of it
            plain = [
                one for one in inside if isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.Is | ast.IsNot)
            ]
            asked = {part for one in plain for part in ast.walk(one)}
            if any(isinstance(one, ast.Name) and one.id == "prompt" and one not in asked for one in inside):
                return f"it calls encode_prompt only if {ast.unparse(node.test)}"
    return ""


# ---- its text encoders -------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """Hold one call of an encoder: ids (b, tokens), their mask, and the output."""

    ids: Tensor
    mask: Tensor | None
    output: Any

    def real(self, tokenizer: Any) -> list[int]:
        """Return the positions of the tokens of the first row that are not padding."""
        if self.mask is not None:
            return [int(i) for i in self.mask[0].cpu().nonzero().flatten()]
        inner, ids = getattr(tokenizer, "tokenizer", tokenizer), self.ids[0].tolist()
        pad, end = (getattr(inner, f"{kind}_token_id", None) for kind in ("pad", "eos"))
        behind = ids.index(end) if end in ids else len(ids)  # the first end token: some tokenizers pad with it
        return [i for i, one in enumerate(ids) if i <= behind or (pad != end and one != pad)]


@dataclass
class Trace:
    """Hold the calls of the text encoders, by name and in order.

    turned: once it is set, outputs are replayed with the states of these tokens changed. given: number of replays.
    """

    calls: dict[str, list[Call]]
    turned: Mapping[str, Tokens] | None = None
    given: Counter[str] = field(default_factory=Counter)


@contextmanager
def traced(encoders: Mapping[str, nn.Module], *, outputs: bool = True) -> Iterator[Trace]:
    """Record the calls of text encoders in this thread inside the block; outputs: keep outputs for a replay."""
    trace, thread = Trace({name: [] for name in encoders}), threading.get_ident()
    standing = {name: vars(encoder).get("forward") for name, encoder in encoders.items()}

    def forward(name: str, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return original(*args, **kwargs)
        calls = trace.calls[name]
        if trace.turned is None:
            output, ids = original(*args, **kwargs), kwargs.get("input_ids", args[0] if args else None)
            if isinstance(ids, Tensor) and ids.ndim == 2:
                calls.append(Call(ids, kwargs.get("attention_mask"), output if outputs else None))
            return output
        place = trace.given[name]
        trace.given[name] += 1
        if place >= len(calls):
            return original(*args, **kwargs)
        call = calls[place]
        if place or name not in trace.turned:
            return call.output
        return _turned(call.output, call.ids.shape[1], trace.turned[name])

    encoder: Any
    for name, encoder in encoders.items():
        encoder.forward = partial(forward, name, encoder.forward)
    try:
        yield trace
    finally:
        for name, encoder in encoders.items():
            del encoder.forward
            if standing[name] is not None:
                encoder.forward = standing[name]


def _turned(value: Any, length: int, tokens: Tokens) -> Any:
    """Return an encoder's output with the states of some tokens changed, in tensors with as many places."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or value.ndim < 3 or length not in value.shape[:2]:
            return value
        changed = value.clone()
        part = changed[:, tokens] if value.shape[1] == length else changed[tokens]
        part.copy_(-part - 1)
        return changed
    if isinstance(value, dict | SimpleNamespace):
        named = value if isinstance(value, dict) else vars(value)
        return type(value)(**{key: _turned(one, length, tokens) for key, one in named.items()})
    if isinstance(value, list | tuple):
        return type(value)(_turned(one, length, tokens) for one in value)
    return value


# ---- what it makes of a prompt -------------------------------------------------------------------------------------


def opened(value: Any) -> tuple[Tensor, Any] | None:
    """Return embeddings as a tensor (b, tokens, d) or (b, d), and a function that gives a tensor their form.

    They may be such a tensor, a list of rows (tokens, d), a list of such lists, or (b, tokens, layers, d), whose
    layers are read as one vector. Return None for anything else.
    """
    if isinstance(value, Tensor):
        if value.ndim == 4 and value.is_floating_point():
            return value.flatten(-2), lambda flat: flat.unflatten(-1, value.shape[-2:])
        return (value, lambda same: same) if value.ndim in (2, 3) and value.is_floating_point() else None
    parts = value if isinstance(value, list | tuple) else []
    rows = [row for part in parts for row in (part if isinstance(part, list | tuple) else [part])]
    if not rows or not all(isinstance(row, Tensor) and row.ndim == 2 and row.is_floating_point() for row in rows):
        return None

    def close(changed: Tensor) -> Any:
        each = iter([one[: len(row)] for one, row in zip(changed, rows, strict=True)])
        kind = type(value)
        return kind(type(p)(next(each) for _ in p) if isinstance(p, list | tuple) else next(each) for p in value)

    return pad_sequence(rows, batch_first=True), close


def same_values(one: Any, other: Any) -> bool:
    """Tell whether two values are the same object, equal tensors, or equal lists or mappings of them."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_values, one, other))
    return one is other or (not isinstance(one, Tensor | list | tuple | dict) and bool(one == other))
