"""Write the benefits of training with each loss for `docs/fine-tuning.md`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eval.tables import crossed, moved, place_of, read, span, table
from vldebias.losses.catalog import BUILT_IN
from vldebias.measure.rows import Measurement
from vldebias.report.table import verdict
from vldebias.utils.files import read_yaml

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
INFO_NCE, FILTERED, GCE, AUTO = "InfoNCE", "InfoNCE, filtered", "GCE q=0.7", "keep=auto"
ADVISED = "--preset heads --lr 1e-3 --epochs 10"
ACCURACY, FINE, RECALL = "zero_shot_accuracy", "species by means", "recall@10"
AT_AN_EDGE = (
    " † the best temperature or learning rate is the lowest or highest tried, so a better one may"
    " exist."
)


def edges(name: str) -> Callable[[Measurement], str]:
    """Return a function that marks a row whose chosen setting is an end point of its search."""
    experiment = read_yaml(EXPERIMENTS / f"{name}.yaml")
    method = experiment["method"]
    chosen = read(name).provenance[0].settings["chosen"]

    def mark(row: Measurement) -> str:
        # "InfoNCE, filtered" uses the settings of its loss.
        place = {**place_of(row), method: row.method.partition(", ")[0]}
        for search in experiment["tuning"]:
            tried = {name: values for name, values in search["tried"].items() if len(values) > 1}
            for choice in chosen:
                where = {column: choice.get(column) for column in search["columns"]}
                is_own = all(
                    where[column] in values for column, values in search["columns"].items()
                )
                if is_own and where.items() <= place.items():
                    ends = [choice[s] in (min(values), max(values)) for s, values in tried.items()]
                    return "†" if any(ends) else ""
        return ""

    return mark


def starred(row: Measurement) -> str:
    """Format a change, with an escaped star if it is significant."""
    assert row.change is not None
    is_beyond = verdict(row.change, row.better) in ("better", "worse")
    return f"{row.change[0]:+.3f}" + (r"\*" if is_beyond else "")


# ---- formulas


def formulas() -> str:
    """Write the formula and purpose of each loss."""
    lines = [["`--loss`", "loss per pair", "for"]]
    for loss in BUILT_IN:
        lines.append([f"`{loss.name}`", f"${loss.formula}$", loss.summary])
    return table(*lines)


# ---- what to run

WRONG = "{:.0%} wrong captions"


def found(name: str, method: str, **place: Any) -> Measurement:
    """Return the row of a method in a place."""
    return next(
        row
        for row in read(name).rows
        if row.method == method and place.items() <= place_of(row).items()
    )


def changes(name: str, method: str, column: str, *values: Any, **place: Any) -> str:
    """Write the changes from InfoNCE for some values of a column, with stars and edges."""
    mark = edges(name)
    rows = [found(name, method, **{"metric": ACCURACY, column: one, **place}) for one in values]
    return ", ".join(starred(row) + mark(row) for row in rows)


def choices() -> str:
    """Write what to run for each kind of pairs, with the gain, the cost and the data."""
    return table(
        ["you have (measured on)", "run", "gain and cost"],
        *_pretrained_choices(),
        *_choices_on_renders(),
        *_choices_from_random_weights(),
        note=(
            "All figures are changes: +0.02 is two points more. \\* beyond the 95% interval of the"
            " paired change. † the best temperature or learning rate is an end of those tried, so a"
            " better one may exist. From `fine_tuning.json`, `real_captions.json`,"
            " `every_loss.json` and `which_loss_scratch.json` in `eval/results`."
        ),
    )


def _tuned(data: str, arm: str, task: str, *texts: str) -> str:
    """Write the changes of pretrained heads with the advised flags, for some kinds of texts."""
    place = {"metric": RECALL, "recipe": ADVISED, "data": data, "task": task}
    return ", ".join(starred(found("fine_tuning", arm, texts=name, **place)) for name in texts)


def _pretrained_choices() -> list[list[str]]:
    """Write what to run with pretrained weights, and what `keep` gains."""
    kept = [
        row.change
        for row in read("fine_tuning").rows
        if row.task == f"from {INFO_NCE}, saved" and row.method == f"{AUTO}, saved" and row.change
    ]
    mean, lowest, better, worse = _summary(kept)
    return [
        [
            "pretrained weights, a domain that the model knows (Flickr8k)",
            "nothing; if you must train, pass `--val-split`",
            "[gain and cost in recall](#which-weights-are-saved)",
        ],
        [
            "pretrained weights, a new domain (catalogue titles)",
            f"`info_nce` with `{ADVISED}` and `--val-split`",
            "[gain in recall](#which-weights-are-saved)<br>cost: not measured on other domains",
        ],
        [
            "pretrained weights, most captions wrong (both)",
            "the same; `--set keep=auto` adds little",
            f"recall@10, with `keep=auto` instead of without: {mean} on average, {lowest} at worst;"
            f" clearly better in {better} and worse in {worse} of {len(kept)} settings<br>cost: the"
            " pretrained model scores all pairs",
        ],
    ]


def _summary(changes: Sequence[tuple[float, float, float]]) -> list[str]:
    """Format the mean and the lowest change, and how many are clearly positive and negative."""
    values = [change[0] for change in changes]
    better = sum(low > 0 for _, low, _ in changes)
    worse = sum(high < 0 for _, _, high in changes)
    return [f"{sum(values) / len(values):+.3f}", f"{min(values):+.3f}", f"{better}", f"{worse}"]


def saved() -> str:
    """Write the changes from the start at the end, half way and as saved, for all spoiled texts."""
    stages = (f"{INFO_NCE}, saved", INFO_NCE, f"{INFO_NCE}, half way")
    names = {"captions": "known", "titles": "new"}
    lines = [["domain: captions", "saved", "end", "half way"]]
    kinds = list(dict.fromkeys(place_of(row)["texts"] for row in read("fine_tuning").rows))
    for data, name in names.items():
        for texts in kinds:
            cells = [_tuned(data, stage, "from start", texts) for stage in stages]
            lines.append([f"{name}: {texts}", *cells])
    starts = [
        f"{found('fine_tuning', 'not trained', data=data, metric=RECALL).value:.3f} on the"
        f" {name.partition(' ')[0]} domain"
        for data, name in names.items()
    ]
    from_end = []
    from_start = []
    for row in read("fine_tuning").rows:
        if row.change is None or not row.method.endswith(", saved"):
            continue
        if row.task == f"from {row.method.partition(',')[0]}":
            from_end.append(row.change)
        elif row.task == "from start":
            from_start.append(row.change)
    by_caption = table(
        *lines,
        note=(
            "Change in recall@10 (caption to image) from the pretrained model, which has"
            f" {starts[0]} (Flickr8k) and {starts[1]} (catalogue titles). Heads trained with"
            f" `{ADVISED}`, means of 3 seeds. \\* beyond the 95% interval over seeds and"
            " photographs. Wrong captions belong to other photographs, to the most similar one, or"
            " to none (generic)."
        ),
    )
    rows = [["saved weights", "recall@10: mean, lowest change", "clearly better, worse"]]
    for base, over in {"pretrained model": from_start, "end of training": from_end}.items():
        mean, lowest, better, worse = _summary(over)
        rows.append([f"from the {base}", f"{mean}, {lowest}", f"{better}, {worse}"])
    in_all = table(
        *rows,
        note=(
            f"All {len(from_end)} settings, with other learning rates and `keep=0.8`, too. Both"
            " tables are from `eval/results/fine_tuning.json`."
        ),
    )
    return by_caption.rstrip("\n") + "\n" + in_all


def _choices_on_renders() -> list[list[str]]:
    wrong = [WRONG.format(share) for share in (0.2, 0.4, 0.6)]
    few = {"metric": ACCURACY, "data": "few classes"}
    trained, untrained = (found("every_loss", arm, **few) for arm in (GCE, "not trained"))
    hard = partial(changes, "every_loss", "hard negatives", "data")
    gce = partial(changes, "every_loss", GCE, "data")
    return [
        [
            "class names as captions, some wrong (synthetic images)",
            "`gce`",
            f"accuracy, instead of `info_nce`: {gce(*wrong)} with 20, 40 and 60% wrong<br>cost:"
            f" {gce('clean')} with correct captions, {gce('long tail')} if some classes are rare",
        ],
        [
            "many images of few classes (synthetic images)",
            "nothing: every loss makes the model worse, `gce` and `nuclr` the least",
            f"accuracy, `gce` instead of `info_nce`: {gce('few classes')}<br>cost, instead of no"
            f" training: {trained.value - untrained.value:+.3f}",
        ],
        [
            "captions coarser than the classes you need (synthetic images)",
            "`hard_negative` with `temperature=0.2`, `beta=0.5`, `below_floor=biased`",
            f"accuracy, instead of `info_nce`: {hard('coarse captions', metric=FINE)}<br>cost:"
            f" {hard('clean')} with correct captions, {hard('long tail')} if some classes are rare",
        ],
    ]


def _choices_from_random_weights() -> list[list[str]]:
    scratch = partial(changes, "which_loss_scratch")
    recall = ", ".join(
        starred(found("real_captions", FILTERED, share=share, task="losses", metric=RECALL))
        for share in (0.0, 0.2, 0.4)
    )
    return [
        [
            "random weights, class names, 40% wrong (synthetic images)",
            "`gce`",
            f"accuracy, instead of `info_nce`: {scratch(GCE, 'share', 0.4)}<br>cost:"
            f" {scratch(GCE, 'share', 0.0)} with correct captions",
        ],
        [
            "random weights, other captions (Flickr8k)",
            "`info_nce` twice, the second time on the pairs that the first run scores best",
            f"recall@10, instead of one run: {recall} with 0, 20 and 40% wrong<br>cost: a second"
            " run; on synthetic images with correct class names,"
            f" {scratch(FILTERED, 'share', 0.0)} accuracy",
        ],
    ]


# ---- other data


def other_data() -> str:
    """Write each loss's score on graphs, sentences and frames."""

    def cell(row: Measurement) -> str:
        change = moved(row)
        return span(row) + (f", change {change}" if change else "")

    rows = [row for row in read("other_data").rows if row.task in ("graphs", "sentences", "frames")]
    columns = {"accuracy": "MUTAG, accuracy", "CR": "CR, accuracy", "MR": "MR, accuracy"}
    return crossed(
        rows,
        {"loss": lambda row: row.method},
        {**columns, "R2": "CartPole, R2"},
        line=lambda row: row.method,
        cell=cell,
        note=(
            f"Mean of {rows[0].n['seeds']} seeds with its 95% interval over seeds, and the change"
            " from InfoNCE on the same seed. From `eval/results/other_data.json`."
        ),
    )
