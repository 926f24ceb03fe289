"""Measure how much the quickstart figures differ between packaged and newly rendered images.

python -m eval.miniature.shipped --json shipped.json
"""

import argparse
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

from eval.miniature.pack import painted
from vldebias.data import ImageData
from vldebias.study.running import run_suite
from vldebias.utils.files import commit, write_atomically
from vldebias.utils.options import Options

TASKS = ("birds", "portraits")  # the third task uses generated images


def paint(name: str, *, split: str = "test", n: int | None = None) -> ImageData:
    return painted(name, split, n=n)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", type=Path)
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        shipped = run_suite("quickstart", Options(out=out / "a", cache=out / "a"), only=TASKS)
        with mock.patch("vldebias.miniature.open_world", paint):
            fresh = run_suite("quickstart", Options(out=out / "b", cache=out / "b"), only=TASKS)
    rows = []
    for old, new in zip(shipped.rows, fresh.rows, strict=True):
        place = (old.task, old.metric, old.method, old.lam, old.subset)
        assert place == (new.task, new.metric, new.method, new.lam, new.subset)
        rows.append(
            [
                *place,
                round(old.value, 4),
                round(new.value, 4),
                round(abs(old.value - new.value), 4),
            ]
        )
    rows.sort(key=lambda row: -row[-1])
    columns = ["task", "metric", "method", "lam", "subset", "shipped", "painted", "difference"]
    summary_rows = [
        row for row in rows if not row[4].startswith("A photo")
    ]  # excludes individual queries, which have a hundred images each
    for row in summary_rows[:12]:
        print(*row, sep="\t")
    summary = {"figures": len(summary_rows), "largest difference": summary_rows[0][-1]}
    summary |= {
        "figures of single queries": len(rows) - len(summary_rows),
        "largest difference of a single query": rows[0][-1],
    }
    print(summary)
    if args.json:
        description = {
            "command": "python -m eval.miniature.shipped",
            "commit": commit(),
            "date": f"{datetime.now(UTC):%F}",
        }
        table = {**description, **summary, "columns": columns}
        lines = ",\n  ".join(json.dumps(row) for row in summary_rows)
        text = json.dumps(table, indent=1)[:-2] + f',\n "rows": [\n  {lines}\n ]\n}}\n'
        write_atomically(args.json, text)


if __name__ == "__main__":
    main()
