"""Score balanced prompts on prompts that were labelled before the rules were applied to them.

    python -m eval.fresh_prompts tests/wording/fresh_languages.jsonl \\
      --json eval/results/languages/fresh_languages.json
    python -m eval.fresh_prompts tests/wording/fresh_kinds.jsonl \\
      --json eval/results/languages/fresh_kinds.json

Each line contains a prompt and the lists of acceptable results "female" and "male", in which every
open person gets this value. If a prompt must stay unchanged, both lists contain only the prompt.
For a group, both lists contain the same mixtures, such as "five engineers, three women and two
men", and the prompt is scored with even shares. "kind" and "language" determine the table rows in
which the prompt counts.
A prompt is right if both results are in the lists. A wrong edit produces a text that is not in the
lists, and a missed prompt is left unchanged. Intervals are 95% Wilson intervals.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.tables import parser
from vldebias import balance_prompts
from vldebias.measure.resampling import wilson_interval

_VALUES = ("female", "male")


def decide(row: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return "right", "missed" or "wrong edit", and the two texts that the rules produce."""
    prompt = row["prompt"]
    texts: list[str] = []
    if row["female"] == row["male"] != [prompt]:
        # With two images, each value is in the majority once.
        prompts = [prompt] * len(_VALUES)
        texts += balance_prompts(prompts, "gender", seed=0).prompts
    else:
        for value in _VALUES:
            shares = {name: float(name == value) for name in _VALUES}
            texts += balance_prompts(prompt, "gender", shares=shares).prompts
    if all(text in row[value] for text, value in zip(texts, _VALUES, strict=True)):
        return "right", texts
    is_listed = [text in (prompt, *row[v]) for text, v in zip(texts, _VALUES, strict=True)]
    return "missed" if all(is_listed) else "wrong edit", texts


def kinds_of(row: Mapping[str, Any]) -> list[str]:
    """Return the names of the table rows in which a prompt counts."""
    is_open = row["female"] != [row["prompt"]] or row["male"] != [row["prompt"]]
    kind = row.get("kind") or "languages"
    state = "open" if is_open else "unchanged"
    return ["all", kind, f"{kind}, {state}", *([row["language"]] if "language" in row else [])]


def measure(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rates of right prompts and wrong edits by kind, and the prompts not right."""
    outcomes: defaultdict[str, list[str]] = defaultdict(list)
    others: list[dict[str, Any]] = []
    for row in rows:
        outcome, texts = decide(row)
        for kind in kinds_of(row):
            outcomes[kind].append(outcome)
        if outcome != "right":
            others.append({"prompt": row["prompt"], "outcome": outcome, "texts": texts})
    rates: dict[str, Any] = {}
    for kind, of_kind in outcomes.items():
        n = len(of_kind)
        rates[kind] = {"n": n}
        for name in ("right", "wrong edit"):
            count = of_kind.count(name)
            low, high = wilson_interval(count, n)
            rates[kind][name] = {"count": count, "low": round(low, 3), "high": round(high, 3)}
    return {"rates": rates, "not right": others}


def main() -> None:
    """Print the rates, and optionally write them with the incorrect texts to a JSON file."""
    options = parser(__doc__)
    options.add_argument("prompts", type=Path, help="JSON lines")
    arguments = options.parse_args()
    lines = arguments.prompts.read_text(encoding="utf-8").splitlines()
    result = measure([json.loads(line) for line in lines])
    for kind, rate in result["rates"].items():
        counts = [f"{name} {rate[name]['count']:3}" for name in ("right", "wrong edit")]
        print(f"{kind:22} n {rate['n']:3}  {'  '.join(counts)}")
    if arguments.json:
        text = json.dumps(result, indent=1, ensure_ascii=False)
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
