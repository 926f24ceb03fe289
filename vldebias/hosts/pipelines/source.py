"""Determine from a diffusers pipeline's source how its prompt reaches its text encoders.

Throughout diffusers, the return statement of `encode_prompt` names its outputs: `prompt_embeds`,
`negative_prompt_embeds`, `pooled_prompt_embeds`, `prompt_attention_mask`. A pipeline's `__call__`
calls `encode_prompt` once for both prompts, or a second time for the negative prompt. A pipeline
whose prompt also reaches the model on a different path is rejected, because an edit at
`encode_prompt` would miss that path.

A subclass may delegate to `super().__call__(...)` or `Base.__call__(self, ...)`; calls made by the
base then count as its own.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

from vldebias.errors import UnsupportedHostError

REMEDY = "describe the function that returns its embeddings with vldebias.hosts.custom"
NEGATIVE = re.compile("negative|uncond|neg_|nc_")
"""Matches names of outputs for the negative prompt."""

Function = Callable[..., Any]
FunctionTree = ast.FunctionDef | ast.AsyncFunctionDef


class Call(NamedTuple):
    """A call, such as a.b.c(...), with the object ("a.b") whose method ("c") it calls."""

    node: ast.Call
    owner: str
    name: str


class Source(NamedTuple):
    """Store facts parsed from a pipeline class's source.

    Attributes:
        returns: names of the outputs of `encode_prompt`, in order; an unnamed value has the name
            "".
        calls: number of `encode_prompt` calls in `__call__`.
        negatives: number of these calls that only encode the negative prompt.
        framed: whether `__call__` calls `check_inputs` before it encodes and `prepare_latents`
            afterwards.
        ends: whether `__call__` calls `maybe_free_model_hooks` once the images are finished.
        loops: whether `__call__` encodes in a loop, as for the windows of a long video.
    """

    returns: tuple[str, ...]
    calls: int = 1
    negatives: int = 0
    framed: bool = False
    ends: bool = False
    loops: bool = False


@cache
def source_of(kind: object) -> Source:
    """Parse the source of a pipeline class.

    Raises:
        UnsupportedHostError: If the prompt also reaches the model by a different route, or in a way
            that cannot be followed.
    """
    reader = _read(kind)
    reader.refuse_other_prompts()
    framed, ends = reader.are_framed_and_ended()
    negatives = reader.encoded.count("negative_prompt")
    if negatives and not framed:
        raise reader.refusal(
            "it encodes the prompt and the negative prompt in two calls that cannot be told apart"
        )
    calls = len(reader.encoded)
    return Source(reader.returned_names(), calls, negatives, framed, ends, reader.encodes_in_loop())


@cache
def parameters_of_call(kind: object) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of `__call__` and of any base methods that it calls, by name.

    A subclass that passes `**kwargs` to its base still uses the base's defaults.

    Raises:
        UnsupportedHostError: If `__call__` cannot be followed.
    """
    parameters: dict[str, inspect.Parameter] = {}
    reader = _read(kind)
    for function in reversed(reader.call_functions):
        parameters |= inspect.signature(function).parameters
    return parameters


@lru_cache(maxsize=1)
def _read(kind: object) -> _ClassReader:
    """Return the parsed functions of a class, and cache them until a different class is parsed."""
    reader = _ClassReader(kind)
    reader.follow_calls()
    return reader


