"""Flags of the commands: those that name a model, and those made from the fields of settings, so
that each is declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from vldebias.utils.options import Options

if TYPE_CHECKING:
    from pydantic import BaseModel

Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
AttributeSet = Annotated[
    str,
    typer.Option(
        "--attribute", help="Prompt set of the attribute (vldebias prompts list).", metavar="SET"
    ),
]
AttributeSets = Annotated[
    list[str],
    typer.Option("--attribute", help="gender, age, race, skin-tone or a YAML file; repeatable."),
]
Shares = Annotated[
    list[str] | None,
    typer.Option(help="value=share of the pictures, comma-separated; they sum to 1."),
]
Groups = Annotated[
    str, typer.Option(help="With several persons: mixed, leave (alone) or same (value).")
]
Flags = Iterable[tuple[str, Any, Any]]
"""Name of a keyword, its annotation with a typer option, its default."""

HOST = ("model", "pretrained", "pipeline", "device", "dtype")
"""The fields of `Options` that name a model or pipeline: the keywords of `load_host`."""


def with_flags(flags: Flags) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add flags to a command that takes keywords; a flag without a value and a default is not
    passed on."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = []
        # Annotations are texts in modules with postponed evaluation, and Typer reads objects.
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:  # Typer reads no **keywords
                # By keyword, flags with and without a default may stand in any order.
                parameters.append(parameter.replace(kind=kind))
        added = set()
        for name, hint, value in flags:
            parameters.append(inspect.Parameter(name, kind, default=value, annotation=hint))
            added.add(name)

        @functools.wraps(command)
        def with_added(**values: Any) -> None:
            passed = {}
            for name, value in values.items():
                # Typer gives None or [] for a flag that was left
                # out; the function's own default counts then.
                is_unset = value is None or value == []
                if name not in added or not is_unset:
                    passed[name] = value
            command(**passed)

        # Typer reads both: the defaults from the signature, the options from the annotations.
        setattr(with_added, "__signature__", inspect.Signature(parameters))  # noqa: B010
        with_added.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_added

    return decorate


def flags_of_options(*only: str) -> Flags:
    """Yield a flag for each field of `Options`, or for those that are named."""
    for name, annotation in get_type_hints(Options, include_extras=True).items():
        kind, flag = get_args(annotation)
        if only:  # a few flags need no panel of their own
            flag.rich_help_panel = None
        if not only or name in only:
            yield name, Annotated[_typed(kind) | None, flag], None


def flags_of_fields(
    groups: Mapping[str, type[BaseModel]],
    only: Sequence[str],
    names: Mapping[str, str] | None = None,
) -> Flags:
    """Yield a flag for some fields of settings, in a panel of the help for each group.

    names: field -> its flag, where that is not the name of the field.
    """
    for panel, group in groups.items():
        # In the order of `only`, and each in the panel of its group.
        for name in sorted(set(only) & set(group.model_fields), key=only.index):
            field = group.model_fields[name]
            text = field.description or ""
            # Where a default depends on others, its description says so.
            if field.get_default() is not None and "Default:" not in text:
                text += f" Default: {field.get_default()}."
            # A bracket begins markup in the help.
            flag = [names[name]] if names and name in names else []
            option = typer.Option(*flag, help=text.replace("[", r"\["), rich_help_panel=panel)
            yield name, Annotated[field.annotation | None, option], None  # type: ignore[operator]


def _typed(kind: Any) -> Any:
    """Return what Typer reads: a list for a tuple, a text for a path or a name."""
    kinds = [kind]
    if get_origin(kind) in (Union, UnionType):
        kinds = [member for member in get_args(kind) if member is not NoneType]
    if len(kinds) > 1:
        return str
    if get_origin(kinds[0]) is tuple:
        return list[get_args(kinds[0])[0]]  # type: ignore[misc]
    return kinds[0]
