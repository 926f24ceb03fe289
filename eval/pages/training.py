"""Write the benefits of training with each loss for `docs/fine-tuning.md`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eval.pages.sources import reports_of_losses
from eval.tables import crossed, half, moved, place_of, read, span, table
from vldebias.losses.catalog import BUILT_IN
from vldebias.measure.rows import Measurement
from vldebias.report.result import Result
from vldebias.report.table import verdict
from vldebias.utils.files import read_yaml

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
BASE, FILTERED, GCE, AUTO = "InfoNCE", "InfoNCE, filtered", "GCE q=0.7", "keep=auto"
ADVISED = "--preset heads --lr 1e-3 --epochs 10"
ACCURACY, FINE, RECALL = "zero_shot_accuracy", "species by means", "recall@10"
RECALL_AT_1 = "recall@1 text->image"
Arms = dict[str, dict[float, Measurement]]  # arm -> share -> row
CHANGES = (
    "InfoNCE: accuracy; others: change from InfoNCE on the same seeds and images, \\* beyond its"
    " 95% interval. {} seeds, 2,000 held-out synthetic images; intervals are not corrected for the"
    " number of losses."
)


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
        # "InfoNCE, filtered" and "GCE q=0.7, WiSE-FT" use the settings of their loss.
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


def accuracy_or_change(row: Measurement) -> str:
    """Format the accuracy of InfoNCE, or the change from InfoNCE for other losses."""
    return f"{row.value:.3f}" if row.method == BASE else starred(row)


# ---- declarations

# Batch columns that losses use, and their names in the table.
COLUMNS = {"": "", "index": "row numbers", "labels": "classes", "captions": "equal captions"}


def declared() -> str:
    """Write the settings of each loss."""
    lines = [["`--loss`", "settings and their defaults", "also needs"]]
    for loss in BUILT_IN:
        settings = []
        for name, field in loss.settings.model_fields.items():
            default = field.get_default()
            settings.append(f"`{name}`" if default is None else f"`{name}={default}`")
        lines.append([f"`{loss.name}`", ", ".join(settings), COLUMNS[loss.reads]])
    return table(*lines)


def formulas() -> str:
    """Write the formula, purpose and source of each loss."""
    lines = [["`--loss`", "function", "loss per pair", "for", "source"]]
    for loss in BUILT_IN:
        name = str(loss.module).partition(":")[2] if loss.has_state else loss.name
        lines.append(
            [f"`{loss.name}`", f"`{name}`", f"${loss.formula}$", loss.summary, loss.source]
        )
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
        ["you have", "run", "gain over InfoNCE", "cost", "measured on"],
        *_pretrained_choices(),
        *_choices_on_renders(),
        *_choices_from_random_weights(),
        note=(
            f"\\* beyond the 95% interval of the paired change.{AT_AN_EDGE} From"
            " `fine_tuning.json`, `real_captions.json`, `every_loss.json` and"
            " `which_loss_scratch.json` in `eval/results`."
        ),
    )


def _pretrained_choices() -> list[list[str]]:
    """Write what pretrained heads gain by training on a known or a new domain, and by `keep`."""
    place = {"metric": RECALL, "recipe": ADVISED}
    shares = (0.0, 0.2, 0.4)

    def changes_of(data: str, arm: str, task: str) -> str:
        rows = [
            found("fine_tuning", arm, data=data, share=share, task=task, **place)
            for share in shares
        ]
        return ", ".join(starred(row) for row in rows)

    known, new = (changes_of(data, AUTO, "from InfoNCE") for data in ("captions", "titles"))
    known_cost = changes_of("captions", f"{AUTO}, chosen", "from start")
    new_gain = changes_of("titles", AUTO, "from start")
    wrong = "with 0, 20 and 40% wrong"
    return [
        [
            "pretrained weights, a domain that the model knows",
            "nothing; if you must train, `--set keep=auto`, and the better of the end and half way",
            f"recall@10: {known} {wrong}",
            f"{known_cost} from the pretrained model",
            "Flickr8k",
        ],
        [
            "pretrained weights, a new domain",
            f"`info_nce` with `{ADVISED}` and `--set keep=auto`",
            f"recall@10: {new} {wrong}",
            f"none: {new_gain} from the pretrained model",
            "catalogue titles",
        ],
    ]


def _choices_on_renders() -> list[list[str]]:
    wrong = [WRONG.format(share) for share in (0.2, 0.4, 0.6)]
    few = {"metric": ACCURACY, "data": "few classes"}
    trained, untrained = (found("every_loss", arm, **few) for arm in (GCE, "not trained"))
    hard = partial(changes, "every_loss", "hard negatives", "data")
    gce = partial(changes, "every_loss", GCE, "data")
    return [
        [
            "captions that are class names, some of them wrong",
            "`gce`",
            f"accuracy: {gce(*wrong)} with 20, 40 and 60% wrong",
            f"{gce('clean')} with correct captions, {gce('long tail')} with a long tail",
            "synthetic images",
        ],
        [
            "many images of few classes",
            "nothing: every loss ends below the pretrained model; if you must train, `gce`",
            f"accuracy: {gce('few classes')}",
            f"{trained.value - untrained.value:+.3f} from the pretrained model",
            "synthetic images",
        ],
        [
            "captions coarser than the classes you need",
            "`hard_negative` with `temperature=0.2`, `beta=0.5`, `below_floor=biased`",
            f"accuracy: {hard('coarse captions', metric=FINE)}",
            f"{hard('clean')} with correct captions, {hard('long tail')} with a long tail",
            "synthetic images",
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
            "random weights, class names, 40% of them wrong",
            "`gce`",
            f"accuracy: {scratch(GCE, 'share', 0.4)}",
            f"{scratch(GCE, 'share', 0.0)} with correct captions",
            "synthetic images",
        ],
        [
            "random weights, other captions",
            "two runs of `info_nce`, the second on the best pairs of the first",
            f"recall@10: {recall} with 0, 20 and 40% wrong",
            "a second run; on synthetic images with correct captions,"
            f" {scratch(FILTERED, 'share', 0.0)} accuracy",
            "Flickr8k",
        ],
    ]


# ---- verdicts

# The experiment and kind of noise for each situation.
SITUATIONS = {
    "pretrained weights; class names swapped between pairs": ("which_loss_heads", "mixture"),
    "the same; classes confused with a neighbour": ("which_loss_heads", "class"),
    "the same; images that show little of the subject": ("which_loss_heads", "crop"),
    "random weights; class names swapped between pairs": ("which_loss_scratch", "mixture"),
    "images alone, random weights; wrong classes": ("noisy_digits", ""),
}
ADVICE = {
    BASE: "InfoNCE; no loss is ahead of it beyond its interval",
    "not trained": "do not train",
}


def by_share(result: Result, noise: str) -> Arms:
    """Return the rows of an experiment with a kind of noise, by arm and share of wrong pairs."""
    found: Arms = {}
    for row in result.rows:
        place = place_of(row)
        if place.get("noise", "") == noise:
            share = place["share"] if "share" in place else place["eta"]
            found.setdefault(row.method, {})[float(share)] = row
    return found


def best(rows: Arms, shares: Sequence[float]) -> str:
    """Return the arm with the highest mean over the shares, or InfoNCE if none is clearly better.

    An untrained model is one of the arms. If it is the best, training does not help.
    """
    arm = max(rows, key=lambda arm: sum(rows[arm][share].value for share in shares))
    own = (rows[arm][share] for share in shares)
    is_ahead = any(verdict(row.change, row.better) == "better" for row in own)
    return arm if is_ahead else BASE


def verdicts() -> str:
    """Write the verdict for each situation, with changes relative to InfoNCE by share."""
    lines = [["you have", "do", "InfoNCE reaches", "gain over InfoNCE", "based on"]]
    for situation, (name, noise) in SITUATIONS.items():
        rows = by_share(read(name), noise)
        # Settings were chosen with 40% wrong, which says nothing about correct captions.
        _, *shares = sorted(rows[BASE])
        seeds = rows[BASE][shares[0]].n["seeds"]
        rests = f"{seeds} seeds, {len(rows)} variants, `{name}.json`"
        arm = best(rows, shares)
        reached = [f"{rows[BASE][share].value:.3f} at {share:g}" for share in shares]
        ahead = "" if arm == BASE else ", ".join(starred(rows[arm][share]) for share in shares)
        edge = edges(name)(rows[arm][shares[0]])
        lines.append([situation, ADVICE.get(arm, arm) + edge, ", ".join(reached), ahead, rests])
    note = (
        "The verdict is the loss with the highest mean over the shares of wrong pairs, if it is"
        " ahead of InfoNCE beyond its interval (*) at one of them. Intervals are over seeds and"
        " held-out images, not corrected for the number of losses. Settings were chosen with 40%"
        f" of the pairs wrong.{AT_AN_EDGE}"
    )
    return table(*lines, note=note)


# ---- tables of losses

COST = "ms a step"


def every_loss() -> str:
    """Write each loss's cost and its change relative to InfoNCE on each kind of data."""

    def column(row: Measurement) -> str:
        data = place_of(row)["data"]
        if row.metric == COST and data == "clean":
            return COST
        accuracy = FINE if data == "coarse captions" else ACCURACY
        return data if row.metric == accuracy else "not shown"

    edge = edges("every_loss")

    def cell(row: Measurement) -> str:
        return f"{row.value:.1f}" if row.metric == COST else accuracy_or_change(row) + edge(row)

    written = crossed(
        (row for row in read("every_loss").rows if row.task == "losses"),
        {"loss": lambda row: row.method},
        {
            "clean": "clean",
            **{f"{share}% wrong captions": f"{share}% wrong" for share in (20, 40, 60)},
            "few classes": "few classes",
            "long tail": "long tail",
            "coarse captions": "coarse captions",
            COST: "ms per step",
        },
        line=lambda row: row.method,
        column=column,
        cell=cell,
        note=(
            f"{CHANGES.format('Five')}{AT_AN_EDGE} From `eval/results/every_loss.json`. The authors"
            " report points over InfoNCE (SimCLR or CLIP), from random weights; SogCLR and SigLIP"
            " as measured by the authors of NUCLR. By others: SSA-CLR, Table 1 (CIFAR-10), and"
            " NUCLR, Table 1 (Flickr30k)."
        ),
    )
    return with_reports(written)


