"""Test labelled prompts: few are changed wrongly, and plain ones get a value.

The labels were written before the rules ran on the prompts. The rules were corrected on all of
these sets, so the rates do not estimate the accuracy on other prompts, but they must not get worse.

A line has the texts that are right for women and for men ("female", "male"), or a "label"
(or "kind"): "open" (a value is inserted), "fixed", "stated", "named", "none" (unchanged), "group"
(unchanged, or mixed), or "syntax" and "mixed" (one of "expected" or "ok").
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vldebias.prompts import load_prompts
from vldebias.wording import balance_prompts

HERE = Path(__file__).parent
UNCHANGED = ("fixed", "stated", "named", "none")
VALUES = ("female", "male")
# The least share of prompts that are decided as labelled, and the largest number of wrong changes.
# Further people without a link and rare nouns are left unchanged on purpose. "development_2" and
# "fresh_languages" are in other languages, whose tables leave more.
LIMITS = {
    "blind": (0.78, 0),
    "blind2": (0.71, 1),
    "classes": (0.78, 4),
    "composed_prompts": (0.84, 3),
    "development_2": (0.64, 0),
    "development_3": (0.89, 0),
    "fresh": (0.85, 1),
    "fresh_kinds": (0.77, 1),
    "fresh_languages": (0.65, 1),
    "held_out_prompts": (0.73, 1),
    "held_out_prompts_2": (0.84, 1),
    "held_out_prompts_3": (0.77, 0),
    "held_out_prompts_4": (0.85, 0),
    "held_out_prompts_5": (0.86, 2),
    "kinds_blind": (0.88, 1),
    "labelled": (0.91, 0),
    "new_prompts_1": (0.84, 0),
    "new_prompts_2": (0.81, 0),
    "scenes": (0.87, 3),
    "scenes_blind": (0.74, 2),
}


def outcome(row: Mapping[str, Any]) -> str:
    """Return "right", "missed" (wrongly left unchanged) or "wrong change"."""
    prompt = row["prompt"]
    if "female" in row:
        texts = _texts(row)
        right = all(text in row[value] for text, value in zip(texts, VALUES, strict=True))
        changed = any(text != prompt for text in texts)
    else:
        right, changed = _outcome_of_label(row)
    if right:
        return "right"
    return "wrong change" if changed else "missed"


def _texts(row: Mapping[str, Any]) -> list[str]:
    prompt = row["prompt"]
    if row["female"] == row["male"] != [prompt]:
        # With two images of a group, each value is in the majority once.
        return balance_prompts([prompt] * 2, "gender", seed=0).prompts
    texts: list[str] = []
    for value in VALUES:
        shares = {name: float(name == value) for name in VALUES}
        texts += balance_prompts(prompt, "gender", shares=shares).prompts
    return texts


def _outcome_of_label(row: Mapping[str, Any]) -> tuple[bool, bool]:
    prompt = row["prompt"]
    label = row.get("label") or row["kind"]
    attribute = row.get("attribute", "gender")
    names = list(load_prompts(attribute).attributes)
    value = "female" if "female" in names else names[0]
    shares = {name: float(name == value) for name in names}
    (written,) = balance_prompts(prompt, attribute, shares=shares, seed=0).prompts
    changed = written != prompt
    if label in UNCHANGED:
        return not changed, changed
    if label == "group":
        values = balance_prompts([prompt] * 4, attribute, seed=0).values
        return not any(isinstance(value, str) for value in values), changed
    expected = row.get("expected") or row.get("ok") or []
    if label in ("syntax", "mixed"):
        listed = [expected] if isinstance(expected, str) else expected
        results = {_plain(_with_value(text, value)) for text in listed} or {_plain(prompt)}
        return _plain(written) in results, changed
    return changed, changed


def _with_value(text: str, value: str) -> str:
    """Insert a value for {v}, and the noun for women or men: "a {girl|boy} and a {v} cook"."""
    nouns = re.compile(r"\{((?:baby )?girls?|wom[ae]n)\|((?:baby )?boys?|m[ae]n)\}")
    return nouns.sub(r"\1" if value == "female" else r"\2", text).replace("{v}", value)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\ban\b", "a", text.lower())).strip()


@pytest.mark.filterwarnings("ignore:.* is not filled")  # a variable such as $gender
@pytest.mark.parametrize("name", LIMITS)
def test_few_labelled_prompts_are_changed_wrongly(name: str) -> None:
    lines = (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    counts = Counter(map(outcome, map(json.loads, lines)))
    least_right, most_wrong = LIMITS[name]
    assert counts["wrong change"] <= most_wrong
    assert counts["right"] >= least_right * len(lines)


def test_each_kind_of_prompt_is_decided_as_labelled() -> None:
    lines = (HERE / "kinds_blind.jsonl").read_text(encoding="utf-8").splitlines()
    rows = list(map(json.loads, lines))
    counts = Counter((row["kind"], outcome(row)) for row in rows)
    assert counts["no people", "right"] == 80
    assert counts["scenes", "right"] >= 57  # of 66
    assert counts["plain", "right"] >= 74  # of 80
    assert [kind for kind, result in counts if result == "wrong change"] == ["titles"]


def test_packaged_prompts_about_professions_get_a_value() -> None:
    names = ("professions-gender", "professions-winobias")
    sets = map(load_prompts, names)
    prompts = sorted({text for each in sets for text in (*each.classes, *each.held_out_classes)})
    values = balance_prompts(prompts, "gender", seed=0).values
    left = [text for text, value in zip(prompts, values, strict=True) if value is None]
    assert len(prompts) == 119
    assert left == ["A photo of a mover."]
