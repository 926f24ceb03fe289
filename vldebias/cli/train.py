"""`vldebias train`: fine-tune an image-text model; `--pairs` lists the pairs that do not fit,
without training."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias.cli.checks import check_model, check_sets
from vldebias.cli.common import (
    coloured,
    echo,
    err,
    out,
    parse_pairs,
    print_grid,
    print_json,
    print_list,
    say,
)
from vldebias.cli.flags import Json, flags_of_fields, with_flags
from vldebias.data.catalog import trained_data
from vldebias.errors import InvalidInputError
from vldebias.losses.catalog import LOSSES
from vldebias.miniature.words import WORLDS
from vldebias.training.settings import (
    GROUPS,
    PRESETS,
    TrainSettings,
    load_settings,
    losses_with,
)

if TYPE_CHECKING:
    from vldebias.data.layouts import Layout
    from vldebias.report.conclusion import Conclusion

FLAGS = (
    "data",
    "data_root",
    "image",
    "caption",
    "separator",
    "encoding",
    "image_root",
    "split",
    "val_split",
    "label",
    "model",
    "pretrained",
    "tune",
    "loss",
    "temperature",
    "lr",
    "epochs",
    "steps",
    "batch_size",
    "debias",
)
"""Settings that have a flag of their own; --set gives the others."""
NAMES_OF_FLAGS = {"image": "--image-column", "caption": "--caption-column"}


def _list_settings(is_asked: bool) -> None:
    """Print every setting with its default, and exit."""
    if not is_asked:
        return
    # A panel for each part of the settings, as `vldebias train --help` has them.
    for group, kind in GROUPS.items():
        rows = []
        # What every loss reads comes before the settings of single losses.
        names = sorted(kind.model_fields, key=lambda name: bool(losses_with(name)))
        for name in names:
            field = kind.model_fields[name]
            default = field.get_default(call_default_factory=True)
            if default is None:
                default = "not set"
            text = field.description or ""
            readers = losses_with(name)
            if readers:
                text = f"{', '.join(readers)}: {text}"
            rows.append((name, str(default), text))
        print_grid((group, "default", "what it does"), rows)
    raise typer.Exit


@with_flags(flags_of_fields(GROUPS, only=FLAGS, names=NAMES_OF_FLAGS))
def train(  # noqa: PLR0913  (each is an option of the command)
    preset: Annotated[
        str | None,
        typer.Option(
            help=(
                f"Settings to begin with: {', '.join(PRESETS)}. Other flags override them; --show"
                " prints them."
            )
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings. Flags and --set override it.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting: --set ema=0.999 --set group_dro=place."),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--out", help="Folder of the run. An interrupted run continues.")
    ] = Path("vldebias-train"),
    pairs: Annotated[
        bool,
        typer.Option(
            "--pairs", help="Do not train: score every pair by the model, most suspicious first."
        ),
    ] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Stay on the CPU.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the settings as a YAML file, and stop.")
    ] = False,
    as_json: Json = False,
    settings_too: Annotated[
        bool,
        typer.Option(
            "--settings",
            is_eager=True,
            callback=_list_settings,
            help="List every setting, and stop.",
        ),
    ] = False,
    **flags: Any,
) -> None:
    """Fine-tune an image-text model on captions of which some are wrong.

    Writes the model, the metrics of every step, and the score of every pair: look at the lowest
    first. On several GPUs start it with `accelerate launch -m vldebias train ...`, on several CPU
    processes with `torchrun --nproc_per_node 2 -m vldebias train ...`.

    Examples:
      vldebias train --preset heads --data captions/ --model ViT-B-32 \\
          --pretrained openai --val-split val
      vldebias train --data pairs.csv --image-column filepath \\
          --caption-column title --pairs
      vldebias train --data 'shards/{00000..00012}.tar' --model ViT-B-32 \\
          --pretrained openai
      vldebias train --data birds --set caption_noise=0.4 --epochs 3 --lr 1e-4 \\
          --temperature 0.2
      vldebias train --data waterbirds --data-root DIR --model ViT-B-32 \\
          --pretrained openai --tune heads --set group_dro=label,place
      vldebias train --config run.yaml --lr 3e-5 --out second
      vldebias train --data portraits --label hair --debias gender --epochs 2 \\
          --set group=gender
      vldebias train --config run.yaml --show
    """
    values: dict[str, Any] = {}
    for name, value in parse_pairs(assignments or (), "--set", "ema=0.999").items():
        # Settings have underscores; flags, which people mix them up with, have hyphens.
        values[name.replace("-", "_")] = value
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
    if outcome is None:  # not the first of several processes
        return
    if as_json:
        print_json(outcome)
    else:
        _print(outcome, folder)


def losses(as_json: Json = False) -> None:
    """List the losses that `vldebias train --loss` takes: what each is for, its settings, what it
    reads, and where it comes from.

    Losses of other packages (entry points "vldebias.losses") are listed too.

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
        entry: dict[str, Any] = {"name": name, "settings": defaults}
        for key in ("title", "summary", "source", "reads"):
            entry[key] = getattr(loss, key)
        facts.append(entry)
        settings = ", ".join(
            setting if default is None else f"{setting}={default}"
            for setting, default in defaults.items()
        )
        rows.append((name, loss.reads, settings, f"{loss.summary} ({loss.source})"))
    print_list(("name", "reads", "settings", "for"), rows, facts, as_json=as_json)


