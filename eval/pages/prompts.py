"""Write which prompts are balanced, in which languages, and how even the values are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from eval.tables import RESULTS, crossed, listed, read, rows_in, span, table
from vldebias.measure.resampling import wilson_interval
from vldebias.report.result import Measurement


def rows_of(name: str, *metrics: str) -> Iterator[Measurement]:
    """Yield the rows in a result for any of the metrics."""
    for row in read(name).rows:
        if row.metric in metrics:
            yield row


# The correct result for each prompt label.
LABELS = {
    "open": "open: a value is written",
    "fixed": "fixed by context: left unchanged",
    "stated": "stated: left unchanged",
    "named": "someone is named: left unchanged",
    "none": "no person: left unchanged",
    "mixed": "one person stated next to another",
    "group": "group: more than one value",
    "syntax": "tool syntax: as labelled",
}


def decided() -> str:
    """Write how often decisions match the labels of prompts, by label and attribute."""
    return listed(
        (row for row in rows_of("prompt_rules", "right") if ", " in row.subset),
        {
            "prompts": lambda row: row.task,
            "right is": lambda row: LABELS[row.subset.split(", ")[0]],
            "attribute": lambda row: row.subset.split(", ")[1],
            "n": lambda row: str(row.n["prompts"]),
            "right [95%]": span,
        },
        note="From `eval/results/prompt_rules.json`.",
    )


FIRST_RUNS = (
    "prompt_rules_first_a",
    "prompt_rules_first_b",
    "prompt_rules_first_c",
    "prompt_rules_first_e",
    "prompt_rules_blind2",
)


def first_runs() -> str:
    """Write the scores of prompts that were scored for the first time, by label."""
    labels = ("fixed", "open", "group", "stated")
    lines = [["prompts", "rules of commit", *labels]]
    for name in FIRST_RUNS:
        result = read(name)
        for protocol in result.provenance:
            cells = [protocol.task.replace("_", " "), (result.commit or "")[:8]]
            for label in labels:
                row = rows_in(result, protocol.task, label).get(("balanced-prompts", "right"))
                cells.append("-" if row is None else f"{span(row)}, n = {row.n['prompts']}")
            lines.append(cells)
    files = ", ".join(f"`eval/results/{name}.json`" for name in FIRST_RUNS)
    return table(*lines, note=f"From {files}.")


# Who wrote the prompts in each result.
WRITERS = {
    "prompt_rules_fresh": "from the policy alone, scored once",
    "prompt_rules_scenes_blind": "from the policy alone, scored once with earlier rules",
    "prompt_rules_scenes": "with the rules in view",
}
KINDS = {
    "plain": "plain prompts",
    "scene": "several people",
    "negative": "negative prompts",
    "system": "system prompts and chat templates",
    "several": "several people",
    "markup": "markup",
    "verb": "a verb after the person",
    "nouns": "nouns for people, and words that look like them",
    "quoted": "quotations",
    "implied": "what a word implies, and similar words",
    "rewritten": "rewritten by a language model",
}


def kinds() -> str:
    """Write how often results exactly equal the labels, by kind and writer of the prompts."""
    lines = [["prompts", "written", "kind", "n", "right [95%]", "wrong edits [95%]"]]
    for name, writer in WRITERS.items():
        for row in rows_of(name, "right", "wrong_edits"):
            is_edit = row.metric == "wrong_edits"
            if not is_edit and not row.subset.startswith("kind: "):
                continue
            kind = "all" if is_edit else KINDS[row.subset.removeprefix("kind: ")]
            figures = ["", span(row)] if is_edit else [span(row), ""]
            lines.append([row.task, writer, kind, str(row.n["prompts"]), *figures])
    files = ", ".join(f"`eval/results/{name}.json`" for name in WRITERS)
    return table(*lines, note=f"From {files}.")


# Sets of prompts that were labelled first and scored once, in chronological order.
_KINDS_OF_NEW_PROMPTS = (
    *("plain", "several", "language", "rewritten", "negative", "system"),
    "all",
)
SCORED_ONCE = {
    "fresh_languages_rewritten": ("languages", "rewritten"),
    "fresh_kinds": ("plain", "scene", "language", "rewritten", "negative or system", "all"),
    "new_prompts_1": _KINDS_OF_NEW_PROMPTS,
    "new_prompts_2": _KINDS_OF_NEW_PROMPTS,
    "held_out_prompts_before": _KINDS_OF_NEW_PROMPTS,
    "held_out_prompts": _KINDS_OF_NEW_PROMPTS,
    "held_out_prompts_2": _KINDS_OF_NEW_PROMPTS,
    "held_out_prompts_3_first": _KINDS_OF_NEW_PROMPTS,
    "held_out_prompts_3": _KINDS_OF_NEW_PROMPTS,
    "held_out_prompts_4": _KINDS_OF_NEW_PROMPTS,
    "held_out_prompts_5": _KINDS_OF_NEW_PROMPTS,
}
NAMES_OF_KINDS = {
    "language": "ten languages",
    "languages": "ten languages",
    "negative or system": "negative and system prompts",
}


def new_prompts() -> str:
    """Write the scores of prompts that were scored once, including wrong changes."""
    lines = [["prompts", "kind", "n", "right [95%]", "wrong edits [95%]"]]
    for row in rows_of("prompt_rules_fresh", "right", "wrong_edits"):
        is_edit = row.metric == "wrong_edits"
        if is_edit or row.subset.startswith("kind: "):
            kind = "all" if is_edit else KINDS[row.subset.removeprefix("kind: ")]
            figures = ["", span(row)] if is_edit else [span(row), ""]
            lines.append([row.task, kind, str(row.n["prompts"]), *figures])
    for name, kinds_of_set in SCORED_ONCE.items():
        path = RESULTS / "languages" / f"{name}.json"
        rates = json.loads(path.read_text(encoding="utf-8"))["rates"]
        for kind in kinds_of_set:
            rate = rates[kind]
            figures = [_share(rate[metric], rate["n"]) for metric in ("right", "wrong edit")]
            known_kind = NAMES_OF_KINDS.get(kind) or KINDS.get(kind, kind)
            lines.append([name, known_kind, str(rate["n"]), *figures])
    names = ", ".join(f"`eval/results/languages/{name}.json`" for name in SCORED_ONCE)
    return table(*lines, note=f"From `eval/results/prompt_rules_fresh.json`, {names}.")


def read_prompts() -> str:
    """Write how many changes to prompts from public lists a reader considered wrong."""
    path = RESULTS / "languages" / "read_prompts.json"
    lines = [["source", "prompts", "changed", "wrong, of the changed [95%]", "wrong, of all [95%]"]]
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        wrong = row["wrong"] + row["one_of_two"]
        counts = [str(row["prompts"]), str(row["changed"])]
        shares = [_wrong_share(wrong, row["changed"]), _wrong_share(wrong, row["prompts"])]
        lines.append([row["source"], *counts, *shares])
    return table(*lines, note="From `eval/results/languages/read_prompts.json`.")


def _wrong_share(wrong: int, n: int) -> str:
    low, high = wilson_interval(wrong, n)
    return f"{wrong / n:.3f} [{low:.3f}, {high:.3f}]"


def _share(rate: Mapping[str, float], n: int) -> str:
    return f"{rate['count'] / n:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]"


def left_unchanged() -> str:
    """Write why labelled prompts were left unchanged, by attribute."""
    counts: dict[tuple[str, str], float] = {}
    for row in rows_of("prompt_rules", "left_unchanged"):
        place, reason = row.subset.split(": ", maxsplit=1)
        key = (place.split(", ")[1], reason)
        counts[key] = counts.get(key, 0.0) + row.value * row.n["prompts"]
    lines = [["attribute", "reason", "prompts"]]
    # Sort by attribute, then by descending frequency of the reason.
    for (attribute, reason), count in sorted(
        counts.items(), key=lambda item: (item[0][0], -item[1])
    ):
        lines.append([attribute, reason, f"{count:.0f}"])
    return table(*lines, note="From `eval/results/prompt_rules.json`, all sets.")


def held_back() -> str:
    """Write how many ordinary prompts stay unchanged because of facts, by attribute."""
    return listed(
        rows_of("public_prompts", "held_back"),
        {
            "attribute": lambda row: row.task,
            "would otherwise be changed": lambda row: f"{row.n['prompts']:,}",
            "unchanged because of facts [95%]": span,
        },
        note="From `eval/results/public_prompts.json`.",
    )


HISTORY = {
    "written_into_one": ("one value", "low: otherwise over-diversification"),
    "written_into_several": ("several values", "high: otherwise under-diversification"),
}


def history() -> str:
    """Write both kinds of errors for groups of people at historical events."""
    return listed(
        rows_of("dofair", *HISTORY),
        {
            "attribute": lambda row: row.task,
            "sources give": lambda row: HISTORY[row.metric][0],
            "n": lambda row: str(row.n["prompts"]),
            "a value is added [95%]": span,
            "should be": lambda row: HISTORY[row.metric][1],
        },
        note="From `eval/results/dofair.json`.",
    )


LANGUAGES = {
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "it": "Italian",
    "pt": "Portuguese",
    "ru": "Russian",
    "zh": "Chinese",
    "ja": "Japanese",
    "ko": "Korean",
    "ar": "Arabic",
    "": "all",
}


def languages_blind() -> str:
    """Write the scores of new prompts in ten languages that were scored once."""
    order = list(LANGUAGES)

    def cell(row: Measurement) -> str:
        n = row.n["prompts"]
        low, high = row.interval
        return f"{row.value * n:.0f} of {n} [{low:.2f}, {high:.2f}]"

    return crossed(
        sorted(read("languages_blind").rows, key=lambda row: order.index(row.subset)),
        {"language": lambda row: LANGUAGES[row.subset]},
        {
            "written": "value stated, of prompts that should get one",
            "form_right": "both versions right, of these",
            "written_right": "both versions right, of prompts that should get one",
            "group_mixed": "group: both values",
            "left_unchanged": "correctly left unchanged",
        },
        cell=cell,
        note="From `eval/results/languages_blind.json`.",
    )


def service() -> str:
    """Write how even values are with one worker, several workers, and without memory."""
    rows = read("workers").rows
    n = rows[0].n
    return listed(
        rows,
        {
            "server": lambda row: row.method,
            "difference in images between the two values, mean [95% of runs]": lambda row: span(
                row, ".1f"
            ),
        },
        note=f"{n['requests']} requests, {n['runs']} runs; from `eval/results/workers.json`.",
    )


def stated() -> str:
    """Write how often a stated value appears in public human counts."""
    lines = [["stated", "combined with", "prompts", "images", "images that show the value"]]
    for row in read("stated_values").rows:
        if row.task != "stated":
            continue
        value, _, words = row.subset.partition(", ")
        if words and value not in ("Non-binary", "White"):
            continue
        lines.append(
            [
                value,
                words or "anything",
                str(row.n["prompts"]),
                f"{row.n['images']:,}",
                span(row),
            ]
        )
    return table(*lines, note="From `eval/results/stated_values.json`.")


def in_turn() -> str:
    """Write how even the shares of women are with no stated gender and with alternating genders."""
    rows = rows_in(read("stated_values"), "professions")
    lines = [["prompts", "distance of the share of women from 0.5", "visible profession"]]
    for method, words in (
        ("none", "nothing stated, 10 images each"),
        ("balanced-prompts", "female and male in turn, 10 images each"),
    ):
        gap = rows[method, "gap_from_half_women"]
        lines.append([words, span(gap), span(rows[method, "recognised"])])
    note = (
        f"{rows['none', 'recognised'].n['professions']} professions, generated by Stable Diffusion"
        " 3.5 Large Turbo; intervals over professions. From `eval/results/stated_values.json`."
    )
    return table(*lines, note=note)
