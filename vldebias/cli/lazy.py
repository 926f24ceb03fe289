"""Import each command when it is called, so that `vldebias --help` does not load any libraries."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from vldebias.cli.common import App, Group
from vldebias.errors import EXTRAS_OF_COMMAND
from vldebias.programs import Entry

if TYPE_CHECKING:
    from typer._click import Command, Context  # typer's copy of click


def load_command(name: str, entry: Entry) -> Command:
    """Import a command and return it, registered under `name`.

    Args:
        name: name of the command.
        entry: location of the command.
    """
    target = getattr(import_module(entry.module), entry.attribute)
    if isinstance(target, typer.Typer):
        command: Command = typer.main.get_group(target)
    else:
        # Typer can only build a click command from an app.
        single = App("", add_completion=False)
        single.add(name)(target)
        command = typer.main.get_command(single)
    command.name = name
    return command


class Commands(UserDict[str, "Command"]):
    """Mapping from names to commands that imports each command on first use."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        super().__init__()
        self.entries = entries

    def __missing__(self, name: str) -> Command:
        self.data[name] = load_command(name, self.entries[name])
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class LazyGroup(Group):
    """Command group that imports commands when needed. Subclasses list them in `entries`."""

    entries: ClassVar[Mapping[str, Entry]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands(self.entries)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """Return a placeholder with the command's summary, without importing the command.

        Args:
            ctx: group context.
            cmd_name: command name.
        """
        # Do not import the command, since this method is also used to list all commands.
        entry = self.entries.get(cmd_name)
        return None if entry is None else TyperCommand(cmd_name, help=entry.summary)

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Import and return the requested command.

        If a subcommand was called without its group, such as `balance` instead of `prompts
        balance`, the error message contains a hint.

        Args:
            ctx: group context.
            args: command name, followed by the command's arguments.
        """
        called = args[0] if args else ""
        if called not in self.entries:
            matches = []
            for name, entry in self.entries.items():
                if entry.attribute != "app":
                    continue
                group = self.commands[name]
                if isinstance(group, TyperGroup) and called in group.commands:
                    matches.append(f"'{name} {called}'")
            if matches:
                ctx.fail(f"No such command {called!r}. Did you mean {' or '.join(matches)}?")
        command_name, _, rest = super().resolve_command(ctx, args)
        if self.entries[str(command_name)].extras:
            token = EXTRAS_OF_COMMAND.set(self.entries[str(command_name)].extras)
            # A program may run a command and then call functions, which need fewer extras.
            ctx.call_on_close(lambda: EXTRAS_OF_COMMAND.reset(token))
        return command_name, self.commands[str(command_name)], rest
