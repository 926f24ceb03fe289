"""`vldebias methods`: the methods that can be fitted, by what they need."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from vldebias.cli import common
from vldebias.cli.common import Json, piped, print_grid, print_json


def methods(as_json: Json = False) -> None:
    """List the methods that --method takes, by what they need; what each is for, and where it comes from.

    Methods of other packages (entry points "vldebias.methods") are among them.

    [bold]Examples[/bold]

    \b
      vldebias methods
      vldebias methods --json
    """
    from vldebias.methods import METHODS, Need

    groups = {"prompts alone": None, "unlabelled images": Need.IMAGES, "labelled images": Need.LABELS}
    rows: list[dict[str, Any]] = [
        {
            "name": method.name,
            "title": method.title,
            "source": method.source,
            "group": max((name for name, need in groups.items() if need in {None, *method.needs}), key=[*groups].index),
            "needs": sorted(method.needs),
            "lam": method.has_lam,
            "pipelines": method.pipelines,
            "models": method.models,
            "side": method.side,
        }
        for method in METHODS.values()
    ]
    if as_json:
        print_json(rows)
        return
    rows.sort(key=lambda row: [*groups].index(row["group"]))
    head = ("name", "group", "title", "models", "pipelines", "needs", "lam", "source")
    cells = ([", ".join(row[key]) if key == "needs" else row[key] for key in head] for row in rows)
    if piped(head, cells):
        return
    for group, own in groupby(rows, key=lambda row: row["group"]):
        common.out.print(f"{group}:", style="bold underline")
        print_grid(("", ""), [(row["name"], _about(row)) for row in own])


def _about(row: Mapping[str, Any]) -> str:
    """Return "calibration: for models and pipelines; needs prompt pairs; takes lam (Chuang et al., 2023)"."""
    hosts = " and ".join(kind for kind in ("models", "pipelines") if row[kind])
    needs = f"needs {', '.join(row['needs'])}" if row["needs"] else ""
    facts = "; ".join(filter(None, (f"for {hosts}", needs, "takes lam" if row["lam"] else "")))
    return f"{row['title']}: {facts}" + (f" ({row['source']})" if row["source"] else "")
