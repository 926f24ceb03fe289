"""Write which prompts are balanced, in which languages, and how even the values are."""

from __future__ import annotations

import json

from eval.experiments.stated_values import LABELLED
from eval.tables import RESULTS, read, rows_in, span, table
from vldebias.measure.resampling import wilson_interval
from vldebias.wording.languages import load_language

# What the prompts of each kind of list are called in sentences.
NOUNS = {
    "users": "prompts by users",
    "captions": "captions",
    "alt texts with masked names": "alt texts with masked names",
    "plain prompts": "plain prompts",
    "no people": "prompts that ask for no people",
}


def read_readings() -> tuple[str, dict[str, dict[str, int]]]:
    """Return what the lists of prompts are, and the counts for each kind of list."""
    content = json.loads((RESULTS / "prompt_readings.json").read_text(encoding="utf-8"))
    return content["note"], {row["kind"]: row for row in content["rows"]}


def prompt_readings() -> str:
    """Write how many prompts are changed, and how many changes are wrong, by kind of list."""
    note, counts = read_readings()
    head = ["lists of (prompts)", "should be changed", "of these, changed [95%]", "changed"]
    lines = [[*head, "wrong, of the changes [95%]", "kept [95%]"]]
    for kind, row in counts.items():
        should, labelled = row["should_be_changed"], row["labelled"]
        lines.append(
            [
                f"{kind} ({row['prompts']:,})",
                f"{should:,} of {labelled:,}" if labelled else "not counted",
                _share(row["of_these_changed"], should),
                f"{row['changed']:,}",
                _share(row["wrong"], row["read"]),
                _share(row["kept"], row["right_before"]),
            ]
        )
    for kind, row in counts.items():
        if row["asked"]:
            note += f" {kind}: the model was asked about {row['asked']:,} of {row['prompts']:,}."
    note += (
        " Kept: of the right changes that the former, longer rules made. From"
        " `eval/results/prompt_readings.json`."
    )
    return table(*lines, note=note)


def wrong_changes() -> str:
    """Write how many of 100 prompts of each kind are changed, and how many of them wrongly."""
    _, counts = read_readings()
    lines = [["of 100", "changed", "wrongly"]]
    for kind, row in counts.items():
        changed = 100 * row["changed"] / row["prompts"]
        wrong = changed * row["wrong"] / row["read"] if row["read"] else 0.0
        base, comma, reader = kind.partition(", ")
        noun = f"{NOUNS.get(base, base)}{comma}{reader}"
        lines.append([noun, f"{changed:.1f}", f"{wrong:.1f}"])
    return table(*lines, note="From `eval/results/prompt_readings.json`.")


def _share(count: int, n: int) -> str:
    if not n:
        return "not counted"
    low, high = wilson_interval(count, n)
    return f"{count / n:.3f} [{low:.3f}, {high:.3f}]"


def languages_plain() -> str:
    """Write, for each language, how many changes were wrong and how many plain prompts changed."""
    rows = {(row.metric, row.subset): row for row in read("languages_plain").rows}
    lines = [["language", "changes", "wrong", "plain prompts written", "no people: changed"]]
    codes = [subset for metric, subset in rows if metric == "plain_written" and subset]
    for code in [*codes, ""]:
        cells = [load_language(code).name if code else "all"]
        for metric in ("wrong_changes", "plain_written", "no_people_changed"):
            row = rows.get((metric, code))
            n = row.n["prompts"] if row else 0
            count = round(row.value * n) if row else 0
            if metric == "wrong_changes":
                share = "" if code or row is None else f", {span(row)}"
                cells += [str(n), f"{count}{share}"]
            else:
                cells.append(f"{count} of {n}")
        lines.append(cells)
    return table(*lines, note="From `eval/results/languages_plain.json`.")


def stated() -> str:
    """Write how often a stated value appears in public human counts."""
    lines = [["stated", "images", "images that show the value"]]
    for row in read("stated_values").rows:
        value, _, words = row.subset.partition(", ")
        is_shown = not words or value in ("Non-binary", "White")
        if row.task == "stated" and is_shown:
            lines.append([row.subset, f"{row.n['images']:,}", span(row)])
    return table(*lines, note="From `eval/results/stated_values.json`.")


def in_turn() -> str:
    """Write how even the shares of women are with no stated gender and with alternating genders."""
    lines = [["prompts", "distance of the share of women from 0.5", "visible profession"]]
    for task, which in (
        ("professions", ""),
        (LABELLED, "without the two that were never labelled"),
    ):
        rows = rows_in(read("stated_values"), task)
        for method, words in (
            ("none", "nothing stated, 10 images each"),
            ("balanced-prompts", "female and male in turn, 10 images each"),
        ):
            gap = rows[method, "gap_from_half_women"]
            title = ", ".join(filter(None, (words, which)))
            lines.append([title, span(gap), span(rows[method, "recognised"])])
    rows = rows_in(read("stated_values"), "professions")
    note = (
        f"{rows['none', 'recognised'].n['professions']} professions, generated by Stable Diffusion"
        " 3.5 Large Turbo and counted by one person who knew the prompt; intervals over"
        " professions. From `eval/results/stated_values.json`."
    )
    return table(*lines, note=note)
