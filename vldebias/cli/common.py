"""Provide consoles, help formatting, and table and JSON output for all commands."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

from vldebias.errors import REMOVED, InvalidInputError, did_you_mean, shortened
from vldebias.utils.markup import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
    from typer._click import Command as ClickCommand  # typer's copy of click
    from typer._click import Context, HelpFormatter

    from vldebias.report.result import Result
else:
    ClickCommand = object

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., object])

# Columns with prompts, which are truncated in a terminal if they have more characters than this.
PROMPTS = frozenset({"prompt", "original", "neutral", "subject", "query"})
LONG_PROMPT = 60

STYLES = {
    "better": "bold green",
    "better, at a cost": "bold yellow",  # overrides the colour of "better"
    "worse": "bold red",
    "too few to tell": "bold yellow",
}


@cache
def out() -> Console:
    """Return the console for stdout, created on first use, because importing rich takes 0.1 s."""
    from rich.console import Console

    return Console()


@cache
def err() -> Console:
    """Return the console for stderr, which is also created on first use."""
    from rich.console import Console

    return Console(stderr=True)


UNBROKEN_HYPHEN = "\N{NON-BREAKING HYPHEN}"
EXAMPLES = "\n\nExamples:\n"
# What Typer appends to the help of a parameter, such as "  [default: 8; x>=1; required]".
EXTRAS = re.compile(r"(?<! ) *\[((?:default: |required|[^\[\]]*\bx[<>])[^\[\]]*)\]$")


class HelpStyle(ClickCommand):
    """Write the help of a command or group: usage, text, examples, arguments and options.

    The help of all commands looks the same and is plain text, since importing rich would double the
    time to write it.
    """

    def get_help(self, ctx: Context) -> str:
        """Return the help. Names such as "balanced-prompts" are not split at their hyphens.

        Args:
            ctx: context of the command.
        """
        return super().get_help(ctx).replace(UNBROKEN_HYPHEN, "-")

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """Return the parts of the usage, without braces around required arguments.

        Args:
            ctx: context of the command.
        """
        pieces = []
        for piece in super().collect_usage_pieces(ctx):
            name = re.sub(r"^\{(.*?)(\.\.\.)?\}", r"\1", piece)
            pieces.append(re.sub(r"^\[\[(.*?)(\.\.\.)?\]\]", r"[\1]", name))
        return pieces

    def format_help_text(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the text, and the examples without wrapping, so that they can be pasted.

        Args:
            ctx: context of the command.
            formatter: formatter to which the text is written.
        """
        text, _, examples = (self.help or "").partition(EXAMPLES)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text.replace("-", UNBROKEN_HYPHEN))
        if examples:
            with formatter.section("Examples"):
                formatter.write(textwrap.indent(f"{examples.rstrip()}\n", "  "))

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the arguments, and the options in one section per panel.

        Args:
            ctx: context of the command.
            formatter: formatter to which the options are written.
        """
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            name, text = record
            section = getattr(param, "rich_help_panel", None) or "Options"
            if param.param_type_name == "argument":
                section = "Arguments"
                # Leave out the type, as in "FILE <path>".
                name = name.partition(" <")[0]
            text = _with_sentences(text).replace("-", UNBROKEN_HYPHEN)
            sections.setdefault(section, []).append((name, text))
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _with_sentences(text: str) -> str:
    """Replace the extras at the end of a parameter's help by sentences, such as "Default: 8."."""
    extras = EXTRAS.search(text)
    if extras is None:
        return text
    sentences = [text[: extras.start()]]
    for extra in extras[1].split("; "):
        name, _, value = extra.partition(": ")
        low, _, high = extra.partition("x")
        if name == "default":
            sentences.append(f"Default: {value.removesuffix('.0')}.")
        elif extra == "required":
            sentences.append("Required.")
        elif low and high:
            sentences.append(f"From {low.rstrip('<=')} to {high.lstrip('<=')}.")
        else:
            sentences.append(f"At least {high.lstrip('>=')}.")
    return " ".join(sentences)


_USAGE_ERROR: Any = typer.BadParameter.__base__  # the base class of all errors in arguments

# Names of values in the help, by type. Switches have none.
VALUE_NAMES: dict[object, str] = {Path: "PATH", int: "N", float: "X", str: "TEXT"}