def _check_data(settings: TrainSettings, *, is_listing: bool) -> None:
    """Refuse data that is known to be absent, without captions or too small for a batch, before a
    library is imported.

    Args:
        settings: of the training.
        is_listing: pairs are listed, which needs no batch.
    """
    from vldebias.data.layouts import find_layout, refuse_absent_images

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
        refuse_absent_images(
            layout, images=settings.image_root, allow_outside=settings.allow_outside
        )
        if data == settings.data and not settings.streaming and not is_listing:
            _refuse_less_than_a_batch(settings, layout)


def _refuse_less_than_a_batch(settings: TrainSettings, layout: Layout) -> None:
    """Refuse a table, or a folder of images and texts, with fewer images than a joint batch."""
    # torchrun and accelerate set it; a process on its own has none.
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    batch = settings.batch_size * processes
    is_known = (layout.kind == "table" and layout.is_whole) or layout.kind == "pairs"
    images = set(layout.images if layout.kind == "table" else layout.files)
    if is_known and len(images) < batch:
        raise InvalidInputError(
            f"{settings.data}: got {len(images)} images, fewer than the {batch} of one batch"
            f" ({settings.batch_size} per process, {processes} processes); lower --batch-size or"
            " give more data"
        )


def _run(
    settings: TrainSettings, folder: Path, *, is_listing: bool, is_on_cpu: bool
) -> dict[str, Any] | None:
    """Train, or list the pairs; say how to continue after an interruption.

    Returns:
        What was measured; None in all but the first of several processes.
    """
    from vldebias.training.run import list_pairs, steps_done, train_model
    from vldebias.utils.progress import SILENT, Progress

    # The first of several processes shows progress for all.
    progress = Progress(err.console)
    # torchrun and accelerate set it; a process on its own has none.
    if int(os.environ.get("RANK", "0")):
        progress = SILENT
    work = train_model
    if is_listing:
        work = list_pairs
    try:
        outcome = work(settings, folder, cpu=is_on_cpu, progress=progress)
    except KeyboardInterrupt as interrupt:
        done, steps = steps_done(folder)
        # Interrupted while it loads, or a second time before the step had ended.
        continues = "starts over: nothing was saved"
        if done:
            continues = f"continues after step {done} of {steps}"
        say(f"the same command {continues}")
        # As shells count it: 130 after Ctrl-C, 143 after SIGTERM.
        raise typer.Exit(128 + next(iter(interrupt.args), signal.SIGINT)) from None
    return outcome


def _print(outcome: dict[str, Any], folder: Path) -> None:
    from vldebias.report.conclusion import Conclusion
    from vldebias.report.text import wrapped
    from vldebias.training.changes import counted, leading

    conclusions = [Conclusion(**facts) for facts in outcome.get("conclusions", ())]
    # First how many scores moved which way, then a sentence for each that people train for.
    sentences = [counted(conclusions)] if conclusions else []
    sentences += [found.sentence for found in leading(conclusions)]
    for sentence in sentences:
        if out.is_terminal:
            lines = wrapped(sentence, min(out.width, 100))
            out.print(coloured("\n".join(lines)), soft_wrap=True)
        else:
            echo(f"# {sentence}")
    _print_scores(outcome, conclusions)
    # If the main score fell, a warning has said so already.
    is_warned = outcome.get("below_start") is not None
    if not is_warned and any(found.verdict == "worse" for found in conclusions):
        say(
            "if a score that got worse matters, keep the model as it was; a lower --lr, fewer steps"
            " or --tune heads change less"
        )
    if outcome["wrong_pairs"] is not None:
        area = outcome["wrong_pairs"]["auroc"]
        say(
            f"low scores find wrong captions: AUROC {area['value']:.3f} [{area['low']:.3f},"
            f" {area['high']:.3f}]"
        )
    for name, path in outcome["files"].items():
        say(f"{name}: {folder / path}")


def _print_scores(outcome: dict[str, Any], conclusions: list[Conclusion]) -> None:
    """Print a row for each score on held-out data: its value at each moment, its change with the
    interval, and the verdict; a moment without it leaves its cell empty."""
    from vldebias.report.table import moved
    from vldebias.training.changes import TITLES

    moments = [moment for moment in ("before", "after", "debiased") if outcome.get(moment)]
    conclusion_of_score = {found.metric: found for found in conclusions}
    rows = []
    for name in outcome.get("after", {}):
        cells = [TITLES.get(name, name)]
        for moment in moments:
            value = outcome[moment].get(name)
            cells.append("" if value is None else f"{value:.3f}")
        found = conclusion_of_score.get(name)
        if found is None:
            cells += ["", ""]
        else:
            cells += [moved(found.change), found.verdict]
        rows.append(cells)
    if rows:
        print_grid(("score on held-out data", *moments, "change, 95 %", "verdict"), rows)
