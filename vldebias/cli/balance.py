"""`vldebias prompts balance`: state attribute values in prompts, or explain why not."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from vldebias.cli.checks import check_sets
from vldebias.cli.common import (
    err,
    out,
    print_grid,
    print_json,
    print_message,
    split_names,
    split_pair,
)
from vldebias.cli.flags import AttributeSets, Groups, Json, Shares
from vldebias.errors import InvalidInputError, need
from vldebias.utils.phrases import quantity
from vldebias.wording.reasons import CONTEXT, reason_in_words

if TYPE_CHECKING:
    from vldebias.wording import BalancedPrompts
    from vldebias.wording.chat import ChatFinder

_MOST_IMAGES = 1_000_000  # maximum number of images, since all prompts are kept in memory
_MANY_IMAGES = 100_000  # with more images, a message warns that balancing takes a while
COLUMNS = ("prompt", "value", "reason", "original")


def balance(  # noqa: PLR0913 (one parameter per option)
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Text file with one prompt per line, table (.csv, .tsv, .jsonl, .json or"
            " .parquet), - for stdin, or a prompt.",
        ),
    ],
    attribute: AttributeSets,
    images: Annotated[int, typer.Option(min=1, help="Images per prompt.")] = 1,
    shares: Shares = None,
    groups: Groups = "mixed",
    column: Annotated[
        str | None,
        typer.Option(help="Column or key with the prompts. Default: prompt, or detected."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed, to reproduce a run. Default: random.")
    ] = None,
    reader_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Chat model that reads the prompts about which the rules are in doubt, with the"
            " key in OPENAI_API_KEY. These prompts are sent to its service.",
        ),
    ] = None,
    reader_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Its address, such as http://localhost:11434/v1."),
    ] = None,
    as_json: Json = False,
) -> None:
    """State an attribute value in each prompt, with even shares, or explain why not.

    Prints the prompts, and the reasons for those that were left unchanged, as a table, as
    tab-separated text if piped, or as JSON, which also includes the seed. Needs no model, and sends
    prompts to nobody unless --reader-model is given.

    Examples:
      vldebias prompts balance prompts.txt --attribute gender --images 4
      vldebias prompts balance prompts.csv --column text --attribute age \\
          --shares old=0.3,young=0.7
      echo "A CEO in an office" | vldebias prompts balance - --attribute gender \\
          | cut -f 1
    """
    check_sets(attribute)
    chosen = shares_of(shares)
    from vldebias.data.prompt_file import PromptList, read_prompts
    from vldebias.wording import balance_prompts

    # A text with spaces that is not the name of a file is a prompt.
    has_suffix = Path(file).suffix[1:].isalnum()
    is_prompt = len(file.split()) > 1 and not has_suffix and not os.path.isfile(file)
    listed = PromptList((file,)) if is_prompt else read_prompts(file, column)
    if listed.column not in (None, "prompt") or listed.comments or listed.note:
        print_message(f"{file}: read {listed}")
    total = len(listed.prompts) * images
    if images > 1 and total > _MOST_IMAGES:
        raise InvalidInputError(
            f"--images {images}: got {quantity(total, 'image')} for"
            f" {quantity(len(listed.prompts), 'prompt')}; expected at most {_MOST_IMAGES:,}. Run"
            " the command several times with different values of --seed"
        )
    if total > _MANY_IMAGES:
        print_message(f"{file}: balancing {quantity(total, 'prompt')}, which takes a while")
    prompts = [text for text in listed.prompts for _ in range(images)]

    try:
        with ExitStack() as stack:
            balanced = balance_prompts(
                prompts,
                # For a single set, the values are strings. For a list of sets, they are tuples.
                attribute if len(attribute) > 1 else attribute[0],
                shares=chosen,
                seed=seed,
                people=groups,
                find=_finder(reader_model, reader_url, stack),
            )
        columns = (balanced.prompts, balanced.values, balanced.reasons, prompts)
        rows = list(zip(*columns, strict=True))
    except KeyboardInterrupt:
        print_message("nothing was written; run the same command to start over")
        raise
    # Print the summary to stderr, since other programs may read stdout.
    print_message(_counted(balanced))
    try:
        # All rows are printed at once, so that an interrupted run does not print only some of them.
        if as_json:
            records = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
            print_json({"seed": balanced.seed, "attributes": attribute, "prompts": records})
        else:
            print_grid(COLUMNS, [_cells(row) for row in rows])
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise InvalidInputError(
            "the disk is full, so the output is incomplete; free some space and run the same"
            f" command with --seed {balanced.seed} to get the same prompts"
        ) from None


def _cells(row: tuple[object, ...]) -> tuple[str, ...]:
    """Format the cells of a row, with readable reasons if stdout is a terminal."""
    prompt, value, reason, original = map(_cell, row)
    if out().is_terminal:
        reason = "; ".join(map(reason_in_words, filter(None, reason.split("; "))))
    return prompt, value, reason, original


def _finder(model: str | None, url: str | None, stack: ExitStack) -> ChatFinder | None:
    """Return the chat model that reads doubtful prompts, or None if none is given.

    Args:
        model, url: The options.
        stack: Closes the progress bar.
    """
    if model is None:
        if url is not None:
            raise InvalidInputError("--reader-url: expected the model's name, too (--reader-model)")
        return None
    if url is not None and not (url.startswith(("http://", "https://")) and urlsplit(url).hostname):
        raise InvalidInputError(
            f"--reader-url: got {url!r}; expected http://HOST/v1 or https://..."
        )
    key = os.environ.get("OPENAI_API_KEY") or ("none" if url else None)
    if key is None:
        raise InvalidInputError(
            "--reader-model: set OPENAI_API_KEY to the key of the service, or pass the address of"
            " a server that needs none (--reader-url)"
        )
    client = need("openai").OpenAI(base_url=url, api_key=key)
    from vldebias.utils.progress import Progress
    from vldebias.wording.chat import ChatFinder

    advance: list[Callable[[], None]] = []

    def report(done: int, total: int) -> None:
        if not done:
            host = client.base_url.host
            print_message(f"Sending {quantity(total, 'prompt')} to {model} at {host}")
            progress = stack.enter_context(Progress(err()))
            advance[:] = [stack.enter_context(progress.bar("Reading prompts", total))]
        else:
            advance[0]()

    return ChatFinder(client, model, report=report)


def shares_of(options: Iterable[str] | None) -> dict[str, float] | None:
    """Parse --shares options such as "female=0.7,male=0.3" into shares by value."""
    if not options:
        return None
    chosen = {}
    for text in split_names(list(options)):
        value, share = split_pair(text, "--shares", "female=0.7,male=0.3")
        try:
            chosen[value] = float(share)
        except ValueError:
            raise InvalidInputError(
                f"--shares {text}: expected a number after =, such as female=0.7,male=0.3"
            ) from None
    return chosen


def _cell(value: object) -> str:
    """Format a value, which may contain counts for a group or values of several attributes."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return "; ".join(map(_cell, value))
    if isinstance(value, Mapping):
        # Format the group {"female": 2, "male": 1} as "2 female + 1 male". Values whose count is
        # None were not counted.
        parts = [name if count is None else f"{count} {name}" for name, count in value.items()]
        return " + ".join(parts)
    return str(value)


def _counted(balanced: BalancedPrompts) -> str:
    """Describe how many prompts were changed, and why the others were not."""
    reasons = Counter[str]()
    for reason in balanced.reasons:
        is_unchanged = bool(reason)
        if isinstance(reason, tuple):  # unchanged only if there is a reason for every attribute
            is_unchanged = all(part is not None for part in reason)
        if is_unchanged:
            # The rows contain the words of the facts, which would make a long summary.
            reasons[re.sub(rf"{CONTEXT}: [^;]*", CONTEXT, _cell(reason))] += 1
    unchanged = sum(reasons.values())
    changed = len(balanced.prompts) - unchanged
    words = f"Stated a value in {changed:,} of {quantity(len(balanced.prompts), 'prompt')}"
    if unchanged:
        counts = ", ".join(
            f"{reason_in_words(reason)}: {count:,}" for reason, count in reasons.most_common()
        )
        words += f"; left {unchanged:,} unchanged ({counts})"
    return f"{words}. Repeat with --seed {balanced.seed}"
