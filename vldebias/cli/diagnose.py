"""`vldebias diagnose`: probe embeddings, as a page, a result and a list of suspect labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.common import check_out, device_of, print_result, split_names, write_run
from vldebias.cli.flags import Json, flags_of_options, with_flags
from vldebias.errors import InvalidInputError


@with_flags(flags_of_options("model", "pretrained", "texts", "reference", "unknown", "device"))
def diagnose_command(
    features: Annotated[Path, typer.Argument(exists=True, help="Embeddings with labels (.npz).", metavar="FILE")],
    labels: Annotated[str | None, typer.Option(help="Column of the classes.", metavar="COLUMN")] = None,
    groups: Annotated[str | None, typer.Option(help="Column of an attribute: gender.", metavar="COLUMN")] = None,
    prompts: Annotated[str | None, typer.Option(help="Prompt set of the attribute, for --methods.")] = None,
    methods: Annotated[str, typer.Option(help="Methods to probe besides none: default,equalise,leace.")] = "",
    images: Annotated[
        Path | None,
        typer.Option(exists=True, help="Folder of the pictures, named by the ids of the rows, to show with --labels."),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the page and the list.")] = Path(
        "vldebias-diagnose"
    ),
    as_json: Json = False,
    **brought: Any,
) -> None:
    """Probe embeddings for attribute leakage, worst-off groups, label errors and margins.

    Writes a page, result.json and, with --labels, wrong-labels.csv with the least credible label first; with --images
    the pictures of these as wrong-labels.html.

    [bold]Examples[/bold]

    \b
      vldebias diagnose features.npz --labels smiling --groups gender
      vldebias diagnose features.npz --groups gender --prompts gender --methods default,equalise --texts texts.npz
      vldebias diagnose features.npz --labels class --images pictures/
    """
    if labels is None and groups is None:
        raise InvalidInputError("expected --labels COLUMN (classes), --groups COLUMN (an attribute) or both")
    if labels is None and images is not None:
        raise InvalidInputError("--images: needs --labels, since it shows the pictures of the least credible ones")
    names = tuple(split_names([methods]))
    if names and prompts is None:
        raise InvalidInputError(f"--methods {methods}: fitted on texts; add --prompts SET (vldebias prompts list)")
    check_out(folder)
    from vldebias.data import load_embeddings
    from vldebias.data.suspects import Suspects, pictures_below
    from vldebias.evaluation import diagnose
    from vldebias.evaluation.diagnosis import wrong_labels
    from vldebias.evaluation.session import Session
    from vldebias.options import Options

    brought |= {"device": device_of(brought.get("device", "auto")), "unknown": tuple(brought.get("unknown", ()))}
    session = Session(Options(out=folder, embeddings=features, **brought))
    data = load_embeddings(features)[0].without(session.options.unknown)
    pictures = {} if images is None else pictures_below(images, data.ids)
    texts = None if prompts is None else session.texts
    how: dict[str, Any] = {"groups": groups, "prompts": prompts, "methods": names, "reference": session.reference(None)}
    result = diagnose(data, labels, texts=texts, **how)
    files = {}
    if labels is not None:
        listed = wrong_labels(data.features, data.column(labels)).set_index("row")
        scores = listed.confidence.reindex(range(len(data))).to_numpy()
        suspects = Suspects.by(scores, data.ids, **pictures)
        given, fits = (listed[name].reindex(range(len(data)), fill_value="") for name in ("given", "proposed"))
        columns = {"row": str, "given": given.__getitem__, "proposed": fits.__getitem__}
        files["suspect_labels"] = suspects.write(folder / "wrong-labels.csv", columns)
        if images is not None:
            title = f"{features.name}: the least credible of {len(listed):,} labels, {labels}"
            files["their_pictures"] = suspects.page(
                folder / "wrong-labels.html", title, lambda row: ("", f"given {given[row]}, fits {fits[row]}")
            )
    page = write_run(result, folder)
    print_result(result, as_json=as_json, page=page, **files)
