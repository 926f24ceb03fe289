"""Count the labelled prompts that each rule of English prompts decides.

    python -m eval.ablate_rules --json eval/results/languages/ablated_rules.json
    python -m eval.ablate_rules mine.jsonl ... --json FILE

Each function in `vldebias/wording/english` that returns a truth value, a reason, a list or an
optional value is replaced, one at a time, with one that returns False, "", [] or None, and the
labelled prompts are decided again. Only prompts for which the function returned something else
can change, so only those are. Without files, the prompts are the ones in `tests/wording`. Files
with other labelled prompts, in the formats of `eval.fresh_prompts` or
`eval.experiments.prompt_rules`, are counted separately.

A rule stays if it decides at least two labelled prompts that its author did not write. Each row
lists how many prompts have a different outcome without the function ("decided"), and how that
changes the numbers of right, missed and wrongly edited prompts. The functions that decide nothing
come first. Functions that apply to more than 1,000 prompts are no rules and are left out. Reasons
are not compared, and functions for captions and for facts that no labelled prompt contains do not
apply to any prompt.
"""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import signal
import sys
import types
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eval import fresh_prompts
from eval.experiments import prompt_rules
from eval.tables import parser
from vldebias.errors import VldebiasWarning
from vldebias.wording import english

COMMITTED = Path(__file__).parents[1] / "tests" / "wording"
SETS = {"committed": "tests/wording", "given": "labelled prompts that are not in the repository"}
_EMPTY = {"bool": "False", "str": "''", "list": "[]", "tuple": "()", "set": "set()"}
_MOST = 1000  # prompts; a function that applies to more is no rule
_LIMIT = 10  # seconds per prompt; without some functions, a loop does not end


@dataclass(frozen=True)
class Rule:
    """A function that can be replaced with one that returns an empty result.

    Attributes:
        name: The name, such as "names.find_names" or "scene.Scene.has".
        function: The function, below any cache.
        empty: The code of a function that returns an empty result.
        lines: The number of lines without the docstring.
    """

    name: str
    function: types.FunctionType
    empty: types.CodeType
    lines: int


@dataclass(frozen=True)
class Labelled:
    """A labelled prompt: the key of its set in `SETS`, and a function that returns its outcome."""

    source: str
    decide: Callable[[], str]


def labelled(path: Path, source: str) -> Iterator[Labelled]:
    """Yield the labelled prompts in a file.

    Args:
        path: The file, with one JSON object per line.
        source: A key of `SETS`.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if rows and "female" in rows[0]:
        for row in rows:
            yield Labelled(source, partial(_outcome_of_texts, row))
        return
    for row in prompt_rules.read(path):
        yield Labelled(source, partial(_outcome_of_label, row))


def _outcome_of_texts(row: Mapping[str, Any]) -> str:
    outcome, _ = fresh_prompts.decide(row)
    return outcome


def _outcome_of_label(row: Mapping[str, Any]) -> str:
    decision = prompt_rules.decide(row)
    if decision.is_right:
        return "right"
    return "wrong edit" if decision.is_changed else "missed"


def find_rules() -> list[Rule]:
    """Return the functions and methods of `vldebias.wording.english` that can be replaced."""
    rules: list[Rule] = []
    for info in pkgutil.iter_modules(english.__path__):
        module = importlib.import_module(f"{english.__name__}.{info.name}")
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        rules += _rules_in(ast.parse(source), module, info.name)
    return rules


def _rules_in(tree: ast.Module | ast.ClassDef, holder: Any, prefix: str) -> Iterator[Rule]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _rules_in(node, getattr(holder, node.name), f"{prefix}.{node.name}")
        if not isinstance(node, ast.FunctionDef) or node.returns is None:
            continue
        returned = ast.unparse(node.returns)
        empty = "None" if returned.endswith("| None") else _EMPTY.get(returned.partition("[")[0])
        function = getattr(holder, node.name)
        function = getattr(function, "__wrapped__", function)
        if empty is None or not isinstance(function, types.FunctionType):
            continue
        lines = node.end_lineno - node.lineno + 1  # type: ignore[operator]
        if ast.get_docstring(node):
            lines -= node.body[0].end_lineno - node.body[0].lineno + 1  # type: ignore[operator]
        code = eval(f"lambda *arguments, **named: {empty}").__code__
        yield Rule(f"{prefix}.{node.name}", function, code, lines)


def _clear_caches() -> None:
    """Clear all caches of results for single texts and words, but keep the word lists."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("vldebias.wording"):
            continue
        for value in vars(module).values():
            if hasattr(value, "cache_clear") and isinstance(value.__wrapped__, types.FunctionType):
                if value.__wrapped__.__code__.co_argcount:
                    value.cache_clear()


