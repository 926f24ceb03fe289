"""`vldebias diagnose`: probe embeddings, as a page, a result and a list of suspect labels."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli import complete
from vldebias.cli.common import (
    Json,
    aside,
    check_files,
    check_names,
    check_out,
    device_of,
    err,
    print_json,
    print_result,
    split_names,
)
from vldebias.cli.flags import flags_of_options, with_flags
from vldebias.errors import InvalidInputError

SUSPECTS, SHEET = "wrong-labels.csv", "wrong-labels.html"
_BROUGHT = ("model", "pretrained", "texts", "reference", "unknown", "device", "fresh")  # fields of `Options`


@with_flags(flag for flag in flags_of_options() if flag[0] in _BROUGHT)
def diagnose_command(
    features: Annotated[Path, typer.Argument(help="Embeddings with labels (.npz, .safetensors).", metavar="FILE")],
    labels: Annotated[str | None, typer.Option(help="Column of the classes.", metavar="COLUMN")] = None,
    groups: Annotated[str | None, typer.Option(help="Column of an attribute: gender.", metavar="COLUMN")] = None,
    prompts: Annotated[
        str | None,
        typer.Option(help="Prompt set of the attribute, for --methods.", autocompletion=complete.complete_prompt_sets),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods to probe beside none: default,equalise,leace.", autocompletion=complete.complete_methods
        ),
    ] = "",
    folder: Annotated[Path, typer.Option("--out", help="Folder for the page and the list.")] = Path(
        "vldebias-diagnose"
    ),
    images: Annotated[
        Path | None, typer.Option(help="Folder of the pictures, their paths below it the rows' ids, for a sheet.")
    ] = None,
    keep: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of rows to keep, those with the most credible labels.")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="File for the kept rows (.npz, .safetensors).")] = None,
    seed: Annotated[int, typer.Option(help="Of folds, permutations and resamples.")] = 0,
    as_json: Json = False,
    **brought: Any,
) -> None:
    """Probe embeddings for attribute leakage, worst-off groups, label errors and margins.

    Writes a page, result.json and, with --labels, wrong-labels.csv with the least credible label first; with --images
    the pictures of these as wrong-labels.html. A second run with the same settings reuses what the first measured.

    [bold]Examples[/bold]

    \b
      vldebias diagnose features.npz --labels smiling --groups gender
      vldebias diagnose features.npz --groups gender --prompts gender --methods default,equalise --texts texts.npz
      vldebias diagnose features.npz --labels class --images pictures/
      vldebias diagnose features.npz --labels class --keep 0.95 --write clean.npz
    """
    if labels is None and groups is None:
        raise InvalidInputError("expected --labels COLUMN (classes), --groups COLUMN (an attribute) or both")
    if (keep is None) != (write is None):
        raise InvalidInputError("--keep and --write go together: the share to keep, and the file to put it in")
    if labels is None and (keep is not None or images is not None):
        flag = "--images" if keep is None else "--keep"
        raise InvalidInputError(f"{flag}: needs --labels, by whose credibility the rows are listed")
    names = tuple(split_names([methods]))
    if names and prompts is None:
        raise InvalidInputError(f"--methods {methods}: fitted on texts; add --prompts SET (vldebias prompts list)")
    if not features.is_file():
        raise InvalidInputError(f"{features}: expected a file of embeddings (.npz, .safetensors), there is none")
    check_files(texts=brought.get("texts"), reference=brought.get("reference"))
    check_names(names)
    check_out(folder)
    import numpy as np

    from vldebias.data import load_embeddings, save_embeddings
    from vldebias.data.suspects import Suspects, pictures_below
    from vldebias.evaluation.diagnosis import DiagnoseTask, wrong_labels
    from vldebias.evaluation.run import PAGE, run_suite, write_manifest
    from vldebias.evaluation.task import Suite
    from vldebias.options import Options

    fields = {"name": "diagnose", "title": f"What {features.name} holds", "data": {"name": "embeddings"}, "seed": seed}
    task = DiagnoseTask.build({**fields, "labels": labels, "groups": groups, "prompts": prompts, "methods": names})
    suite = Suite.of_task(
        task,
        title=f"Features of {features.name}",
        description="Probes, hidden groups, wrong labels and margins of one file of features.",
        source="vldebias.diagnose",
        needs="a file of embeddings with labels",
    )
    options = Options(
        out=folder,
        embeddings=features,
        **brought | {"device": device_of(brought.get("device", "auto")), "unknown": tuple(brought.get("unknown", ()))},
    )
    data = load_embeddings(features)[0].without(options.unknown)
    pictures = {} if images is None else pictures_below(images, data.ids)
    result = run_suite(suite, options, console=err)
    files = {"page": folder / PAGE}
    if labels is not None:
        listed = wrong_labels(data.features, data.column(labels), seed=seed)
        scores = np.full(len(data), np.nan)
        scores[listed.row] = listed.confidence
        suspects = Suspects.by(scores, data.ids, **pictures)
        labels_of = listed.set_index("row")[["given", "proposed"]].to_dict("index")
        empty = {"given": "", "proposed": ""}  # of a row without a label
        columns = {name: partial(lambda name, row: str(labels_of.get(row, empty)[name]), name) for name in empty}
        files["suspect labels, least credible first"] = suspects.write(folder / SUSPECTS, {"row": str, **columns})
        if images is not None:
            files["their pictures"] = suspects.page(
                folder / SHEET,
                f"{features.name}: the least credible of {len(listed):,} labels, {labels}",
                lambda row: ("", f"given {labels_of[row]['given']}, fits {labels_of[row]['proposed']}"),
            )
        if keep is not None and write is not None:
            rows = suspects.kept(keep).tolist()
            files[f"{len(rows):,} rows kept"] = save_embeddings(write, data[rows])
        write_manifest(folder)  # the lists are of the run too
    if as_json:
        print_json(result.to_dict() | {"files": {name: str(path) for name, path in files.items()}})
        return
    print_result(result)
    for sentence in result.provenance[0].description.split(". "):
        aside(f"\n{sentence.rstrip('.')}.")
    for name, path in files.items():
        aside(f"{name}: {path}")
