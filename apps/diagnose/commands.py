"""`vldebias diagnose`: probe embeddings for leakage and label errors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias.cli.checks import check_file, check_sets
from vldebias.cli.common import check_out, print_result, split_names, write_run
from vldebias.cli.flags import Json, flags_of_options, with_flags
from vldebias.errors import InvalidInputError
from vldebias.methods.listing import check_methods
from vldebias.utils.devices import device_of
from vldebias.utils.names import check_model, check_path

if TYPE_CHECKING:
    from vldebias.data import Embeddings


@with_flags(flags_of_options("model", "pretrained", "texts", "reference", "unknown", "device"))
def diagnose_command(
    features: Annotated[
        Path, typer.Argument(exists=True, help="Embeddings with labels (.npz).", metavar="FILE")
    ],
    labels: Annotated[
        str | None,
        typer.Option("--label-column", help="Column with the classes.", metavar="COLUMN"),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            "--group-column", help="Column with an attribute, such as gender.", metavar="COLUMN"
        ),
    ] = None,
    attribute: Annotated[
        str | None,
        typer.Option(help="Prompt set for the attribute, used by --methods.", metavar="SET"),
    ] = None,
    methods: Annotated[
        str, typer.Option(help='Methods to compare with "none", such as default,equalise,leace.')
    ] = "",
    images: Annotated[
        Path | None,
        typer.Option(
            "--image-dir",
            exists=True,
            help="Folder with the images, named after the row ids, to show with --label-column.",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the page and the list.")] = Path(
        "vldebias-diagnose"
    ),
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Probe embeddings for attribute leakage, worst-performing groups and label errors.

    Writes a page and result.json. With --label-column, also writes wrong-labels.csv, which lists
    the least credible labels first. With --image-dir, also writes wrong-labels.html, which shows
    the corresponding images.

    Examples:
      vldebias diagnose features.npz --label-column smiling --group-column gender
      vldebias diagnose features.npz --group-column gender --attribute gender \\
          --methods default,difference --texts texts.npz
      vldebias diagnose features.npz --label-column class --image-dir images/
    """
    check_path(str(features), "features")
    names = tuple(split_names([methods]))
    if labels is None and groups is None:
        raise InvalidInputError(
            "expected --label-column COLUMN (the classes), --group-column COLUMN (an attribute), or"
            " both"
        )
    if labels is None and images is not None:
        raise InvalidInputError(
            "--image-dir needs --label-column, since it shows the images with the least credible"
            " labels"
        )
    if names and attribute is None:
        raise InvalidInputError(
            f"--methods {methods}: methods are fitted on the text of a prompt set; add"
            " --attribute SET"
        )
    check_out(folder)
    check_sets([attribute])
    check_methods(names)
    check_model(flags.get("model"), flags.get("pretrained"))
    check_file("--texts", flags.get("texts"))
    check_file("--reference", flags.get("reference"))
    from vldebias.data import load_embeddings
    from vldebias.study.inputs import Inputs
    from vldebias.utils.options import Options

    from .diagnosis import diagnose

    flags["unknown"] = tuple(flags.get("unknown", ()))
    flags["device"] = device_of(flags.get("device"))
    inputs = Inputs(Options(out=folder, embeddings=features, **flags))
    data = load_embeddings(features)[0].without(inputs.options.unknown)
    texts = None if attribute is None else inputs.texts
    result = diagnose(
        data,
        labels,
        groups=groups,
        attribute=attribute,
        methods=names,
        texts=texts,
        reference=inputs["reference"],
    )
    files = {} if labels is None else _write_wrong_labels(data, labels, folder, images, features)
    page = write_run(result, folder)
    print_result(result, as_json=as_json, page=page, **files)


def _write_wrong_labels(
    data: Embeddings, labels: str, folder: Path, images: Path | None, features: Path
) -> dict[str, Path]:
    """Write the labels, least credible first, and a page with their images, if available.

    Returns:
        The file paths, by the name under which each is printed.
    """
    from vldebias.data.suspects import Suspects

    from .diagnosis import wrong_labels

    pictures = {} if images is None else Suspects.pictures(images, data.ids)
    table = wrong_labels(data.features, data.column(labels)).set_index("row")
    rows = range(len(data))
    # Rows without a label are missing from the table. Their confidence is NaN, which ranks last.
    confidences = table.confidence.reindex(rows).to_numpy()
    labels_of_row = table["given"].reindex(rows, fill_value="")
    proposals_of_row = table["proposed"].reindex(rows, fill_value="")
    suspects = Suspects(confidences, data.ids, **pictures)
    columns = {
        "row": str,
        "given": labels_of_row.__getitem__,
        "proposed": proposals_of_row.__getitem__,
    }
    files = {"suspect_labels": suspects.write(folder / "wrong-labels.csv", columns)}
    if images is None:
        return files

    def caption(row: int) -> tuple[str, str]:
        return "", f"given {labels_of_row[row]}, fits {proposals_of_row[row]}"

    title = f"{features.name}: the least credible of {len(table):,} labels in {labels}"
    introduction = (
        "The number is the margin by which the given label fits better than the next best label,"
        " according to a classifier that was trained on other rows. If it is below 0, a different"
        " label fits better. Check these images first. All labels are listed in wrong-labels.csv."
        " Correct labels of rare groups may look suspicious too."
    )
    page = folder / "wrong-labels.html"
    files["their_pictures"] = suspects.page(page, title, caption, introduction=introduction)
    return files
