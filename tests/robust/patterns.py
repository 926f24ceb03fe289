"""List the regular expressions in the code and measure how their time grows on their worst texts.

    python -m tests.robust.patterns    # every pattern whose time grows faster than its text

Texts from users, files and headers reach most patterns, so a pattern with two repetitions that
match the same characters lets a long text block a server.
"""

import ast
import functools
import importlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

from tests.growth import growth

ROOT = Path(__file__).parents[2]
LENGTH = 2_000  # characters; the time is compared with that of twice as many
FASTEST = 0.001  # seconds; a text that takes less cannot be quadratic
LIMIT = 2.5  # maximum ratio of the times
_UNBOUNDED = 100  # repetitions that may match more often are tried
_MOST_PREFIXES = 6  # texts before equal repetitions, such as spaces between the words of phrases
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
_METHODS = ("search", "match", "fullmatch", "findall", "finditer", "split", "sub", "subn")
_TRIED = " aAsZ019_-'\"\\/.,:;!?#@<>()[]{}|=+*&%$\n\t\x00\u00e9\u4eba"


@dataclass(frozen=True)
class Pattern:
    """Store a regular expression and how the code uses it.

    Attributes:
        place: file and line.
        text: the regular expression.
        flags: its flags.
        methods: names of the methods that are called, such as "fullmatch".
    """

    place: str
    text: str | bytes
    flags: int
    methods: tuple[str, ...]


