"""`vldebias label`: people label generated images, blinded and shuffled (sections 7.6.3 and A.4.3 of the thesis)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vldebias.cli.common import Json, err, out, print_json
from vldebias.evaluation.human.log import AnnotationLog
from vldebias.evaluation.report.pages import print_table

from .label_engine import Labelling
from .label_images import ImageFolder
from .label_page import HEAD, build_demo
from .label_questions import questions_of
from .label_results import build_results, measure
from .serving import AUTH, credentials, serve

__all__ = ["build_demo", "build_results", "main"]

ANSWERS = "answers.jsonl"
CSS = Path(__file__).with_name("label.css")


def label(
    folder: Annotated[
        Path, typer.Argument(help="Folder of images, or one that `vldebias eval generation` wrote.", show_default=False)
    ],
    attribute: Annotated[
        list[str] | None, typer.Option(help="What is judged, such as gender; several by repeating it.")
    ] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option(help="Its values with commas between them, or a prompt set that has them; once per attribute."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--out", help=f"File of the answers, appended to. Default: FOLDER/{ANSWERS}.")
    ] = None,
    annotator: Annotated[
        list[str] | None, typer.Option(help="Who may answer; several by repeating it. Default: any name.")
    ] = None,
    part: Annotated[str, typer.Option(help="Of drawn images: unseen, train or both.")] = "unseen",
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many images of each prompt; the thesis labels 25.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the orders in which annotators see the images.")] = 0,
    results: Annotated[bool, typer.Option("--results", help="Show what the answers say, instead of asking.")] = False,
    votes: Annotated[str, typer.Option(help="Of results: majority (one vote per image) or each answer.")] = "majority",
    resamples: Annotated[int, typer.Option(min=1, help="Of results: bootstrap resamples.")] = 2000,
    as_json: Json = False,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Default: the first free one from 7860.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Listen to the network; needs a password.")] = False,
    auth: Annotated[str | None, typer.Option(help=f"user:password, better kept in ${AUTH}.")] = None,
) -> None:
    """Label generated images by hand: one at a time, blinded, in an order of its own for every annotator.

    Keys 1 to 9 answer, the arrows go back and on. Every answer is written at once to a file that is only appended to;
    who comes back under the same name goes on where they were. `vldebias eval human` reads the file.

    [bold]Examples[/bold]

    \b
      vldebias label sd21/images/gender --attribute gender
      vldebias label sd21/images/race --attribute race --limit 25 --annotator ada --annotator ben
      vldebias label my-images --attribute glasses --choices with,without --out answers.jsonl
      vldebias label sd21/images/gender --attribute gender --results
      vldebias eval human --labels sd21/images/gender/answers.jsonl --drawn sd21/images/gender
    """
    credentials(auth, public=public)  # before anything that takes time
    images = ImageFolder.open(folder, part=part, limit=limit)
    questions = questions_of(attribute or [], choices or [], images.prompt_set)
    log = AnnotationLog(file or images.root / ANSWERS)
    engine = Labelling(images, questions, log, annotators=annotator or [], seed=seed)
    if results:
        _results(engine, votes, resamples, as_json, port, public, auth)
        return
    _writable(log.path)
    _tell(engine)
    serve(
        build_demo(engine),
        port=port,
        public=public,
        auth=auth,
        css=CSS.read_text(),
        head=HEAD,
        upload="1kb",
        say=_address,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the arguments (those of the process if None), and serve until interrupted."""
    command = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    command.command(name="label")(label)
    arguments = None if argv is None else list(argv)
    command(args=arguments, prog_name="vldebias label", standalone_mode=argv is None)


def _results(
    engine: Labelling, votes: str, resamples: int, as_json: bool, port: int | None, public: bool, auth: str | None
) -> None:
    result, missing = measure(engine, votes=votes, resamples=resamples)
    for attribute, why in missing.items():
        err.print(f"{attribute}: nothing to show yet: {why}", markup=False, highlight=False)
    if as_json:
        print_json(result.model_dump())
        return
    if result.figures:
        print_table(result, out)
    page = build_results(engine, votes=votes, resamples=resamples)
    serve(page, port=port, public=public, auth=auth, css=CSS.read_text(), upload="1kb", say=_address)


def _writable(path: Path) -> None:
    """Fail before anyone has answered anything."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab"):
        pass


def _tell(engine: Labelling) -> None:
    folder = engine.folder
    variants, prompts = ({getattr(r, key) for r in folder.records} for key in ("variant", "prompt"))
    err.print(
        f"{len(folder.records)} images ({len(prompts)} prompts, {len(variants)} variants) in {folder.root}; "
        f"answers are kept in {engine.log.path}",
        markup=False,
        highlight=False,
    )
    if folder.missing:
        err.print(f"{folder.missing} more images of the plan are not drawn yet", highlight=False)
    for name, done in engine.progress().items():
        err.print(f"{name}: {done} of {len(folder.records)} images done", markup=False, highlight=False)


def _address(address: str) -> None:
    err.print(f"open {address} in a browser; Ctrl-C stops", highlight=False)


if __name__ == "__main__":
    main()
