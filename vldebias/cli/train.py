"""`vldebias train`: fine-tune an image-text model, or score the training pairs with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias.cli.checks import check_sets
from vldebias.cli.common import (
    coloured,
    echo,
    err,
    out,
    parse_pairs,
    print_grid,
    print_json,
    print_list,
    print_message,
)
from vldebias.cli.flags import Json, flags_of_fields, with_flags
from vldebias.data.catalog import trained_data
from vldebias.errors import InvalidInputError
from vldebias.losses.catalog import ADVICE, LOSSES
from vldebias.miniature.words import WORLDS
from vldebias.training.settings import (
    GROUPS,
    PRESETS,
    TrainSettings,
    load_settings,
    losses_with,
)
from vldebias.utils.names import check_model

if TYPE_CHECKING:
    from vldebias.data.layouts import Layout
    from vldebias.report.conclusion import Conclusion

FLAGS = (
    "data",
    "data_root",
    "image",
    "caption",
    "image_root",
    "split",
    "val_split",
    "label",
    "model",
    "pretrained",
    "tune",
    "loss",
    "lr",
    "epochs",
    "steps",
    "batch_size",
)
"""Settings that have their own flag. All others are set with --set."""
_MOST_GROUPS = 10  # maximum number of groups whose share of kept pairs is printed
NAMES_OF_FLAGS = {"image": "--image-column", "caption": "--caption-column"}


def _list_settings(is_requested: bool) -> None:
    """Print every setting with its default, and exit."""
    if not is_requested:
        return
    # Print one table per group of settings, as in `vldebias train --help`.
    for group, kind in GROUPS.items():
        rows = []
        # List settings shared by all losses before those for individual losses.
        names = sorted(kind.model_fields, key=lambda name: bool(losses_with(name)))
        for name in names:
            field = kind.model_fields[name]
            default = field.get_default(call_default_factory=True)
            readers = losses_with(name)
            text = f"{', '.join(readers)}: " if readers else ""
            text += field.description or ""
            rows.append((name, "not set" if default is None else str(default), text))
        print_grid((group, "default", "what it does"), rows)
    raise typer.Exit


@with_flags(flags_of_fields(GROUPS, only=FLAGS, names=NAMES_OF_FLAGS))
def train(  # noqa: PLR0913  (each is an option of the command)
    preset: Annotated[
        str | None,
        typer.Option(
            help=(
                f"Preset to start from: {', '.join(PRESETS)}. Other flags override its settings;"
                " --show prints the result."
            )
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with settings. Flags and --set override it.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Any other setting, as in --set ema=0.999 --set group_dro=place."
        ),
    ] = None,
    folder: Annotated[
        Path,
        typer.Option("--out", help="Output folder. Run again to continue after an interruption."),
    ] = Path("vldebias-train"),
    pairs: Annotated[
        bool,
        typer.Option(
            "--pairs",
            help="Score every pair instead of training, and list the most suspicious first.",
        ),
    ] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Train on the CPU.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the settings as YAML, and exit.")
    ] = False,
    as_json: Json = False,
    settings_too: Annotated[
        bool,
        typer.Option(
            "--settings",
            is_eager=True,
            callback=_list_settings,
            help="List every setting, and exit.",
        ),
    ] = False,
    **flags: Any,
) -> None:
    """Fine-tune an image-text model on captions, some of which may be wrong.

    Writes the model, the metrics for every step, and a score for every pair. Low scores suggest
    wrong captions. To use several GPUs, run `accelerate launch -m vldebias train ...`. To use
    several CPU processes, run `torchrun --nproc_per_node 2 -m vldebias train ...`.

    Examples:
      vldebias train --preset heads --data captions/ --model ViT-B-32 \\
          --pretrained openai --val-split val
      vldebias train --data pairs.csv --image-column filepath \\
          --caption-column title --pairs
      vldebias train --data 'shards/{00000..00012}.tar' --model ViT-B-32 \\
          --pretrained openai
      vldebias train --data birds --set caption_noise=0.4 --epochs 3 --lr 1e-4 \\
          --set temperature=0.2
      vldebias train --data waterbirds --data-root DIR --model ViT-B-32 \\
          --pretrained openai --tune heads --set group_dro=label,place
      vldebias train --config run.yaml --lr 3e-5 --out second
      vldebias train --data portraits --label hair --epochs 2 \\
          --set debias=gender --set group=gender
      vldebias train --config run.yaml --show
    """
    pairs_of_set = parse_pairs(assignments or (), "--set", "ema=0.999")
    # Setting names contain underscores, but hyphens are also accepted, as in flags.
    values = {name.replace("-", "_"): value for name, value in pairs_of_set.items()}
    # Flags override --set.
    values |= flags
    if preset is not None:
        values["preset"] = preset
    settings = load_settings(config, **values)
    if show:
        echo(settings.as_yaml(), end="")
        return
    check_model(settings.model, settings.pretrained)
    check_sets([settings.debias])
    _check_data(settings, is_listing=pairs)
    outcome = _run(settings, folder, is_listing=pairs, is_on_cpu=cpu)
    if outcome is None:  # not the main process
        return
    if as_json:
        print_json(outcome)
    else:
        _print(outcome, folder, is_of_heads=settings.tune == "heads")


def losses(as_json: Json = False) -> None:
    """List the losses for `vldebias train`, with their purpose, settings, inputs and sources.

    These are the values of --loss. Losses from other packages (entry points "vldebias.losses") are
    included.

    Examples:
      vldebias losses
      vldebias losses --json
    """
    facts = []
    rows = []
    for name, loss in LOSSES.items():
        defaults = {
            setting: field.get_default() for setting, field in loss.settings.model_fields.items()
        }
        shown = {key: getattr(loss, key) for key in ("title", "summary", "source", "reads")}
        facts.append({"name": name, "settings": defaults, **shown})
        settings = ", ".join(
            setting if default is None else f"{setting}={default}"
            for setting, default in defaults.items()
        )
        rows.append((name, loss.reads, settings, f"{loss.summary} ({loss.source})"))
    print_list(("name", "reads", "settings", "for"), rows, facts, as_json=as_json)
    if not as_json:
        print_message(ADVICE)


def _check_data(settings: TrainSettings, *, is_listing: bool) -> None:
    """Check that the data exists, has captions and fills a batch, before importing libraries.

    Args:
        settings: the training settings.
        is_listing: whether pairs are only scored, which does not require a full batch.
    """
    from vldebias.data.layouts import find_layout, refuse_absent_images, refuse_unreachable

    for data in dict.fromkeys((settings.data, settings.val_data or settings.data)):
        data_set = trained_data(data)
        if data_set is not None:
            data_set.find_root(settings.data_root)
        if data_set is not None or data in WORLDS:
            continue
        layout = find_layout(
            data,
            image=settings.image,
            caption=settings.caption,
            separator=settings.separator,
            encoding=settings.encoding,
            reads_captions=settings.reads_captions,
        )
        if layout.kind == "datasets":
            refuse_unreachable(data)
        refuse_absent_images(
            layout, images=settings.image_root, allow_outside=settings.allow_outside
        )
        if data == settings.data and not settings.streaming and not is_listing:
            _refuse_less_than_a_batch(settings, layout)


def _refuse_less_than_a_batch(settings: TrainSettings, layout: Layout) -> None:
    """Raise an error if the data contains fewer images than one batch across all processes."""
    # This variable is set by torchrun and accelerate, but not for a single process.
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    batch = settings.batch_size * processes
    is_known = (layout.kind == "table" and layout.is_complete) or layout.kind == "pairs"
    images = set(layout.images if layout.kind == "table" else layout.files)
    if is_known and len(images) < batch:
        raise InvalidInputError(
            f"{settings.data}: got {len(images)} images, but one batch contains {batch}"
            f" ({settings.batch_size} per process, {processes} processes); lower --batch-size or"
            " add data"
        )


def _run(
    settings: TrainSettings, folder: Path, *, is_listing: bool, is_on_cpu: bool
) -> dict[str, Any] | None:
    """Train or score the pairs, and explain how to continue after an interruption.

    Returns:
        The measurements, or None in processes other than the main one.
    """
    from vldebias.training.run import list_pairs, steps_done, train_model
    from vldebias.utils.progress import SILENT, Progress

    # Show progress only in the main process. RANK is set by torchrun and accelerate, but not for a
    # single process.
    progress = SILENT if int(os.environ.get("RANK", "0")) else Progress(err())
    work = list_pairs if is_listing else train_model
    try:
        return work(settings, folder, cpu=is_on_cpu, progress=progress)
    except KeyboardInterrupt as interrupt:
        done, steps = steps_done(folder)
        # Nothing is saved if a run is interrupted while loading, or twice before a step finishes.
        start_over = "to start over, since nothing was saved"
        continues = f"to continue after step {done} of {steps}" if done else start_over
        print_message(f"run the same command {continues}")
        # By convention, the exit code is 130 after Ctrl-C and 143 after SIGTERM.
        raise typer.Exit(128 + next(iter(interrupt.args), signal.SIGINT)) from None


def _print(outcome: dict[str, Any], folder: Path, *, is_of_heads: bool) -> None:
    from vldebias.report.conclusion import Conclusion
    from vldebias.report.table import number
    from vldebias.report.text import wrapped
    from vldebias.training.changes import counted, leading

    conclusions = [Conclusion(**facts) for facts in outcome.get("conclusions", ())]
    # Print how many scores got better or worse, followed by the main scores.
    sentences = [counted(conclusions)] if conclusions else []
    sentences += [conclusion.sentence for conclusion in leading(conclusions)]
    for sentence in sentences:
        if out().is_terminal:
            lines = wrapped(sentence, min(out().width, 100))
            out().print(coloured("\n".join(lines)), soft_wrap=True)
        else:
            echo(f"# {sentence}")
    _print_scores(outcome, conclusions)
    # If the main score got worse, a warning was already printed.
    is_warned = outcome.get("below_start") is not None
    if not is_warned and any(conclusion.verdict == "worse" for conclusion in conclusions):
        print_message(
            "if a score that got worse matters to you, keep the original model or change it less,"
            f" with a lower --lr{'' if is_of_heads else ', --tune heads'} or fewer steps"
        )
    _print_kept(outcome)
    if outcome["wrong_pairs"] is not None:
        area = outcome["wrong_pairs"]["auroc"]
        print_message(
            "wrong captions have lower scores: AUROC"
            f" {number(area['value'], area['low'], area['high'])}"
        )
    for name, path in outcome["files"].items():
        print_message(f"{name}: {folder / path}")


def _print_kept(outcome: dict[str, Any]) -> None:
    """Print the share of each group's pairs that count in training, if `keep` is set."""
    from vldebias.report.table import moved

    rows = []
    kept = sorted(outcome.get("kept", ()), key=lambda group: group["change"][0])
    if len(kept) > _MOST_GROUPS:
        print_message(
            f"of {len(kept)} groups, the {_MOST_GROUPS} that lose most pairs; run.json has all"
        )
    for group in kept[:_MOST_GROUPS]:
        low, high = group["interval"]
        rows.append(
            (
                f"{group['column']} = {group['value']}",
                f"{group['n']:,}",
                f"{group['share']:.2f} [{low:.2f}, {high:.2f}]",
                moved(tuple(group["change"])),
            )
        )
    if rows:
        print_grid(("group", "pairs", "share kept, 95%", "change from all others"), rows)


