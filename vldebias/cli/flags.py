"""Define flags that several commands share, and generate flags from settings fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from vldebias.utils.options import Options

if TYPE_CHECKING:
    from pydantic import BaseModel

Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print only JSON to stdout. Without it, piped tables are tab-separated rows."
    ),
]
AttributeSet = Annotated[
    str,
    typer.Option(
        "--attribute",
        help="Prompt set for the attribute (see vldebias prompts list).",
        metavar="SET",
    ),
]
AttributeSets = Annotated[
    list[str],
    typer.Option("--attribute", help="gender, age, race, skin-tone or a YAML file; repeatable."),
]
Shares = Annotated[
    list[str] | None,
    typer.Option(help="Comma-separated value=share; shares must sum to 1. Default: even."),
]
Groups = Annotated[
    str,
    typer.Option(
        "--people",
        help="How to treat groups of people: mixed (each gets a value), leave (unchanged) or same"
        " (one value for all).",
    ),
]
Pipelines = Annotated[
    list[str] | None,
    typer.Option(
        "--pipeline",
        help="diffusers id or folder, or 'miniature'; repeatable, to compare. Default: miniature.",
        metavar="NAME",
    ),
]
Flags = Iterable[tuple[str, object, object]]
"""(parameter name, annotation with a Typer option, default value) tuples."""


HOST = ("model", "pretrained", "pipeline", "device", "dtype")
"""Names of the flags that select a model or pipeline, which are the arguments of `load_host`."""


def host_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Select the flags that `load_host` accepts."""
    return {name: value for name, value in flags.items() if name in HOST}


def with_flags(flags: Flags) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds flags to a command with **kwargs.

    Flags that are not set and have no default are not passed to the command.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = []
        # Evaluate the annotations, which are strings because of postponed evaluation.
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:  # Typer does not support **kwargs
                # Keyword-only parameters may be in any order, with or without defaults.
                parameters.append(parameter.replace(kind=kind))
        added = set()
        for name, hint, value in flags:
            parameters.append(inspect.Parameter(name, kind, default=value, annotation=hint))
            added.add(name)

        @functools.wraps(command)
        def with_added(**values: object) -> None:
            # Typer passes None or [] for flags that are not set. Omit these, so that the function's
            # own default applies.
            unset = [name for name in added if values[name] is None or values[name] == []]
            command(**{name: value for name, value in values.items() if name not in unset})

        # Typer takes the defaults from the signature and the options from the annotations.
        setattr(with_added, "__signature__", inspect.Signature(parameters))  # noqa: B010
        with_added.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_added

    return decorate


def flags_of_options(*only: str, panel: str | None = None) -> Flags:
    """Yield the flags of the fields of `Options`, or only of some of them in one help panel.

    Args:
        only: names of the fields to include.
        panel: title of their help panel. Default: the panel for all other options.
    """
    for name, annotation in get_type_hints(Options, include_extras=True).items():
        if get_origin(annotation) is not Annotated:
            continue  # a field without a flag
        kind, flag = get_args(annotation)
        if only:
            # Copy the flag, since other commands show it in a different panel.
            flag = copy(flag)
            flag.rich_help_panel = panel
        if not only or name in only:
            yield name, Annotated[_typed(kind) | None, flag], None


def flags_of_fields(
    groups: Mapping[str, type[BaseModel]],
    only: Sequence[str],
    names: Mapping[str, str] | None = None,
) -> Flags:
    """Yield a flag for each of the given settings fields, with one help panel per group.

    Args:
        groups: settings models by panel title.
        only: names of the fields to include, in this order.
        names: flag names by field name, for flags whose name differs from their field's.
    """
    for panel, group in groups.items():
        # Within each panel, keep the order of `only`.
        for name in sorted(set(only) & set(group.model_fields), key=only.index):
            field = group.model_fields[name]
            text = field.description or ""
            # If the default depends on other settings, the description already explains it.
            if field.get_default() is not None and "Default:" not in text:
                text += f" Default: {field.get_default()}."
            flag = [names[name]] if names and name in names else []
            option = typer.Option(*flag, help=text, rich_help_panel=panel)
            yield name, Annotated[field.annotation | None, option], None  # type: ignore[operator]


def _typed(kind: object) -> type[object]:
    """Convert a type to one that Typer supports (tuples to lists, unions of types to str)."""
    kinds = [kind]
    if get_origin(kind) in (Union, UnionType):
        kinds = [member for member in get_args(kind) if member is not NoneType]
    if len(kinds) > 1:
        return str
    if get_origin(kinds[0]) is tuple:
        return cast("type[object]", list[get_args(kinds[0])[0]])  # type: ignore[misc]
    return cast("type[object]", kinds[0])
