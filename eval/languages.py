"""Measure how many prompts are balanced in each language, and why the others are not.

    python -m eval.languages kept tests/wording/languages -o eval/results/languages/kept.json
    python -m eval.languages magbig FOLDER -o eval/results/languages/magbig.json
    python -m eval.languages rated RATINGS --json eval/results/languages_blind.json

kept: The labelled prompts in this project ("label | prompt"), of which only `open` ones should be
changed.
magbig: The `prompts` folder of MAGBIG (github.com/felifri/MAGBIG, ACL 2025), which is not part of
this project and must be downloaded separately. A prompt counts as changed if both values can be
inserted.
rated: The ratings in `eval/results/languages/rating_blind.jsonl`, which contains prompts, the
results of the rules and the judgements of a rater. Only the judgements are counted, and nothing is
balanced.

Intervals are 95% Wilson intervals.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.tables import run
from vldebias import balance_prompts
from vldebias.measure.metric import Metric
from vldebias.measure.resampling import wilson_interval
from vldebias.report.result import TaskProvenance, TaskResult

_KIND_OF_FOLDER = {"prompts": "occupations", "indirect:gender_neutral": "indirect"}
_SEED = 0
_IMAGES = 2  # images per prompt, one for each value
_METHOD = "balanced-prompts"
_HIGHER = ("utility", "higher", (0.0, 1.0))
WRITTEN = Metric("written", "open prompts into which both values are written", *_HIGHER)
FORM = Metric("form_right", "of those, prompts whose two texts are both right", *_HIGHER)
WHOLE = Metric("written_right", "open prompts with both values, both texts right", *_HIGHER)
GROUP = Metric("group_mixed", "groups that get both values, in a right form", *_HIGHER)
LEFT = Metric("left_unchanged", "prompts correctly left unchanged", *_HIGHER)


def both_values(prompt: str) -> tuple[bool, str]:
    """Return whether both values can be inserted into a prompt, and the reason if neither can."""
    balanced = balance_prompts([prompt] * _IMAGES, "gender", seed=_SEED)
    is_mixed = any(isinstance(value, Mapping) for value in balanced.values)
    texts = set(balanced.prompts)
    is_written = prompt not in texts and (is_mixed or len(texts) > 1)
    return is_written, "" if is_written else str(balanced.reasons[0])


def _row(written: int, n: int) -> dict[str, Any]:
    low, high = wilson_interval(written, n) if n else (0.0, 1.0)
    return {"n": n, "written": written, "low": round(low, 3), "high": round(high, 3)}


def magbig_prompts(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the language, kind and text of each MAGBIG prompt."""
    for path in sorted(folder.rglob("*.csv")):
        kind = _KIND_OF_FOLDER[path.parent.name]
        name, _, rest = path.stem.partition("_")
        if name == "adj":
            kind = "adjectives"
        if rest.endswith("_star"):
            kind = "gender stars"
        language = rest.removesuffix("_star")
        if language == "english":
            continue
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield language, kind, row["prompt"].strip()


def measure_magbig(folder: Path) -> dict[str, Any]:
    """Return the share of changed prompts, and reasons for the others, by language and kind."""
    results: dict[str, Any] = defaultdict(dict)
    reasons_of: dict[tuple[str, str], list[str]] = defaultdict(list)
    for language, kind, prompt in magbig_prompts(folder):
        _, reason = both_values(prompt)
        reasons_of[language, kind].append(reason)
    for (language, kind), reasons in reasons_of.items():
        row = _row(reasons.count(""), len(reasons))
        row["left unchanged"] = dict(Counter(reason for reason in reasons if reason))
        results[language][kind] = row
    for kinds in results.values():
        n = sum(row["n"] for row in kinds.values())
        stated = sum(row["left unchanged"].get("stated", 0) for row in kinds.values())
        written = sum(row["written"] for row in kinds.values())
        kinds["all"] = _row(written, n)
        # Some prompts already state a value, such as "Fotografie einer Krankenschwester".
        kinds["all but stated"] = _row(written, n - stated)
    return dict(results)


def kept_prompts(path: Path) -> Iterator[list[str]]:
    """Yield each label and prompt and, if present, the texts with a woman and with a man."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield [part.strip() for part in line.split(" | ")]


def measure_kept(folder: Path) -> dict[str, Any]:
    """Return the number of prompts whose decision matches the label, by language and label."""
    results: dict[str, Any] = {}
    for path in sorted(folder.glob("*.txt")):
        right: Counter[str] = Counter()
        n: Counter[str] = Counter()
        for label, prompt, *_ in kept_prompts(path):
            is_written, _ = both_values(prompt)
            name = "open" if label == "open" else "left unchanged"
            n[name] += 1
            right[name] += is_written == (label == "open")
        results[path.stem] = {name: _row(right[name], n[name]) for name in n}
    return results


def measure_rated(path: Path) -> Iterator[TaskResult]:
    """Yield the rates of prompts that were scored once and rated, by language and overall."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    raters = ", ".join(sorted({row["rater"] for row in rows}))
    part = TaskResult(
        TaskProvenance(
            task="new prompts in ten languages",
            description=f"prompts and ratings by {raters}",
            seeds=[_SEED],
        )
    )
    for language in ("", *dict.fromkeys(row["language"] for row in rows)):
        add_ratings(part, language, [row for row in rows if language in ("", row["language"])])
    yield part


def add_ratings(part: TaskResult, language: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add the rates for a language, or for all languages if `language` is ""."""
    is_open = [row for row in rows if row["kind"] == "open"]
    written = [row for row in is_open if row["decision_right"]]
    groups = [row for row in rows if row["kind"] == "group"]
    others = [row for row in rows if row["kind"] not in ("open", "group")]
    # Each prompt counts once, because the same rules produce both of its texts.
    right = sum(all(row["forms_right"].values()) for row in written)
    mixed = sum(row["decision_right"] and all(row["forms_right"].values()) for row in groups)
    left = sum(row["decision_right"] for row in others)
    for metric, hits, n in (
        (WRITTEN, len(written), len(is_open)),
        (FORM, right, len(written)),
        (WHOLE, right, len(is_open)),
        (GROUP, mixed, len(groups)),
        (LEFT, left, len(others)),
    ):
        interval = wilson_interval(hits, n)
        part.add(metric, _METHOD, hits / n, interval, n={"prompts": n}, subset=language)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("kept", "magbig", "rated"))
    parser.add_argument("source", type=Path, help="folder of prompts, or file of ratings")
    parser.add_argument("-o", "--json", type=Path, help="also write the result here")
    arguments = parser.parse_args()
    if arguments.what == "rated":
        run("languages_blind", lambda: measure_rated(arguments.source), arguments.json)
        return
    measure = measure_kept if arguments.what == "kept" else measure_magbig
    results = measure(arguments.source)
    text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(text, encoding="utf-8")
    for language, rows in results.items():
        for kind, row in rows.items():
            share = row["written"] / row["n"] if row["n"] else 0
            counts = f"{row['written']:4} of {row['n']:4}  {share:.3f}"
            print(f"{language:10} {kind:16} {counts}  {row.get('left unchanged', '')}")


if __name__ == "__main__":
    main()
