"""What the source of a diffusers pipeline says: what `encode_prompt` returns, and where `__call__` asks for it.

The return statement of `encode_prompt` names what it gives in all of diffusers: `prompt_embeds`,
`negative_prompt_embeds`, `pooled_prompt_embeds`, `prompt_attention_mask`. `__call__` asks once, or again for the
negative prompt. A pipeline whose prompt reaches the model by another way as well is refused: an edit or a rewritten
prompt at `encode_prompt` would reach half of it, or none, and nobody would notice.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from vldebias.errors import UnsupportedHostError

REMEDY = "describe the function that gives its embeddings with vldebias.hosts.custom"


@dataclass(frozen=True)
class Site:
    """One call of `self.encode_prompt(...)`: the name that is passed as its prompt, and the names of what it gives."""

    prompt: str
    targets: tuple[str, ...]

    @property
    def negative(self) -> bool:
        """Is it for the negative prompt alone?"""
        given = [name for name in self.targets if name != "_"]
        return self.prompt == "negative_prompt" or (bool(given) and all(map(is_negative, given)))


@dataclass(frozen=True)
class Source:
    """What is read of a class.

    Attributes:
        returns: names of what `encode_prompt` returns, in order; "" for what has none.
        sites: the calls of `encode_prompt` in `__call__`.
        framed: `__call__` calls `check_inputs` before it encodes and `prepare_latents` afterwards.
    """

    returns: tuple[str, ...]
    sites: tuple[Site, ...] = ()
    framed: bool = False

    @property
    def twice(self) -> bool:
        """Is the negative prompt encoded by a call of its own?"""
        return any(site.negative for site in self.sites)


def is_embedding(name: str) -> bool:
    """Is that the name of what a prompt becomes?"""
    return bool(re.search(r"embed|states|hidden", name)) and not is_negative(name) and not is_beside(name)


def is_negative(name: str) -> bool:
    """Is that the name of something of the negative prompt?"""
    return bool(re.match(r"negative|uncond|neg_|nc_", name))


def is_beside(name: str) -> bool:
    """Is that the name of a mask, of positions or lengths, which stand beside the embeddings?"""
    return bool(re.search(r"mask|ids$|_len|seqlens|editing|num_", name))


@cache
def source_of(kind: Any) -> Source:
    """Read the class of a pipeline.

    Raises:
        UnsupportedHostError: no source, no `encode_prompt` that takes `prompt`, or a prompt with another way to the
            model; the message says which.
    """
    encode = getattr(kind, "encode_prompt", None)
    if not callable(encode) or "prompt" not in inspect.signature(encode).parameters:
        raise _refusal(kind, "it has no encode_prompt that takes `prompt`")
    seen, ahead = {encode}, [kind.__call__]
    while ahead:  # `__call__` and what it calls, but for what `encode_prompt` does
        function = ahead.pop()
        tree = _tree(kind, function)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                _refuse_other_way(kind, tree, node)
                called = _called(kind, function, tree, node)
                if inspect.isfunction(called) and called not in seen:
                    seen.add(called)
                    ahead.append(called)
    call = _tree(kind, kind.__call__)
    sites = tuple(_sites(kind, call))
    strangers = [s.prompt for s in sites if len(sites) > 1 and not s.negative and s.prompt != "prompt"]
    for _, method in inspect.getmembers(kind, inspect.isfunction):
        if "encode_prompt" in inspect.unwrap(method).__code__.co_names:
            others = (site.prompt for site in _sites(kind, _tree(kind, method)))
            strangers += [name for name in others if name.startswith(("source", "target"))]
    if strangers:
        raise _refusal(kind, f"it encodes {strangers[0]!r} beside the prompt, and nothing tells the two apart")
    text = ast.unparse(call)
    before, after = text.partition("self.encode_prompt(")[0], text.rpartition("self.encode_prompt(")[2]
    framed = "self.check_inputs(" in before and "self.prepare_latents(" in after
    found = Source(_returned(kind), sites, framed and "self.prepare_latents(" not in before)
    if found.twice and not found.framed:
        raise _refusal(kind, "it encodes both prompts in two calls that nothing tells apart")
    return found


def _refusal(kind: Any, why: str) -> UnsupportedHostError:
    return UnsupportedHostError(f"{kind.__name__}: {why}; {REMEDY}")


def _returned(kind: Any) -> tuple[str, ...]:
    """The names in the last return statement of `encode_prompt`."""
    own = _own(_tree(kind, kind.encode_prompt))
    value: Any = max((one for one in own if isinstance(one, ast.Return)), key=lambda one: one.lineno).value
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "super().encode_prompt":
        above = next(base for base in kind.__mro__ if "encode_prompt" in vars(base))
        return _returned(above.__mro__[1])
    return tuple(map(_name, value.elts if isinstance(value, ast.Tuple) else [value]))


def _own(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            yield node
            yield from _own(node)


@cache
def _tree(kind: Any, method: Any) -> ast.FunctionDef:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(method)))).body
    except (OSError, TypeError, SyntaxError) as error:
        name = getattr(method, "__name__", method)
        why = f"the source of {name} cannot be read ({error}), and it says what the pipeline does with a prompt"
        raise _refusal(kind, why) from None
    assert isinstance(tree, ast.FunctionDef)
    return tree


def _name(node: Any) -> str:
    """The variable in an expression: of x.to(device), and of x if guided else None; nothing where there is none."""
    while not isinstance(node, ast.Name):
        inside = [n for part in ("value", "func", "body") if isinstance(n := getattr(node, part, None), ast.AST)]
        if not inside:
            return ""
        node = inside[0]
    return node.id


def _attribute(node: Any, tree: ast.FunctionDef) -> str:
    """`x` of self.x, or of the first argument of a function, or nothing."""
    first = tree.args.args[0].arg if tree.args.args else ""
    return node.attr if isinstance(node, ast.Attribute) and ast.unparse(node.value) == first else ""


def _called(kind: Any, function: Any, tree: ast.FunctionDef, call: ast.Call) -> Any:
    """The method that is called, or the function elsewhere that is given the pipeline."""
    first = tree.args.args[0].arg if tree.args.args else ""
    if isinstance(call.func, ast.Name) and call.args and ast.unparse(call.args[0]) == first:
        return inspect.unwrap(function).__globals__.get(call.func.id)
    return getattr(kind, _attribute(call.func, tree), None)


def _refuse_other_way(kind: Any, tree: ast.FunctionDef, call: ast.Call) -> None:
    """Refuse a call by which a prompt reaches the model, where it is not the plain one of `encode_prompt`."""
    own, way = _attribute(call.func, tree), ""
    if "text_encoder" in own:
        way = f"{tree.name} calls {ast.unparse(call.func)} beside encode_prompt"
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "encode_prompt":
        way = _way_around(tree, call) if own else f"{tree.name} calls {ast.unparse(call.func)}"
    if way:
        raise _refusal(kind, f"{way}, so that what is done at encode_prompt would not reach every prompt")


def _way_around(tree: ast.FunctionDef, call: ast.AST) -> str:
    """Why what a call of encode_prompt gives is not what every prompt becomes; nothing where it is."""
    for node in ast.walk(tree):
        if call not in ast.walk(node):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else []:
            if any(isinstance(part, ast.Attribute | ast.Subscript) for part in ast.walk(target)):
                return f"it keeps what encode_prompt gives in {ast.unparse(target)}"
        if isinstance(node, ast.If | ast.IfExp) and call not in ast.walk(node.test) and _asks_for_prompt(node.test):
            return f"it calls encode_prompt only if {ast.unparse(node.test)}"
    return ""


def _asks_for_prompt(test: ast.AST) -> bool:
    """Does a condition look into the prompt, beyond whether there is one?"""
    plain = (one for one in ast.walk(test) if isinstance(one, ast.Compare))
    inside = {part for one in plain if isinstance(one.ops[0], ast.Is | ast.IsNot) for part in ast.walk(one)}
    return any(isinstance(one, ast.Name) and one.id == "prompt" and one not in inside for one in ast.walk(test))


def _sites(kind: Any, tree: ast.FunctionDef) -> Iterator[Site]:
    parameters = [name for name in inspect.signature(kind.encode_prompt).parameters if name != "self"]
    targets = {
        node.value: tuple(_name(one) for one in (first.elts if isinstance(first, ast.Tuple) else [first]))
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for first in node.targets[:1]
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _attribute(node.func, tree) == "encode_prompt":
            given = dict(zip(parameters, node.args, strict=False)) | {k.arg: k.value for k in node.keywords if k.arg}
            prompt = given.get("prompt")
            yield Site(prompt.id if isinstance(prompt, ast.Name) else "prompt", targets.get(node, ()))
