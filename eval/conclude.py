"""Write the conclusions of committed results anew: `python -m eval.conclude` measures nothing.

Each eval/results/*.json has the conclusions that its rows lead to, as the package words them today;
everything else in the file stays as it is.
"""

from __future__ import annotations

import json
from pathlib import Path

from eval.tables import RESULTS
from vldebias.report.result import Result, laid_out
from vldebias.utils.files import write_atomically


def conclude(path: Path) -> int:
    """Write the conclusions of a result into its file; return how many there are."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content.pop("conclusions", None)
    concluded = [
        conclusion.model_dump(mode="json") for conclusion in Result.read(path).conclusions()
    ]
    write_atomically(path, laid_out({"conclusions": concluded, **content}) + "\n")
    return len(concluded)


def main() -> None:
    """Write the conclusions of all committed results."""
    for path in sorted(RESULTS.glob("*.json")):
        print(f"{path.name}: {conclude(path)} conclusions")


if __name__ == "__main__":
    main()
