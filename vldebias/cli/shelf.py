"""`vldebias shelf`: fitted edits with a card, for models that others have too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.common import Json, err, make_app, print_json, say
from vldebias.errors import InvalidInputError, VldebiasError, VldebiasWarning, warn
from vldebias.files import read_yaml

app = make_app("Fitted edits of known models: build a folder of them, push one, show what one belongs to.")
_KEYS = {"model", "pretrained", "pipeline", "prompts", "method", "lam", "result", "licence"}


@app.command("build")
def build(
    models: Annotated[Path, typer.Argument(help="YAML: name of a folder: {model (pretrained) or pipeline, prompts}.")],
    folder: Annotated[Path, typer.Option("--out", help="Where to; a folder for each, and those that are there stay.")],
    device: Annotated[str, typer.Option(help="Where to fit: auto, cpu, cuda.")] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Make those that are there anew.")] = False,
) -> None:
    """Fit edits for a list of models, where these are at hand, each with its card and what texts show of it.

    An entry may name a method, a lam, a licence, and as `result` the JSON of `vldebias eval`, whose figures of the
    method go into the card. Models that cannot be loaded are told and left out.

    [bold]Examples[/bold]

    \b
      vldebias shelf build models.yaml --out shelf
      vldebias shelf build models.yaml --out shelf --device cuda --again
    """
    entries = read_yaml(models)
    for name, entry in entries.items():
        _check_entry(models, name, entry)
    made, there = [], []
    for name, entry in entries.items():
        place = folder / name
        if (place / "shelf.json").is_file() and not again:
            there.append(name)
            continue
        try:
            _build(entry, place, models.parent, device)
        except (VldebiasError, OSError) as error:
            warn(f"{name}: left out: {error}", VldebiasWarning)
            continue
        made.append(name)
        say(f"{name}: {place}", err)
    say(f"{len(made)} made, {len(there)} there already, {len(entries) - len(made) - len(there)} left out")
    if not made and not there:
        raise typer.Exit(1)


def _check_entry(path: Path, name: Any, entry: Any) -> None:
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
        raise InvalidInputError(f"{path}: expected the name of a folder for each model, got {name!r}")
    if not isinstance(entry, Mapping) or not set(entry) <= _KEYS or "prompts" not in entry:
        raise InvalidInputError(
            f"{path}: {name}: expected prompts, and model or pipeline, of {', '.join(sorted(_KEYS))}; got {entry!r}"
        )


def _build(entry: Mapping[str, Any], place: Path, beside: Path, device: str) -> None:
    from vldebias.api import fit_projections
    from vldebias.cli.common import device_of
    from vldebias.evaluation.result import Result
    from vldebias.hosts import resolve
    from vldebias.loading import load_host
    from vldebias.prompts import load_prompts
    from vldebias.shelf import LICENCE, evidence_from, save_shelf, text_evidence

    named = {key: entry[key] for key in ("model", "pretrained", "pipeline") if key in entry}
    prompts = load_prompts(entry["prompts"])
    loaded = load_host(**named, device=device_of(device))
    fitting = {key: entry[key] for key in ("method", "lam") if key in entry}
    edits = fit_projections(loaded.host, prompts, tokenizer=loaded.tokenizer, **fitting)
    named_edits = {role: edit if edit.model_id else edit.stamped(model_id=loaded.name) for role, edit in edits.items()}
    evidence = text_evidence(resolve(loaded.host, tokenizer=loaded.tokenizer), prompts, edits)
    if "result" in entry:
        evidence += evidence_from(Result.read(beside / entry["result"]).rows)
    save_shelf(named_edits, place, evidence=evidence, licence=entry.get("licence", LICENCE))


@app.command("push")
def push(
    folder: Annotated[Path, typer.Argument(help="A folder that `vldebias shelf build` wrote.")],
    repository: Annotated[str, typer.Argument(help="user/name on the hub.")],
    private: Annotated[bool, typer.Option(help="Make it private.")] = False,
) -> None:
    """Upload one folder to the Hugging Face hub; you have to be logged in there.

    [bold]Examples[/bold]

    \b
      vldebias shelf push shelf/sd15-gender user/sd15-gender
    """
    from vldebias.shelf import push_to_hub

    say(push_to_hub(folder, repository, private=private))


@app.command("show")
def show_shelved(
    name: Annotated[str, typer.Argument(help="A folder, or user/name on the hub.")], as_json: Json = False
) -> None:
    """Which model, roles and prompt set a shelved edit belongs to.

    [bold]Examples[/bold]

    \b
      vldebias shelf show shelf/sd15-gender
      vldebias shelf show user/sd15-gender --json
    """
    from vldebias.shelf import from_hub

    edits = from_hub(name)
    if as_json:
        about = {r: {"space": e.space, "model": e.model_id, "method": e.method, "dim": e.dim} for r, e in edits.items()}
        print_json(about)
        return
    for role, edit in edits.items():
        say(f"{role}: {edit!r}, prompts {edit.provenance.prompts}")
