"""`vldebias prompts` and `vldebias methods`: manage prompts and prompt sets, and list methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vldebias.cli.balance import balance
from vldebias.cli.checks import check_sets
from vldebias.cli.common import App, echo, print_list, print_message, split_names, split_pair
from vldebias.cli.flags import AttributeSet, Json
from vldebias.errors import InvalidInputError
from vldebias.utils.phrases import quantity

app = App(
    """
    Balance prompts, make captions neutral, and list, show and create prompt sets.

    Examples:
      vldebias prompts list
      vldebias prompts balance prompts.txt --attribute gender
      vldebias prompts neutral captions.txt
    """
)
app.add("balance")(balance)


@app.add("list")
def list_sets(as_json: Json = False) -> None:
    """List the packaged prompt sets.

    Examples:
      vldebias prompts list
    """
    from vldebias.prompts import list_prompts, load_prompts

    facts = []
    rows = []
    for name in list_prompts():
        prompt_set = load_prompts(name)
        texts = {key: getattr(prompt_set, key) for key in ("name", "description", "source", "hash")}
        lists = ("pairs", "held_out_pairs", "spurious", "classes")
        facts.append(texts | {key: len(getattr(prompt_set, key)) for key in lists})
        rows.append((prompt_set.name, str(len(prompt_set.pairs)), prompt_set.description))
    print_list(("name", "pairs", "description"), rows, facts, as_json=as_json)


@app.add("show")
def show(
    name: Annotated[
        str, typer.Argument(metavar="SET", help="Name of a prompt set, or a YAML file.")
    ],
) -> None:
    """Print a prompt set as YAML, with its source and limitations.

    To modify a prompt set, save it under a new name and edit the file.

    Examples:
      vldebias prompts show waterbirds
    """
    from vldebias.prompts import load_prompts
    from vldebias.utils.files import packaged

    load_prompts(name)  # raises an error if the set is unknown
    path = Path(name)
    if not path.is_file():
        # Print the file itself, to keep its comments.
        path = packaged("prompts")[name]
    echo(path.read_text(encoding="utf-8"), end="")


@app.add("new")
def new(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="YAML file to write. The set is named after it."),
    ],
    attribute: Annotated[
        list[str], typer.Option(help="A value and its words: value=word,word; repeat per value.")
    ],
    concept: Annotated[
        list[str], typer.Option(help="Comma-separated concepts for the pairs; repeatable.")
    ],
) -> None:
    """Create a prompt set from words, with pairs like "A photo of a {attribute} {concept}."

    To hold out concepts for evaluation, list them as `test` in the file.

    Examples:
      vldebias prompts new glasses.yaml --attribute with=bespectacled \\
          --attribute without=clear-eyed --concept doctor,nurse,teacher
    """
    from vldebias.prompts import make_prompt_set

    # Do not overwrite a set that may have been edited by hand.
    if path.exists():
        raise InvalidInputError(
            f"{path}: the file already exists; choose a different name or delete it first"
        )
    words_of_value = {}
    for text in attribute:
        value, words = split_pair(text, "--attribute", "female=female,woman")
        words_of_value[value] = split_names([words])
    prompt_set = make_prompt_set(path.stem, words_of_value, split_names(concept))
    prompt_set.to_yaml(path)
    print_message(f"{path}: {len(prompt_set.pairs)} pairs")


@app.add("neutral")
def neutral(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Text file with one caption per line, table (.csv, .tsv, .jsonl, .json or"
            " .parquet), or - for stdin.",
        ),
    ],
    attribute: AttributeSet = "gender",
    column: Annotated[
        str | None, typer.Option(help="Column with the captions. Default: prompt, or detected.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Replace stated values by neutral words, as in "a person riding a wave".

    Prints each text, followed by the original text in a second column. For captions before training
    and for alt texts. Names and quotations stay unchanged.

    Examples:
      vldebias prompts neutral captions.txt | cut -f 1
      vldebias prompts neutral captions.csv --column caption --json
      echo "A man and his dog" | vldebias prompts neutral -
    """
    check_sets([attribute])
    from vldebias.data.prompt_file import read_prompts
    from vldebias.wording.neutral import neutral_texts

    texts = read_prompts(file, column).prompts
    rows = list(zip(neutral_texts(texts, attribute), texts, strict=True))
    facts = [dict(zip(("neutral", "original"), row, strict=True)) for row in rows]
    print_list(("neutral", "original"), rows, facts, as_json=as_json)
    changed = sum(new != text for new, text in rows)
    print_message(f"Changed {changed:,} of {quantity(len(rows), 'text')}")


def methods(as_json: Json = False) -> None:
    """List the methods, with the models they work on, their requirements and their sources.

    These are the values of --method. Methods from other packages (entry points "vldebias.methods")
    are included.

    Examples:
      vldebias methods
      vldebias methods --json
    """
    from vldebias.methods.listing import declarations

    facts = []
    rows = []
    for name, method in declarations().items():
        needs = sorted(method.needs)
        texts = {key: getattr(method, key) for key in ("title", "about", "source")}
        lists = {"for": list(method.hosts), "needs": needs, "settings": sorted(method.settings)}
        facts.append({"name": name, **texts, **lists, "side": method.side})
        description = method.about or method.title
        if method.source:
            description += f" ({method.source})"
        rows.append((name, ", ".join(method.hosts), ", ".join(needs), description))
    print_list(("name", "for", "needs", "about"), rows, facts, as_json=as_json)
