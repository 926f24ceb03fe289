"""What all commands share: the two consoles, the options that name a host, JSON on stdout."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console

__all__ = [
    "Device",
    "Dtype",
    "Json",
    "Lam",
    "Method",
    "Model",
    "Pipeline",
    "Pretrained",
    "err",
    "make_app",
    "out",
    "print_json",
]

out = Console()
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
Model = Annotated[
    str | None,
    typer.Option(help="open_clip architecture (with --pretrained), transformers id or folder, or 'miniature'."),
]
Pretrained = Annotated[str | None, typer.Option(help="open_clip tag or checkpoint file.")]
Pipeline = Annotated[str | None, typer.Option(help="diffusers id or folder, or 'miniature'.")]
Device = Annotated[str, typer.Option(help="Where to run: cpu, cuda, mps.")]
Dtype = Annotated[str | None, typer.Option(help="float32, float16 or bfloat16.")]
Method = Annotated[
    str | None,
    typer.Option(help="orth, orth-cali, cali, difference or auto. Default: the paper's for the kind of host."),
]
Lam = Annotated[
    float | None,
    typer.Option("--lam", help="Weight of the prompt pairs. Default: 1000 for models, 500 for pipelines."),
]


def make_app(text: str) -> typer.Typer:
    """A group of commands with help in rich markup and errors left to `main`."""
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)


def print_json(value: Any) -> None:
    """`value` as JSON, alone on stdout."""
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))
