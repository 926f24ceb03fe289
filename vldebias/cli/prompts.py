"""`vldebias prompts`: list, show and make prompt sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.common import make_app, print_grid, print_json, say, split_names, split_pair
from vldebias.cli.flags import Json
from vldebias.errors import InvalidInputError

app = make_app("List, show and make prompt sets, which describe a bias.")
_LISTS = ("pairs", "held_out_pairs", "spurious", "classes")


@app.command("list")
def list_sets(as_json: Json = False) -> None:
    """List the prompt sets that come with the package.

    [bold]Examples[/bold]

    \b
      vldebias prompts list
    """
    from vldebias.prompts import list_prompts, load_prompts

    sets = [_summary(load_prompts(name)) for name in list_prompts()]
    if as_json:
        print_json(sets)
    else:
        print_grid(("name", "pairs", "description"), [(s["name"], str(s["pairs"]), s["description"]) for s in sets])


def _summary(s: Any) -> dict[str, Any]:
    said = {key: getattr(s, key) for key in ("name", "description", "source", "hash")}
    return said | {key: len(getattr(s, key)) for key in _LISTS}


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Name of a set or path of a YAML file.")], as_json: Json = False
) -> None:
    """Print one prompt set as YAML, with its source and limits: save it under another name to change it.

    --json fills in every default.

    [bold]Examples[/bold]

    \b
      vldebias prompts show waterbirds
      vldebias prompts show my-set.yaml --json
    """
    from vldebias.files import prompt_file
    from vldebias.prompts import load_prompts

    s = load_prompts(name)
    if as_json:
        print_json(_summary(s) | {key: getattr(s, key) for key in (*_LISTS, "templates", "stated_words", "limits")})
    else:
        path = Path(name) if Path(name).is_file() else prompt_file(name)
        typer.echo(path.read_text(encoding="utf-8"), nl=False)


@app.command("new")
def new(
    path: Annotated[Path, typer.Argument(help="YAML file to write; its stem is the name of the set.")],
    attribute: Annotated[list[str], typer.Option(help="value=word,word; once per value.")],
    concept: Annotated[list[str], typer.Option(help="What the pairs are about; several with commas.")],
    test_concept: Annotated[list[str] | None, typer.Option(help="Held-out concepts, to measure on.")] = None,
) -> None:
    """Make a prompt set from words: a pair for every concept, "A photo of a {attribute} {concept}."

    [bold]Examples[/bold]

    \b
      vldebias prompts new glasses.yaml --attribute with=bespectacled --attribute without=clear-eyed
          --concept doctor,nurse,teacher --test-concept pilot
    """
    from vldebias.prompts import make_prompt_set

    if path.exists():
        raise InvalidInputError(f"{path}: exists; choose another name or delete it first")
    pairs = (split_pair(text, "--attribute", "female=female,woman") for text in attribute)
    values = {value: split_names([words]) for value, words in pairs}
    made = make_prompt_set(path.stem, values, split_names(concept), test_concepts=split_names(test_concept))
    made.to_yaml(path)
    say(f"{path}: {len(made.pairs)} pairs, {len(made.held_out_pairs)} held out")
