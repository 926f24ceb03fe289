"""Count how many prompts are changed, and how many changes are right, from the labels of readers.

    python -m eval.prompt_readings users=users.jsonl "users, with a chat model=chat.jsonl" \\
      --json eval/results/prompt_readings.json --note "..."

Each file holds one kind of list, with one line per prompt:

    {"prompt": "a Quorvian weaver", "should": true, "changed": true, "right": true, "asked": true}

- "changed": whether the package changes the prompt.
- "right": whether that change is right, as judged by somebody who read it. null for an unchanged
  prompt, and for a change that nobody read.
- "should": whether the prompt should be changed, because it shows somebody whose gender is open. It
  is labelled before any result is looked at. Leave it out for prompts without a label.
- "asked": whether a chat model was asked about the prompt (optional). The same prompts without the
  model are a kind of their own, so that both can be compared.
- "right_before": whether the rules of an earlier version changed it rightly (optional).

The prompts must be new to whoever wrote the rules, and drawn at random. They are not committed,
only the counts are. The kinds of an existing result stay if their files are not given. `--note`
says which lists these are, who read them, and which chat model stands for others.
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
    labelled = [row for row in rows if row.get("should") is not None]
    should = [row for row in labelled if row["should"]]
    return {
        "kind": kind,
        "prompts": len(rows),
        "labelled": len(labelled),
        "should_be_changed": len(should),
        "of_these_changed": sum(row["changed"] for row in should),
        "changed": len(changed),
        "read": sum(row["right"] is not None for row in changed),
        "wrong": sum(row["right"] is False for row in changed),
        "asked": sum(bool(row.get("asked")) for row in rows),
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
