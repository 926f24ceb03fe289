"""`vldebias prompts`: list, show and make prompt sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli import complete
from vldebias.cli.common import Json, err, make_app, piped, print_grid, print_json, say, split_names, split_pair
from vldebias.errors import InvalidInputError

app = make_app("Prompt sets: what describes a bias.")
_TEMPLATES = ["A photo of a {attribute} {concept}."]


@app.command("list")
def list_sets(as_json: Json = False) -> None:
    """List the prompt sets that come with the package.

    [bold]Examples[/bold]

    \b
      vldebias prompts list
    """
    from vldebias.prompts import list_prompts, load_prompts

    sets = [_summary(load_prompts(name)) for name in list_prompts()]
    head = ("name", "description", "pairs", "held_out_pairs", "spurious", "classes")
    if as_json:
        print_json(sets)
    elif not piped(head, ([one[key] for key in head] for one in sets)):
        lines = []
        for one in sets:
            counts = ", ".join(f"{one[k]} {k.replace('_pairs', '').replace('_', ' ')}" for k in head[2:] if one[k])
            lines.append((one["name"], f"{one['description']} ({counts})"))
        print_grid(("", ""), lines)


def _summary(s: Any) -> dict[str, Any]:
    said = {key: getattr(s, key) for key in ("name", "description", "source", "hash")}
    return said | {key: len(getattr(s, key)) for key in ("pairs", "held_out_pairs", "spurious", "classes")}


@app.command("show")
def show(
    name: Annotated[
        str, typer.Argument(help="Name of a set or path of a YAML file.", autocompletion=complete.complete_prompt_sets)
    ],
    as_json: Json = False,
    every: Annotated[bool, typer.Option("--all", help="Every pair, not the first ten.")] = False,
) -> None:
    """Show one prompt set, with its source and limits.

    [bold]Examples[/bold]

    \b
      vldebias prompts show waterbirds
      vldebias prompts show my-set.yaml --json
    """
    from vldebias.prompts import load_prompts

    s = load_prompts(name)
    if as_json:
        lists = ("classes", "spurious", "pairs", "held_out_pairs", "templates", "stated_words", "limits")
        print_json(_summary(s) | {key: getattr(s, key) for key in lists})
        return
    shown = s.pairs if every else s.pairs[:10]
    sections = {
        f"{s.name}  {s.hash[:12]}": [s.description],
        "source": [s.source],
        "limits": [s.limits],
        "classes": s.classes,
        "spurious": s.spurious,
        f"pairs ({len(shown)} of {len(s.pairs)})": [f"{a}  |  {b}" for a, b in shown],
        f"stated words ({len(s.stated_words)})": [", ".join(s.stated_words if every else s.stated_words[:60])],
    }
    for title, lines in sections.items():
        if any(lines):
            say("\n  ".join([title, *lines]))


@app.command("new")
def new(
    path: Annotated[Path, typer.Argument(help="YAML file to write; its stem is the name of the set.")],
    attribute: Annotated[list[str], typer.Option(help="value=word,word; give it once per value.")],
    concept: Annotated[list[str], typer.Option(help="What the pairs are about; several, or comma-separated.")],
    template: Annotated[list[str], typer.Option(help="With {attribute} and {concept}.")] = _TEMPLATES,
    test_concept: Annotated[list[str] | None, typer.Option(help="Held-out concepts, to measure on.")] = None,
) -> None:
    """Make a prompt set from a short word list: attribute words x templates x concepts.

    [bold]Examples[/bold]

    \b
      vldebias prompts new glasses.yaml --attribute with=bespectacled --attribute without=clear-eyed
          --concept doctor,nurse,teacher --test-concept pilot
    """
    from vldebias.prompts import make_prompt_set

    if path.exists():
        raise InvalidInputError(f"{path}: exists; choose another name or delete it first")
    pairs = (split_pair(text, "--attribute", "value=word,word (such as female=female,woman)") for text in attribute)
    values = {value: split_names([words]) for value, words in pairs}
    made = make_prompt_set(path.stem, values, split_names(concept), template, test_concepts=split_names(test_concept))
    made.to_yaml(path)
    say(f"{path}: {len(made.pairs)} pairs, {len(made.held_out_pairs)} held out", err)
