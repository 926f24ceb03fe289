"""Compare balanced prompts with labelled prompts, as in `tests/wording/labelled.jsonl`.

A line has the format {"prompt": ..., "attribute": ..., "label": ...}, where the label is the
correct result:

    open                        a value is inserted
    fixed, stated, named, none  the prompt is left unchanged
    group                       unchanged, or several values in each of four images
    mixed                       one of "ok", where only some people have a stated value
    syntax                      one of "expected", in which {v} is the assigned value, and
                                {girl|boy} the noun that states it

A "kind" may replace the label. A prompt that is changed in a different way is a wrong edit, which
is worse than an unchanged prompt, because nobody checks the text. `eval.ablate_rules` counts both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.prompts import load_prompts
from vldebias.wording import balance_prompts

LEFT = ("fixed", "stated", "named", "none")
IMAGES = 4


@dataclass(frozen=True)
class Decision:
    """The decision for a labelled prompt, and whether it is correct."""

    label: str
    is_changed: bool
    is_right: bool


def read(path: Path) -> list[dict[str, Any]]:
    """Return the labelled prompts in a file.

    Raises:
        InvalidInputError: If a line does not contain a prompt and a label.
    """
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        row = json.loads(line)
        label = row.get("label") or row.get("kind")
        if not row.get("prompt") or not label:
            raise InvalidInputError(f"{path}:{number}: expected a prompt and a label, got {row}")
        expected = row.get("expected") or row.get("ok") or ()
        attribute = row.get("attribute", "gender")
        rows.append({"prompt": row["prompt"], "attribute": attribute} | {"label": label})
        rows[-1]["expected"] = [expected] if isinstance(expected, str) else list(expected)
    return rows


def decide(row: Mapping[str, Any]) -> Decision:
    """Balance a labelled prompt and compare the result with the label."""
    prompt, label, attribute = row["prompt"], row["label"], row["attribute"]
    values = list(load_prompts(attribute).attributes)
    value = "female" if "female" in values else values[0]
    shares = {name: float(name == value) for name in values}
    balanced = balance_prompts(prompt, attribute, shares=shares, seed=0)
    (written,) = balanced.prompts
    is_left = written == prompt
    expected = {_plain(_with_value(text, value)) for text in row["expected"]}
    if label in LEFT:
        is_right = is_left
    elif label == "group":
        is_right = not _has_one_value(prompt, attribute)
    elif label in ("syntax", "mixed"):
        is_right = _plain(written) in expected if expected else is_left
    else:
        is_right = not is_left
    return Decision(label, not is_left, is_right)


def _with_value(text: str, value: str) -> str:
    """Insert a value for {v}, and the noun for women or men: "a {girl|boy} and a {v} cook"."""
    nouns = re.compile(r"\{((?:baby )?girls?|wom[ae]n)\|((?:baby )?boys?|m[ae]n)\}")
    text = nouns.sub(r"\1" if value == "female" else r"\2", text)
    return text.replace("{v}", value)


def _plain(text: str) -> str:
    """Remove irrelevant differences in case, spaces and articles from a text."""
    return re.sub(r"\s+", " ", re.sub(r"\ban\b", "a", text.lower())).strip()


def _has_one_value(prompt: str, attribute: str) -> bool:
    """Return whether any of four images of a group has a single value, with even shares."""
    balanced = balance_prompts([prompt] * IMAGES, attribute, seed=0)
    return any(isinstance(value, str) for value in balanced.values)
