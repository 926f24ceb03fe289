"""The tables of diffusers pipelines, classic and modular, in pages of docs/explanation, from those of families.

python -m eval.hosts_table                           # print them
python -m eval.hosts_table --write docs/explanation  # put them between the marks of the pages
"""

from __future__ import annotations

import argparse
import inspect
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from vldebias.errors import UnsupportedHostError
from vldebias.files import write_atomically
from vldebias.hosts.diffusers import Family, Part, list_families, list_pipelines
from vldebias.hosts.diffusers_families import REFUSED
from vldebias.hosts.modular import find_text_block

BEGIN, END = "<!-- made by python -m eval.hosts_table -->", "<!-- end -->"


@cache
def with_a_text_side() -> dict[str, Any]:
    """Every pipeline class of the installed diffusers that has an `encode_prompt`, by name."""
    import diffusers

    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(n for n in dir(diffusers) if "Pipeline" in n):
            cls = getattr(diffusers, name, None)
            if inspect.isclass(cls) and issubclass(cls, diffusers.DiffusionPipeline) and _encodes(cls):
                found[name] = cls
    return found


def _encodes(cls: Any) -> bool:
    return callable(getattr(cls, "encode_prompt", None))


def known(cls: Any) -> bool:
    """Is a class, or a base of it, in the table?"""
    return any(base.__name__ in set(list_pipelines()) for base in cls.__mro__)


def families() -> Iterator[str]:
    """One row per family."""
    yield "| Family | Pipelines | Text encoders | What is projected | Negative prompt | `merge()` |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for family in list_families():
        names = ", ".join(f"`{name.removesuffix('Pipeline')}`" for name in family.pipelines)
        encoders = ", ".join(f"`{n}`" for n in dict.fromkeys(n for part in family.parts for n in part.encoders))
        parts = "; ".join(_what(part) for part in family.parts)
        whys = dict.fromkeys(part.unmerged for part in family.parts if not part.read_by)
        merge = "no: " + "; ".join(whys) if whys else "yes"
        yield f"| {family.name} | {names} | {encoders} | {parts} | {_negative(family)} | {merge} |"


def _what(part: Part) -> str:
    notes = ["inside a template"] * part.template
    notes += ["all layers as one vector"] * (part.stack is not None)
    notes += ["not the tokens of an image"] * part.beside_image
    notes += [f"where `{part.when[0]}={part.when[1]}`"] if part.when else []
    return f"`{part.role}`" + (f" ({', '.join(notes)})" if notes else "")


def _negative(family: Family) -> str:
    if family.twice:
        return "in a call of its own"
    return "beside it" if any(part.negative is not None for part in family.parts) else "none"


def coverage() -> Iterator[str]:
    """How many classes of the installed diffusers are known, asked and refused, and which are the latter."""
    import diffusers

    classes = with_a_text_side()
    served = {name for name, cls in classes.items() if known(cls)}
    refused = sorted(name for name in set(classes) - served if name in REFUSED)
    asked = sorted(set(classes) - served - set(refused))
    yield (
        f"diffusers {diffusers.__version__} has {len(classes)} pipeline classes with an `encode_prompt`. "
        f"{len(served)} are known; {len(refused)} are refused by name; {len(asked)} are asked on first use, since "
        f"nobody has looked into them ({', '.join(f'`{name}`' for name in asked) or 'none'}). Refused:"
    )
    yield ""
    for name in refused:
        yield f"- `{name}`: {REFUSED[name]}"


@cache
def modular() -> dict[str, Any]:
    """Every modular pipeline class of the installed diffusers with blocks of its own, by name."""
    import diffusers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name: getattr(diffusers, name) for name in sorted(dir(diffusers)) if name.endswith("ModularPipeline")}
    return {name: cls for name, cls in found.items() if getattr(cls, "default_blocks_name", None)}


def modular_coverage() -> Iterator[str]:
    """One row per modular class: the block that is known and what is projected, or why it is refused."""
    rows, served = [], 0
    for name, cls in modular().items():
        pipe = cls()
        try:
            block, known = find_text_block(pipe)
        except UnsupportedHostError as error:
            why = str(error).split(": ", 1)[1].split(".\n")[0]
            rows.append(f"| `{name}` | refused: {why} | |")
            continue
        served += 1
        parts = "; ".join(f"`{known.outputs[part.index]}` ({_what(part)})" for part in known.family.parts)
        rows.append(f"| `{name}` | `{type(block).__name__}` | {parts} |")
    refused = len(rows) - served
    reached = f"{served} are reached at the block that encodes text"
    yield f"{len(rows)} modular classes: {reached}, {refused} refused by name."
    yield ""
    yield "| Modular pipeline | Block that encodes text | What is projected (role) |"
    yield "| --- | --- | --- |"
    yield from rows


PAGES = {
    "pipelines-classic.md": (families,),
    "pipelines-counted.md": (coverage,),
    "pipelines-modular.md": (modular_coverage,),
}


def page(name: str, text: str) -> str:
    """The page of that name with new tables between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, *(line for made in PAGES[name] for line in ("", *made())), "", END + after])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="renew its pages")
    path = parser.parse_args().write
    if path is None:
        print("\n".join([*families(), "", *coverage(), "", *modular_coverage()]))
        return
    for name in PAGES:
        write_atomically(path / name, page(name, (path / name).read_text(encoding="utf-8")).encode())


if __name__ == "__main__":
    main()
