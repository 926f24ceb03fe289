"""Check the contents of a wheel: `python .ci/check_wheel.py dist/vldebias-*.whl`."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

MOST_MB = 30  # maximum size of packaged weights and pictures
NEWEST_METADATA = (2, 4)  # metadata version that the publishing action can read
APPS = Path(__file__).parents[1] / "apps"
EXPECTED = (
    "vldebias/py.typed",
    "vldebias/prompts/english/words.txt",
    "vldebias/miniature/configs.json",
    "vldebias/miniature/weights/",
    "vldebias/miniature/photographs/",
    "vldebias/report/templates/",
    "vldebias/_resources/prompts/gender.yaml",
    "vldebias/_resources/prompts/protocol/who-appears-1.yaml",
    "vldebias/_resources/records/sd15-stay-fair.json",
    "vldebias/_resources/suites/quickstart.yaml",
    "vldebias_apps/__init__.py",
    "vldebias_apps/serving.py",
    "vldebias_apps/audit/calibrations/sd35.LICENSE",
    "vldebias_apps/audit/records/page.html.jinja",
    "vldebias_apps/audit/section.html.jinja",
    *(f"vldebias_apps/{path.parent.name}/program.py" for path in APPS.glob("*/program.py")),
)
"""Files, or folders with a slash, without which an installed command fails."""
UNWANTED = (
    "tests/",
    "eval/",
    "apps/",
    "docs/",
    "vldebias_apps/comfyui/",
    "vldebias_apps/demo/space/",
)
"""What stays in the repository: the node package of ComfyUI is published by itself."""


def problems(wheel: Path) -> list[str]:
    """Return what is missing in a wheel, what should not be in it, and whether an index would
    accept it.

    Args:
        wheel: the built file.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        first_line = archive.read(metadata).decode().splitlines()[0]
    missing = [path for path in EXPECTED if not any(name.startswith(path) for name in names)]
    found = [f"missing: {path}" for path in missing]
    unwanted = [name for name in names if name.startswith(UNWANTED) or "__pycache__" in name]
    found += [f"does not belong there: {name}" for name in unwanted]
    version = tuple(int(part) for part in first_line.removeprefix("Metadata-Version: ").split("."))
    if version > NEWEST_METADATA:
        found.append(f"{first_line}: the action that publishes reads 2.4 at most")
    megabytes = wheel.stat().st_size / 1e6
    if megabytes > MOST_MB:
        found.append(f"too large: {megabytes:.0f} MB, at most {MOST_MB}")
    return found


if __name__ == "__main__":
    (wheel,) = map(Path, sys.argv[1:])
    messages = problems(wheel)
    print("\n".join(messages) or f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, as it should")
    sys.exit(bool(messages))