class _ClassReader:
    """Parse a pipeline's `__call__`, every function that it calls, and `encode_prompt`.

    Attributes:
        trees: the syntax tree of each function.
        call_functions: the class's `__call__`, followed by any `__call__` of a base class that it
            calls.
        encoded: for each `encode_prompt` call in `call_functions`, the name of the encoded
            variable, or "negative_prompt".
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        encode = getattr(kind, "encode_prompt", None)
        parameters = inspect.signature(encode).parameters if callable(encode) else ()
        self.parameters = [name for name in parameters if name != "self"]
        if "prompt" not in self.parameters:
            parts = [base for base in kind.__mro__ if base.__name__ == "ModelMixin"]
            if parts:
                raise UnsupportedHostError(
                    f"{kind.__name__}: this is a part of a pipeline; pass the pipeline"
                )
            raise self.refusal("it has no encode_prompt that takes `prompt`")
        # The class's own method comes first, followed by the base-class methods that it may call.
        self.encoders = [
            vars(base)["encode_prompt"] for base in kind.__mro__ if "encode_prompt" in vars(base)
        ]
        self.trees: dict[Function, FunctionTree] = {}
        self.call_functions: list[Function] = [kind.__call__]
        self.encoded: list[str] = []

    def refusal(self, why: str) -> UnsupportedHostError:
        """Return the error for a class whose source cannot be followed."""
        return UnsupportedHostError(f"{self.kind.__name__}: {why}; {REMEDY}")

    # ---- functions that a prompt passes through

    def follow_calls(self) -> None:
        """Parse all functions, and reject those that bypass `encode_prompt`."""
        pending = [*self.encoders, self.kind.__call__]
        encoding = set()
        while pending:
            function = pending.pop()
            tree = self.trees[function] = self._parse(function)
            if function in self.encoders:
                continue  # `encode_prompt` may call any function
            if function in self.call_functions:
                self._refuse_what_cannot_be_followed(tree)
            # The first argument of a method is the pipeline.
            pipeline = tree.args.args[0].arg if tree.args.args else ""
            for call in _calls(tree):
                self._refuse_bypass(tree, pipeline, call)
                if call.name == "encode_prompt" and function in self.call_functions:
                    self.encoded.append(self._encoded_by(call.node, tree))
                    encoding.add(function)
                called = self._called_function(function, pipeline, call)
                if called is None or called in self.trees or called in pending:
                    continue
                pending.append(called)
                if function in self.call_functions and call.name == "__call__":
                    self.call_functions.append(called)
        if len(encoding) > 1:
            raise self.refusal(
                "it calls encode_prompt both in its own __call__ and in its base class's, and the"
                " two calls cannot be told apart"
            )

    def _parse(self, function: Function) -> FunctionTree:
        """Return the syntax tree of a function."""
        # Most functions have a decorator, such as torch.no_grad.
        plain = inspect.unwrap(function)
        try:
            path = inspect.getsourcefile(plain) or inspect.getfile(plain)
            linecache.checkcache(path)  # a module may have been edited and reloaded
            text = "".join(linecache.getlines(path, plain.__globals__))
            if not text:
                raise OSError("could not get source code")
            functions = _functions_of(text)
        except (OSError, TypeError, SyntaxError) as error:
            raise self._unreadable(function, error) from error
        # In Python 3.13, functions created by `exec` appear to have the source of the `python -c`
        # program.
        code = plain.__code__
        tree = functions.get((code.co_name, code.co_firstlineno))
        if tree is None:
            raise self._unreadable(function, "its file does not contain the function")
        return tree

    def _unreadable(self, function: Function, why: object) -> UnsupportedHostError:
        """Return the error for a function whose source cannot be read."""
        return self.refusal(
            f"the source of {function!r} cannot be read ({why}), so it is unknown where its prompt"
            " is encoded"
        )

    def _refuse_what_cannot_be_followed(self, tree: FunctionTree) -> None:
        """Reject a `__call__` that calls its base class indirectly or more than once.

        Examples are `run = super().__call__`, two calls to the base, or a call in a loop. These
        would sample new values for the same images, or change a negative prompt.
        """
        calls_of_base = [call.node for call in _calls(tree) if call.name == "__call__"]
        followed = {id(call.func) for call in calls_of_base}
        # `super().name` can be followed, but not a `super()` that is stored or passed on.
        supers = 0
        named_supers = 0
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                supers += _is_super(node)
            elif isinstance(node, ast.Attribute):
                named_supers += _is_super(node.value)
                if node.attr == "__call__" and id(node) not in followed:
                    raise self.refusal("it passes on its base class's __call__")
            elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
                inside = {id(part) for part in ast.walk(node)}
                if not inside.isdisjoint(map(id, calls_of_base)):
                    raise self.refusal("it calls its base class's __call__ in a loop")
        if len(calls_of_base) > 1:
            raise self.refusal("it calls its base class's __call__ several times")
        if named_supers != supers:
            raise self.refusal("it uses super() other than as super().name(...)")

    def _refuse_bypass(self, tree: FunctionTree, pipeline: str, call: Call) -> None:
        """Reject calls to a text encoder, or to a different object's `encode_prompt`."""
        calls_encoder = call.owner == pipeline and "text_encoder" in call.name
        encodes_elsewhere = call.name == "encode_prompt" and call.owner not in ("", pipeline)
        if calls_encoder or encodes_elsewhere:
            raise self.refusal(
                f"{tree.name} encodes some prompts with {ast.unparse(call.node.func)} instead of"
                " the pipeline's encode_prompt, so they would not be edited"
            )

    def _called_function(self, function: Function, pipeline: str, call: Call) -> Function | None:
        """Return the function that a call reaches, if it operates on the same pipeline.

        This covers `self.name(...)`, `name(self, ...)`, `super().name(...)` and `Base.name(self,
        ...)`.
        """
        node, owner, name = call
        first = node.args[0] if node.args else None
        passes_pipeline = isinstance(first, ast.Name) and first.id == pipeline
        # Names are looked up in the function's module, which may belong to a base class.
        names = inspect.unwrap(function).__globals__
        called = None
        if owner == pipeline:
            called = getattr(self.kind, name, None)
        elif isinstance(node.func, ast.Attribute) and _is_super(node.func.value):
            called = self._of_next_base(function, name)
        elif not owner and passes_pipeline:
            called = names.get(name)
        elif passes_pipeline and names.get(owner) in self.kind.__mro__:
            called = getattr(names[owner], name, None)
        if name == "__call__" and called is None and function in self.call_functions:
            raise self.refusal(f"it calls {ast.unparse(node.func)}, which cannot be followed")
        return called if inspect.isfunction(called) else None

    def _of_next_base(self, function: Function, name: str) -> Function | None:
        """Resolve `super().name` inside a function to the method of the next base."""
        bases = list(self.kind.__mro__)
        for place, base in enumerate(bases):
            if function in vars(base).values():
                owners = [later for later in bases[place + 1 :] if name in vars(later)]
                return vars(owners[0])[name] if owners else None
        return None

    # ---- encoded variables

    def _encoded_by(self, call: ast.Call, tree: FunctionTree) -> str:
        """Return the name of the variable that an `encode_prompt` call encodes.

        Whether it is the negative prompt is derived from the names assigned to the call's results.
        """
        results: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and node.value is call:
                targets = getattr(node.targets[0], "elts", [node.targets[0]])
                results.update(map(_name, targets))
        results.discard("_")
        if results and all(map(NEGATIVE.match, results)):
            return "negative_prompt"
        arguments = dict(zip(self.parameters, call.args, strict=False))
        arguments |= {word.arg: word.value for word in call.keywords if word.arg is not None}
        return _name(arguments.get("prompt")) or "prompt"

    def refuse_other_prompts(self) -> None:
        """Reject a pipeline that encodes text other than its two prompts."""
        other_texts: set[str] = set()
        if len(self.encoded) > 1:
            other_texts = set(self.encoded) - {"prompt", "negative_prompt"}
        for _, method in inspect.getmembers(self.kind, inspect.isfunction):
            code = inspect.unwrap(method).__code__
            if "encode_prompt" in code.co_names:
                other_texts |= {"source_prompt", "target_prompt"} & set(code.co_varnames)
        if other_texts:
            shown = ", ".join(sorted(other_texts))
            raise self.refusal(
                f"it also encodes {shown}, which cannot be distinguished from the prompt"
            )

    def are_framed_and_ended(self) -> tuple[bool, bool]:
        """Return the facts `framed` and `ends` of `Source`.

        Whether encodings are framed is only examined in the function that contains them.
        """
        texts = [ast.unparse(self.trees[function]) for function in self.call_functions]
        parts = [text.rpartition("self.encode_prompt(") for text in texts]
        ends = any("self.maybe_free_model_hooks(" in after for _, _, after in parts)
        for before, call, after in parts:
            if call:
                checks = "self.check_inputs(" in before.partition(call)[0]
                prepares = "self.prepare_latents("
                return checks and prepares in after and prepares not in before, ends
        return False, ends

    def encodes_in_loop(self) -> bool:
        """Return the fact `loops` of `Source`."""
        for function in self.call_functions:
            for node in ast.walk(self.trees[function]):
                if not isinstance(node, ast.For | ast.While):
                    continue
                for part in ast.walk(node):
                    if isinstance(part, ast.Attribute) and part.attr == "encode_prompt":
                        return True
        return False

    def returned_names(self) -> tuple[str, ...]:
        """Return the names of the outputs of `encode_prompt`.

        If it returns the output of a base class, the base class's names are used.
        """
        for encoder in self.encoders:
            returns = [
                node for node in ast.walk(self.trees[encoder]) if isinstance(node, ast.Return)
            ]
            if not returns:
                raise self.refusal("its encode_prompt returns nothing")
            value = max(returns, key=lambda node: node.lineno).value or ast.Tuple([])
            call = value.func if isinstance(value, ast.Call) else None
            if not isinstance(call, ast.Attribute) or call.attr != "encode_prompt":
                break
            if not _is_super(call.value):
                break
        return tuple(map(_name, value.elts if isinstance(value, ast.Tuple) else [value]))