def with_reports(written: str) -> str:
    """Add a column with the results that the authors report to a table of losses."""
    lines = []
    for line in written.splitlines():
        if line.startswith("| "):
            name = line.split(" | ")[0].removeprefix("| ")
            starts = {"loss": "the authors report", "---": "---"}
            line += f" {starts.get(name) or reports_of_losses().get(name, '')} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def batch_sizes() -> str:
    """Write each loss's accuracy after fine-tuning at each batch size."""
    rows = read("batch_sizes").rows
    batches = sorted({place_of(row)["batch"] for row in rows})

    def cell(row: Measurement) -> str:
        return f"{row.value:.3f}" + (r"\*" if verdict(row.change, row.better) == "worse" else "")

    return crossed(
        rows,
        {"loss": lambda row: row.method},
        {batch: f"{batch:,}" for batch in batches},
        line=lambda row: row.method,
        column=lambda row: place_of(row)["batch"],
        cell=cell,
        note=(
            "Zero-shot accuracy on 2,000 held-out synthetic images, mean of three seeds; \\* below"
            " InfoNCE at the same batch size beyond the 95% interval of the paired change. From"
            " `eval/results/batch_sizes.json`."
        ),
    )


def from_scratch() -> str:
    """Write each loss's change relative to InfoNCE after training from scratch."""
    rows = [
        row for row in read("which_loss_scratch").rows if place_of(row).get("noise") == "mixture"
    ]
    shares = sorted({place_of(row)["share"] for row in rows})
    edge = edges("which_loss_scratch")
    return crossed(
        rows,
        {"loss": lambda row: row.method},
        {share: f"{share:.0%} wrong" for share in shares},
        line=lambda row: row.method,
        column=lambda row: place_of(row)["share"],
        cell=lambda row: accuracy_or_change(row) + edge(row),
        note=(
            f"{CHANGES.format('Three')} Temperatures were chosen with 40% wrong.{AT_AN_EDGE} From"
            " `eval/results/which_loss_scratch.json`."
        ),
    )


