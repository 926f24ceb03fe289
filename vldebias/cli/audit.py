"""`vldebias audit`: predict what a file of prompts will show, before any image is generated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.common import check_out, device_of, print_result, write_run
from vldebias.cli.flags import HOST_FLAGS, Json, SetName, with_flags
from vldebias.errors import InvalidInputError


@with_flags(HOST_FLAGS)
def audit_command(
    file: Annotated[Path, typer.Argument(exists=True, help="Prompts, one a line.", metavar="FILE")],
    prompts: SetName,
    texts: Annotated[
        Path | None,
        typer.Option(exists=True, help="Embeddings (.npz) of the prompts, of the set and of the calibration."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Judged images of your own pipeline: a CSV (prompt, value: a row per image; or prompt and a column of "
            "counts per value). Default: the published counts of Stable Diffusion 1.5 (gender).",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the page and the list.")] = Path("vldebias-audit"),
    as_json: Json = False,
    **named: Any,
) -> None:
    """Predict each prompt's share before any image is generated, with an interval, from its text alone.

    Writes a page, result.json and prompts.csv, which lists first the prompts to look at first.

    [bold]Examples[/bold]

    \b
      vldebias audit prompts.txt --prompts gender --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5
      vldebias audit prompts.txt --prompts gender --model ViT-B-32 --pretrained openai
      vldebias audit prompts.txt --prompts race --pipeline DIR --calibrate judged.csv
    """
    if (texts is not None) + ("model" in named) + ("pipeline" in named) != 1:
        raise InvalidInputError("expected one of --model, --pipeline and --texts, whose text embeddings are read")
    check_out(folder)
    import pandas as pd

    from vldebias.data.embeddings import load_texts
    from vldebias.evaluation import audit
    from vldebias.files import write_atomically
    from vldebias.loading import load_host

    if texts is not None:
        host: dict[str, Any] = {"texts": load_texts(texts)}
    else:
        loaded = load_host(**named | {"device": device_of(named["device"])})
        host = {"pipe" if "pipeline" in named else "model": loaded}
    result = audit(file, prompts, calibration=calibrate, **host)
    shares = result.to_pandas().query("metric == 'predicted_share'").rename(columns={"value": "share"})
    shares[["prompt", "value"]] = shares.subset.str.rsplit(": ", n=1, expand=True)
    advice = pd.Series(result.provenance[0].settings["prompts"], name="advice").rename_axis("prompt")
    listed = advice.to_frame().join(shares.set_index("prompt")[["value", "share", "low", "high"]])
    write_atomically(folder / "prompts.csv", listed.to_csv())
    page = write_run(result, folder)
    print_result(result, [("audit", "predicted_share")], as_json=as_json, page=page, prompts=folder / "prompts.csv")