def _print_scores(outcome: dict[str, Any], conclusions: list[Conclusion]) -> None:
    """Print each held-out score at each stage, with its change, interval and verdict.

    Cells for scores that were not measured at a stage are empty.
    """
    from vldebias.report.table import form_of_figures, moved
    from vldebias.training.changes import TITLES

    stages = {"before": outcome.get("before", {}), "after": outcome.get("after", {})}
    checkpoints = outcome.get("checkpoints")
    if checkpoints is not None:
        # The saved checkpoint has the scores after training.
        del stages["after"]
        for name, scores in (("end", checkpoints["end"]), ("half way", checkpoints["halfway"])):
            stages[f"{name} (saved)" if name == checkpoints["saved"] else name] = scores
    stages["debiased"] = outcome.get("debiased", {})
    stages = {stage: scores for stage, scores in stages.items() if scores}
    conclusion_of_score = {conclusion.metric: conclusion for conclusion in conclusions}
    rows = []
    for name in outcome.get("after", {}):
        cells = [TITLES.get(name, name)]
        conclusion = conclusion_of_score.get(name)
        form = ".3f"
        outcome_cells = ["", ""]
        if conclusion is not None:
            form = form_of_figures(conclusion.after, conclusion.change)
            outcome_cells = [moved(conclusion.change), conclusion.verdict]
        for scores in stages.values():
            value = scores.get(name)
            cells.append("" if value is None else f"{value:{form}}")
        rows.append([*cells, *outcome_cells])
    if rows:
        print_grid(("score on held-out data", *stages, "change, 95%", "verdict"), rows)