def popularity() -> str:
    """Compare learned popularity with SogCLR after long training."""
    metrics = {ACCURACY: "accuracy", "worst group": "worst group", RECALL_AT_1: "recall@1"}
    return crossed(
        read("popularity").rows,
        {"data": lambda row: place_of(row)["data"], "loss": lambda row: row.method},
        metrics,
        cell=lambda row: moved(row) or span(row),
        note=(
            "SogCLR's row shows the value, the others the change from it on the same seeds, with"
            " 95% intervals. Five seeds, 1,500 steps. From `eval/results/popularity.json`."
        ),
    )


def other_data() -> str:
    """Write each loss's score on graphs, sentences and frames."""

    def cell(row: Measurement) -> str:
        change = moved(row)
        return span(row) + (f", change {change}" if change else "")

    return crossed(
        read("other_data").rows,
        {"loss": lambda row: row.method},
        {
            "graphs": "MUTAG, accuracy",
            "CR": "CR, accuracy",
            "MR": "MR, accuracy",
            "frames": "CartPole, R2",
        },
        line=lambda row: row.method,
        column=lambda row: row.subset or row.task,
        cell=cell,
        note=(
            "Mean of five seeds with its 95% interval over seeds, and the change from InfoNCE on"
            " the same seed. From `eval/results/other_data.json`."
        ),
    )


