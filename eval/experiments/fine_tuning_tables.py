"""What the page on fine-tuning says of its experiments, made from their results: verdicts, and what moved which way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eval.experiments.experiment import place_of
from eval.tables import fills, measured, read, table
from vldebias.evaluation.report import verdict
from vldebias.evaluation.result import Measurement

BASE, START = "InfoNCE", "not trained"
HEADS, SCRATCH, DIGITS = "which_loss_heads", "which_loss_scratch", "noisy_digits"
SITUATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {  # what you have -> experiment, column of the share, place
    "a model that knows something; captions of other pairs": (HEADS, "share", {"noise": "mixture"}),
    "the same; a class taken for its neighbour": (HEADS, "share", {"noise": "class"}),
    "the same; images that show little": (HEADS, "share", {"noise": "crop"}),
    "random weights; captions of other pairs": (SCRATCH, "share", {"noise": "mixture"}),
    "images alone, random weights; classes that are wrong": (DIGITS, "eta", {}),
}
Rows = dict[str, dict[float, Measurement]]  # arm -> share -> row


def by_share(name: str, column: str, where: dict[str, Any]) -> Rows:
    """The rows of an experiment at a place, by arm and share."""
    found: Rows = {}
    metric = "linear evaluation" if name == DIGITS else "zero_shot_accuracy"
    for row in read(name).rows:
        place = place_of(row)
        if row.metric == metric and where.items() <= place.items():
            found.setdefault(row.method, {})[float(place[column])] = row
    return found


def best(rows: Rows, shares: Sequence[float]) -> str:
    """The arm of the highest mean over the shares; the usual loss where it is ahead of that nowhere beyond an interval.

    An untrained model stands beside the others: where it is the best, nothing is to be done.
    """

    def mean(arm: str) -> float:
        return sum(rows[arm][share].value for share in shares)

    arm = max(rows, key=mean)
    ahead = any(verdict(row.change, row.better) == "better" for row in (rows[arm][share] for share in shares))
    return arm if ahead else BASE


@fills("docs/fine-tuning.md", "verdicts")
def verdicts_block() -> str:
    """One verdict for each situation, with what it rests on: its change to InfoNCE at each share."""
    lines = [["you have", "do", "InfoNCE comes to", "ahead of it by"]]
    for have, (name, column, where) in SITUATIONS.items():
        if not measured(name):
            lines.append([have, "not measured yet", "", f"`{name}`"])
            continue
        rows = by_share(name, column, where)
        every = sorted(rows[BASE])
        for what, shares in {"nothing is wrong": every[:1], "": every[1:]}.items():
            if what and where.get("noise") in ("class", "crop"):
                continue  # the same cells as of the first noise
            told = f"{have.partition(';')[0]}; {what}" if what else have
            arm = best(rows, shares)
            do = {BASE: "InfoNCE; nothing is ahead of it beyond its interval", START: "do not train"}.get(arm, arm)
            at = [f"{rows[BASE][share].value:.3f} at {share:g}" for share in shares]
            ahead = "" if arm == BASE else ", ".join(_starred(rows[arm][share]) for share in shares)
            lines.append([told, do, ", ".join(at), ahead])
    note = (
        "The verdict is the arm of the highest mean over the shares of wrong pairs, if it is ahead of InfoNCE beyond "
        "its interval (*) at one of them. Intervals are over seeds and held-out images, not corrected for the arms."
    )
    return table(*lines, note=note)


def _starred(row: Measurement) -> str:
    clear = verdict(row.change, row.better) in ("better", "worse")
    return f"{row.change[0]:+.3f}" + r"\*" * clear  # several stand in a cell
