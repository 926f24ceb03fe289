"""`vldebias audit` and `vldebias diagnose`: predict what images will show, probe embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

import typer

from vldebias.cli.checks import check_file, check_host, check_model, check_sets
from vldebias.cli.common import (
    check_out,
    device_of,
    err,
    print_message,
    print_result,
    split_names,
    write_run,
)
from vldebias.cli.flags import (
    HOST,
    AttributeSet,
    HostFlags,
    Json,
    flags_of_options,
    host_flags,
    with_flags,
)
from vldebias.errors import InvalidInputError
from vldebias.methods.declared import check_methods

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.data import Embeddings
    from vldebias.hosts.loading import Loaded
    from vldebias.report.result import Result


class AuditFlags(HostFlags, total=False):
    """`vldebias audit` flags: the source of embeddings, and how `--measure` works."""

    judge: str
    steps: int


class DiagnoseFlags(TypedDict, total=False):
    """`vldebias diagnose` flags that are passed to `Options`."""

    model: str
    pretrained: str
    texts: Path
    reference: Path
    unknown: list[str]
    device: str


# `vldebias audit` options.
PromptsFile = Annotated[
    Path | None, typer.Argument(exists=True, help="Prompts, one per line.", metavar="FILE")
]
Column = Annotated[
    str | None,
    typer.Option(help="Column of the prompts or captions. Default: detected by its name."),
]
Texts = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        help="Text embeddings (.npz) of the prompts, the prompt set and the calibration.",
    ),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        help=(
            "Counts of judged images: fair-diffusion, sd15, sd3, sd35, flux2, uce, miniature"
            " (sd3@3: at guidance 3), or a CSV of your own images (prompt, value: a row per"
            " image; or prompt and a column of counts per value). Default: the counts of the"
            " pipeline. If there are none, the audit makes no prediction and shows the counts"
            " of other models (gender only)."
        ),
        metavar="NAME|FILE",
    ),
]
Measure = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=(
            "Calibrate the audit on your own --pipeline: generate and judge N images for each"
            " of up to 30 prompts (all prompts of the protocol). Writes a record. Run it again"
            " to continue."
        ),
        metavar="N",
    ),
]
Width = Annotated[
    float | None,
    typer.Option(
        help="Print how many images are needed for an interval of this width, such as 0.1."
    ),
]
Guidance = Annotated[
    float | None,
    typer.Option(help="Guidance scale for --measure. Default: the pipeline's.", metavar="X"),
]
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        help=(
            "Folder for the page and the list. With --measure, it may be a file RECORD.json;"
            " the folder is then RECORD."
        ),
    ),
]
Original = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        help="Prompts as users wrote them, one per line, to audit a prompt rewriter.",
    ),
]
Rewritten = Annotated[
    Path | None,
    typer.Option(
        exists=True, help="The same prompts as a language model rewrote them, one per line."
    ),
]
Captions = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        help=(
            "Captions of training data (a table, COCO's captions, a folder of .txt): which"
            " values they state, and for which nouns. No model is needed."
        ),
    ),
]


@with_flags(flags_of_options(*HOST, "judge", "steps"))
def audit_command(  # noqa: PLR0913  (each is an option of the command)
    attribute: AttributeSet,
    file: PromptsFile = None,
    column: Column = None,
    texts: Texts = None,
    calibration: Calibration = None,
    measure: Measure = None,
    width: Width = None,
    guidance: Guidance = None,
    folder: Out = Path("vldebias-audit"),
    original: Original = None,
    rewritten: Rewritten = None,
    captions: Captions = None,
    as_json: Json = False,
    **flags: Unpack[AuditFlags],
) -> None:
    """Predict what the images of each prompt will show, with intervals, before any image is
    generated.

    Writes a page, result.json and prompts.csv, with the prompts that need attention first.

    Examples:
      vldebias audit prompts.txt --attribute gender \\
          --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5
      vldebias audit prompts.txt --attribute gender --model ViT-B-32 \\
          --pretrained openai
      vldebias audit prompts.txt --attribute gender --pipeline DIR \\
          --calibration sd3
      vldebias audit prompts.txt --attribute gender --pipeline DIR --measure 8 \\
          --width 0.1
      vldebias audit prompts.txt --attribute race --pipeline DIR \\
          --calibration judged.csv
      vldebias audit protocol.txt --attribute gender --pipeline DIR --measure 8 \\
          --out record.json
      vldebias audit --attribute gender --original users.txt \\
          --rewritten enhanced.txt
      vldebias audit --attribute gender --captions train.csv --column caption
    """
    if captions is not None:
        unused = (file, original, rewritten, texts, calibration, measure, width, guidance)
        if {*unused, *flags.values()} != {None}:
            raise InvalidInputError(
                "--captions: expected no other texts, no model and nothing to measure; captions"
                " cannot be combined with them"
            )
        _audit_captions(captions, column, attribute, folder, as_json=as_json)
        return
    if original is not None and rewritten is not None:
        _audit_rewriter(original, rewritten, attribute, folder, as_json=as_json)
        return
    if file is None or original is not None or rewritten is not None:
        raise InvalidInputError(
            "expected FILE, or both of --original and --rewritten, or --captions"
        )
    _check_source(flags, texts, measure, calibration)
    record_file = folder / "record.json"
    if folder.suffix == ".json":
        record_file = folder
        folder = folder.with_suffix("")
        if measure is None:
            raise InvalidInputError(
                f"--out {record_file}: only --measure N writes a record; pass a folder instead"
            )
    check_out(folder)
    check_sets([attribute])
    from vldebias.wording.prompt_file import read_prompts

    listed = read_prompts(file, column)
    print_message(f"{file}: read {listed}")
    _print_numbers(listed.prompts, attribute, measure, width)
    # torch takes seconds to import, so mistakes are reported first.
    from vldebias.data.embeddings import load_texts
    from vldebias.study import audit
    from vldebias.utils.files import spreadsheet_csv, write_atomically

    if texts is not None:
        result = audit(listed, attribute, texts=load_texts(texts), calibration=calibration)
    elif measure is not None:
        loaded, counts = _count_values(
            flags, listed.prompts, attribute, measure, guidance, folder, record_file
        )
        result = audit(listed, attribute, pipe=loaded, calibration=counts)
    elif "pipeline" in flags:
        result = audit(listed, attribute, pipe=_loaded(flags), calibration=calibration)
    else:
        result = audit(listed, attribute, model=_loaded(flags), calibration=calibration)
    write_atomically(folder / "prompts.csv", spreadsheet_csv(_listed(result), index=True))
    page = write_run(result, folder)
    print_result(result, as_json=as_json, page=page, prompts=folder / "prompts.csv")


def _loaded(flags: AuditFlags) -> Loaded:
    """Load the model or pipeline selected by flags, choosing a device if none is set."""
    from vldebias.hosts.loading import load_host

    flags["device"] = device_of(flags.get("device"))
    return load_host(**host_flags(flags))


def _check_source(
    flags: HostFlags, texts: Path | None, measure: int | None, calibration: str | None
) -> None:
    """Check that there is one source of text embeddings, and a pipeline if images are judged."""
    sources = [texts is not None, "model" in flags, "pipeline" in flags]
    if sum(sources) != 1:
        raise InvalidInputError(
            "expected exactly one of --model, --pipeline and --texts as the source of embeddings"
        )
    if measure is not None and ("pipeline" not in flags or calibration is not None):
        raise InvalidInputError("--measure needs --pipeline, and excludes --calibration")
    if texts is None:
        check_host(flags)


def _print_numbers(
    prompts: Sequence[str], attribute: str, images: int | None, width: float | None
) -> None:
    """Print how many images are generated or needed, and the width of their intervals."""
    if images is None and width is None:
        return
    from vldebias.measure.resampling import images_for_width, widest_interval
    from vldebias.prompts import load_prompts
    from vldebias.study.pilot import pilot_prompts

    number = len(pilot_prompts(prompts, load_prompts(attribute)))
    if width is not None:
        low, high = images_for_width(width)
        print_message(
            f"An interval of width {width:g} needs {low:,} images per prompt if all show the same"
            f" value, and {high:,} if half of them do: {number * low:,} to"
            f" {number * high:,} for {number:,} prompts (--measure {high})"
        )
    if images is not None:
        print_message(
            f"{images:,} images for each of {number:,} prompts: {number * images:,} images, with"
            f" intervals up to {widest_interval(images):.2f} wide"
        )


def _count_values(
    flags: AuditFlags,
    prompts: Sequence[str],
    attribute: str,
    images: int,
    guidance: float | None,
    folder: Path,
    record_file: Path,
) -> tuple[Loaded, pd.DataFrame]:
    """Count values in a pipeline's images; write measured.csv and a record.

    Returns:
        The pipeline and the counts.
    """
    from vldebias.prompts import load_prompts
    from vldebias.study.pilot import measure_prompts, pilot_prompts
    from vldebias.utils.files import spreadsheet_csv, write_atomically
    from vldebias.utils.options import Options
    from vldebias.utils.progress import Progress

    loaded = _loaded(flags)
    options = Options(
        out=folder,
        device=flags["device"],
        dtype=flags.get("dtype"),
        judge=flags.get("judge"),
        steps=flags.get("steps"),
    )
    measured = pilot_prompts(prompts, load_prompts(attribute))
    with Progress(err.console) as progress:
        counts, record = measure_prompts(
            loaded,
            measured,
            attribute,
            options,
            images=images,
            guidance=guidance,
            progress=progress,
        )
    write_atomically(folder / "measured.csv", spreadsheet_csv(counts))
    record.write(record_file)
    print_message(f"counts: {folder / 'measured.csv'}, {record_file}")
    return loaded, counts


def _audit_rewriter(
    original: Path, rewritten: Path, attribute: str, folder: Path, *, as_json: bool
) -> None:
    """Measure the values that a prompt rewriter adds, without images."""
    check_out(folder)
    check_sets([attribute])
    from vldebias.wording.prompt_file import read_prompts

    originals = read_prompts(original)
    texts = read_prompts(rewritten)
    print_message(f"{original}: read {originals}; {rewritten}: read {texts}")
    from vldebias.auditing.rewriters import audit_rewriter

    result = audit_rewriter(originals.prompts, texts.prompts, attribute)
    page = write_run(result, folder)
    print_result(result, as_json=as_json, page=page)


def _audit_captions(
    captions: Path, column: str | None, attribute: str, folder: Path, *, as_json: bool
) -> None:
    """Report which values captions state, and for which nouns."""
    check_out(folder)
    check_sets([attribute])
    from vldebias.auditing.captions import audit_captions
    from vldebias.data.caption_texts import read_captions

    texts = read_captions(captions, column)
    number = sum(map(len, texts))
    print_message(f"{captions}: reading {number:,} captions of {len(texts):,} images")
    result = audit_captions(texts, attribute)
    page = write_run(result, folder)
    print_result(result, as_json=as_json, page=page)


def _listed(result: Result) -> pd.DataFrame:
    """Return one row per prompt and predicted value: advice, share and interval."""
    import pandas as pd

    from vldebias.measure.rows import NONE

    shares = result.to_pandas().query("metric == 'predicted_share'")
    shares = shares.rename(columns={"value": "share", "method": "calibration"})
    parts = [subset.rpartition(": ") for subset in shares.subset]
    # A subset is "PROMPT: VALUE"; only the prompt may contain colons.
    shares["value"] = [value for _, _, value in parts]
    shares.index = [prompt for prompt, _, _ in parts]
    advice = pd.Series(result.provenance[0].settings["prompts"], name="advice")
    # Keep the audit's order: prompts that need attention first.
    table = advice.rename_axis("prompt").to_frame()
    columns = ["value", "share", "low", "high"]
    if (shares.calibration != NONE).any():
        columns = ["calibration", *columns]
    return table.join(shares[columns])


@with_flags(flags_of_options("model", "pretrained", "texts", "reference", "unknown", "device"))
def diagnose_command(
    features: Annotated[
        Path, typer.Argument(exists=True, help="Embeddings with labels (.npz).", metavar="FILE")
    ],
    labels: Annotated[
        str | None, typer.Option(help="Column of the classes.", metavar="COLUMN")
    ] = None,
    groups: Annotated[
        str | None, typer.Option(help="Column of an attribute, such as gender.", metavar="COLUMN")
    ] = None,
    attribute: Annotated[
        str | None,
        typer.Option(help="Prompt set of the attribute, for --methods.", metavar="SET"),
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Methods to compare with none, such as default,equalise,leace.")
    ] = "",
    images: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="Folder of the images, named after the row ids, to show with --labels.",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the page and the list.")] = Path(
        "vldebias-diagnose"
    ),
    as_json: Json = False,
    **flags: Unpack[DiagnoseFlags],
) -> None:
    """Probe embeddings for attribute leakage, worst-off groups, label errors and margins.

    Writes a page and result.json. With --labels, it also writes wrong-labels.csv, in which the
    least credible labels come first; with --images, wrong-labels.html shows their images.

    Examples:
      vldebias diagnose features.npz --labels smiling --groups gender
      vldebias diagnose features.npz --groups gender --attribute gender \\
          --methods default,difference --texts texts.npz
      vldebias diagnose features.npz --labels class --images pictures/
    """
    names = tuple(split_names([methods]))
    if labels is None and groups is None:
        raise InvalidInputError(
            "expected --labels COLUMN (classes), --groups COLUMN (an attribute) or both"
        )
    if labels is None and images is not None:
        raise InvalidInputError(
            "--images needs --labels: it shows the images of the least credible labels"
        )
    if names and attribute is None:
        raise InvalidInputError(
            f"--methods {methods}: these are fitted on texts; add --attribute SET"
        )
    check_out(folder)
    check_sets([attribute])
    check_methods(names)
    check_model(flags.get("model"), flags.get("pretrained"))
    check_file("--texts", flags.get("texts"))
    check_file("--reference", flags.get("reference"))
    from vldebias.data import load_embeddings
    from vldebias.study import diagnose
    from vldebias.study.inputs import Inputs
    from vldebias.utils.options import Options

    options = Options(
        out=folder,
        embeddings=features,
        model=flags.get("model"),
        pretrained=flags.get("pretrained"),
        texts=flags.get("texts"),
        reference=flags.get("reference"),
        unknown=tuple(flags.get("unknown", ())),
        device=device_of(flags.get("device")),
    )
    inputs = Inputs(options)
    data = load_embeddings(features)[0].without(inputs.options.unknown)
    texts = None if attribute is None else inputs.texts
    result = diagnose(
        data,
        labels,
        groups=groups,
        prompts=attribute,
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
    """Write the labels, least credible first, and a page of their images, if any.

    Returns:
        The files by name, for printing.
    """
    from vldebias.data.suspects import Suspects
    from vldebias.study.diagnosis import wrong_labels

    pictures = {} if images is None else Suspects.pictures(images, data.ids)
    table = wrong_labels(data.features, data.column(labels)).set_index("row")
    rows = range(len(data))
    # Rows without a label are missing from the table, so they get NaN, which ranks last.
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

    title = f"{features.name}: the least credible of {len(table):,} labels, {labels}"
    introduction = (
        "The number is how much better the given label fits than the next best one, by a classifier"
        " trained on other rows: below 0, another label fits better. Check these images first;"
        " wrong-labels.csv lists all of them. Rare groups look suspicious too."
    )
    page = folder / "wrong-labels.html"
    files["their_pictures"] = suspects.page(page, title, caption, introduction=introduction)
    return files
