"""Count the changes to prompts in ten languages that readers called wrong.

    python -m eval.languages --json eval/results/languages_plain.json

Each line in `eval/results/languages/rating_plain.jsonl` contains a prompt that was labelled before
the reader saw it ("language", "prompt", and "kind": "plain", "no people" or any other), the two
texts that were written ("texts": "female" and "male", or null if the prompt was left unchanged),
and whether they are right ("right", or null if nothing was written), as judged by "rater".
Intervals are 95% Wilson intervals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.tables import RESULTS, add_share, parser, run
from vldebias.measure.metric import Metric
from vldebias.measure.rows import TaskProvenance, TaskResult

RATINGS = RESULTS / "languages" / "rating_plain.jsonl"
_SEED = 0
_METHOD = "balanced-prompts"
WRONG = Metric("wrong_changes", "changed prompts of which a text is wrong", "utility", "lower")
PLAIN = Metric("plain_written", "plain prompts that get both values", "utility", "higher")
NO_PEOPLE = Metric("no_people_changed", "requests for no people that change", "utility", "lower")


def measure_rated(path: Path) -> Iterator[TaskResult]:
    """Yield the rates of prompts that were labelled and rated, by language and overall."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    raters = ", ".join(sorted({row["rater"] for row in rows}))
    part = TaskResult(
        TaskProvenance(
            task="new prompts in ten languages",
            description=f"prompts labelled in advance, changes read by {raters}",
            seeds=[_SEED],
        )
    )
    for language in ("", *dict.fromkeys(row["language"] for row in rows)):
        add_ratings(part, language, [row for row in rows if language in ("", row["language"])])
    yield part


def add_ratings(part: TaskResult, language: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add the rates for a language, or for all languages if `language` is ""."""
    changed = [row for row in rows if row["texts"] is not None]
    plain = [row for row in rows if row["kind"] == "plain"]
    no_people = [row for row in rows if row["kind"] == "no people"]
    for metric, hits, of_rows in (
        # Each prompt counts once, because the same table produces both of its texts.
        (WRONG, [row for row in changed if not row["right"]], changed),
        (PLAIN, [row for row in plain if row["texts"] is not None], plain),
        (NO_PEOPLE, [row for row in no_people if row["texts"] is not None], no_people),
    ):
        n = len(of_rows)
        if n:
            add_share(part, metric, _METHOD, len(hits), {"prompts": n}, language)


def main() -> None:
    arguments = parser(__doc__).parse_args()
    run("languages_plain", lambda: measure_rated(RATINGS), arguments.json)


if __name__ == "__main__":
    main()