class Command(HelpStyle, TyperCommand):
    """Command whose help examples can be pasted into a shell, and whose errors quote values."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the arguments, and quote invalid values in error messages.

        If an option was removed, the error message says what to do instead.

        Args:
            ctx: context of the command.
            args: the command's arguments.
        """
        passed = list(args)
        known = {name for param in self.params for name in param.opts}
        command = words_of_command(ctx)
        for option in (arg.partition("=")[0] for arg in passed):
            removed = REMOVED.get(f"{command} {option}") or REMOVED.get(option)
            if option.startswith("-") and removed and option not in known:
                ctx.fail(f"No such option: {option}; {removed}")
            if option in ("--out", "-o", "--output") and not known & {option, "--out"}:
                ctx.fail(f"No such option: {option}; the results are printed, so add > FILE")
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            value = value_of_option(getattr(error.param, "opts", ()), passed)
            message = error.message.removeprefix("Value error, ")
            # "Path 'name' does not exist", with double quotes if the name contains an apostrophe
            quoted = message.rpartition(" does not exist")[0].partition(" ")[2]
            if quoted[:1] in ("'", '"') and quoted[-1:] == quoted[0]:
                absent = quoted[1:-1]
                names = [path.name for path in Path(absent).parent.glob("*")]
                message = f"{absent}: no such file or folder; "
                message += did_you_mean(Path(absent).name, names, "check the path", 0.7)
            elif value is not None and repr(value) not in message:
                message += f"; got {value!r}"
            error.message = message
            raise


def words_of_command(ctx: Context, *words: str) -> str:
    """Return a command without the program's name, such as "eval gate".

    Args:
        ctx: context of the command or group.
        words: words that follow it.
    """
    names = list(words)
    while ctx.parent is not None:
        names.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return " ".join(names)


