"""Flags of the commands: those that name a model, and those made from the fields of settings, so
declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from vldebias.options import Options

if TYPE_CHECKING:
    from pydantic import BaseModel

Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
AttributeSet = Annotated[
    str,
    typer.Option(
        "--attribute", help="Prompt set of the attribute (vldebias prompts list).", metavar="SET"
    ),
]
Flags = Iterable[tuple[str, Any, Any]]
"""Name of a keyword, its annotation with a typer option, its default."""

HOST = ("model", "pretrained", "pipeline", "device", "dtype")
"""The fields of `Options` that name a model or pipeline: the keywords of `load_host`."""


def with_flags(flags: Flags) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add flags to a command that takes keywords; a flag without a value and a default is not
    passed on."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        kind = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(name, kind, default=value, annotation=hint)
            for name, hint, value in flags
        ]
        kept = [p.replace(kind=kind) for p in own if p.kind is not p.VAR_KEYWORD]
        names = {p.name for p in added}

        @functools.wraps(command)
        def with_added(**given: Any) -> None:
            command(
                **{
                    name: value
                    for name, value in given.items()
                    if name not in names or value not in (None, [])
                }
            )

        setattr(with_added, "__signature__", inspect.Signature([*kept, *added]))  # noqa: B010
        with_added.__annotations__ = {p.name: p.annotation for p in (*kept, *added)}
        return with_added

    return decorate


def flags_of_options(*only: str) -> Flags:
    """Yield a flag for each field of `Options`, or for those that are named."""
    for name, annotation in get_type_hints(Options, include_extras=True).items():
        kind, flag = get_args(annotation)
        flag.rich_help_panel = None if only else flag.rich_help_panel
        if not only or name in only:
            yield name, Annotated[_typed(kind) | None, flag], None


def flags_of_fields(groups: Mapping[str, type[BaseModel]], only: Sequence[str]) -> Flags:
    """Yield a flag for some fields of settings, in a panel of the help for each group."""
    for panel, group in groups.items():
        for name in sorted(set(only) & set(group.model_fields), key=only.index):
            field, text = group.model_fields[name], group.model_fields[name].description or ""
            if field.get_default() is not None and "Default:" not in text:
                text += f" Default: {field.get_default()}."
            option = typer.Option(help=text.replace("[", r"\["), rich_help_panel=panel)
            yield name, Annotated[field.annotation | None, option], None  # type: ignore[operator]


def _typed(kind: Any) -> Any:
    """Return what Typer reads: a list for a tuple, a text for a path or a name."""
    kinds = (
        [one for one in get_args(kind) if one is not NoneType]
        if get_origin(kind) in (Union, UnionType)
        else [kind]
    )
    if len(kinds) > 1:
        return str
    (one,) = kinds
    if get_origin(one) is tuple:
        return list[get_args(one)[0]]  # type: ignore[misc]
    return one
