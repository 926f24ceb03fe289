"""`vldebias pairs`: which captions do not fit their images, by any image-text model, without training."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vldebias.cli.common import Device, Dtype, Json, Pretrained, device_of, err, out, print_json
from vldebias.errors import InvalidInputError

ScoreName = Literal["cosine", "softmax"]


def pairs(
    data: Annotated[str, typer.Argument(help="What `vldebias train --data` takes: folder, file, id, or birds.")],
    model: Annotated[str, typer.Option(help="As for `vldebias train`, or the model that it left.")] = "miniature",
    pretrained: Pretrained = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the table and the pictures.")] = Path(
        "vldebias-pairs"
    ),
    split: Annotated[str, typer.Option(help="Split to score.")] = "train",
    image: Annotated[str | None, typer.Option(help="Column of the images.")] = None,
    caption: Annotated[str | None, typer.Option(help="Column of the captions.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of classes, for --caption-template.")] = None,
    caption_template: Annotated[
        str | None, typer.Option(help="Make captions from the label instead: 'a photo of a {}.'")
    ] = None,
    image_root: Annotated[str | None, typer.Option(help="Folder that the paths of a table start from.")] = None,
    allow_outside: Annotated[
        bool, typer.Option("--allow-outside", help="Also take paths of a table that lead out of its folder.")
    ] = False,
    caption_noise: Annotated[
        float, typer.Option(help="Make this share of captions wrong first, to see how well low scores find them.")
    ] = 0.0,
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
    items: Annotated[int, typer.Option(help="Images of a world of the miniature.")] = 4000,
    workers: Annotated[int, typer.Option(min=0, help="Threads that read images.")] = 4,
    device: Device = "auto",
    dtype: Dtype = None,
    as_json: Json = False,
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
    from vldebias.training.settings import load_settings

    given: dict[str, Any] = {
        "data": data,
        "split": split,
        "image": image,
        "caption": caption,
        "label": label,
        "caption_template": caption_template,
        "image_root": image_root,
        "allow_outside": allow_outside,
        "caption_noise": caption_noise,
        "items": items,
        "workers": workers,
    }
    if (folds is None) != (config is None):
        raise InvalidInputError("--folds and --config go together: how many trainings, and their settings")
    if (keep is None) != (write is None):
        raise InvalidInputError("--keep and --write go together: the share to keep, and the file to put it in")
    if folds is not None and dtype is not None:
        raise InvalidInputError("--dtype: the trainings of --folds have the precision of their settings")
    if config is not None:  # what was not said here is as the file says
        given |= {"model": model, "pretrained": pretrained}
        own = inspect.signature(pairs).parameters
        given = {name: value for name, value in given.items() if value != own[name].default}
    settings = load_settings(config, **given)
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
        found = report_scores(scored, scores, folder, wrong=known)
    else:
        from vldebias.hosts.towers import towers
        from vldebias.loading import load_host

        loaded = load_host(model, pretrained, device=device_of(device), dtype=dtype)
        scorer = towers(loaded.host, loaded.tokenizer, loaded.preprocess)
        found = score_pairs(scorer, scored, folder, by=score, wrong=known, workers=workers)
    outcome: dict[str, Any] = {"pairs": scored.items, "wrong_pairs": found.detected, "files": found.files}
    if write is not None and keep is not None:
        outcome["kept"] = {"pairs": len(found.ranked.kept(keep)), "file": str(write_kept(write, found.ranked, keep))}
    if as_json:
        print_json(outcome)
        return
    if found.detected is not None:
        area = found.detected["auroc"]
        interval = f"[{area['low']:.3f}, {area['high']:.3f}]"
        err.print(
            f"AUROC of low scores for wrong captions: {area['value']:.3f} {interval}", highlight=False, markup=False
        )
    if write is not None:
        out.print(f"{outcome['kept']['pairs']:,} pairs kept: {write}", markup=False, highlight=False, soft_wrap=True)
    for name, path in found.files.items():
        out.print(f"{name}: {folder / path}", markup=False, highlight=False, soft_wrap=True)
