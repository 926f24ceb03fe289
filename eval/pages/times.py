"""Write the times of common calls next to those of alternatives."""

from __future__ import annotations

import numpy as np

from eval.tables import read, read_records, table

# Variants of rows that the table leaves out, by a part of their names or sizes.
_LEFT_OUT = (
    "blocks of",
    "both views",
    "one view",
    "in pairs",
    "d 768",
    "d 1024",
    "pairs 400,",
    "pairs 40, ",
)


def speed() -> str:
    """Compare our times with those of the alternative, with one line per call."""
    ratios: dict[str, list[str]] = {}
    result = read("bench_speed")
    records = read_records(result)
    for (name, subset), seconds in records.items():
        if any(part in f"{name} {subset}" for part in _LEFT_OUT):
            continue
        # A time is meaningless unless the timed results are equal.
        if not seconds.get("difference", np.nan) <= seconds.get("within", np.inf):
            continue
        size = subset.removeprefix("size = ")
        ratios.setdefault(name, []).append(f"{seconds['ours'] / seconds['plain']:.2f} ({size})")
    both_views = records["info_nce, both views / open_clip's", "size = batch 256"]
    factor = both_views["ours"] / both_views["plain"]
    note = (
        f"CPU time on {result.platform} with one thread, both sides of a row alternately, medians."
        " `spread` also uses the similarities within a view, with which `info_nce` takes"
        f" {factor:.2f} times open_clip's time at batch 256. From `eval/results/bench_speed.json`,"
        " which also has the times, the differences of the results, and further sizes."
    )
    lines = [[name, "; ".join(cells)] for name, cells in ratios.items()]
    return table(["what / compared with", "ours / the other (size)"], *lines, note=note)
