"""`vldebias prompts` and `vldebias methods`: list, show and make prompt sets; list methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vldebias.cli.common import App, print_grid, print_json, say, split_names, split_pair
from vldebias.cli.flags import Json
from vldebias.errors import InvalidInputError

app = App("List, show and make prompt sets, which describe a bias.")
_LISTS = ("pairs", "held_out_pairs", "spurious", "classes")


@app.command("list")
def list_sets(as_json: Json = False) -> None:
    """List the prompt sets that come with the package.

    [bold]Examples[/bold]

    \b
      vldebias prompts list
    """
    from vldebias.prompts import list_prompts, load_prompts

    sets = [load_prompts(name) for name in list_prompts()]
    if as_json:
        counts = [{key: len(getattr(s, key)) for key in _LISTS} for s in sets]
        facts = [{key: getattr(s, key) for key in ("name", "description", "source", "hash")} for s in sets]
        print_json([a | b for a, b in zip(facts, counts, strict=True)])
    else:
        print_grid(("name", "pairs", "description"), [(s.name, str(len(s.pairs)), s.description) for s in sets])


@app.command("show")
def show(name: Annotated[str, typer.Argument(metavar="SET", help="Name of a set or path of a YAML file.")]) -> None:
    """Print one prompt set as YAML, with its source and limits: save it under another name to change it.

    [bold]Examples[/bold]

    \b
      vldebias prompts show waterbirds
    """
    from vldebias.files import packaged
    from vldebias.prompts import load_prompts

    load_prompts(name)  # which refuses what is none
    path = Path(name) if Path(name).is_file() else packaged("prompts")[name]
    typer.echo(path.read_text(encoding="utf-8"), nl=False)


@app.command("new")
def new(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file to write; its stem is the name of the set.")],
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


def methods(as_json: Json = False) -> None:
    """List the methods that --method takes: what each works on, what it needs, and where it comes from.

    Methods of other packages (entry points "vldebias.methods") are listed too.

    [bold]Examples[/bold]

    \b
      vldebias methods
      vldebias methods --json
    """
    from vldebias.methods import METHODS

    if as_json:
        facts = {"lam": "has_lam", "pipelines": "pipelines", "models": "models", "side": "side"}
        about = {"name": "name", "title": "title", "source": "source"} | facts
        print_json(
            [
                {key: getattr(method, name) for key, name in about.items()} | {"needs": sorted(method.needs)}
                for method in METHODS.values()
            ]
        )
        return
    rows = []
    for one in METHODS.values():
        hosts = ", ".join(kind for kind in ("models", "pipelines") if getattr(one, kind))
        source = f" ({one.source})" if one.source else ""
        rows.append((one.name, hosts, ", ".join(sorted(one.needs)), f"{one.title}{source}"))
    print_grid(("name", "for", "needs", "about"), rows)
