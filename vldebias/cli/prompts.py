"""`vldebias prompts` and `vldebias methods`: balance prompts; list, show and make prompt sets; list
methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vldebias.cli.balance import balance
from vldebias.cli.common import App, print_list, say, split_names, split_pair
from vldebias.cli.flags import Json
from vldebias.errors import InvalidInputError

app = App("Balance prompts; list, show and make prompt sets, which describe a bias.")
app.command("balance")(balance)


@app.command("list")
def list_sets(as_json: Json = False) -> None:
    """List the prompt sets that come with the package.

    Examples:
      vldebias prompts list
    """
    from vldebias.prompts import list_prompts, load_prompts

    sets = [load_prompts(name) for name in list_prompts()]
    counts = [
        {key: len(getattr(s, key)) for key in ("pairs", "held_out_pairs", "spurious", "classes")}
        for s in sets
    ]
    facts = [
        {key: getattr(s, key) for key in ("name", "description", "source", "hash")} for s in sets
    ]
    rows = [(s.name, str(len(s.pairs)), s.description) for s in sets]
    facts = [a | b for a, b in zip(facts, counts, strict=True)]
    print_list(("name", "pairs", "description"), rows, facts, as_json=as_json)


@app.command("show")
def show(
    name: Annotated[
        str, typer.Argument(metavar="SET", help="Name of a set or path of a YAML file.")
    ],
) -> None:
    """Print one prompt set as YAML, with its source and limits: save it under another name to
    change it.

    Examples:
      vldebias prompts show waterbirds
    """
    from vldebias.files import packaged
    from vldebias.prompts import load_prompts

    load_prompts(name)  # which refuses what is none
    path = Path(name) if Path(name).is_file() else packaged("prompts")[name]
    typer.echo(path.read_text(encoding="utf-8"), nl=False)


@app.command("new")
def new(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="YAML file to write; its stem is the name of the set."),
    ],
    attribute: Annotated[list[str], typer.Option(help="value=word,word; once per value.")],
    concept: Annotated[
        list[str], typer.Option(help="What the pairs are about; several with commas.")
    ],
    test_concept: Annotated[
        list[str] | None, typer.Option(help="Held-out concepts, to measure on.")
    ] = None,
) -> None:
    """Make a prompt set from words: a pair for every concept, "A photo of a {attribute} {concept}."

    Examples:
      vldebias prompts new glasses.yaml --attribute with=bespectacled --attribute without=clear-eyed
          --concept doctor,nurse,teacher --test-concept pilot
    """
    from vldebias.prompts import make_prompt_set

    if path.exists():
        raise InvalidInputError(f"{path}: exists; choose another name or delete it first")
    pairs = (split_pair(text, "--attribute", "female=female,woman") for text in attribute)
    values = {value: split_names([words]) for value, words in pairs}
    made = make_prompt_set(
        path.stem, values, split_names(concept), test_concepts=split_names(test_concept)
    )
    made.to_yaml(path)
    say(f"{path}: {len(made.pairs)} pairs, {len(made.held_out_pairs)} held out")


def methods(as_json: Json = False) -> None:
    """List the methods that --method takes: what each works on, what it needs, and where it comes
    from.

    Methods of other packages (entry points "vldebias.methods") are listed too.

    Examples:
      vldebias methods
      vldebias methods --json
    """
    from vldebias.methods import METHODS

    keys = {"lam": "has_lam"} | {
        key: key for key in ("name", "title", "source", "pipelines", "models", "side")
    }
    facts, rows = [], []
    for one in METHODS.values():
        needs = sorted(one.needs)
        facts.append({key: getattr(one, name) for key, name in keys.items()} | {"needs": needs})
        hosts = ", ".join(kind for kind in ("models", "pipelines") if getattr(one, kind))
        rows.append(
            (
                one.name,
                hosts,
                ", ".join(needs),
                one.title + (f" ({one.source})" if one.source else ""),
            )
        )
    print_list(("name", "for", "needs", "about"), rows, facts, as_json=as_json)
