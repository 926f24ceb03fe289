"""Define a suite's inputs, which also define the `vldebias eval` flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer.models import OptionInfo


def flag(
    panel: str, value: str | None, text: str, *name: str, least: int | None = None
) -> OptionInfo:
    """Return the command-line flag for a field.

    Args:
        panel: the title of the help panel.
        value: the placeholder for the value, or None for a switch.
        text: the help text.
        name: the flag name, if it differs from the field name.
        least: the minimum value.
    """
    return typer.Option(*name, help=text, rich_help_panel=panel, metavar=value, min=least)


@dataclass(frozen=True)
class Options:
    """Define a suite's user inputs.

    None means that the suite's own setting is used. Fields without a flag can only be set in
    Python: `resamples`, the number of bootstrap resamples, and `cache`, the folder of embeddings.

    `vldebias.hosts.loading.load_host` receives model, pretrained, pipeline, device and dtype.
    """

    out: Annotated[Path, flag("Run", "DIR", "Folder for results. Default: vldebias-SUITE.")]
    device: Annotated[
        str, flag("Run", "NAME", "auto (cuda if available), cpu, cuda:1 or mps. Default: auto.")
    ] = "cpu"
    dtype: Annotated[str | None, flag("Run", "NAME", "float32, float16 or bfloat16.")] = None
    fresh: Annotated[
        bool, flag("Run", None, "Measure again, or reuse earlier measurements.", "--fresh/--resume")
    ] = False
    resamples: int | None = None
    model: Annotated[
        str | None,
        flag(
            "Model",
            "NAME",
            "open_clip or transformers model, 'miniature', or MODULE:FUNCTION, whose code runs.",
        ),
    ] = None
    pretrained: Annotated[str | None, flag("Model", "TAG", "open_clip tag or checkpoint file.")] = (
        None
    )
    pipeline: Annotated[
        str | None, flag("Model", "NAME", "diffusers id or folder, or 'miniature'.")
    ] = None
    methods: Annotated[
        tuple[str, ...] | None,
        flag("Methods", "NAMES", "Methods instead of the suite's, such as orth,cali."),
    ] = None
    projections: Annotated[
        tuple[Path, ...],
        flag("Methods", "DIR", "Saved edit to measure; repeatable.", "--projection"),
    ] = ()
    reference: Annotated[
        Path | None, flag("Methods", "FILE", "Image features (with label.COLUMN) for methods.")
    ] = None
    lam: Annotated[
        float | None, flag("Methods", "X", "Lambda instead of the suite's.", least=0)
    ] = None
    data_root: Annotated[
        str | Path | None, flag("Images", "DIR", "Folder or manifest of the data set.")
    ] = None
    limit: Annotated[
        int | None,
        flag("Images", "N", "At most N random images per split.", least=1),
    ] = None
    embeddings: Annotated[
        Path | None, flag("Images", "FILE", "Your own image features: .npz or 'shards/*.npy'.")
    ] = None
    table: Annotated[
        Path | None,
        flag(
            "Images", "FILE", "Labels of the features, if they contain none; or 'meta/*.parquet'."
        ),
    ] = None
    texts: Annotated[
        Path | None, flag("Images", "FILE", "Your own text embeddings (see eval show --texts).")
    ] = None
    unknown: Annotated[
        tuple[str, ...],
        flag("Images", "VALUE", "Label that means unknown, such as -1; repeatable."),
    ] = ()
    cache: Path | None = None
    images: Annotated[
        int | None, flag("Generated images", "N", "Images per prompt and seed.", least=1)
    ] = None
    seeds: Annotated[
        tuple[int, ...] | None, flag("Generated images", "N", "Seed; repeatable.", "--seed")
    ] = None
    steps: Annotated[int | None, flag("Generated images", "N", "Denoising steps.", least=1)] = None
    guidance: Annotated[
        float | None,
        flag("Generated images", "X", "Guidance scale instead of the suite's.", least=0),
    ] = None
    prompts_file: Annotated[
        Path | None, flag("Generated images", "FILE", "Your own prompts, one per line.")
    ] = None
    judge: Annotated[
        str | None,
        flag(
            "Generated images", "NAME", "CLIP model that judges the images, named as for --model."
        ),
    ] = None
    label_file: Annotated[
        tuple[Path, ...], flag("Generated images", "FILE", "Answers of an annotator; repeatable.")
    ] = ()
    image_dir: Annotated[
        Path | None, flag("Generated images", "DIR", "Folder of the labelled images.")
    ] = None
