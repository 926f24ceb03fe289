"""What the page on fine-tuning says of its experiments, made from their results: verdicts, and what moved which way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eval.experiments.experiment import place_of
from eval.tables import fills, measured, missing, moved, paragraph, read, table
from vldebias.evaluation.report.words import verdict
from vldebias.evaluation.result import Measurement, TaskProvenance

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


def training(name: str, **where: Any) -> tuple[list[tuple[dict[str, Any], Measurement]], TaskProvenance]:
    """The rows of zero-shot accuracy of one training experiment with their places, and its protocol."""
    result = read(name)
    rows = [(place_of(row), row) for row in result.rows if row.metric == "zero_shot_accuracy"]
    return [(place, row) for place, row in rows if where.items() <= place.items()], result.provenance[0]


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
    ahead = any(verdict(rows[arm][share]) == "better" for share in shares)
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
    assert row.change is not None
    return f"{row.change[0]:+.3f}" + (r"\*" if verdict(row) in ("better", "worse") else "")  # several stand in a cell


@fills("docs/fine-tuning.md", "losses")
def losses_words() -> str:
    """What is best where two fifths of the captions belong to other pictures, by the latest experiment."""
    words = ["Where two fifths of the captions belong to other pictures,"]
    starts = {"heads": (HEADS, "the projections of a CLIP that was trained before come to"),
              "scratch": (SCRATCH, "a small CLIP from random weights to")}  # fmt: skip
    for start, (name, who) in starts.items():
        rows = by_share(name if measured(name) else "does_it_pay", "share", {"noise": "mixture", "start": start})
        arm, base = best(rows, (0.4,)), rows[BASE][0.4]
        words.append(f"{who} {base.value:.3f} with InfoNCE" + ("," if start == "heads" else ""))
        how = "untrained" if arm == START else f"with {arm}"
        told = f"{rows[arm][0.4].value:.3f} ({moved(rows[arm][0.4])}) {how}" if arm != BASE else ""
        words.append(f"and {told}, the best at that share;" if told else "and nothing is ahead of that;")
    words[-1] = words[-1].rstrip(";")
    return paragraph(
        *words, "(zero-shot accuracy, renders of the miniature world). [Which loss when](#when-to-use-which-loss)."
    )


@fills("docs/fine-tuning/measured.md", "scratch")
def scratch_block() -> str:
    """RINCE from random weights: InfoNCE, and RINCE's change, at each share, in every experiment that has it."""
    short, about = training("does_it_pay", noise="mixture", start="scratch")
    longer, its = training("noisy_captions", task="noise")
    steps, q = about.settings["steps"]["scratch"], about.methods["RINCE"]["q"]
    arms = {f"{steps} steps of 128, q = {q}": (short, "share", "RINCE")}
    if measured(SCRATCH):
        between, told = training(SCRATCH)
        for q in ("0.5", "1"):
            arms[f"{told.settings['steps']} steps of 128, q = {q}"] = (between, "share", f"RINCE q={q}")
    for q in ("0.5", "1.0"):
        loop = its.settings["loop"]
        name = f"{loop['steps']} steps of {loop['batch_size']}, 32 x 32, q = {float(q):g}"
        arms[name] = (longer, "eta", f"RINCE q={q}")
    shares = (0.0, 0.2, 0.4, 0.6)
    lines = [["from random weights", "", *(f"share {share:g}" for share in shares)]]
    for name, (rows, share, rince) in arms.items():
        found = {(place[share], place["method"]): row for place, row in rows}
        own = [(found.get((at, BASE)), found.get((at, rince))) for at in shares]
        lines.append([name, BASE, *(f"{base.value:.3f}" if base else "" for base, _ in own)])
        lines.append(["", "RINCE", *(moved(row) if row else "" for _, row in own)])
    names = ", ".join(f"`{name}.json`" for name in ("does_it_pay", SCRATCH, "noisy_captions") if measured(name))
    return table(*lines, note=f"Zero-shot accuracy of InfoNCE and the change by RINCE on the same seeds; from {names}.")