class Group(HelpStyle, TyperGroup):
    """Command group whose help looks like that of `Command`, and whose errors look like ours."""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command with a name. If it was removed, the error says what to do instead.

        Args:
            ctx: context of the group.
            args: the name, followed by further arguments.
        """
        removed = REMOVED.get(words_of_command(ctx, args[0])) if args else None
        if removed and args[0] not in self.commands:
            ctx.fail(f"No such command {args[0]!r}; {removed}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run a command. Report wrong arguments in one line, as all other errors.

        Args:
            args: the arguments, for typer.
            settings: the settings, for typer.
        """
        if not settings.get("standalone_mode", True):
            return super().main(*args, **settings)
        settings["standalone_mode"] = False
        try:
            code = super().main(*args, **settings)
        except _USAGE_ERROR as error:
            if error.ctx is None or error.message.startswith("Usage:"):
                error.show()  # without arguments, the message is the help
            else:
                message = error.format_message().rstrip(".")
                # The first word is the program's path if it was started with `python -m`.
                command = " ".join(["vldebias", *error.ctx.command_path.split()[1:]])
                command = re.sub("^vldebias -m vldebias", "vldebias", command)
                print_message(f"{message}; see `{command} --help`", "error", "red")
            sys.exit(error.exit_code)
        sys.exit(code if isinstance(code, int) else 0)

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the options and the commands.

        Args:
            ctx: context of the group.
            formatter: formatter to which the options are written.
        """
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write all commands with their full summaries, which click would truncate to one line.

        Args:
            ctx: context of the group.
            formatter: formatter to which the commands are written.
        """
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                summary = (command.help or "").partition("\n\n")[0]
                rows.append((name, summary.replace("-", UNBROKEN_HYPHEN)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def value_of_option(names: Sequence[str], args: Sequence[str]) -> str | None:
    """Find the value of an option, passed as either `--port 80` or `--port=80`.

    Args:
        names: names of the option, such as "--port" and "-p".
        args: the command's arguments.

    Returns:
        The last value that was passed, or None if the option was not passed.
    """
    value = None
    for place, arg in enumerate(args):
        name, equals, rest = arg.partition("=")
        if name in names and equals:
            value = rest
        elif arg in names and place + 1 < len(args):
            value = args[place + 1]
    return value


def name_values(function: Callable[..., Any]) -> None:
    """Set what the help shows for the values of a command's options, such as "N".

    Without a name, Typer shows the type, as in <path> or <bool>.
    """
    hints = get_type_hints(function, include_extras=True)
    # Typer must not evaluate the annotations again, which would create options without these names.
    function.__annotations__ = hints
    for hint in hints.values():
        if get_origin(hint) is not Annotated:
            continue
        kind, option = get_args(hint)[:2]
        if isinstance(option, OptionInfo) and option.metavar is None:
            # Look inside optional values and lists.
            kinds = [kind, *get_args(kind), *(arg for k in get_args(kind) for arg in get_args(k))]
            choices = [value for value in kinds if isinstance(value, str)]
            names = [name for known, name in VALUE_NAMES.items() if known in kinds]
            option.metavar = "|".join(choices or names[:1])


class App(typer.Typer):
    """Command group whose help has the style of `HelpStyle` and whose errors `main` handles."""

    def __init__(
        self,
        text: str,
        *,
        cls: type[TyperGroup] | None = None,
        add_completion: bool = True,
    ) -> None:
        super().__init__(
            cls=cls or Group,
            help=_unfolded(text),
            no_args_is_help=True,
            # Keep Typer from hiding errors from `main` and from printing tracebacks, which could
            # contain local variables such as prompts and keys.
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            add_completion=add_completion,
        )

    def add(self, name: str) -> Callable[[CommandFunction], CommandFunction]:
        """Return a decorator that registers a function as a command, with its docstring as help."""

        def register(function: CommandFunction) -> CommandFunction:
            name_values(function)
            return self.command(name, cls=Command, help=_unfolded(function.__doc__ or ""))(function)

        return register


def _unfolded(text: str) -> str:
    """Join the lines of each paragraph of a help text, leaving examples unchanged."""
    prose, _, examples = inspect.cleandoc(text).partition("Examples:\n")
    help_text = "\n\n".join(" ".join(part.split()) for part in prose.split("\n\n"))
    if examples:
        help_text = f"{help_text.rstrip()}{EXAMPLES}{textwrap.dedent(examples)}"
    return help_text


def check_out(folder: Path | None, name: str = "", tables: Sequence[Path] = ()) -> None:
    """Check that an output folder is writable before any work is done.

    Args:
        folder: the folder, or None if nothing is written.
        name: what the command writes, if it must not replace the result of another command.
        tables: the measured tables, whose earlier result may be replaced.

    Raises:
        InvalidInputError: If the folder is not writable, or contains the result of another run.
    """
    if folder is None:
        return
    # The folder may not exist yet, so check its nearest existing parent.
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
    # In its default folder, such as vldebias-captions, a command replaces its latest run.
    has_result = (folder / "result.json").is_file() and not folder.name.startswith("vldebias-")
    if name and has_result:
        from vldebias.report.result import Result

        earlier = Result.read(folder / "result.json")
        measured = {table for part in earlier.provenance for table in part.data}
        is_other_table = measured and not measured >= {table.name for table in tables}
        if earlier.name != name or is_other_table:
            raise InvalidInputError(
                f"--out {folder}: contains the result of {earlier.command or 'another run'};"
                " choose another folder, or delete it to start again"
            )


def check_page(page: Path | None, endings: Sequence[str] = (".html", ".htm")) -> None:
    """Check the path of a page before any work is done, so that it does not replace a result.

    Args:
        page: the path, or None if no page is written.
        endings: the endings that the page may have.
    """
    if page is not None and (page.suffix.lower() not in endings or page.is_dir()):
        raise InvalidInputError(
            f"--out {page}: expected a file with the ending {' or '.join(endings)}"
        )
    check_out(page and page.parent)


def split_names(options: Sequence[str] | None) -> list[str]:
    """Split the values of a repeatable option, each of which may list several names, as in "a,b".

    Empty names are dropped.
    """
    names = [name.strip() for text in options or () for name in text.split(",")]
    return list(filter(None, names))


def split_pair(text: str, option: str, example: str) -> tuple[str, str]:
    """Split an option's value at the first "=".

    Args:
        text: the value, such as "F=female".
        option: name of the option, used in messages.
        example: a valid value, used in messages.

    Raises:
        InvalidInputError: If the value does not have the form name=value.
    """
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        missing = "=" if not equals else "name" if not name else "value"
        raise InvalidInputError(
            f"{option} {text}: expected name=value, such as {example}; the {missing} is missing"
        )
    return name.strip(), value


def parse_pairs(texts: Iterable[str], option: str, example: str) -> dict[str, Any]:
    """Parse the arguments of a repeatable option that have the form name=value, with YAML values.

    Args:
        texts: arguments of the option.
        option: name of the option, used in messages.
        example: a valid argument, used in messages.

    Returns:
        The parsed values by name.

    Raises:
        InvalidInputError: If an argument does not have the form name=value, or if its value is not
            valid YAML.
    """
    values: dict[str, Any] = {}
    for text in texts:
        name, value = split_pair(text, option, example)
        import yaml  # imported here because it is slow to import

        try:
            # Parse values as YAML, so that "null", "true" and "[a, b]" have the same meaning as in
            # a settings file.
            values[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InvalidInputError(
                f"{option} {name}: got {value!r}, which is not valid YAML"
            ) from None
    return values


def write_run(result: Result, folder: Path) -> Path:
    """Write a result, its page and a manifest to a folder.

    Args:
        result: the rows and provenance to write as `result.json`.
        folder: output folder, which may already contain images from the run.

    Returns:
        The path of the page.
    """
    from vldebias.report.page import render
    from vldebias.study.run_files import PAGE, RESULT, write_manifest

    # Write the manifest last, because it contains the digests of all other files.
    result.write(folder / RESULT)
    page = render(result, folder / PAGE, run_folder=folder)
    write_manifest(folder)
    return page


def echo(text: str, *, end: str = "\n") -> None:
    """Print text to stdout, escaping control characters if stdout is a terminal.

    Args:
        text: what to print; it may contain names from a user's files.
        end: string to append to the text.
    """
    if sys.stdout.isatty():
        text = printable(text)
    typer.echo(f"{text}{end}", nl=False)


def print_json(value: object) -> None:
    """Print a value as JSON to stdout."""
    # JSON allows raw DEL and C1 control characters, which terminals would interpret.
    typer.echo(printable(json.dumps(value, indent=1, ensure_ascii=False)))


def piped(head: Sequence[str], rows: Iterable[Sequence[object]]) -> bool:
    """Print tab-separated rows if stdout is not a terminal.

    Args:
        head: column names.
        rows: cells of each row.

    Returns:
        Whether the rows were printed.
    """
    if out().is_terminal:
        return False
    lines = ["\t".join(_cell(value) for value in row) for row in (head, *rows)]
    # Print everything at once, so that an interruption does not leave a partial table.
    echo("\n".join(lines))
    return True


def _cell(value: object) -> str:
    """Convert a value to text without tabs or line breaks."""
    if value is None:
        return ""
    if isinstance(value, float):
        # About six of float32's seven significant digits are reliable.
        return f"{value:.6g}"
    return " ".join(str(value).split())


def print_grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that fits the terminal, or tab-separated rows if piped (see `piped`).

    Cells are wrapped between words, but long prompts are truncated to one line. If the longest
    words of all columns do not fit next to each other, each row is printed as a block of lines
    instead.

    Args:
        head: column names.
        rows: cells of each row. The first cell is the row's name, which is only wrapped if it is
            long.
    """
    if piped(head, rows):
        return
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    head = [printable(cell) for cell in head]
    rows = [[printable(cell) for cell in row] for row in rows]
    columns = list(zip(head, *rows, strict=True))
    longest_cells = [max(map(len, cells)) for cells in columns]
    longest_words = [max(map(len, " ".join(cells).split()), default=1) for cells in columns]
    least_widths = list(longest_words)
    if longest_cells[0] <= out().width // 3:  # a name, not a prompt
        least_widths[0] = longest_cells[0]
    gaps = 2 * (len(head) - 1)
    spare = out().width - gaps - sum(least_widths)
    if spare < 0:
        # Print each row as its name, followed by one or more indented lines per cell.
        for row in rows:
            out().print(Text(_cut(head[0], row[0], out().width), style="bold"), soft_wrap=True)
            for name, cell in zip(head[1:], row[1:], strict=True):
                if cell:
                    line = Text(f"{name}: {cell}")
                    line.stylize("dim", 0, len(name) + 1)
                    out().print(Padding(line, (0, 0, 0, 2)))
            out().print()
        return
    # rich could make wide columns narrower than their longest word, so compute the widths here.
    # Narrow columns get the width that they need, and the other columns share the rest.
    missing = [full - least for full, least in zip(longest_cells, least_widths, strict=True)]
    widths = least_widths
    by_need = sorted(range(len(head)), key=missing.__getitem__)
    for place, column in enumerate(by_need):
        extra = min(missing[column], spare // (len(head) - place))
        widths[column] += extra
        spare -= extra
    shown = [list(map(_cut, head, row, widths)) for row in rows]
    # If rows are wrapped, separate them with blank lines.
    fits = all(len(cell) <= width for row in shown for cell, width in zip(row, widths, strict=True))
    table = Table(box=None, padding=(0, 2, 0 if fits else 1, 0), pad_edge=False)
    for name, width in zip(head, widths, strict=True):
        table.add_column(Text(name), width=width, overflow="fold")
    for row in shown:
        table.add_row(Text(row[0], style="bold"), *map(Text, row[1:]))
    out().print(table)


def _cut(name: str, cell: str, width: int) -> str:
    """Truncate a long prompt to one line of a terminal.

    Args:
        name: name of the column.
        cell: text of the cell.
        width: width of the column.
    """
    return shortened(cell, width) if name in PROMPTS and len(cell) > LONG_PROMPT else cell


def print_list(
    head: Sequence[str], rows: Sequence[Sequence[str]], facts: object, *, as_json: bool
) -> None:
    """Print a table, or its content as JSON.

    Args:
        head: column names.
        rows: cells of each row.
        facts: content to print as JSON.
        as_json: whether to print JSON.
    """
    if as_json:
        print_json(facts)
    else:
        print_grid(head, rows)


def print_result(
    result: Result, measures: Sequence[tuple[str, str]] = (), /, *, as_json: bool, **files: Path
) -> None:
    """Print a result and the paths of its files, or print the result as JSON.

    If stdout is piped, the rows are tab-separated.

    Args:
        result: what to summarise.
        measures: (task, metric) pairs to show. If empty, all are shown.
        as_json: whether to print JSON.
        files: paths of the files that were written, by name.
    """
    if as_json:
        facts = result.to_dict()
        # Omit the path of a single page, which is clear from --out.
        if len(files) > 1:
            facts["files"] = {name: str(path) for name, path in files.items()}
        print_json(facts)
        return
    from vldebias.report.text import sentences, tab_rows, text

    if out().is_terminal:
        out().print(coloured(text(result, measures, width=min(out().width, 100))), soft_wrap=True)
    else:
        for sentence in sentences(result, measures):
            echo(f"# {sentence}")
        piped(*tab_rows(result, measures))
    for name, path in files.items():
        print_message(f"{name.replace('_', ' ')}: {path}")


def coloured(text: str) -> Text:
    """Colour the verdicts in a string. rich omits the colours if NO_COLOR is set."""
    from rich.text import Text

    # Do not interpret markup, since results quote prompts, which may contain brackets.
    shown = Text(printable(text))
    for verdict, style in STYLES.items():
        # A verdict follows the task in a sentence, ends a row, or starts a comparison.
        shown.highlight_regex(
            rf"(?m)(?<=: ){verdict}(?=[.,])|(?<=\] ){verdict}$|^{verdict}(?=:)", style
        )
    return shown


def print_message(text: object, kind: str = "", style: str = "") -> None:
    """Print a message to stderr.

    Markup is not interpreted, since messages may quote user input.

    Args:
        text: the message.
        kind: prefix of the message, such as "warning" or "error".
        style: color of the prefix.
    """
    start = f"{kind}: " if kind else ""
    words = printable(f"{start}{text}")
    if err.cache_info().currsize:
        # Use the console, which prints messages above any progress bars.
        from rich.text import Text

        if err().is_terminal:
            words = _folded(words, err().width)
        # In a plain string, rich would interpret "[red]" as a colour.
        line = Text(words)
        line.stylize(style, 0, len(start))
        err().print(line, soft_wrap=True)
        return
    if sys.stderr.isatty():
        words = _folded(words, shutil.get_terminal_size().columns)
    # Follow the same rules as rich.
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
    if kind and sys.stderr.isatty() and not is_plain:
        words = typer.style(start, fg=style) + words.removeprefix(start)
    typer.echo(words, err=True)


def _folded(text: str, width: int) -> str:
    """Wrap lines between words, without breaking paths or URLs."""
    fold = partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(fold, text.split("\n")))
