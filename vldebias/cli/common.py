"""What all commands share: the two consoles, options that name a model, checks before anything is loaded, output."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vldebias.cli import complete
from vldebias.errors import InvalidInputError, did_you_mean, fail

if TYPE_CHECKING:
    from vldebias.evaluation.result import Result
    from vldebias.loading import Loaded

out = Console()
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
Model = Annotated[
    str | None,
    typer.Option(help="open_clip architecture (with --pretrained), transformers id or folder, or 'miniature'."),
]
Pretrained = Annotated[str | None, typer.Option(help="open_clip tag or checkpoint file.")]
Pipeline = Annotated[str | None, typer.Option(help="diffusers id or folder, or 'miniature'.")]
Device = Annotated[str, typer.Option(help="Where to run: auto (cuda where there is one), cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str | None, typer.Option(help="float32, float16 or bfloat16.")]
SetName = Annotated[
    str,
    typer.Option(
        "--prompts",
        help="Prompt set of the attribute (vldebias prompts list).",
        metavar="SET",
        autocompletion=complete.complete_prompt_sets,
    ),
]
HOST_FLAGS: list[tuple[str, Any, Any]] = [
    ("model", Model, None),
    ("pretrained", Pretrained, None),
    ("pipeline", Pipeline, None),
    ("device", Device, "auto"),
    ("dtype", Dtype, None),
]
"""The options that name a model or pipeline: the keywords of `load`."""


def make_app(text: str, **how: Any) -> typer.Typer:
    """Return a group of commands with help in rich markup and errors left to `main`."""
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False, **how)


def check_files(**paths: Any) -> None:
    """Refuse a flag whose file of embeddings does not exist; None is a flag that was not given."""
    for flag, path in paths.items():
        if path is not None and not Path(path).is_file() and not glob.glob(str(path), recursive=True):
            raise InvalidInputError(
                f"--{flag} {path}: expected a file of embeddings (.npz, .safetensors) or a pattern of shards such as "
                "'shards/*.npy', there is none"
            )


def check_there(path: Path, expected: str) -> None:
    """Refuse a file or folder that does not exist."""
    if not path.exists():
        raise InvalidInputError(f"{path}: no such file or folder; expected {expected}")


def check_out(folder: Path | None) -> None:
    """Refuse a folder for results that cannot be written, before hours of work and not after."""
    if folder is None:
        return
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "is a file" if not there.is_dir() else "may not be written"
        raise InvalidInputError(f"--out {folder}: expected a folder that can be written, {there} {why}; name another")


def print_json(value: Any) -> None:
    """Print `value` as JSON, alone on stdout."""
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))


def piped(head: Sequence[str], rows: Iterable[Sequence[object]]) -> bool:
    """Print rows with tabs where stdout is a pipe or a file, for cut, awk and pandas; return whether it is."""
    if out.is_terminal:
        return False
    for row in (head, *rows):
        cells = (f"{cell:.6g}" if isinstance(cell, float) else "" if cell is None else str(cell) for cell in row)
        typer.echo("\t".join(" ".join(cell.split()) for cell in cells))
    return True


def print_grid(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print rows under a head: in a terminal cells fold and no name is cut, elsewhere see `piped`."""
    if piped(head, rows):
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=title or None, title_justify="left")
    table.show_header = any(head)
    table.add_column(head[0], width=min(max(len(row[0]) for row in (head, *rows)), out.width // 2), overflow="fold")
    for name in head[1:]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(Text(row[0], style="bold"), *map(Text, row[1:]))
    out.print(table)


def print_result(result: Result, measures: Sequence[tuple[str, str]] = ()) -> None:
    """Print the table of a result; elsewhere than in a terminal its rows with tabs."""
    from vldebias.evaluation.report import print_table, tab_rows

    if not piped(*tab_rows(result, measures)):
        print_table(result, out, measures)


def aside(text: object) -> None:
    """Print a remark: below the rows in a terminal, on stderr where a program reads stdout."""
    say(text, out if out.is_terminal else err)


def tell(kind: str, style: str, message: str) -> None:
    """Print a message on stderr; it may quote what a user typed, so its brackets are no markup."""
    err.print(Text.assemble((f"{kind}: ", style), message))


def say(text: object, console: Console = out) -> None:
    """Print a line unwrapped; it may quote what a user typed, so its brackets are no markup."""
    console.print(str(text), markup=False, highlight=False, soft_wrap=True)


def split_names(options: Sequence[str] | None) -> list[str]:
    """Return names from options that may hold several each, with commas between them."""
    return [name.strip() for text in options or () for name in text.split(",") if name.strip()]


def split_pair(text: str, option: str, expected: str) -> tuple[str, str]:
    """Return what stands before and after the first "=" of an option."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise InvalidInputError(f"{option}: expected {expected}, got {text!r}")
    return name, value


def check_names(names: Iterable[str]) -> None:
    """Refuse unknown methods before torch is imported; where packages add methods, the registry is asked later."""
    from vldebias.registry import Registry

    if complete.own_methods():
        known: Registry[str] = Registry("method", "", lambda name: (name, name))
        for name in complete.METHOD_NAMES:
            known.register(name)
        for name in names:
            known.named(name)


def check_method(name: str | None, *, images: bool) -> None:
    """Refuse a method before a model is loaded: no such name, or one that needs images that are not given."""
    if name is None:
        return
    check_names([name])
    from vldebias.methods import Need, get_method

    for need in (Need.IMAGES, Need.LABELS):
        if need in get_method(name).needs and not images:
            raise InvalidInputError(f"--method {name} uses {need}: give a file of their features as --reference")


def device_of(name: str) -> str:
    """Return the device to run on; "auto" is cuda where there is one, and says so.

    Raises:
        InvalidInputError: no such kind of device, or none of it here.
    """
    import torch

    if name == "auto":
        if not torch.cuda.is_available():
            return "cpu"
        say(f"device: cuda ({torch.cuda.get_device_name()})", err)
        return "cuda"
    kind, _, index = name.partition(":")
    kinds = ("auto", "cpu", "cuda", "mps")
    if kind not in kinds or (index and not index.isdecimal()):
        fail("--device", repr(name), "auto, cpu, cuda, cuda:1, ... or mps", did_you_mean(kind, kinds))
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise InvalidInputError(
            f"--device {name}: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices here; run on "
            "the CPU without --device, or install a torch that is built for CUDA and see whether nvidia-smi lists a GPU"
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise InvalidInputError(f"--device {name}: torch finds no Apple GPU here; run on the CPU without --device")
    return name


def load(
    model: str | None = None,
    pretrained: str | None = None,
    pipeline: str | None = None,
    *,
    device: str = "auto",
    dtype: str | None = None,
    prompts: Sequence[str] = (),
) -> Loaded:
    """Return the model or pipeline that the options name, once the prompt sets are found to exist."""
    from vldebias.prompts import load_prompts

    for name in prompts:
        load_prompts(name)
    device = device_of(device)
    from vldebias.loading import load_host

    return load_host(model, pretrained, pipeline, device=device, dtype=dtype)
