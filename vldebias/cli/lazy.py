"""Import each command when it is called, so that `vldebias --help` loads no library."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from vldebias.cli.common import App


@dataclass(frozen=True)
class Entry:
    """Describe where a command is defined, and its summary in the list of commands.

    Attributes:
        module: module in `vldebias.cli`.
        attribute: a function, or an `App` with subcommands.
        summary: the first paragraph of its help.
    """

    module: str
    attribute: str
    summary: str

    def load(self, name: str) -> Any:
        """Import the command and return it, registered under `name`."""
        target = getattr(import_module(f"vldebias.cli.{self.module}"), self.attribute)
        if isinstance(target, typer.Typer):
            command: Any = typer.main.get_group(target)
        else:
            # Typer only builds click commands from an app.
            single = App("", add_completion=False)
            single.command(name)(target)
            command = typer.main.get_command(single)
        command.name = name
        return command


class Commands(UserDict[str, Any]):
    """Map names to commands; a command is imported when it is first looked up."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        super().__init__()
        self.data.update(entries)

    def __getitem__(self, name: str) -> Any:
        # Import it on first use only.
        value = self.data[name]
        if isinstance(value, Entry):
            value = value.load(name)
            self.data[name] = value
        return value


class LazyGroup(TyperGroup):
    """A group that imports its commands one at a time; subclasses list them in `entries`."""

    entries: ClassVar[Mapping[str, Entry]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a stand-in with the command's summary, without importing the command."""
        # Listing all commands must not import any of them.
        entry = self.entries.get(cmd_name)
        return None if entry is None else TyperCommand(cmd_name, help=entry.summary)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write every command with its full summary, wrapped."""
        # click would truncate the summaries to one line.
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import and return the requested command.

        A subcommand that is called without its group is refused, with a hint: `balance` is
        `prompts balance`.
        """
        called = args[0] if args else ""
        if called not in self.entries:
            places: list[str] = []
            for place, entry in self.entries.items():
                if entry.attribute != "app":
                    continue
                group: Any = self.commands[place]
                if called in group.commands:
                    places.append(f"'{place} {called}'")
            if places:
                ctx.fail(f"No such command {called!r}. Did you mean {' or '.join(places)}?")
        name, _, rest = super().resolve_command(ctx, args)
        return name, self.commands[str(name)], rest