@fills("docs/fine-tuning/measured.md", "scratch_words")
def scratch_words() -> str:
    """Why the two disagree, as far as the third says."""
    if not measured(SCRATCH):
        return missing(f"python -m eval.experiments.run {SCRATCH}")
    short, _ = training("does_it_pay", noise="mixture", start="scratch")
    before = {place["share"]: row for place, row in short if row.method == BASE}
    rows = by_share(SCRATCH, "share", {"noise": "mixture"})
    half, one = rows["RINCE q=0.5"], rows["RINCE q=1"]
    clean, wrong = min(half), max(half)
    now, then = ([f"{own[at].value:.3f}" for at in (clean, wrong)] for own in (rows[BASE], before))
    ahead = any(verdict(arm[wrong]) == "better" for arm in (half, one))
    return paragraph(
        "The third experiment keeps pictures, batches and q of the short one and takes three times the steps. InfoNCE",
        f"comes to {now[0]} where nothing is wrong ({then[0]} in 100 steps), and to {now[1]} at a share of {wrong:g}",
        f"({then[1]}). RINCE changes the first by {moved(half[clean])} with q = .5 and {moved(one[clean])} with q = 1,",
        f"the second by {moved(half[wrong])} and {moved(one[wrong])}.",
        "So the length of the training is what they disagree in: RINCE gives up pairs that do not fit yet, early in a "
        "training most of all, and is ahead once the right ones fit."
        if ahead
        else "So length alone does not explain it: what is left are batches of 256 and the smaller pictures of the "
        "world's first edition, on which InfoNCE itself is far ahead of here.",
    )


def listed(names: Sequence[str]) -> str:
    """Names that may have commas, in a sentence."""
    shown = [f"*{name}*" for name in names]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) if names else "nothing"


@fills("docs/fine-tuning/bias.md", "tutorial_words")
def tutorial_words() -> str:
    """What the tutorial's command gains and loses beyond its interval, and what becomes of the projection's gain."""
    result = read("finetune_tutorial")
    rows = [row for row in result.rows if "(the tutorial)" in row.method]
    own = {row.metric: row for row in rows}
    start = {row.metric: row for row in result.rows if row.method == "as shipped"}
    kinds = {kind: [row.metric for row in rows if verdict(row) == kind] for kind in ("better", "worse")}
    still = [row.metric for row in rows if verdict(row) not in kinds]
    group, plain = "worst group, projection", "zero-shot, projection"
    return paragraph(
        f"Beyond its interval it gains in {listed(kinds['better'])}, and loses in {listed(kinds['worse'])};",
        f"{listed(still)} {'does' if len(still) == 1 else 'do'} not clearly change." if still else "nothing stays.",
        f"Under a projection that is fitted anew for each model the worst group goes from {start[group].value:.3f} to",
        f"{own[group].value:.3f}, and accuracy from {start[plain].value:.3f} to {own[plain].value:.3f}.",
        *([] if result.sources else ["All this was measured with the model that shipped before this one."]),
    )


@fills("docs/fine-tuning/bias.md", "projection_words")
def projection_words() -> str:
    """What each rate does to the worst group, which trainings keep a projection's gain, the best and their cost."""
    if not measured("keep_projection"):
        return missing("python -m eval.experiments.run keep_projection")
    rows: dict[float, dict[str, dict[str, Measurement]]] = {}
    for row in read("keep_projection").rows:
        rows.setdefault(float(place_of(row)["lr"]), {}).setdefault(row.method, {})[row.metric] = row
    return "\n".join(_at_rate(lr, arms) for lr, arms in rows.items())


def _at_rate(lr: float, arms: dict[str, dict[str, Measurement]]) -> str:
    value = {arm: {metric: row.value for metric, row in own.items()} for arm, own in arms.items()}
    shipped, plain = value["as shipped"], value["fine-tuned"]
    none, before, after = ("worst group, none", "worst group, before", "worst group, after")
    trained = {arm: own[after] for arm, own in arms.items() if arm != "as shipped"}
    more = [arm for arm, row in trained.items() if row.interval[0] > shipped[after]]
    less = [arm for arm, row in trained.items() if row.interval[1] < shipped[after]]
    alone, under = (max(trained, key=lambda arm, metric=metric: value[arm][metric]) for metric in (none, after))
    return paragraph(
        f"**At a learning rate of {lr:g}** plain fine-tuning takes the worst group",
        f"from {shipped[none]:.3f} to {plain[none]:.3f} without a projection,",
        f"from {shipped[before]:.3f} to {plain[before]:.3f} under the one of before,",
        f"and from {shipped[after]:.3f} to {plain[after]:.3f} under one that is fitted anew.",
        f"Under the new one {listed(more)} {'ends' if len(more) < 2 else 'end'} above the model as shipped, beyond the",
        f"interval, and {listed(less)} below it.",
        f"Best without a projection is *{alone}* ({value[alone][none]:.3f}), best under a new one *{under}*",
        f"({value[under][after]:.3f}; accuracy {shipped['zero-shot, after']:.3f} as shipped and",
        f"{value[under]['zero-shot, after']:.3f}, species {shipped['species']:.3f} and {value[under]['species']:.3f}).",
    )
