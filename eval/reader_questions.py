"""Count the changes to prompts that each question of the reader keeps away or adds.

    python -m eval.reader_questions users.jsonl --json eval/results/reader_questions.json
    python -m eval.reader_questions users.jsonl --judged judged.jsonl --json FILE

Each doubt in `vldebias/wording/english/people.py` is switched off alone, and so is each function in
`WIDENINGS` that clears a doubt. The script counts the prompts that are changed only without the
doubt ("kept away"), or only with the widening ("added"). It prints these changes, so that somebody
can judge them. The file of judgements has a line {"prompt": ..., "right": true or false} for each
change that was read. With it, the counts tell right and wrong changes apart.

A doubt stays if it keeps away at least one wrong change for every ten right ones. A widening stays
if it adds at least twenty right changes for each wrong one. The prompts must be fresh: written by
users, and used neither to find nor to tune a question. They are not committed, only the counts are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eval.tables import parser
from vldebias.wording.balance import Balancer
from vldebias.wording.english import people
from vldebias.wording.reasons import NO_PERSON

WIDENINGS = (
    "is_bare_frame",
    "acts_like_person",
    "is_plain_compound",
    "is_in_list",
    "is_plain_verb",
)
_CACHES = (people.find_subjects,)


def read_prompts(paths: Iterable[Path]) -> list[str]:
    """Return the different prompts in files with one JSON object per line."""
    prompts: dict[str, None] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            prompts[json.loads(line)["prompt"]] = None
    return list(prompts)


def changes(prompts: Iterable[str], attribute: str) -> dict[str, str]:
    """Return the balanced text of each prompt that is changed."""
    balanced = Balancer(attribute, seed=0).next(prompts)
    rows = zip(prompts, balanced.prompts, balanced.values, strict=True)
    return {prompt: text for prompt, text, value in rows if value is not None}


@contextmanager
def without(name: str) -> Iterator[None]:
    """Switch off the doubt or widening with a name."""
    tables = {"DOUBTS": people.DOUBTS, "DOUBTS_ABOUT_PROMPT": people.DOUBTS_ABOUT_PROMPT}
    function: Callable[..., bool] = getattr(people, name)
    try:
        if name in WIDENINGS:
            setattr(people, name, lambda *arguments: False)
        for table, doubts in tables.items():
            setattr(people, table, tuple(row for row in doubts if row[0] is not function))
        _clear()
        yield
    finally:
        setattr(people, name, function)
        for table, doubts in tables.items():
            setattr(people, table, doubts)
        _clear()


def _clear() -> None:
    for cache in _CACHES:
        cache.cache_clear()


def measure(
    prompts: list[str], judged: Mapping[str, bool], attribute: str = "gender"
) -> dict[str, Any]:
    """Return the counts for each question, and the changes that differ ("texts")."""
    usual = changes(prompts, attribute)
    # Only a prompt that is left in doubt can change without a doubt.
    doubted = [
        prompt
        for prompt in prompts
        if prompt not in usual and people.find_subjects(prompt) not in (NO_PERSON, ())
    ]
    doubts = [function.__name__ for function, _ in (*people.DOUBTS_ABOUT_PROMPT, *people.DOUBTS)]
    rows: list[dict[str, Any]] = []
    texts: dict[str, dict[str, str]] = {}
    for name in (*doubts, *WIDENINGS):
        is_widening = name in WIDENINGS
        with without(name):
            others = changes(list(usual) if is_widening else doubted, attribute)
        longer, shorter = (usual, others) if is_widening else (others, usual)
        differing = {prompt: text for prompt, text in longer.items() if prompt not in shorter}
        texts[name] = differing
        verdicts = [judged.get(prompt) for prompt in differing]
        rows.append(
            {
                "question": name,
                "kind": "widening" if is_widening else "doubt",
                "changes": len(differing),
                "right": verdicts.count(True),
                "wrong": verdicts.count(False),
            }
        )
    return {"prompts": len(prompts), "changed": len(usual), "questions": rows, "texts": texts}


def main() -> None:
    """Count, print the changes that are not judged, and write the counts."""
    arguments = parser(__doc__)
    arguments.add_argument("prompts", nargs="+", type=Path, help="files with prompts")
    arguments.add_argument("--judged", type=Path, help="file with judged changes")
    arguments.add_argument("--attribute", default="gender")
    chosen = arguments.parse_args()
    judged: dict[str, bool] = {}
    if chosen.judged:
        rows = map(json.loads, chosen.judged.read_text(encoding="utf-8").splitlines())
        judged = {row["prompt"]: row["right"] for row in rows}
    result = measure(read_prompts(chosen.prompts), judged, chosen.attribute)
    texts = result.pop("texts")
    for name, changed in texts.items():
        for prompt, text in changed.items():
            if prompt not in judged:
                row = {"question": name, "prompt": prompt, "text": text}
                print(json.dumps(row, ensure_ascii=False))
    for row in result["questions"]:
        print(row)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
