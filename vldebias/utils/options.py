"""Define the inputs of a suite once: the fields of `Options` in Python are the flags of
`vldebias eval`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer


def flag(panel: str, value: str | None, text: str, *name: str, least: int | None = None) -> Any:
    """Return the flag of a field, in a panel of the help.

    value: its placeholder, None for a switch. name: of the flag, if not that of the field.
    """
    return typer.Option(*name, help=text, rich_help_panel=panel, metavar=value, min=least)


@dataclass(frozen=True)
class Options:
    """Hold the inputs that a user gives to a suite; None leaves the choice to the suite.

    model, pretrained, pipeline, device and dtype are those of `vldebias.hosts.loading.load_host`.
    """

    out: Annotated[Path, flag("Run", "DIR", "Folder for results. Default: vldebias-SUITE.")]
    device: Annotated[
        str, flag("Run", "NAME", "auto (the default: cuda if there is one), cpu, cuda:1, mps.")
    ] = "cpu"
    dtype: Annotated[str | None, flag("Run", "NAME", "float32, float16 or bfloat16.")] = None
    fresh: Annotated[
        bool, flag("Run", None, "Measure again, or reuse what was measured.", "--fresh/--resume")
    ] = False
    resamples: Annotated[
        int | None, flag("Run", "N", "Bootstrap resamples. Default: 2000.", least=1)
    ] = None
    model: Annotated[
        str | None, flag("Model", "NAME", "open_clip or transformers, or 'miniature'.")
    ] = None
    pretrained: Annotated[str | None, flag("Model", "TAG", "open_clip tag or checkpoint file.")] = (
        None
    )
    pipeline: Annotated[
        str | None, flag("Model", "NAME", "diffusers id or folder, or 'miniature'.")
    ] = None
    methods: Annotated[
        tuple[str, ...] | None,
        flag("Methods", "NAMES", "Methods instead of the suite's: orth,cali."),
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
        flag("Images", "N", "At most N images of each split, chosen at random.", least=1),
    ] = None
    embeddings: Annotated[
        Path | None, flag("Images", "FILE", "Your own features (.npz), or 'shards/*.npy'.")
    ] = None
    table: Annotated[
        Path | None, flag("Images", "FILE", "Labels for features without any, or 'meta/*.parquet'.")
    ] = None
    texts: Annotated[
        Path | None, flag("Images", "FILE", "Your own text embeddings (see eval show --texts).")
    ] = None
    unknown: Annotated[
        tuple[str, ...],
        flag("Images", "VALUE", "Label that means unknown, such as -1; repeatable."),
    ] = ()
    cache: Annotated[
        Path | None, flag("Images", "DIR", "Embedding cache. Default: ~/.cache/vldebias.")
    ] = None
    images: Annotated[
        int | None, flag("Generated images", "N", "Images of each prompt and seed.", least=1)
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
        flag("Generated images", "NAME", "CLIP that judges the images, named as for --model."),
    ] = None
    labels: Annotated[
        tuple[Path, ...], flag("Generated images", "FILE", "Answers of an annotator; repeatable.")
    ] = ()
    drawn: Annotated[
        Path | None, flag("Generated images", "DIR", "Folder of the images that were labelled.")
    ] = None