def real_captions() -> str:
    """Write the results on real captions, with one line per metric and loss."""
    rows = [row for row in read("real_captions").rows if row.task == "losses"]
    edge = edges("real_captions")
    shares = sorted({place_of(row)["share"] for row in rows})
    metrics = list(dict.fromkeys(row.metric for row in rows))
    order = {metric: place for place, metric in enumerate(metrics)}
    return crossed(
        sorted(rows, key=lambda row: order[row.metric]),
        {"on held-out photographs": lambda row: row.metric, "loss": lambda row: row.method},
        {share: f"{share:.0%} wrong" for share in shares},
        line=lambda row: (row.metric, row.method),
        column=lambda row: place_of(row)["share"],
        cell=lambda row: half(row).replace("*", r"\*") + edge(row),
        note=(
            "Mean of three seeds ± half of the 95% interval, 2,020 held-out photographs; \\*"
            f" differs from {BASE} beyond the interval of the paired change. The temperature was"
            f" chosen for each loss and share.{AT_AN_EDGE} From `eval/results/real_captions.json`."
        ),
    )


def fine_tuned() -> str:
    """Write the change in recall from pretrained heads, by command, arm and share."""
    arms = (BASE, "keep=0.8", AUTO, f"{AUTO}, chosen")
    rows = [
        row
        for row in read("fine_tuning").rows
        if place_of(row)["task"] == "from start" and row.method in arms
    ]
    starts = {
        data: found("fine_tuning", "not trained", task="from start", data=data).value
        for data in ("captions", "titles")
    }
    order = {arm: place for place, arm in enumerate(arms)}
    rows.sort(key=lambda row: (*_command(row), order[row.method]))
    return crossed(
        rows,
        {
            "held-out": lambda row: place_of(row)["data"],
            "flags": lambda row: f"`{place_of(row)['recipe']}`",
            "variant": lambda row: row.method,
        },
        {share: f"{share:.0%} wrong" for share in (0.0, 0.2, 0.4)},
        line=lambda row: (*_command(row), row.method),
        column=lambda row: place_of(row)["share"],
        cell=moved,
        note=(
            "Change of recall@10 from the pretrained heads, which reach"
            f" {starts['captions']:.3f} on 707 photographs of Flickr8k (captions) and"
            f" {starts['titles']:.3f} on 564 photographs with catalogue titles (titles); three"
            " seeds, 95% intervals over seeds and photographs. chosen: the end or half way,"
            " whichever has the higher recall on validation photographs. From"
            " `eval/results/fine_tuning.json`."
        ),
    )


def _command(row: Measurement) -> tuple[str, int]:
    """Return the data and the position of a row's command."""
    place = place_of(row)
    recipes = read_yaml(EXPERIMENTS / "fine_tuning.yaml")["tables"][0]["columns"]["recipe"]
    return place["data"], recipes.index(place["recipe"])
