"""The quickstart on the pictures that ship and on the same pictures painted: how far apart are its
figures?

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

TASKS = ("birds", "portraits")  # the drawn pictures of the third are of the pipeline


def paint(name: str, *, split: str = "test", n: int | None = None) -> ImageData:
    return painted(name, split, n=n)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        shipped = run_suite("quickstart", Options(out=out / "a", cache=out / "a"), only=TASKS)
        with mock.patch("vldebias.miniature.open_world", paint):
            fresh = run_suite("quickstart", Options(out=out / "b", cache=out / "b"), only=TASKS)
    rows = []
    for one, other in zip(shipped.rows, fresh.rows, strict=True):
        place = (one.task, one.metric, one.method, one.lam, one.subset)
        assert place == (other.task, other.metric, other.method, other.lam, other.subset)
        rows.append(
            [
                *place,
                round(one.value, 4),
                round(other.value, 4),
                round(abs(one.value - other.value), 4),
            ]
        )
    rows.sort(key=lambda row: -row[-1])
    columns = ["task", "metric", "method", "lam", "subset", "shipped", "painted", "difference"]
    wholes = [
        row for row in rows if not row[4].startswith("A photo")
    ]  # not of single queries: a hundred pictures each
    for row in wholes[:12]:
        print(*row, sep="\t")
    most = {"figures": len(wholes), "largest difference": wholes[0][-1]}
    most |= {
        "figures of single queries": len(rows) - len(wholes),
        "largest difference of a single query": rows[0][-1],
    }
    print(most)
    if given.json:
        about = {
            "command": "python -m eval.miniature.shipped",
            "commit": commit(),
            "date": f"{datetime.now(UTC):%F}",
        }
        table = {**about, **most, "columns": columns}
        lines = ",\n  ".join(json.dumps(row) for row in wholes)
        text = json.dumps(table, indent=1)[:-2] + f',\n "rows": [\n  {lines}\n ]\n}}\n'
        write_atomically(given.json, text)


if __name__ == "__main__":
    main()
