"""Count how often balanced prompts were rated as right, in each of ten languages.

    python -m eval.languages --json eval/results/languages_blind.json

The ratings in `eval/results/languages/rating_blind.jsonl` contain prompts that were scored once,
the results of the rules at that time, and the judgements of a rater. Intervals are 95% Wilson
intervals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.tables import RESULTS, add_share, parser, run
from vldebias.measure.metric import Metric
from vldebias.measure.rows import TaskProvenance, TaskResult

RATINGS = RESULTS / "languages" / "rating_blind.jsonl"
_SEED = 0
_METHOD = "balanced-prompts"
_HIGHER = ("utility", "higher", (0.0, 1.0))
WRITTEN = Metric("written", "open prompts into which both values are written", *_HIGHER)
FORM = Metric("form_right", "of those, prompts whose two texts are both right", *_HIGHER)
WHOLE = Metric("written_right", "open prompts with both values, both texts right", *_HIGHER)
GROUP = Metric("group_mixed", "groups that get both values, in a right form", *_HIGHER)
LEFT = Metric("left_unchanged", "prompts correctly left unchanged", *_HIGHER)


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
        add_share(part, metric, _METHOD, hits, {"prompts": n}, language)


def main() -> None:
    arguments = parser(__doc__).parse_args()
    run("languages_blind", lambda: measure_rated(RATINGS), arguments.json)


if __name__ == "__main__":
    main()
