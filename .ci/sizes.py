"""Measure the sizes of environments, with torch and its dependencies separately: `python
.ci/sizes.py NAME=FOLDER...` prints JSON."""

from __future__ import annotations

import json
import platform
import re
import sys
from datetime import date
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

TORCH = re.compile(r"(torch|triton|nvidia[-_].+|cuda[-_].+|sympy|mpmath|networkx|setuptools)$")
BEFORE = ("pip", "setuptools")
"""What a new environment of Python 3.11 holds before anything is installed."""
NAMED = (
    "torch",
    "transformers",
    "diffusers",
    "open_clip_torch",
    "datasets",
    "gradio",
    "numpy",
    "vldebias",
)


def megabytes(found: Distribution) -> float:
    """Return the size of all files of a distribution on disk."""
    paths = (Path(str(found.locate_file(file))) for file in found.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def weigh(folder: Path) -> dict[str, Any]:
    """Return MB and number of distributions of a virtual environment, and versions of the important
    ones."""
    (packages,) = (*folder.glob("lib/python3*/site-packages"), *folder.glob("Lib/site-packages"))
    there = {
        one.metadata["Name"]: one
        for one in distributions(path=[str(packages)])
        if one.metadata["Name"] not in BEFORE
    }
    sizes = {name: megabytes(one) for name, one in there.items()}
    return {
        "MB": round(sum(sizes.values())),
        "MB_without_torch": round(
            sum(size for name, size in sizes.items() if not TORCH.match(name.lower()))
        ),
        "distributions": len(there),
        "versions": {name: there[name].version for name in NAMED if name in there},
    }


if __name__ == "__main__":
    named = (one.partition("=") for one in sys.argv[1:])
    weighed = {name: weigh(Path(folder)) for name, _, folder in named}
    sizes = [
        (name, metric, value)
        for name, one in weighed.items()
        for metric, value in one.items()
        if metric != "versions"
    ]
    versions = {name: one["versions"] for name, one in weighed.items()}
    # in the format of `vldebias.report.result.Result`, which is not installed here
    result = {
        "name": "install_sizes",
        "figures": [
            {
                "task": "install_sizes",
                "metric": metric,
                "method": name,
                "value": value,
                "interval": [value, value],
            }
            | {"better": "lower", "n": {"measured": 1}}
            for name, metric, value in sizes
        ],
        "protocols": [
            {
                "task": "install_sizes",
                "description": "What environments weigh",
                "settings": {"versions": versions},
            }
        ],
        "versions": {"python": platform.python_version()},
        "commit": None,
        "seconds": None,
        "date": date.today().isoformat(),
        "command": ".ci/environments sizes",
        "platform": platform.platform(),
    }
    print(json.dumps(result, indent=1))
