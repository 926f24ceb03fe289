"""Count how many changes to prompts are right, by kind of list, from the labels of readers.

    python -m eval.prompt_readings users=users.jsonl captions=captions.jsonl \\
      --json eval/results/prompt_readings.json

Each file holds one kind of list, with a line {"prompt": ..., "changed": ..., "right": ...,
"right_before": ...} per prompt: whether the rules change it, whether that change is right (null for
an unchanged prompt), and whether the rules of an earlier version changed it rightly (optional). The
prompts must be new to whoever wrote the rules. They are not committed, only the counts are. The
first kinds of an existing result stay if their files are not given.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eval.tables import parser


def count(path: Path, kind: str) -> dict[str, Any]:
    """Return the counts for a file of labels."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    changed = [row for row in rows if row["changed"]]
    before = [row for row in rows if row.get("right_before")]
    return {
        "kind": kind,
        "prompts": len(rows),
        "changed": len(changed),
        "wrong": sum(row["right"] is False for row in changed),
        "right_before": len(before),
        "kept": sum(bool(row["changed"] and row["right"]) for row in before),
    }


def main() -> None:
    """Count the labels in the given files, and write them."""
    arguments = parser(__doc__)
    arguments.add_argument("lists", nargs="+", help="KIND=FILE, such as users=labels.jsonl")
    arguments.add_argument("--note", default="", help="which lists these are and who read them")
    chosen = arguments.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    note = chosen.note
    if chosen.json is not None and chosen.json.is_file():
        stored = json.loads(chosen.json.read_text(encoding="utf-8"))
        rows = {row["kind"]: row for row in stored["rows"]}
        note = note or stored["note"]
    for item in chosen.lists:
        kind, _, path = item.partition("=")
        rows[kind] = count(Path(path), kind)
    for row in rows.values():
        print(row)
    if chosen.json is not None:
        content = {"note": note, "rows": list(rows.values())}
        chosen.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