def decide_all(
    prompts: Sequence[Labelled], rules: Sequence[Rule]
) -> tuple[list[str], dict[str, list[int]]]:
    """Return the outcome of each prompt, and the prompts for which each rule applies.

    Args:
        prompts: The labelled prompts.
        rules: The functions to watch.

    Returns:
        The outcomes, and a mapping from the names of the rules to indices of prompts.
    """
    name_of_code = {rule.function.__code__: rule.name for rule in rules}
    applied: set[str] = set()

    def watch(frame: types.FrameType, event: str, value: Any) -> None:
        if event == "return" and frame.f_code in name_of_code and value:
            applied.add(name_of_code[frame.f_code])

    outcomes: list[str] = []
    prompts_of_rule = defaultdict[str, list[int]](list)
    for i, prompt in enumerate(prompts):
        _clear_caches()
        applied.clear()
        sys.setprofile(watch)
        try:
            outcomes.append(prompt.decide())
        finally:
            sys.setprofile(None)
        for name in applied:
            prompts_of_rule[name].append(i)
    return outcomes, prompts_of_rule


def decide_without(rule: Rule, prompts: Sequence[Labelled]) -> list[str]:
    """Return the outcome of each prompt without a rule, which may be the name of an error."""
    code = rule.function.__code__
    rule.function.__code__ = rule.empty
    handler = signal.signal(signal.SIGALRM, _stop)
    _clear_caches()
    outcomes: list[str] = []
    try:
        for prompt in prompts:
            signal.setitimer(signal.ITIMER_REAL, _LIMIT)
            try:
                outcomes.append(prompt.decide())
            except Exception as error:  # any error is an outcome
                outcomes.append(type(error).__name__)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, handler)
        rule.function.__code__ = code
        _clear_caches()
    return outcomes


def measure(prompts: Sequence[Labelled]) -> dict[str, Any]:
    """Return the outcomes of all prompts, and how they change without each function."""
    rules = find_rules()
    print(f"Deciding {len(prompts)} prompts, watching {len(rules)} functions", file=sys.stderr)
    outcomes, prompts_of_rule = decide_all(prompts, rules)
    totals: dict[str, Counter[str]] = {source: Counter() for source in SETS}
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        totals[prompt.source]["prompts"] += 1
        totals[prompt.source][outcome] += 1
    table: list[dict[str, Any]] = []
    for number, rule in enumerate(rules, start=1):
        indices = prompts_of_rule[rule.name]
        if len(indices) > _MOST:
            continue
        print(f"{number}/{len(rules)} {rule.name}: {len(indices)} prompts", file=sys.stderr)
        row: dict[str, Any] = {"function": rule.name, "lines": rule.lines}
        row["applies"] = len(indices)
        changes: dict[str, Counter[str]] = {source: Counter() for source in SETS}
        outcomes_without = decide_without(rule, [prompts[i] for i in indices])
        for i, after in zip(indices, outcomes_without, strict=True):
            if after != outcomes[i]:
                change = changes[prompts[i].source]
                change["decided"] += 1
                change[outcomes[i]] -= 1
                change[after] += 1
        for source, change in changes.items():
            row[source] = {name: n for name, n in sorted(change.items()) if n}
        table.append(row)
    table.sort(key=lambda row: sum(row[source].get("decided", 0) for source in SETS))
    return {"totals": {source: dict(totals[source]) for source in SETS}, "without": table}


def _stop(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    """Print the table, and optionally write it to a JSON file."""
    options = parser(__doc__)
    options.add_argument("files", nargs="*", type=Path, help="other labelled prompts, JSON lines")
    arguments = options.parse_args()
    warnings.simplefilter("ignore", VldebiasWarning)
    prompts: list[Labelled] = []
    for path in sorted(COMMITTED.glob("*.jsonl")):
        prompts += labelled(path, "committed")
    for path in arguments.files:
        if path.is_file():
            prompts += labelled(path, "given")
        else:
            print(f"SKIPPED {path}: no such file, its prompts are not counted", file=sys.stderr)
    if not any(prompt.source == "given" for prompt in prompts):
        print("SKIPPED: no other labelled prompts were given", file=sys.stderr)
    result = measure(prompts)
    for row in result["without"]:
        changes = [f"{source} {row[source] or 'unchanged'}" for source in SETS]
        print(f"{row['function']}, applies to {row['applies']}: {'; '.join(changes)}")
    print(result["totals"])
    if arguments.json:
        about = {"what": "Outcomes of labelled prompts without one function each.", "sets": SETS}
        lines = ",\n".join(f"  {json.dumps(row)}" for row in result["without"])
        head = json.dumps(about | {"totals": result["totals"]}, indent=1)[:-2]
        arguments.json.write_text(f'{head},\n "without": [\n{lines}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
