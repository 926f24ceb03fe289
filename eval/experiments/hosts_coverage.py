"""Which pipelines of the installed diffusers an edit reaches: attached, asked on first use, or refused; and by drawing.

python -m eval.experiments.hosts_coverage --json eval/results/hosts_coverage.json
python -m eval.experiments.hosts_coverage --families Flux Sana     # a quick look

Every class with a text side, classic and modular, is sorted: its family is in the table ("attached"), nobody has looked
into it, so that it is asked when it is first used ("probed"), or it was looked at and cannot be served ("refused", with
the reason).

Then a tiny pipeline of each family draws: with an edit attached its pictures are others, at strength 0 and removed they
are the bare ones bit by bit ("drawn"). A family that is attached and draws what it drew before would be a silent no-op.
Last the table is hidden, and each is asked as one that nobody listed ("asked"): it draws what it draws with the table,
or is refused, and the reason is kept.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from eval import hosts_table
from eval.experiments.records import records
from eval.experiments.run import parser, run
from vldebias.api import debias, fit_projections
from vldebias.errors import UnsupportedHostError
from vldebias.evaluation.result import TaskResult
from vldebias.hosts import diffusers_families, resolve
from vldebias.hosts.diffusers_families import REFUSED
from vldebias.hosts.modular import find_text_block

TINY = Path(__file__).parents[2] / "tests/hosts"  # pipelines of a few channels, made from configs


def how_reached() -> Iterator[dict[str, Any]]:
    """A row per class: kind, how, and why not."""
    for name, cls in hosts_table.with_a_text_side().items():
        how = "attached" if hosts_table.known(cls) else "refused" if name in REFUSED else "probed"
        yield {"class": name, "kind": "classic", "how": how, "why": REFUSED.get(name, "")}
    for name, cls in hosts_table.modular().items():
        try:
            find_text_block(cls())
        except UnsupportedHostError as error:
            why = str(error).split(": ", 1)[1].split(".\n")[0]
            yield {"class": name, "kind": "modular", "how": "refused", "why": why}
        else:
            yield {"class": name, "kind": "modular", "how": "attached", "why": ""}


def makers() -> dict[str, tuple[Callable[[], Any], Callable[[Any], torch.Tensor]]]:
    """Family -> what makes a tiny pipeline of it, and what draws with that."""
    if str(TINY) not in sys.path:
        sys.path.insert(0, str(TINY))
    import diffusers_drawing
    import diffusers_tiny

    found: dict[str, Any] = {
        name: (make, lambda pipe, call=call: diffusers_tiny.draw(pipe, **call))
        for name, (make, call) in diffusers_tiny.FAMILIES.items()
    }
    for name, drawing in diffusers_drawing.DRAWINGS.items():
        found[name] = (
            lambda name=name, drawing=drawing: drawing.make(name),
            lambda pipe, drawing=drawing: drawing.draw(pipe, [diffusers_drawing.PLAIN]),
        )
    return found


def drawn(name: str, make: Callable[[], Any], draw: Callable[[Any], torch.Tensor], prompts: Any) -> dict[str, Any]:
    """What became of the pictures of one family, by the table and without it."""
    pipe = make()
    bare = draw(pipe)
    edits = fit_projections(pipe, prompts, lam=1e6)
    with debias(pipe, edits) as attachment:
        with_edit = draw(pipe)
        attachment.strength = 0.0
        at_zero = draw(pipe)
    right = not torch.equal(with_edit, bare) and torch.equal(at_zero, bare) and torch.equal(draw(pipe), bare)
    row = {"family": name, "drawn": float(right)}
    nothing = diffusers_families.Family(name="?", pipelines=("?",), parts=())
    with (
        mock.patch.object(diffusers_families, "_FAMILIES", [nothing]),
        mock.patch.object(diffusers_families, "REFUSED", {}),
    ):
        other = make()
        try:
            roles = resolve(other).roles
            edits = fit_projections(other, prompts, lam=1e6)
        except UnsupportedHostError as error:
            why = str(error).partition("Asked what it returns: ")[2].partition(".\n")[0] or str(error)
            return row | {"asked": "refused", "why": why}
        with debias(other, edits):
            asked = draw(other)
    how = "same" if torch.equal(asked, with_edit) else "other" if not torch.equal(asked, bare) else "silent"
    return row | {"asked": how, "roles": " ".join(roles)}


def measure(families: list[str] | None) -> Iterator[TaskResult]:
    """Counts, then the drawings."""
    classes = list(how_reached())
    counted = Counter((row["kind"], row["how"]) for row in classes)
    rows = [
        {"how": how, "kind": kind, "classes": float(counted[kind, how])}
        for kind in ("classic", "modular")
        for how in ("attached", "probed", "refused")
    ]
    yield records("hosts coverage", "Classes of the installed diffusers with a text side", rows, "how", ("kind",),
                  refused={row["class"]: row["why"] for row in classes if row["how"] == "refused"},
                  probed=[row["class"] for row in classes if row["how"] == "probed"])  # fmt: skip
    known, found = makers(), []
    from diffusers_tiny import gender

    for name in families or list(known):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tiny encoders are narrow; of the probe the rows tell
            found.append(drawn(name, *known[name], gender()))
        print(found[-1], file=sys.stderr, flush=True)
    told = [
        {"how": "drawn", "kind": "tiny pipelines", "families": float(sum(row["drawn"] for row in found))},
        {"how": "silent", "kind": "tiny pipelines", "families": sum(1.0 - row["drawn"] for row in found)},
        *(
            {"how": f"asked: {how}", "kind": "tiny pipelines", "families": float(sum(r["asked"] == how for r in found))}
            for how in ("same", "other", "silent", "refused")
        ),
    ]
    outcomes = {row["family"]: f"{row['asked']} {row.get('why', '')}".strip() for row in found}
    about = "Tiny pipelines of the families, by the table and with it hidden"
    yield records("hosts drawn", about, told, "how", ("kind",), families=outcomes)


def main() -> int:
    options: argparse.ArgumentParser = parser(__doc__)
    options.add_argument("--families", nargs="*", help="draw with these alone")
    given = options.parse_args()
    torch.set_num_threads(1)
    run("hosts_coverage", lambda: measure(given.families), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
