"""Takes a comparison away and reads it back: pictures that say how they were made, a zip of them, a table of runs."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

from vldebias.data import decode
from vldebias.files import shielded
from vldebias.pictures import KEY

from .drawing import AFTER, BEFORE, LEAST, Comparison, measure
from .engine import SURE
from .settings import Drawing, Mitigation

COLUMNS = ("run", "prompt", "seed", "side", "method", "lam", "strength", "steps", "guidance", "pipeline", "judge")
READ = ("attribute", "value", "asked for", "recognised")


def about(comparison: Comparison, side: str, index: int) -> dict[str, Any]:
    """How a picture was made, as plain JSON; kept inside its PNG, so that it says itself that a prompt was changed."""
    drawing, mitigation = comparison.drawing, comparison.mitigation
    how: dict[str, Any] = {"method": "none"}
    if side != BEFORE:
        how = {
            "method": comparison.method if side == AFTER else side,
            "lam": list(comparison.lams[side]),
            "strength": mitigation.strength,
            "keep_stated": mitigation.keep_stated,
            "sets": {one.name: one.hash for one in mitigation.sets},
            "left_alone": bool(comparison.stated),
        }
    return {
        "prompt": drawing.prompt,
        "seed": drawing.seed + index,
        "variant": side,
        **how,
        "steps": drawing.steps,
        "guidance": drawing.guidance,
        "pipeline": comparison.pipeline,
        "version": version("vldebias"),
    }


def png(picture: Image.Image, told: dict[str, Any]) -> bytes:
    """A PNG with `told` inside, under the key that `vldebias eval generation` uses."""
    info, buffer = PngImagePlugin.PngInfo(), io.BytesIO()
    info.add_itxt(KEY, json.dumps(told, ensure_ascii=False))
    picture.save(buffer, format="png", pnginfo=info)
    return buffer.getvalue()


def pack(comparison: Comparison) -> bytes:
    """A zip: none/<seed>.png, mitigated/<seed>.png and so on with how they were made inside, and metadata.json."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as packed:  # PNG does not compress again
        for side, pictures in comparison.pictures.items():
            for i, picture in enumerate(pictures):
                told = about(comparison, side, i)
                packed.writestr(f"{side}/{told['seed']:010d}.png", png(picture, told))
        packed.writestr("metadata.json", json.dumps(summary(comparison), indent=1, ensure_ascii=False))
    return buffer.getvalue()


def unpack(data: bytes) -> Comparison:
    """The comparison that `pack` wrote; its measures are computed anew from what was read in each picture."""
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        told = json.loads(packed.read("metadata.json"))
        names = packed.namelist()
        asked = Drawing(**told["drawing"] | {"beside": tuple(told["drawing"]["beside"])})
        pictures = {
            side: tuple(decode(packed.read(name)) for name in names if name.startswith(f"{side}/"))
            for side in (BEFORE, AFTER, *asked.beside)
        }
    mitigation = told["mitigation"] | {"attributes": tuple(told["mitigation"]["attributes"])}
    measured = {
        side: tuple(
            measure(one["name"], [share["value"] for share in one["shares"][:-1]], np.array(one["codes"]))
            for one in attributes
        )
        for side, attributes in told["measured"].items()
    }
    return Comparison(
        asked,
        Mitigation(**mitigation),
        pictures,
        measured,
        share=1.0,
        stated=tuple(told["stated"]),
        judge=told["judge"]["name"],
        notes=tuple(told["notes"]),
        pipeline=told["pipeline"],
        method=told["method"],
        lams={side: tuple(lam) for side, lam in told["lams"].items()},
        subject=told["subject"],
        recognised={side: tuple(shown) for side, shown in told["recognised"].items()},
    )


def summary(comparison: Comparison) -> dict[str, Any]:
    """Settings and measures as plain JSON."""
    return {
        "drawing": asdict(comparison.drawing),
        "mitigation": asdict(comparison.mitigation),
        "method": comparison.method,
        "lams": {side: list(lam) for side, lam in comparison.lams.items()},
        "pipeline": comparison.pipeline,
        "judge": {"name": comparison.judge, "sure": SURE},
        "stated": list(comparison.stated),
        "notes": list(comparison.notes),
        "change": {
            side: {name: change.to_dict() for name, change in comparison.changed(side).items()}
            for side in comparison.sides[1:]
        },
        "subject": comparison.subject,
        "recognised": {side: list(shown) for side, shown in comparison.recognised.items()},
        "measured": {side: [asdict(one) for one in found] for side, found in comparison.measured.items()},
        "protocol": "shares: of all pictures, Wilson 95 %; discrepancy: eq. 7.2 over the pictures that can be told, "
        "with a 95 % radius of the shares; few pictures bias it upwards; change: McNemar's exact test over the "
        f"pairs of the same noise that can be told, of which a verdict needs {LEAST}",
    }


def readings(comparison: Comparison) -> list[dict[str, Any]]:
    """What was read in each picture, a row for each attribute, under COLUMNS but "run" and READ."""
    rows = []
    for side in comparison.sides:
        for i, _ in enumerate(comparison.pictures.get(side, ())):
            told = about(comparison, side, i) | {"side": side, "judge": comparison.judge}
            told["lam"] = " ".join(f"{lam:g}" for lam in told.get("lam", ()))
            shown = {"asked for": comparison.subject}
            if comparison.subject:
                shown["recognised"] = str(int(comparison.recognised[side][i]))
            for one in comparison.measured[side]:
                value = one.shares[one.codes[i]].value  # the last, of code -1, is "cannot tell"
                rows.append(
                    {name: told.get(name, "") for name in COLUMNS[1:]} | shown | {"attribute": one.name, "value": value}
                )
    return rows


def table(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """CSV of `readings` by the name of their run; no text of a visitor is a formula to a spreadsheet."""
    text = io.StringIO()
    writer = csv.DictWriter(text, (*COLUMNS, *READ), restval="")
    writer.writeheader()
    for run, rows in runs.items():
        for row in rows:
            writer.writerow(
                {n: shielded(v) if isinstance(v, str) else v for n, v in ({"run": run} | dict(row)).items()}
            )
    return text.getvalue()
