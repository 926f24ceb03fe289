"""Licences of everything that an installation brings along, as the distributions themselves state them.

python .ci/licences.py           # write docs/explanation/licences.md anew, from the environment it runs in
python .ci/licences.py --check   # fail where a distribution here is not in that page under its licence, or is copyleft

An installation differs by platform, so the check asks that what is here is on the page, not the other way round.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "licences.md"
PARTS = {  # heading -> extras of pyproject.toml; a distribution stands under the first heading that brings it
    "With the package alone": ("",),
    "With `clip`, `diffusers`, `eval` or `train`": ("clip", "diffusers", "eval", "train"),
    "With `demo`": ("demo",),
    "With the other extras": ("fid", "lora", "ray", "rivals", "track"),
    "For tests and documentation alone": ("dev", "docs"),
}
SPDX = {  # how a licence is called in the wild -> its identifier; the first that is found in the text
    "MPL-2.0 AND MIT": "MPL-2.0 AND MIT",
    "Mozilla Public License 2.0": "MPL-2.0",
    "MPL-2.0": "MPL-2.0",
    "GPLv3": "GPL-3.0-or-later",
    "Apache": "Apache-2.0",
    "BSD-2-Clause": "BSD-2-Clause",
    "BSD": "BSD-3-Clause",
    "ISC": "ISC",
    "Python Software Foundation": "PSF-2.0",
    "PSF": "PSF-2.0",
    "MIT": "MIT",
    "NVIDIA Proprietary": "LicenseRef-NVIDIA-Proprietary",
}
UNSTATED = {  # distributions whose metadata is silent: what their repository says
    "axe-playwright-python": "MIT",
    "cuda-toolkit": "LicenseRef-NVIDIA-Proprietary",
}
WEAK = {"certifi", "hypothesis", "orjson", "pathspec", "tqdm"}  # MPL-2.0: binds whoever changes their own files
STRONG = {"krippendorff"}  # GPL: the tests compare with it; nothing that is installed for use imports it
COPYLEFT = re.compile(r"GPL|MPL|EUPL|CDDL|EPL|OSL")


def licence(found: Distribution) -> str:
    """The SPDX expression of a distribution: stated as one, else read from its licence or its classifiers.

    Raises:
        ValueError: it states none that is known.
    """
    about = found.metadata
    if expression := about.get("License-Expression"):
        return str(expression)
    classifiers = [one for one in about.get_all("Classifier") or () if one.startswith("License ::")]
    stated = (about.get("License") or "").partition("\n")[0]
    for text in (stated, *classifiers):
        for called, identifier in SPDX.items():
            if called in text:
                return identifier
    try:
        return UNSTATED[canonicalize_name(about["Name"])]
    except KeyError:
        raise ValueError(f"{about['Name']}: states no licence that is known, got {stated!r}, {classifiers}") from None


def brought(extras: Iterable[str]) -> dict[str, Distribution]:
    """Name -> every distribution that vldebias with these extras needs on this platform and that is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [Requirement(text) for text in project["dependencies"]]
    waiting += [Requirement(text) for extra in extras if extra for text in project["optional-dependencies"][extra]]
    seen, found = set[tuple[str, str]](), {}
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        if name == "vldebias":  # extras that bring others
            waiting += [Requirement(text) for extra in asked.extras for text in project["optional-dependencies"][extra]]
            continue
        try:
            here = distribution(name)
        except PackageNotFoundError:
            continue  # of an extra that is not installed
        found[name] = here
        for extra in ("", *asked.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                needs = map(Requirement, here.requires or ())
                waiting += [one for one in needs if one.marker is None or one.marker.evaluate({"extra": extra})]
    return found


def parts() -> dict[str, dict[str, str]]:
    """Heading -> name -> licence."""
    told: dict[str, dict[str, str]] = {}
    for heading, extras in PARTS.items():
        before = {name for names in told.values() for name in names}
        told[heading] = {name: licence(one) for name, one in sorted(brought(extras).items()) if name not in before}
    return told


def page() -> str:
    """The page: under each heading a row for every licence."""
    text = ["# Licences", __doc__.partition("\n")[0] if __doc__ else ""]
    text.append(
        "vldebias itself is MIT. Written by `python .ci/licences.py`; a test fails where a dependency comes that is "
        "not here. Weakly copyleft (MPL-2.0, which binds whoever changes those files themselves): "
        f"{', '.join(sorted(WEAK))}. Strongly: {', '.join(sorted(STRONG))}, which tests compare with and which no "
        "installation for use brings. NVIDIA's libraries come with torch for CUDA alone."
    )
    for heading, names in parts().items():
        rows: dict[str, list[str]] = {}
        for name, own in names.items():
            rows.setdefault(own, []).append(name)
        table = [f"| {own} | {', '.join(rows[own])} |" for own in sorted(rows)]
        text.append("\n".join([f"## {heading}", "", "| licence | distributions |", "| --- | --- |", *table]))
    return "\n\n".join(text) + "\n"


def problems(text: str) -> list[str]:
    """What the page does not say, and copyleft that nobody has decided on."""
    written = {
        name.strip(): own.strip()
        for own, names in re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE)
        for name in names.split(",")
    }
    told = []
    for heading, names in parts().items():
        for name, own in names.items():
            if written.get(name) != own:
                told.append(f"{name}: {own}, on the page {written.get(name)}; run python .ci/licences.py")
            free = re.sub(r"\([^()]* OR [^()]*\)", "", own)  # one of two may be chosen
            allowed = WEAK | (STRONG if heading.startswith("For tests") else set())
            if COPYLEFT.search(free) and name not in allowed:
                told.append(f"{name}: {own} is copyleft ({heading.lower()}); do without it, or decide on it here")
    return told


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit("\n".join(problems(PAGE.read_text(encoding="utf-8"))) or None)
    PAGE.write_text(page(), encoding="utf-8")
