"""One table over everything that is at hand: the paper's methods and what goes beyond them, on images and queries that
nothing was fitted on.

python eval/beyond.py                                  # print the table
python eval/beyond.py --json eval/results/beyond.json  # and write it, with a page beside it
python eval/beyond.py --only birds --images 0          # a part of it

Settings: CelebA on CLIP ViT-B/32 and texts of five ViT-L/14 (skipped, with a message, where VLDEBIAS_REAL or
../shared/real lacks the files; see eval/real_clip.py), birds, portraits and generated portraits of the miniature world.
The last block asks whether method="auto" did as well as the best fixed method, which nobody knows beforehand, and
whether it was ever worse than doing nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import real_clip
from beyond_generation import generation
from beyond_labels import joined, pseudo_labels
from beyond_methods import FIXED, exact
from beyond_miniature import PORTRAITS, Worlds, birds, load_worlds, portraits
from beyond_real import half_splits, l14, one_split, published, transductive
from rich.console import Console

from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.part import Part
from vldebias.evaluation.report.pages import print_table, write_page
from vldebias.evaluation.result import Figure, Protocol, Result, commit, versions
from vldebias.prompts import load_prompts

WHOLE = ("", "held-out pairs")  # subsets that stand for a setting
IMAGES = 8  # generated for each profession
BIAS = ("max_skew", "worst_group", "pair_distance", "discrepancy")  # what a method is chosen for
Job = tuple[str, Callable[[], list[Part]]]
err = Console(stderr=True)


def jobs(images: int) -> Iterator[Job]:
    """(name, what measures it), as far as the data are there."""
    yield from _real_jobs()
    worlds = cache(load_worlds)
    yield "birds", lambda: [birds(worlds())]
    for task in PORTRAITS:
        yield task, lambda task=task: [portraits(worlds(), task)]
    yield "pseudo-labels", lambda: [joined(list(_pseudo_labels(worlds())))]
    if images:
        yield "generation", lambda: [generation(images)]


def _pseudo_labels(worlds: Worlds) -> Iterator[Part]:
    celeba = real_clip.data_file()
    if celeba.is_file():
        data = real_clip.load(celeba)
        yield pseudo_labels("CelebA gender", data.texts, data.prompts, data.images, "gender")
    yield pseudo_labels("birds place", worlds.texts, load_prompts("waterbirds"), worlds.reference["birds"], "place")
    for setting in PORTRAITS.values():
        if setting.queries != "fairface-gender":  # the same images and prompts as another
            name, prompts = f"portraits {setting.column}", load_prompts(setting.prompts)
            yield pseudo_labels(name, worlds.texts, prompts, worlds.reference["portraits"], setting.column)


def _real_jobs() -> Iterator[Job]:
    celeba = real_clip.data_file()
    texts = celeba.with_name("text_vitl14.npz")
    for path in (celeba, texts):
        if not path.is_file():
            err.print(f"SKIPPED: {path} is missing; set VLDEBIAS_REAL to its folder", style="yellow", highlight=False)
    if celeba.is_file():
        data, digest = real_clip.load(celeba), _digest(celeba)
        n, gender = len(data.images), data.images.column("gender").codes
        once = partial(one_split, data, digest)
        yield "celeba", lambda: [once("celeba, the gallery itself", transductive(n, gender), "fitted on the gallery")]
        told = "fitted on images 1-500, measured on 501-1000"
        yield "celeba 1-500", lambda: [once("celeba, 501-1000", published(n, gender), told)]
        yield "celeba halves", lambda: [half_splits(data, digest, "celeba, random halves")]
    if texts.is_file():
        yield "texts L/14", lambda: l14(texts, _digest(texts))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def regret(found: list[Figure]) -> Part:
    """What "auto" forgoes of the gain of the best fixed method, per setting and on average.

    0: as good as the best; 1: as "none"; below 0: better than every fixed method. Settings where no fixed method gains
    beyond its interval have nothing to forgo and are only counted. "worse_than_none" is 1 where the whole interval of
    the change of auto lies on the wrong side.
    """
    forgone, worse = {}, {}
    for task, metric in dict.fromkeys((f.task, f.metric) for f in found if f.metric.split("@")[0] in BIAS):
        rows = {f.method: f for f in found if (f.task, f.metric) == (task, metric) and f.subset in WHOLE}
        auto, fixed = rows["auto"], [f for f in rows.values() if f.method in FIXED]
        best = max(fixed, key=_gain)
        worse[task] = float(_beyond(auto, -1))
        if _beyond(best, +1):
            forgone[task] = 1 - _gain(auto) / _gain(best)
    n = {"settings": len(worse), "with something to gain": len(forgone)}
    whole = [
        *figures(Measured("auto", "regret", "lower", n, {"auto": np.array(list(forgone.values()))})),
        *figures(Measured("auto", "worse_than_none", "lower", n, {"auto": np.array(list(worse.values()))})),
    ]
    told = [exact("auto", "regret", "auto", share, "lower", {}, task) for task, share in forgone.items()]
    return Part(whole + told, _auto_protocol(n))


def _gain(figure: Figure) -> float:
    """How much better than "none"."""
    change = figure.change[0] if figure.change else 0.0
    return -change if figure.better == "lower" else change


def _beyond(figure: Figure, sign: int) -> bool:
    """Whether the whole interval of the change says better (+1) or worse (-1) than "none"."""
    if figure.change is None:
        return False
    bounds = [sign * bound * (-1 if figure.better == "lower" else 1) for bound in figure.change[1:]]
    return min(bounds) > 0


def _auto_protocol(n: dict[str, int]) -> Protocol:
    return Protocol(
        task="auto",
        title="Choosing without labels",
        description=(
            "Regret: the share of the best fixed method's gain over none that auto forgoes; 0 is as good as the best, "
            "1 is as none, below 0 is better than every fixed method. The best is picked with the labels that auto "
            "does not see, and without the bound on the query's cosine that auto keeps. Settings where no fixed method "
            "gains beyond its interval are left out. Worse than none: the interval of auto's change is all on the "
            "wrong side."
        ),
        model="all of the above",
        fingerprint=None,
        prompts="as above",
        prompts_hash="",
        split="as above",
        methods={"auto": {}},
        seeds=[],
        n=n,
        settings={"fixed methods": list(FIXED), "intervals": "bootstrap over settings", "measures": list(BIAS)},
    )


def measure(images: int, only: list[str] | None = None) -> Result:
    """All parts whose name starts with one of `only`; all of them by default."""
    started = time.monotonic()
    parts: list[Part] = []
    for name, job in jobs(images):
        if not only or any(name.startswith(wanted) for wanted in only):
            begun = time.monotonic()
            parts += job()
            err.print(f"{name}: {time.monotonic() - begun:.0f} s", highlight=False)
    if any(figure.method == "auto" for part in parts for figure in part.figures):
        parts.append(regret([figure for part in parts for figure in part.figures]))
    return Result(
        name="beyond",
        figures=[figure for part in parts for figure in part.figures],
        protocols=[part.protocol for part in parts],
        versions=versions(),
        commit=commit(),
        seconds=round(time.monotonic() - started, 1),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=IMAGES, help="generated for each profession (%(default)s)")
    parser.add_argument("--only", action="append", help="settings whose name starts so; repeat for several")
    parser.add_argument("--json", type=Path, help="write the result here, and an .html page beside it")
    arguments = parser.parse_args()
    result = measure(arguments.images, arguments.only)
    if not result.figures:
        print(f"nothing to measure: no setting starts with {arguments.only}", file=sys.stderr)
        return 2
    print_table(result, Console())
    if arguments.json:
        result.write(arguments.json)
        write_page(result, [], arguments.json.with_suffix(".html"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
