"""`vldebias pairs`: which captions do not fit their images, by any image-text model, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.common import Device, Dtype, Json, Pretrained, err, out, print_json
from vldebias.errors import InvalidInputError

__all__ = ["pairs"]


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
    items: Annotated[int, typer.Option(help="Images of a world of the miniature.")] = 4000,
    workers: Annotated[int, typer.Option(min=0, help="Threads that read images.")] = 4,
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Score every pair of an image and its caption, and list them with the most suspicious first.

    The score is the cosine of the two (Figure 5-5 of the thesis). It is a reason to look, not a verdict: rare things
    and unusual words score low as well. A run that was stopped goes on.

    [bold]Examples[/bold]

    \b
      vldebias pairs captions/ --model ViT-B-32 --pretrained openai
      vldebias pairs pairs.parquet --model vldebias-train/model --device cuda
      vldebias pairs birds --caption-noise 0.3 --items 1000
    """
    from vldebias.data.images import ImageData
    from vldebias.hosts.towers import towers
    from vldebias.loading import load_host
    from vldebias.training.assembly import make_pairs, open_training_data
    from vldebias.training.settings import load_settings
    from vldebias.training.telling import tell_pairs

    settings = load_settings(
        data=data,
        split=split,
        image=image,
        caption=caption,
        label=label,
        caption_template=caption_template,
        image_root=image_root,
        allow_outside=allow_outside,
        caption_noise=caption_noise,
        items=items,
    )
    opened = open_training_data(settings)
    if not isinstance(opened, ImageData):
        raise InvalidInputError(f"{data}: expected data that can be read in any order, got a stream")
    loaded = load_host(model, pretrained, device=device, dtype=dtype)
    scored = make_pairs(opened, settings)
    files, found = tell_pairs(towers(loaded.host, loaded.tokenizer, loaded.preprocess), scored, folder, workers=workers)
    outcome: dict[str, Any] = {"pairs": scored.items, "wrong_pairs": found, "files": files}
    if as_json:
        print_json(outcome)
        return
    if found is not None:
        err.print(f"AUROC of low scores for wrong captions: {found['auroc']['value']:.3f}", highlight=False)
    for name, path in files.items():
        out.print(f"{name}: {folder / path}", markup=False, highlight=False)
