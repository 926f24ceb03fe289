"""Write which prompts are balanced, in which languages, and how even the values are."""

from __future__ import annotations

import json
from collections.abc import Mapping

from eval.tables import RESULTS, crossed, read, rows_in, span, table
from vldebias.measure.resampling import wilson_interval
from vldebias.report.result import Measurement

# Sets of prompts that were labelled first and scored once, in chronological order.
SCORED_ONCE = {
    "fresh_languages_rewritten": "first set: other languages and rewritten prompts",
    "fresh_kinds": "second set: prompts, scenes and languages; its writer had read the code",
    "new_prompts_1": "third set, by the first writer",
    "new_prompts_2": "fourth set, by the first writer",
    "held_out_prompts": "fifth set, by the first writer",
    "held_out_prompts_2": "sixth set, by a second writer",
    "held_out_prompts_3": "seventh set, by a third writer",
    "held_out_prompts_4": "eighth set, by a fourth writer",
    "held_out_prompts_5": "last set, by a fifth writer",
}


def new_prompts() -> str:
    """Write the scores of prompts that were scored once, including wrong changes."""
    lines = [["prompts", "n", "right [95%]", "wrong edits [95%]"]]
    for name, title in SCORED_ONCE.items():
        path = RESULTS / "languages" / f"{name}.json"
        rate = json.loads(path.read_text(encoding="utf-8"))["rates"]["all"]
        n = rate["n"]
        lines.append([title, str(n), _share(rate["right"], n), _share(rate["wrong edit"], n)])
    names = ", ".join(f"`{name}.json`" for name in SCORED_ONCE)
    note = f"From {names} in `eval/results/languages`, in this order."
    return table(*lines, note=note)


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


def real_prompts() -> str:
    """Write how many changes to newly drawn prompts from public lists are wrong, by list."""
    path = RESULTS / "languages" / "real_prompts.json"
    names = ["draw", "source", "kind of list", "prompts", "changed"]
    lines = [[*names, "wrong, of the changed [95%]"]]
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        counts = [str(row["prompts"]), str(row["changed"])]
        share = _wrong_share(row["wrong"], row["changed"])
        lines.append([str(row["draw"]), row["source"], row["kind"], *counts, share])
    return table(*lines, note="From `eval/results/languages/real_prompts.json`.")


def _wrong_share(wrong: int, n: int) -> str:
    low, high = wilson_interval(wrong, n)
    return f"{wrong / n:.3f} [{low:.3f}, {high:.3f}]"


def _share(rate: Mapping[str, float], n: int) -> str:
    return f"{rate['count'] / n:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]"


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
            "written_right": "both versions right, of prompts that should get one",
            "group_mixed": "group: both values",
            "left_unchanged": "correctly left unchanged",
        },
        cell=cell,
        note="From `eval/results/languages_blind.json`.",
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