@lru_cache(maxsize=4)
def _functions_of(text: str) -> Mapping[tuple[str, int], FunctionTree]:
    """Return the functions in a module's source, keyed by name and line of the first decorator.

    A pipeline has a dozen functions in one module, which is parsed only once.
    """
    functions: dict[tuple[str, int], FunctionTree] = {}
    pending: list[ast.AST] = [ast.parse(text)]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            # Only search statements, because expressions cannot contain named functions.
            if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
                pending.append(node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = [part.lineno for part in node.decorator_list]
                functions[node.name, min([*lines, node.lineno])] = node
    return functions


def _calls(tree: FunctionTree) -> list[Call]:
    """Return the calls in a function."""
    calls: list[Call] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name):
            calls.append(Call(node, "", called.id))
        elif isinstance(called, ast.Attribute):
            owner = called.value
            # Most objects are a plain name, such as "self", and unparsing is much slower.
            text = owner.id if isinstance(owner, ast.Name) else ast.unparse(owner)
            calls.append(Call(node, text, called.attr))
        else:
            owner_text, _, name = ast.unparse(called).rpartition(".")
            calls.append(Call(node, owner_text, name))
    return calls


def _is_super(node: object) -> bool:
    """Return whether an expression is `super()`, with or without arguments."""
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super"


def _name(node: object) -> str:
    """Return the name of the variable in an expression, or "" if there is none.

    Expressions such as `x.to(device)` and `x if guided else None` are also handled.
    """
    while not isinstance(node, ast.Name):
        inside = [getattr(node, part, None) for part in ("value", "func", "body")]
        inside = [part for part in inside if isinstance(part, ast.AST)]
        if not inside:
            return ""
        node = inside[0]
    return node.id
