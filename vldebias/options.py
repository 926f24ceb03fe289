"""Define the inputs of a suite once: the fields of `Options` in Python are the flags of `vldebias eval`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated


@dataclass(frozen=True)
class Flag:
    """Describe a field as a flag of the command line; a text that ends with * means that it may be repeated.

    panel: of the help. value: its placeholder, None for a switch. name: of the flag, if not that of the field.
    """

    panel: str
    value: str | None
    text: str
    name: str | None = None
    least: int | None = None


@dataclass(frozen=True)
class Options:
    """Hold the inputs that a user gives to a suite; None leaves the choice to the suite.

    model, pretrained, pipeline, device and dtype are those of `vldebias.loading.load_host`.
    """

    out: Annotated[Path, Flag("Run", "DIR", "For results. Default: vldebias-SUITE.")]
    device: Annotated[str, Flag("Run", "NAME", "auto (the default: cuda if there is one), cpu, cuda:1, mps.")] = "cpu"
    dtype: Annotated[str | None, Flag("Run", "NAME", "float32, float16 or bfloat16.")] = None
    fresh: Annotated[bool, Flag("Run", None, "Measure again, or reuse what is done.", "--fresh/--resume")] = False
    resamples: Annotated[int | None, Flag("Run", "N", "Bootstrap resamples. Default: 2000.", least=1)] = None
    model: Annotated[str | None, Flag("Model", "NAME", "open_clip or transformers, or 'miniature'.")] = None
    pretrained: Annotated[str | None, Flag("Model", "TAG", "open_clip tag or checkpoint file.")] = None
    pipeline: Annotated[str | None, Flag("Model", "NAME", "diffusers id or folder, or 'miniature'.")] = None
    methods: Annotated[tuple[str, ...] | None, Flag("Methods", "NAMES", "In place of the suite's: cali,auto.")] = None
    projections: Annotated[
        tuple[Path, ...], Flag("Methods", "DIR", "A saved edit, measured with the methods. *", "--projection")
    ] = ()
    reference: Annotated[
        Path | None, Flag("Methods", "FILE", "Image features (with label.COLUMN) for methods that use them.")
    ] = None
    lam: Annotated[float | None, Flag("Methods", "X", "Lambda instead of the suite's.", least=0)] = None
    data_root: Annotated[str | Path | None, Flag("Images", "DIR", "Folder of the data set (or a manifest file).")] = (
        None
    )
    limit: Annotated[int | None, Flag("Images", "N", "At most so many of each split, at random.", least=1)] = None
    embeddings: Annotated[Path | None, Flag("Images", "FILE", "Features of your own (.npz), or 'shards/*.npy'.")] = None
    table: Annotated[Path | None, Flag("Images", "FILE", "Labels of .npy shards, row by row; or 'meta/*.parquet'.")] = (
        None
    )
    texts: Annotated[Path | None, Flag("Images", "FILE", "Text embeddings of your own (see eval show --texts).")] = None
    unknown: Annotated[tuple[str, ...], Flag("Images", "VALUE", "A label that means unknown, such as -1. *")] = ()
    cache: Annotated[Path | None, Flag("Images", "DIR", "Embedding cache. Default: ~/.cache/vldebias.")] = None
    images: Annotated[int | None, Flag("Generated images", "N", "Images of each prompt and seed.", least=1)] = None
    seeds: Annotated[tuple[int, ...] | None, Flag("Generated images", "N", "Seed. *", "--seed")] = None
    steps: Annotated[int | None, Flag("Generated images", "N", "Denoising steps.", least=1)] = None
    prompts_file: Annotated[Path | None, Flag("Generated images", "FILE", "Prompts of your own, one a line.")] = None
    judge: Annotated[str | None, Flag("Generated images", "NAME", "Model that reads them, named as --model.")] = None
    labels: Annotated[tuple[Path, ...], Flag("Generated images", "FILE", "Answers of an annotator. *")] = ()
    drawn: Annotated[Path | None, Flag("Generated images", "DIR", "Folder of the images that were labelled.")] = None
