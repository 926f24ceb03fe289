"""`vldebias train`: fine-tune an image-text model; one flag for each setting of the file, made from the same list."""

from __future__ import annotations

import os
import signal
from copy import copy
from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.common import Json, aside, err, print_grid, print_json, say
from vldebias.cli.flags import flags_of_fields, hidden_flags, with_flags
from vldebias.training.settings import GONE, GROUPS, PRESETS, load_settings

FIRST = ("data", "model", "val_split", "debias")
"""Settings on the first page of the help, beside the preset and the folder of the run."""


def _whole_help(context: typer.Context, asked: bool) -> None:
    """Prints the help with every setting, and ends."""
    if asked:
        whole = copy(context.command)
        whole.params = [copy(parameter) for parameter in whole.params]
        for parameter in whole.params:
            if hasattr(parameter, "hidden"):
                parameter.hidden = parameter.name in GONE
        typer.echo(whole.get_help(context))
        raise typer.Exit


@with_flags([*flags_of_fields(GROUPS, first=FIRST), *hidden_flags(GONE)])
def train(
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"Settings to begin with: {', '.join(PRESETS)}. What else is given comes first; --show prints them.",
            autocompletion=lambda incomplete: [name for name in PRESETS if name.startswith(incomplete)],
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file of settings: the names of --help-all with underscores. Flags come first."),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--out", help="Folder of the run. One that was interrupted goes on where it was.")
    ] = Path("vldebias-train"),
    cpu: Annotated[bool, typer.Option("--cpu", help="Stay on the CPU.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the settings as a YAML file, and stop.")] = False,
    as_json: Json = False,
    help_all: Annotated[
        bool, typer.Option("--help-all", is_eager=True, callback=_whole_help, help="Show every setting, and stop.")
    ] = False,
    **given: Any,
) -> None:
    """Fine-tune an image-text model on captions of which some are wrong.

    Writes the model, what every step saw, the score of every pair (the lowest are the ones to look at) and pictures.
    On several GPUs start it with `accelerate launch -m vldebias train ...`: nothing else changes. All settings, from
    losses to groups: --help-all.

    [bold]Examples[/bold]

    \b
      vldebias train --preset heads --data captions/ --model ViT-B-32 --pretrained openai --val-split val
      vldebias train --data birds --caption-noise 0.4 --epochs 3 --lr 1e-4 --temperature 0.2
      vldebias train --model ViT-B-32 --pretrained openai --data captions/ --loss rince --q 0.4 --temperature 0.1
      vldebias train --model openai/clip-vit-base-patch32 --data pairs.parquet --tune lora --lr 1e-4 --precision bf16
      vldebias train --config run.yaml --lr 3e-5 --out second
      vldebias train --data portraits --label hair --group gender --debias gender --epochs 2
      vldebias train --config run.yaml --show
      accelerate launch --num_processes 8 -m vldebias train --config run.yaml
    """
    from vldebias.progress import SILENT, Progress
    from vldebias.training.run import train_model

    settings = load_settings(config, **given, **({} if preset is None else {"preset": preset}))
    if show:
        typer.echo(settings.as_yaml(), nl=False)
        return
    try:
        progress = SILENT if int(os.environ.get("RANK", "0")) else Progress.on(err)
        outcome = train_model(settings, folder, cpu=cpu, progress=progress)
    except KeyboardInterrupt as interrupt:
        from vldebias.training.run import steps_done

        done, steps = steps_done(folder)
        goes_on = (
            f"goes on after step {done} of {steps}" if done else "begins anew, for nothing was saved yet (save_every)"
        )
        say(f"interrupted; the same command {goes_on}", err)
        raise typer.Exit(128 + getattr(interrupt, "signal", signal.SIGINT)) from None
    if outcome is None:  # not the first of several processes
        return
    if as_json:
        print_json(outcome)
    else:
        _print(outcome, folder)


def _print(outcome: dict[str, Any], folder: Path) -> None:
    moments = [moment for moment in ("before", "after", "debiased_before", "debiased") if outcome[moment]]
    rows = [
        (name, *(f"{outcome[moment][name]:.3f}" if name in outcome[moment] else "" for moment in moments))
        for name in outcome["after"]
    ]
    if rows:
        print_grid(("score on held-out data", *(moment.replace("_", ", ") for moment in moments)), rows)
    if outcome["worse"]:
        each = "; ".join(f"{name} {before:.3f} -> {after:.3f}" for name, (before, after) in outcome["worse"].items())
        aside(
            f"worse than before training: {each}. Where these count keep the model that it started from; a lower --lr, "
            "fewer steps or --tune heads change less"
        )
    if outcome["wrong_pairs"] is not None:
        area = outcome["wrong_pairs"]["auroc"]
        aside(f"low scores find wrong captions: AUROC {area['value']:.3f} [{area['low']:.3f}, {area['high']:.3f}]")
    for name, path in outcome["files"].items():
        aside(f"{name}: {folder / path}")