def patterns() -> Iterator[Pattern | str]:
    """Yield every regular expression in the package and its programs, or the place of one that is
    built from local variables."""
    sources = {}
    for path in sorted([*(ROOT / "vldebias").rglob("*.py"), *(ROOT / "apps").rglob("*.py")]):
        sources[path] = path.read_text(encoding="utf-8")
    code = "\n".join(sources.values())
    for path, source in sources.items():
        if "re." not in source:
            continue
        tree = ast.parse(source)
        name_of_call = {
            node.value: node.targets[0].id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            method = node.func.attr
            is_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            if not is_re or method not in ("compile", *_METHODS):
                continue
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            methods: tuple[str, ...] = (method,)
            if method == "compile":
                name = name_of_call.get(node, "")
                # A pattern in a list or mapping is called by another name in its file.
                name, text = (rf"\b{name}", code) if name else (r"(?<!\bre)", source)
                methods = tuple(set(re.findall(rf"{name}\.({'|'.join(_METHODS)})\(", text)))
            try:
                text = _value(node.args[0], path)
                flags = sum(_value(flag, path) for flag in _flags(node, method))
            except NameError:
                yield place
                continue
            yield Pattern(place, text, int(flags), methods or ("search",))


def _flags(call: ast.Call, method: str) -> list[ast.expr]:
    """Return the expressions of a call's flags."""
    flags = [keyword.value for keyword in call.keywords if keyword.arg == "flags"]
    position = 1 if method == "compile" else 2
    if method not in ("sub", "subn", "split"):
        flags += call.args[position : position + 1]
    return flags


def _value(node: ast.expr, path: Path) -> Any:
    """Evaluate an expression with the names of its module.

    Raises:
        NameError: If it contains local variables.
    """
    names: dict[str, Any] = {}
    if not isinstance(node, ast.Constant):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names = vars(importlib.import_module(".".join(parts).removesuffix(".__init__")))
    return eval(compile(ast.Expression(node), str(path), "eval"), names)


def worst_texts(text: str | bytes, flags: int, length: int) -> Iterator[str]:
    """Yield texts of this length that repeat what the pattern repeats and then do not match."""
    pattern = text.decode("latin-1") if isinstance(text, bytes) else text
    parsed = _parser.parse(pattern, flags)
    repeats: list[tuple[str, Any]] = []
    _collect(parsed, "", repeats)
    number_of_body: Counter[str] = Counter()
    units_of_prefix: dict[str, set[str]] = {}
    unit_of_signature: dict[tuple[bool, ...], str] = {}
    matchers = [_compiler.compile(body) for _, body in repeats]
    for character in _TRIED + pattern:
        signature = tuple(matcher.fullmatch(character) is not None for matcher in matchers)
        unit_of_signature.setdefault(signature, character)
    for place, (prefix, body) in enumerate(repeats):
        number_of_body[str(body)] += 1
        if number_of_body[str(body)] > _MOST_PREFIXES:
            continue
        units = units_of_prefix.setdefault(prefix, set())
        units.add(_sample(body))
        units.update(unit for signature, unit in unit_of_signature.items() if signature[place])
    for prefix, units in units_of_prefix.items():
        for unit in filter(None, units):
            for end in ("\x00", "\n"):
                yield prefix + unit * (length // len(unit)) + end
                if prefix:
                    yield unit * (length // len(unit)) + end
                    yield (prefix + unit) * (length // len(prefix + unit)) + end


def _collect(items: Any, prefix: str, repeats: list[tuple[str, Any]]) -> None:
    """Append each unbounded repetition, with a text that matches what is before it."""
    for operation, argument in items:
        before = prefix
        if operation in _REPEATS:
            _, most, body = argument
            if most >= _UNBOUNDED:
                repeats.append((prefix, body))
            _collect(body, prefix, repeats)
        for inner in _inner(operation, argument):
            _collect(inner, before, repeats)
        prefix += _sample(_parser.SubPattern(items.state, [(operation, argument)]))


def _inner(operation: Any, argument: Any) -> list[Any]:
    """Return the patterns in a group, an alternative or an assertion."""
    if operation is _constants.SUBPATTERN:
        return [argument[-1]]
    if operation is _constants.BRANCH:
        return list(argument[1])
    if operation in (_constants.ASSERT, _constants.ASSERT_NOT):
        return [argument[1]]
    if operation is _constants.ATOMIC_GROUP:
        return [argument]
    return []


def _sample(items: Any) -> str:
    """Return a short text that a pattern matches."""
    text = ""
    for operation, argument in items:
        if operation is _constants.LITERAL:
            text += chr(argument)
        elif operation in (_constants.IN, _constants.NOT_LITERAL, _constants.ANY):
            matcher = _compiler.compile(_parser.SubPattern(items.state, [(operation, argument)]))
            text += next(filter(matcher.match, "a1 " + _TRIED), "")
        elif operation in _REPEATS:
            text += _sample(argument[2]) * max(argument[0], 1)
        elif operation not in (_constants.ASSERT, _constants.ASSERT_NOT):
            text += "".join(map(_sample, _inner(operation, argument)[:1]))
    return text


def worst_growth(pattern: Pattern) -> tuple[float, str]:
    """Return the largest growth of the time for twice the text, and the beginning of that text."""
    worst = (0.0, "")
    for method in pattern.methods:
        run = functools.partial(_run, re.compile(pattern.text, pattern.flags), method)
        texts = worst_texts(pattern.text, pattern.flags, LENGTH)
        longer = worst_texts(pattern.text, pattern.flags, 2 * LENGTH)
        for pair in zip(texts, longer, strict=True):
            seconds = _seconds(run, pair[1])
            # Most texts are ruled out by one measurement.
            if seconds < FASTEST or seconds < LIMIT * _seconds(run, pair[0]):
                continue
            ratio = growth(functools.partial(_run_one, run, pair), LENGTH)
            worst = max(worst, (ratio, repr(pair[1][:40])))
    return worst


def _run(compiled: re.Pattern[Any], method: str, text: str) -> None:
    """Apply a compiled pattern to a text."""
    subject = text.encode("latin-1", "replace") if isinstance(compiled.pattern, bytes) else text
    arguments = [subject]
    if method in ("sub", "subn"):
        arguments = [subject[:0], subject]
    matches = getattr(compiled, method)(*arguments)
    if method == "finditer":
        list(matches)


def _run_one(run: Callable[[str], None], pair: tuple[str, str], length: int) -> None:
    run(pair[length > LENGTH])


def _seconds(run: Callable[[str], None], text: str) -> float:
    begin = time.process_time()
    run(text)
    return time.process_time() - begin


def main() -> int:
    """Print the patterns whose time grows too fast, and those that are not measured."""
    found = 0
    number = 0
    for pattern in patterns():
        number += 1
        if isinstance(pattern, str):
            print(f"{pattern}: not measured, because it is built from local variables")
            continue
        ratio, text = worst_growth(pattern)
        if ratio > LIMIT:
            found += 1
            print(f"{pattern.place}: {pattern.text!r} grows by {ratio:.1f} on {text}")
    print(f"{number} patterns, {found} grow faster than their text")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
