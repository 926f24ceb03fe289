"""Update the conclusions in committed results without measuring again (`python -m eval.conclude`).

The conclusions in the eval/results/*.json files are recomputed from their rows with the current
version of the package. The rest of the file does not change.
"""

from __future__ import annotations

import json
from pathlib import Path

from eval.tables import RESULTS
from vldebias.report.result import Result, format_json
from vldebias.utils.files import write_atomically


def conclude(path: Path) -> int:
    """Update the conclusions in a result file and return their number."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["conclusions"] = [
        conclusion.model_dump(mode="json") for conclusion in Result.read(path).conclusions()
    ]
    write_atomically(path, format_json(content) + "\n")
    return len(content["conclusions"])


def main() -> None:
    """Update the conclusions of all committed results that have any."""
    for path in sorted(RESULTS.glob("*.json")):
        if "conclusions" in json.loads(path.read_text(encoding="utf-8")):
            print(f"{path.name}: {conclude(path)} conclusions")


if __name__ == "__main__":
    main()
