"""Provide consoles, early checks, and table and JSON output for all commands."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from vldebias.errors import InvalidInputError
from vldebias.utils.markup import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
    from typer._click import Context, HelpFormatter  # typer's copy of click

    from vldebias.report.result import Result

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., object])

STYLES = {"better": "bold green", "worse": "bold red", "too few to tell": "bold yellow"}


class LateConsole:
    """Proxy for a rich console that is created on first use.

    Importing rich takes a tenth of a second, and argument errors are reported without it.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        self.__dict__["stderr"] = stderr

    @cached_property
    def console(self) -> Console:
        """Return the underlying console."""
        from rich.console import Console

        return Console(stderr=self.__dict__["stderr"])

    @property
    def is_created(self) -> bool:
        """Return whether the console was used before."""
        return "console" in self.__dict__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.console, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.console, name, value)


out = LateConsole()
err = LateConsole(stderr=True)


class WithoutTrailingSpaces:
    """Wrap stdout and strip trailing spaces from lines."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, text: str) -> int:
        """Write text without trailing spaces."""
        self.file.write(re.sub(" +(?=\n)", "", text))
        return len(text)


class Command(TyperCommand):
    """Define a command whose help can be pasted into a shell and whose errors quote bad values.

    rich pads lines with spaces, but shells do not join lines if spaces follow the backslash.
    """

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the arguments, and quote an invalid value in the error.

        Args:
            ctx: context of the command.
            args: the arguments.
        """
        passed = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            value = value_of_option(getattr(error.param, "opts", ()), passed)
            message = error.message.removeprefix("Value error, ")
            if value is not None and repr(value) not in message:
                message += f"; got {value!r}"
            error.message = message
            raise

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the help to stdout.

        Args:
            ctx: context of the command.
            formatter: unused by Typer.
        """
        output = cast("TextIO", WithoutTrailingSpaces(sys.stdout))
        with redirect_stdout(output):
            super().format_help(ctx, formatter)


def value_of_option(names: Sequence[str], args: Sequence[str]) -> str | None:
    """Return the value of an option passed as `--port 80` or `--port=80`.

    Args:
        names: option names, such as "--port" and "-p".
        args: the command's arguments.

    Returns:
        The last value; None if the option was not passed.
    """
    value = None
    for place, arg in enumerate(args):
        name, equals, rest = arg.partition("=")
        if name in names and equals:
            value = rest
        elif arg in names and place + 1 < len(args):
            value = args[place + 1]
    return value


class App(typer.Typer):
    """Define a command group with help in rich markup; `main` handles errors."""

    def __init__(
        self,
        text: str,
        *,
        cls: type[TyperGroup] | None = None,
        rich_markup_mode: Literal["rich", None] = "rich",
        add_completion: bool = True,
    ) -> None:
        super().__init__(
            cls=cls,
            help=_unfolded(text),
            no_args_is_help=True,
            # Typer's own traceback would hide the error from `main`, and could print local
            # variables such as prompts and keys.
            pretty_exceptions_enable=False,
            rich_markup_mode=rich_markup_mode,
            add_completion=add_completion,
        )

    def add(self, name: str) -> Callable[[CommandFunction], CommandFunction]:
        """Return a decorator that registers a command; its docstring becomes its help."""

        def register(function: CommandFunction) -> CommandFunction:
            # Escape brackets, which start markup in the help.
            text = _unfolded((function.__doc__ or "").replace("[", r"\["))
            return self.command(name, cls=Command, help=text)(function)

        return register


def _unfolded(text: str) -> str:
    """Unwrap each help paragraph to one line, leaving examples unchanged."""
    prose, _, examples = inspect.cleandoc(text).partition("Examples:\n")
    help_text = "\n\n".join(" ".join(part.split()) for part in prose.split("\n\n"))
    if examples:
        # \b keeps click from wrapping the lines that follow.
        help_text += f"[bold]Examples[/bold]\n\n\b\n{examples}"
    return help_text


def check_out(folder: Path | None) -> None:
    """Raise an error if an output folder is not writable, before any work is done."""
    if folder is None:
        return
    # The folder is created with the first result, so check the nearest folder that exists.
    nearest = folder.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    problem = ""
    if not nearest.is_dir():
        problem = "is a file"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        problem = "is not writable"
    if problem:
        raise InvalidInputError(f"--out {folder}: {nearest} {problem}; choose a writable folder")


def split_names(options: Sequence[str] | None) -> list[str]:
    """Split repeatable options that may each contain several names: "a,b"."""
    names = []
    for text in options or ():
        names += [name.strip() for name in text.split(",")]
    return [name for name in names if name]


def split_pair(text: str, option: str, example: str) -> tuple[str, str]:
    """Split an option's value at the first "=".

    Args:
        text: the value.
        option: option name, for messages.
        example: a valid value, for messages.

    Raises:
        InvalidInputError: If the value does not have the form name=value.
    """
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise InvalidInputError(f"{option} {text}: expected name=value, such as {example}")
    return name.strip(), value


def parse_pairs(texts: Iterable[str], option: str, example: str) -> dict[str, Any]:
    """Parse the values name=value of a repeatable option, where each value is YAML.

    Args:
        texts: values of the option.
        option: option name, for messages.
        example: a valid value, for messages.

    Returns:
        The parsed values by name.

    Raises:
        InvalidInputError: If a string does not have the form name=value, or is not valid YAML.
    """
    values: dict[str, Any] = {}
    for text in texts:
        name, value = split_pair(text, option, example)
        import yaml  # slow to import, so only imported if needed

        try:
            # Parse as YAML, so that "null", "true" and "[a, b]" mean the same as in a settings
            # file.
            values[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InvalidInputError(
                f"{option} {name}: got {value!r}; expected a YAML value"
            ) from None
    return values


def device_of(name: str | None) -> str:
    """Return the device to run on; None and "auto" mean cuda if available, otherwise the CPU.

    Raises:
        InvalidInputError: If the device is not available.
    """
    import torch

    if name in (None, "auto"):
        if torch.cuda.is_available():
            return "cuda"
        return "cpu"
    try:
        # An unavailable device would only fail once it is used.
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"--device {name}: {reason}. Expected auto, cpu, cuda, cuda:1 or mps"
        ) from None
    return name


def write_run(result: Result, folder: Path) -> Path:
    """Write a result, its page and the manifest of the folder.

    Args:
        result: the result.
        folder: folder to write to, which may already contain images of the run.

    Returns:
        The path of the page.
    """
    from vldebias.report.page import render
    from vldebias.study.manifest import PAGE, RESULT, write_manifest

    # The manifest comes last because it contains the digest of every other file.
    result.write(folder / RESULT)
    page = render(result, folder / PAGE, run_folder=folder)
    write_manifest(folder)
    return page


def echo(text: str, *, end: str = "\n") -> None:
    """Print text to stdout, escaping control characters on a terminal.

    Args:
        text: the text.
        end: text to print after it.
    """
    if sys.stdout.isatty():
        text = printable(text)
    typer.echo(f"{text}{end}", nl=False)


def print_json(value: object) -> None:
    """Print a value as JSON to stdout."""
    # JSON allows raw DEL and C1 control characters, which terminals would interpret.
    typer.echo(printable(json.dumps(value, indent=1, ensure_ascii=False)))


def piped(head: Sequence[str], rows: Iterable[Sequence[object]]) -> bool:
    """Print tab-separated rows if stdout is a pipe or file.

    Args:
        head: column names.
        rows: cells of each row.

    Returns:
        Whether stdout is a pipe or file.
    """
    if out.is_terminal:
        return False
    # Print one line per row, without wrapping or truncating.
    lines = ["\t".join(_cell(value) for value in row) for row in (head, *rows)]
    # Print everything at once, so that an interrupted run leaves no partial table.
    echo("\n".join(lines))
    return True


def _cell(value: object) -> str:
    """Convert a value to text without tabs or line breaks."""
    if value is None:
        return ""
    if isinstance(value, float):
        # float32 has about seven significant digits, of which six are reliable.
        return f"{value:.6g}"
    return " ".join(str(value).split())


def print_grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, wrapped to the terminal width, or tab-separated if piped (see `piped`).

    Words are not broken. If the longest words of all columns do not fit next to each other, each
    row is printed as a block of lines instead.

    Args:
        head: column names.
        rows: cells of each row; the first one is the row's name, which is not wrapped unless it is
            long.
    """
    if piped(head, rows):
        return
    from rich.table import Table
    from rich.text import Text

    head = [printable(cell) for cell in head]
    rows = [[printable(cell) for cell in row] for row in rows]
    columns = list(zip(head, *rows, strict=True))
    longest_cells = [max(map(len, cells)) for cells in columns]
    longest_words = [max(map(len, " ".join(cells).split()), default=1) for cells in columns]
    least_widths = list(longest_words)
    if longest_cells[0] <= out.width // 3:  # a name, not a prompt
        least_widths[0] = longest_cells[0]
    gaps = 2 * (len(head) - 1)
    spare = out.width - gaps - sum(least_widths)
    if spare < 0:
        print_blocks(head, rows)
        return
    # rich would make the widest columns narrower than their longest word, so set the widths here:
    # narrow columns get the width they need, and the others share the rest.
    missing = [full - least for full, least in zip(longest_cells, least_widths, strict=True)]
    fits = sum(missing) <= spare
    widths = least_widths
    by_need = sorted(range(len(head)), key=missing.__getitem__)
    for place, column in enumerate(by_need):
        extra = min(missing[column], spare // (len(head) - place))
        widths[column] += extra
        spare -= extra
    # Wrapped rows need a blank line between them.
    table = Table(box=None, padding=(0, 2, 0 if fits else 1, 0), pad_edge=False)
    for name, width in zip(head, widths, strict=True):
        table.add_column(Text(name), width=width, overflow="fold")
    for row in rows:
        table.add_row(Text(row[0], style="bold"), *map(Text, row[1:]))
    out.print(table)


def print_blocks(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as its name, followed by one or more indented lines per cell.

    Args:
        head: column names.
        rows: cells of each row; the first one is the row's name.
    """
    from rich.padding import Padding
    from rich.text import Text

    for row in rows:
        out.print(Text(row[0], style="bold"), soft_wrap=True)
        for name, cell in zip(head[1:], row[1:], strict=True):
            if cell:
                line = Text(f"{name}: {cell}")
                line.stylize("dim", 0, len(name) + 1)
                out.print(Padding(line, (0, 0, 0, 2)))
        out.print()


def print_list(
    head: Sequence[str], rows: Sequence[Sequence[str]], facts: object, *, as_json: bool
) -> None:
    """Print a table, or the same facts as JSON.

    Args:
        head: column names.
        rows: cells of each row.
        facts: a JSON value.
        as_json: whether to print JSON.
    """
    if as_json:
        print_json(facts)
    else:
        print_grid(head, rows)


def print_result(
    result: Result, measures: Sequence[tuple[str, str]] = (), /, *, as_json: bool, **files: Path
) -> None:
    """Print the table of a result (tab-separated if piped) and the paths of its files, or JSON.

    Args:
        result: the result.
        measures: pairs (task, metric) to show; all if empty.
        as_json: whether to print JSON.
        files: files that were written, by name.
    """
    if as_json:
        facts = result.to_dict()
        # The path of a single page is clear from --out.
        if len(files) > 1:
            facts["files"] = {name: str(path) for name, path in files.items()}
        print_json(facts)
        return
    from vldebias.report.text import sentences, tab_rows, text

    if out.is_terminal:
        out.print(coloured(text(result, measures, width=min(out.width, 100))), soft_wrap=True)
    else:
        for sentence in sentences(result, measures):
            echo(f"# {sentence}")
        piped(*tab_rows(result, measures))
    for name, path in files.items():
        print_message(f"{name.replace('_', ' ')}: {path}")


def coloured(text: str) -> Text:
    """Color the verdicts in a text; rich omits the colors if NO_COLOR is set."""
    from rich.text import Text

    # Do not parse markup, since results quote prompts, which may contain brackets.
    shown = Text(printable(text))
    for verdict, style in STYLES.items():
        # Verdicts appear after the task, at the end of a row, or at the start of a comparison.
        shown.highlight_regex(
            rf"(?m)(?<=: ){verdict}(?=[.,])|(?<=\] ){verdict}$|^{verdict}(?=:)", style
        )
    return shown


def print_message(text: object, kind: str = "", style: str = "") -> None:
    """Print a message to stderr, without markup, since it may quote user input.

    Args:
        text: the message.
        kind: prefix, such as "warning" or "error".
        style: color of the prefix.
    """
    start = f"{kind}: " if kind else ""
    words = printable(f"{start}{text}")
    if err.is_created:
        # Print above any progress bars.
        from rich.text import Text

        if err.is_terminal:
            words = _folded(words, err.width)
        # rich would parse a string such as "[red]" as a color.
        line = Text(words)
        line.stylize(style, 0, len(start))
        err.print(line, soft_wrap=True)
        return
    has_colors = sys.stderr.isatty()
    if has_colors:
        words = _folded(words, shutil.get_terminal_size().columns)
    # Apply the same rules as rich.
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown"):
        has_colors = False
    if kind and has_colors:
        words = typer.style(start, fg=style) + words.removeprefix(start)
    typer.echo(words, err=True)


def _folded(text: str, width: int) -> str:
    """Wrap lines between words, without breaking paths and URLs."""
    lines = []
    for line in text.split("\n"):
        lines.append(textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False))
    return "\n".join(lines)
