"""`vldebias pairs`: which captions do not fit their images, by any image-text model, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vldebias.cli.common import Device, Dtype, Json, device_of, err, print_json, say
from vldebias.cli.flags import flags_of_fields, with_flags
from vldebias.errors import InvalidInputError
from vldebias.training.settings import GROUPS, load_settings

ScoreName = Literal["cosine", "softmax"]


# Settings of a training that say what pairs there are, and which model scores them.
_PAIRS = ("model", "pretrained", "split", "image", "caption", "label", "caption_template", "image_root",
          "allow_outside", "caption_noise", "items")  # fmt: skip


@with_flags(flags_of_fields(GROUPS, only=_PAIRS, panels=False))
def pairs(
    data: Annotated[str, typer.Argument(help="What `vldebias train --data` takes: folder, file, id, or birds.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the table and the pictures.")] = Path(
        "vldebias-pairs"
    ),
    score: Annotated[
        ScoreName, typer.Option(help="cosine, or softmax: how surely image and caption pick each other.")
    ] = "cosine",
    wrong: Annotated[
        str | None, typer.Option(help="Column that says which captions are wrong (yes, no), to measure the scores by.")
    ] = None,
    keep: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of pairs to keep, those with the highest scores.")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="Parquet file for the kept pairs; train --data reads it.")] = None,
    folds: Annotated[
        int | None,
        typer.Option(min=2, help="Score every pair by a model that did not learn it: so many trainings by --config."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings of those trainings, as `vldebias train --config` takes them.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Threads that read images. Default: 4.")] = None,
    device: Device = "auto",
    dtype: Dtype = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Score every pair of an image and its caption, and list them with the most suspicious first.

    The score is the cosine of the two (Figure 5-5 of the thesis). It is a reason to look, not a verdict: rare things
    and unusual words score low as well. A run that was stopped goes on. Score with a model that has not learned these
    pairs for long: one that has, knows the wrong ones by heart. Or let --folds train some on all other pairs.

    [bold]Examples[/bold]

    \b
      vldebias pairs captions/ --model ViT-B-32 --pretrained openai
      vldebias pairs pairs.parquet --model vldebias-train/model --device cuda
      vldebias pairs captions/ --model run/models/step-000060 --score softmax --keep 0.8 --write clean.parquet
      vldebias pairs pairs.parquet --wrong checked
      vldebias pairs captions/ --folds 5 --config run.yaml --score softmax
      vldebias pairs birds --caption-noise 0.3 --items 1000
    """
    from vldebias.data import ImageData
    from vldebias.training.pairs import make_pairs, open_images, said_wrong
    from vldebias.training.report import report_scores, score_pairs
    from vldebias.training.scores import write_kept

    if (folds is None) != (config is None):
        raise InvalidInputError("--folds and --config go together: how many trainings, and their settings")
    if (keep is None) != (write is None):
        raise InvalidInputError("--keep and --write go together: the share to keep, and the file to put it in")
    if folds is not None and dtype is not None:
        raise InvalidInputError("--dtype: the trainings of --folds have the precision of their settings")
    settings = load_settings(config, data=data, **given, **({} if workers is None else {"workers": workers}))
    opened = open_images(settings, also=() if wrong is None else (wrong,))
    if not isinstance(opened, ImageData):
        raise InvalidInputError(f"{data}: expected data that can be read in any order, got a stream")
    scored = make_pairs(opened, settings)
    known = None if wrong is None else said_wrong(opened, scored, wrong)
    if folds is not None:
        from vldebias.progress import Progress
        from vldebias.training.folds import out_of_fold_scores

        with Progress.on(err) as progress:
            how: dict[str, Any] = {"folds": folds, "by": score, "cpu": device_of(device) == "cpu"}
            scores = out_of_fold_scores(scored, settings, folder, progress=progress, **how)
        report = report_scores(scored, scores, folder, wrong=known)
    else:
        from vldebias.hosts.towers import towers
        from vldebias.loading import load_host

        loaded = load_host(settings.model, settings.pretrained, device=device_of(device), dtype=dtype)
        scorer = towers(loaded.host, loaded.tokenizer, loaded.preprocess)
        report = score_pairs(scorer, scored, folder, by=score, wrong=known, workers=4 if workers is None else workers)
    outcome: dict[str, Any] = {"pairs": scored.items, "wrong_pairs": report.detected, "files": report.files}
    if write is not None and keep is not None:
        outcome["kept"] = {"pairs": len(report.ranked.kept(keep)), "file": str(write_kept(write, report.ranked, keep))}
    if as_json:
        print_json(outcome)
        return
    if report.detected is not None:
        area = report.detected["auroc"]
        interval = f"[{area['low']:.3f}, {area['high']:.3f}]"
        say(f"AUROC of low scores for wrong captions: {area['value']:.3f} {interval}", err)
    if write is not None:
        say(f"{outcome['kept']['pairs']:,} pairs kept: {write}")
    for name, path in report.files.items():
        say(f"{name}: {folder / path}")
