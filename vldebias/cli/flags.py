"""Flags made from what settings say of themselves, so that none is declared twice."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Iterable, Mapping
from copy import copy
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from vldebias.cli.complete import OF_FIELDS
from vldebias.options import Options

_OFF = "Default: False."  # in the help of a switch

Flags = Iterable[tuple[str, Any, Any]]
"""Name of a keyword, its annotation with a typer option, its default."""


def with_flags(flags: Flags) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose ** takes these flags; what is left away on the command line and has no default is not passed."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        kind = inspect.Parameter.KEYWORD_ONLY
        added = [inspect.Parameter(name, kind, default=value, annotation=hint) for name, hint, value in flags]
        kept = [p.replace(kind=kind) for p in own if p.kind is not p.VAR_KEYWORD]
        names = {p.name for p in added}

        @functools.wraps(command)
        def with_added(**given: Any) -> None:
            command(**{name: value for name, value in given.items() if name not in names or value not in (None, [])})

        setattr(with_added, "__signature__", inspect.Signature([*kept, *added]))  # noqa: B010
        with_added.__annotations__ = {p.name: p.annotation for p in (*kept, *added)}
        return with_added

    return decorate


class SettingsCommand(TyperCommand):
    """A command whose switches, where they are off, have no --no-NAME in the help: both names would be cut there."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Both are read all the same: --no-NAME turns off what a file of settings has turned on."""
        shown = copy(self)
        shown.params = [copy(parameter) for parameter in self.params]
        for parameter in shown.params:
            if _OFF in (getattr(parameter, "help", None) or ""):
                parameter.secondary_opts = []
        TyperCommand.format_help(shown, ctx, formatter)


def flags_of_options() -> Flags:
    """A flag for each field of `Options`."""
    for name, annotation in get_type_hints(Options, include_extras=True).items():
        kind, flag = get_args(annotation)
        option = typer.Option(
            *filter(None, [flag.name or (f"--{name}" if flag.value is None else None)]),
            help=flag.text,
            rich_help_panel=flag.panel,
            metavar=flag.value,
            autocompletion=OF_FIELDS.get(name),
            show_default=False,
            min=flag.least,
        )
        yield name, Annotated[_typed(kind) | None, option], None


def flags_of_fields(
    groups: Mapping[str, type[BaseModel]], only: Container[str] = (), panels: bool = True, first: Container[str] = ()
) -> Flags:
    """A flag for each field of settings, or `only` for some, in a panel of the help for each group.

    first: those that the help shows at once, before the panels, where it hides the others; default: it hides none.
    """
    for panel, group in groups.items():
        for name, field in group.model_fields.items():
            if not only or name in only:
                later = bool(first) and name not in first
                yield name, _annotation_of(name, field, panel if panels and (later or not first) else None, later), None


def hidden_flags(names: Iterable[str]) -> Flags:
    """Flags that the help does not show: settings that went, which whoever reads them refuses by name."""
    for name in names:
        yield name, Annotated[str | None, typer.Option(hidden=True)], None


def _annotation_of(name: str, field: FieldInfo, panel: str | None, hidden: bool = False) -> Any:
    default, text = field.get_default(), field.description or ""
    if default is not None and "Default:" not in text:
        text += f" Default: {default}."
    # Brackets in it are no markup.
    text = text.replace("[", r"\[")
    option = typer.Option(
        help=text, rich_help_panel=panel, show_default=False, hidden=hidden, autocompletion=OF_FIELDS.get(name)
    )
    kind: Any = field.annotation
    if any(isinstance(one, type) and issubclass(one, BaseModel) for one in (kind, *get_args(kind))):
        option.parser, kind = _object, dict
        option.metavar = "TEXT"
    return Annotated[kind | None, option]


def _typed(kind: Any) -> Any:
    """What Typer reads: a list for a tuple, texts for a mapping (A=B), a text for what may be a path or a name."""
    kinds = [one for one in get_args(kind) if one is not NoneType] if get_origin(kind) in (Union, UnionType) else [kind]
    if len(kinds) > 1:
        return str
    (one,) = kinds
    if get_origin(one) is tuple:
        return list[get_args(one)[0]]  # type: ignore[misc]
    return list[str] if get_origin(one) is Mapping else one


def _object(text: str) -> Any:
    """An object or a name, as a file has it: {rows: 4096, momentum: 0.99}."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise typer.BadParameter(f"expected a name, or an object such as {{rows: 4096}}; {error}") from None
