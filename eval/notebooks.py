"""Run the notebooks in the documentation and store their outputs.

    python -m eval.notebooks          # run each notebook in an empty folder and store its outputs
    python -m eval.notebooks --check  # run them and print differences from the stored outputs

Both commands take about a minute on one core. Output on stderr (progress bars, warnings) is left
out. Two texts count as equal if their words are the same and their numbers are close, because sums
differ slightly between processors.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat

from eval.tables import plain_parser
from vldebias.utils.files import write_atomically

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
NEAR = 0.05  # tolerance for numbers: absolute, or relative to the larger number
SECONDS = 900  # maximum time per cell


def executed(path: Path, folder: Path) -> Any:
    """Run a notebook in a folder and return it without stderr output, times and widgets."""
    notebook = nbformat.read(path, 4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=SECONDS,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"})
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                output.get("data", {}).pop("image/jpeg", None)  # also stored as PNG
    return notebook


def alike(first: str, second: str, near: float = NEAR) -> bool:
    """Return whether words are equal and numbers close, ignoring spaces and lines in tables."""
    words = [re.sub(r"[\s─━-]+", " ", NUMBER.sub("#", text)).strip() for text in (first, second)]
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (first, second)]
    pairs = zip(*numbers, strict=False)
    are_near = (abs(a - b) <= near * max(1.0, abs(a), abs(b)) for a, b in pairs)
    return words[0] == words[1] and len(numbers[0]) == len(numbers[1]) and all(are_near)


def differences(kept: Any, now: Any) -> Iterator[str]:
    """Yield the cells whose outputs differ in kind or content. All images count as equal."""
    for i, (before, after) in enumerate(zip(kept.cells, now.cells, strict=True)):
        shown = [list(_texts(cell.get("outputs", []))) for cell in (before, after)]
        if len(shown[0]) != len(shown[1]):
            yield f"cell {i}: {len(shown[0])} outputs are stored, got {len(shown[1])}"
        for was, came in zip(*shown, strict=False):
            if not alike(was, came):
                yield f"cell {i}: stored {was[:200]!r}, got {came[:200]!r}"


def _texts(outputs: list[Any]) -> Iterator[str]:
    """Yield the type of an image output, the HTML of a data frame, and the text of others."""
    for output in outputs:
        data = output.get("data", {})
        if "image/png" in data:
            yield "a picture"
        else:
            yield "".join(data.get("text/html") or data.get("text/plain") or output.get("text", ""))


def main() -> int:
    options = plain_parser(__doc__)
    options.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if an output differs"
    )
    check, has_differences = options.parse_args().check, False
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            made = executed(path, Path(folder))
        if not check:
            write_atomically(path, nbformat.writes(made) + "\n")
        for difference in differences(nbformat.read(path, 4), made):
            print(f"{path.name}: {difference}")
            has_differences = True
    return int(has_differences)


if __name__ == "__main__":
    sys.exit(main())
