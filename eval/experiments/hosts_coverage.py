"""Which pipelines of the installed diffusers an edit reaches: attached, asked on first use, or refused; and by drawing.

python -m eval.experiments.hosts_coverage --json eval/results/hosts_coverage.json   # ten minutes of a core
python -m eval.experiments.hosts_coverage --only Flux Sana     # a quick look, at classes with these names alone

Every class with a text side, classic and modular, is sorted: its family is in the table ("attached"), nobody has looked
into it, so that it is asked when it is first used ("probed"), or it was looked at and cannot be served ("refused", with
the reason).

Then a tiny pipeline of each that is not refused draws, where one can be made: with an edit attached its pictures are
others, at strength 0 and removed they are the bare ones bit by bit ("drawn"). One that is attached and draws what it
drew before would be a silent no-op ("silent"). "Text side": the same of what its blocks make of the prompt, without a
denoiser. "As drawn": not tried, but its `encode_prompt` has the source of one of its family that was drawn. "Not
tried": the reason is kept.

Last the table is hidden, and each family is asked as one that nobody listed: it draws what it draws with the table
("same"), or is refused, and the reason is kept.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch

from eval import hosts_table
from eval.experiments import hosts_drawn
from eval.experiments.hosts_drawn import DRAWN, SILENT, TEXT, UNTRIED, Tried
from eval.experiments.records import records
from eval.experiments.run import parser, run
from eval.tables import Cells, fills, read, shows
from vldebias.api import debias, fit_projections
from vldebias.errors import UnsupportedHostError
from vldebias.evaluation.result import Result, TaskResult
from vldebias.hosts import diffusers_families, resolve
from vldebias.hosts.diffusers_families import REFUSED
from vldebias.hosts.modular import find_text_block

ATTACHED, PROBED, NO = "attached", "probed", "refused"
AS_DRAWN = "as drawn"
KINDS = ("classic", "modular")


def how_reached(only: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """A row per class: kind, how, and why not."""

    def asked(name: str) -> bool:
        return not only or any(part in name for part in only)

    for name, cls in hosts_table.with_a_text_side().items():
        how = ATTACHED if hosts_table.known(cls) else NO if name in REFUSED else PROBED
        if asked(name):
            yield {"class": name, "cls": cls, "kind": "classic", "how": how, "why": REFUSED.get(name, "")}
    for name, cls in hosts_table.modular().items():
        how, why = ATTACHED, ""
        try:
            find_text_block(cls())
        except UnsupportedHostError as error:
            how, why = NO, str(error).split(": ", 1)[1].split(".\n")[0]
        if asked(name):
            yield {"class": name, "cls": cls, "kind": "modular", "how": how, "why": why}


def tried(classes: Sequence[Mapping[str, Any]]) -> dict[str, Tried]:
    """Class -> what became of it."""
    found: dict[str, Tried] = {}
    for row in classes:
        if row["how"] != NO:
            name = row["class"]
            found[name] = hosts_drawn.classic(row["cls"]) if row["kind"] == "classic" else hosts_drawn.modular(name)
            print(name, found[name], file=sys.stderr, flush=True)
    sources: dict[Any, str] = {}
    rest = [row for row in classes if row["class"] in found and row["kind"] == "classic"]
    for row in sorted(rest, key=lambda row: found[row["class"]].how != DRAWN):  # those that were drawn first
        name, family = row["class"], hosts_drawn.family_named(row["cls"])
        source = family, textwrap.dedent(inspect.getsource(row["cls"].encode_prompt))
        if found[name].how == DRAWN:
            sources.setdefault(source, name)
        elif found[name].how == UNTRIED and family and source in sources:
            found[name] = Tried(AS_DRAWN, f"{found[name].why}; its encode_prompt is that of {sources[source]}")
    return found


def asked(name: str) -> Tried:
    """A family as if nobody had listed it: "same", "other" or "silent" by what it draws, or "refused" and why."""
    from diffusers_tiny import gender

    make, draw = hosts_drawn.families()[name]
    pipe = make()
    bare = draw(pipe)
    with debias(pipe, fit_projections(pipe, gender(), lam=1e6)):
        expected = draw(pipe)
    nothing = diffusers_families.Family(name="?", pipelines=("?",), parts=())
    with (
        mock.patch.object(diffusers_families, "_FAMILIES", [nothing]),
        mock.patch.object(diffusers_families, "REFUSED", {}),
    ):
        other = make()
        try:
            resolve(other)
        except UnsupportedHostError as error:
            return Tried(NO, hosts_drawn.reason(error))
        with debias(other, fit_projections(other, gender(), lam=1e6)):
            drawn = draw(other)
    return Tried("same" if torch.equal(drawn, expected) else SILENT if torch.equal(drawn, bare) else "other")


def measure(only: Sequence[str]) -> Iterator[TaskResult]:
    """Counts, then what was drawn, then what asking finds."""
    classes = list(how_reached(only))
    counted = Counter((row["kind"], row["how"]) for row in classes)
    rows = [
        {"how": how, "kind": kind, "classes": float(counted[kind, how])}
        for kind in KINDS
        for how in (ATTACHED, PROBED, NO)
    ]
    yield records("hosts coverage", "Classes of the installed diffusers with a text side", rows, "how", ("kind",),
                  refused={row["class"]: row["why"] for row in classes if row["how"] == NO},
                  probed=[row["class"] for row in classes if row["how"] == PROBED])  # fmt: skip
    found = tried(classes)
    kinds = {row["class"]: f"{row['kind']}, {row['how']}" for row in classes}
    outcomes = Counter((kinds[name], one.how) for name, one in found.items())
    hows = list(dict.fromkeys([DRAWN, TEXT, AS_DRAWN, NO, UNTRIED, SILENT, *(one.how for one in found.values())]))
    rows = [
        {"how": how, "kind": kind, "classes": float(outcomes[kind, how])}
        for kind in dict.fromkeys(kinds[name] for name in found)
        for how in hows
    ]
    others = {name: f"{one.how}: {one.why}" for name, one in found.items() if one.how != DRAWN}
    yield records("hosts drawn", "Tiny pipelines of classes that are not refused by name", rows, "how", ("kind",),
                  drawn=[name for name, one in found.items() if one.how == DRAWN],
                  others=others)  # fmt: skip
    names = [name for name in hosts_drawn.families() if not only or any(part in name for part in only)]
    found = {name: asked(name) for name in names}
    outcomes = Counter(("families", one.how) for one in found.values())
    rows = [
        {"how": how, "kind": "families", "classes": float(outcomes["families", how])}
        for how in ("same", NO, "other", SILENT)
    ]
    yield records("hosts asked", "Tiny pipelines of families with the table hidden", rows, "how", ("kind",),
                  outcomes={name: f"{one.how} {one.why}".strip() for name, one in found.items()})  # fmt: skip


@shows("docs/explanation/pipelines.md", "hosts_coverage")
def reached(result: Result) -> Cells:
    """Kinds of classes and what became of their tiny pipelines, the last row families with the table hidden."""
    rows = [row for row in result.rows if row.task in ("hosts drawn", "hosts asked")]
    hows = list(dict.fromkeys(row.method for row in rows if row.task == "hosts drawn"))
    lines = [["classes", *hows]]
    for kind in dict.fromkeys(row.subset for row in rows if row.task == "hosts drawn"):
        of = {row.method: row.value for row in rows if row.subset == kind}
        lines.append([kind.removeprefix("kind = "), *(f"{of[how]:.0f}" for how in hows)])
    return lines


@fills("docs/explanation/pipelines-not-drawn.md", "hosts_left")
def left_undrawn() -> str:
    """Classes that were not drawn, each with its reason."""
    part = next(one for one in read("hosts_coverage").provenance if one.task == "hosts drawn")
    by_reason: dict[str, list[str]] = {}
    for name, why in part.settings["others"].items():
        by_reason.setdefault(why.replace("<", "&lt;"), []).append(f"`{name.removesuffix('Pipeline')}`")
    return "\n" + "\n".join(f"- {', '.join(names)}: {why}" for why, names in by_reason.items()) + "\n\n"


def main() -> None:
    options: argparse.ArgumentParser = parser(__doc__)
    options.add_argument("--only", nargs="*", default=(), help="classes and families with one of these in their names")
    given = options.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # tiny encoders are narrow; of the probe the rows tell
    logging.disable(logging.WARNING)
    run("hosts_coverage", lambda: measure(given.only), given.json)


if __name__ == "__main__":
    main()
