"""`vldebias methods`: the methods that can be fitted, by what they need."""

from __future__ import annotations

from typing import Any

from vldebias.cli.common import print_grid, print_json
from vldebias.cli.flags import Json


def methods(as_json: Json = False) -> None:
    """List the methods that --method takes: what each needs, what it works on, and where it comes from.

    Methods of other packages (entry points "vldebias.methods") are listed too.

    [bold]Examples[/bold]

    \b
      vldebias methods
      vldebias methods --json
    """
    from vldebias.methods import METHODS, Need

    groups = {"prompts alone": None, "unlabelled images": Need.IMAGES, "labelled images": Need.LABELS}
    order = [*groups]
    rows: list[dict[str, Any]] = [
        {
            "name": method.name,
            "group": max((name for name, need in groups.items() if need in {None, *method.needs}), key=order.index),
            "title": method.title,
            "source": method.source,
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
    rows.sort(key=lambda row: order.index(row["group"]))
    print_grid(("name", "group", "for", "about"), [(row["name"], row["group"], *_about(row)) for row in rows])


def _about(row: dict[str, Any]) -> tuple[str, str]:
    """Return "models, pipelines" and "calibration; takes lam (Chuang et al., 2023)"."""
    hosts = ", ".join(kind for kind in ("models", "pipelines") if row[kind])
    source = f" ({row['source']})" if row["source"] else ""
    return hosts, row["title"] + ("; takes lam" if row["lam"] else "") + source
