"""Measure balanced prompts in other languages: how many are written, and why the others are not.

    python -m eval.languages kept tests/prompts/languages -o eval/results/languages/kept.json
    python -m eval.languages magbig FOLDER -o eval/results/languages/magbig.json

kept: labelled prompts of this project, "label | prompt"; `open` must be written, all others left.
magbig: the folder `prompts` of MAGBIG (github.com/felifri/MAGBIG, ACL 2025), which whoever runs
this fetches; nothing of it is part of this project. A prompt is written if both values reach the
text. Intervals are Wilson's, 95 %.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vldebias import balance_prompts
from vldebias.measure.resampling import wilson_interval

_KIND_OF_FOLDER = {"prompts": "occupations", "indirect:gender_neutral": "indirect"}
_SEED = 0
_IMAGES = 2  # of each prompt: each value once


def both_values(prompt: str) -> tuple[bool, str]:
    """Return whether both values reach a prompt's text, and the reason where none does."""
    balanced = balance_prompts([prompt] * _IMAGES, "gender", seed=_SEED)
    is_mixed = any(isinstance(value, Mapping) for value in balanced.values)
    texts = set(balanced.prompts)
    is_written = prompt not in texts and (is_mixed or len(texts) > 1)
    return is_written, "" if is_written else str(balanced.reasons[0])


def _row(written: int, n: int) -> dict[str, Any]:
    low, high = wilson_interval(written, n) if n else (0.0, 1.0)
    return {"n": n, "written": written, "low": round(low, 3), "high": round(high, 3)}


def magbig_prompts(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield language, kind and text of MAGBIG's prompts."""
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
    """Return language -> kind -> how many prompts are written, with the reasons of the others."""
    results: dict[str, Any] = defaultdict(dict)
    reasons_of: dict[tuple[str, str], list[str]] = defaultdict(list)
    for language, kind, prompt in magbig_prompts(folder):
        _, reason = both_values(prompt)
        reasons_of[language, kind].append(reason)
    for (language, kind), reasons in reasons_of.items():
        row = _row(reasons.count(""), len(reasons))
        row["left alone"] = dict(Counter(reason for reason in reasons if reason))
        results[language][kind] = row
    for kinds in results.values():
        n = sum(row["n"] for row in kinds.values())
        stated = sum(row["left alone"].get("stated", 0) for row in kinds.values())
        written = sum(row["written"] for row in kinds.values())
        kinds["all"] = _row(written, n)
        # "Fotografie einer Krankenschwester": the prompt of the set states a value.
        kinds["all but stated"] = _row(written, n - stated)
    return dict(results)


def kept_prompts(path: Path) -> Iterator[list[str]]:
    """Yield label, prompt and, where they are given, the texts of a woman and of a man."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield [part.strip() for part in line.split(" | ")]


def measure_kept(folder: Path) -> dict[str, Any]:
    """Return language -> label -> how many prompts are decided as they are labelled."""
    results: dict[str, Any] = {}
    for path in sorted(folder.glob("*.txt")):
        right: Counter[str] = Counter()
        n: Counter[str] = Counter()
        for label, prompt, *_ in kept_prompts(path):
            is_written, _ = both_values(prompt)
            name = "open" if label == "open" else "left alone"
            n[name] += 1
            right[name] += is_written == (label == "open")
        results[path.stem] = {name: _row(right[name], n[name]) for name in n}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("kept", "magbig"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    arguments = parser.parse_args()
    measure = measure_kept if arguments.what == "kept" else measure_magbig
    results = measure(arguments.folder)
    text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text, encoding="utf-8")
    for language, rows in results.items():
        for kind, row in rows.items():
            share = row["written"] / row["n"] if row["n"] else 0
            counts = f"{row['written']:4} of {row['n']:4}  {share:.3f}"
            print(f"{language:10} {kind:16} {counts}  {row.get('left alone', '')}")


if __name__ == "__main__":
    main()
