"""Does "auto" do no harm? Good, small and broken references in real, rendered and made-up worlds.

python -m eval.experiments.auto --json eval/results/auto.json --plot eval/results/auto.png
python -m eval.experiments.auto --again --json eval/results/auto_again.json   # of worlds drawn again, without "judged"

It resumes where it stopped: every world that is done lies in --work, a file of lines (default: beside the JSON). Parts
may run beside each other (`--only vectors`); the one that finds all worlds done writes the JSON.

A setting is a world and a reference. Worlds: CelebA on ViT-B/32 (gender and age; random halves: references from one,
measured on the other, on every second profession, the rest being neutral texts; left out, with a message, where the
embeddings are not there), portraits, birds and hair of the miniature (references from renders with the world's own
correlations), and vectors whose bias is known. References: `REFERENCES`, both in auto_worlds.py.

none        cost of the texts as they are: MaxSkew@k, mean over queries, or 1 - accuracy of the worst group
alone       of auto without a reference; auto: with it
change      auto minus none, with the 95 % bootstrap interval over queries, or images
best        lowest cost of the candidates of auto at every lam, within the same bound, in hindsight on what is measured
judged      every candidate: predicted gaps (as shares of the gap without an edit), the same with true labels, its cost

summary     by reference: settings; "worse": the change's interval lies above 0; "behind": auto minus alone, the
            largest, and in how many settings above 0.02; "missed": 1 - gains of auto / gains of the best, sums over the
            settings whose best gains beyond its interval, with the 95 % bootstrap interval over worlds; "unguarded":
            behind and missed, were the smallest predicted gap taken whatever texts alone choose, "incautious": and
            whatever the intervals say, "truth": and were every gap predicted as true labels show it; "told": a
            ReferenceWarning; "left_out": of the choice
errors      root mean square of predicted minus true gaps, of candidates that use no image, by world, and the median
            without the vectors, some of which have next to no gap to be a share of (`vldebias.methods.auto.ERR` lies
            between the best and the worst read)
apart       by reference and world: how unlike the reference is to what is measured,
            `vldebias.evaluation.reference_images.apart`; above 0.05 and 1 / n, for n images, evaluators warn of it
            ("unlike" in the summary)
coverage    evidence drawn from a known population many times: how often an interval of a change holds the truth
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eval.experiments import records
from eval.experiments.auto_worlds import GENUINE, REFERENCES, Place, places
from eval.experiments.run import parser
from eval.tables import Cells, shows
from vldebias.edit import Edit
from vldebias.errors import ReferenceWarning, VldebiasError, VldebiasWarning
from vldebias.evaluation.reference_images import UNLIKE, apart
from vldebias.evaluation.result import Result
from vldebias.methods import METHODS
from vldebias.methods.auto import CANDIDATES, LAMS, PredictedGap, draws
from vldebias.methods.equalise import UnusableReferenceError
from vldebias.metrics.bootstrap import percentile_interval, recentred_interval


def rows_of(place: Place) -> Iterator[dict[str, Any]]:
    """One row without a reference, and one for each."""
    shared = () if place.groups is None else (place.groups,)
    base = place.units(None)
    none, true_gap = place.cost(base, *shared), place.gap(None)
    texts: dict[str, Edit] = {}
    alone = none
    for number, (kind, draw) in enumerate({"none": None, **REFERENCES}.items()):
        reference = None if draw is None else draw(place, np.random.default_rng(number))
        row: dict[str, Any] = {"world": place.name, "reference": kind, "none": none}
        began = time.perf_counter()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", VldebiasWarning)
            try:
                edit = place.fit("auto", reference)
            except VldebiasError as error:
                yield row | {"error": f"{type(error).__name__}: {error}"}
                continue
        row["seconds"] = round(time.perf_counter() - began, 2)
        row["warned"] = sorted(
            {str(w.message).partition(": measure")[0] for w in told if w.category is ReferenceWarning}
        )
        after = place.units(edit)
        auto = place.cost(after, *shared)
        alone = auto if draw is None else alone
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VldebiasWarning)
            edits = {_key(one): one for one in _candidates(place, reference, texts)}
        costs = {name: place.cost(place.units(one), *shared) for name, one in edits.items()}
        best = min(costs, key=lambda name: costs[name])
        choice = edit.provenance.choice
        assert choice is not None
        judged = [
            {
                "method": (name := _named(c.method, c.lam)),
                "gaps": c.gaps,
                "change": c.change,
                "true": place.gap(edits[name]) / true_gap,
                "cost": costs[name],
            }
            for c in choice.candidates
        ]
        yield row | {
            "alone": alone,
            "auto": auto,
            "chosen": _key(edit),
            "change": place.change(base, after),
            "best": costs[best],
            "best_method": best,
            "best_change": place.change(base, place.units(edits[best])),
            "evidence": list(choice.evidence),
            "judged": judged,
        }


def _key(edit: Edit) -> str:
    return _named(edit.method, edit.provenance.lam)


def _named(method: str, lam: Any) -> str:
    return f"{method} {(lam[0] if isinstance(lam, tuple) else lam):.5g}"


def _candidates(place: Place, reference: Tensor | None, texts: dict[str, Edit]) -> Iterator[Edit]:
    """Every candidate of auto at every lam, within the bound; `texts` keeps those that a reference does not change."""
    for name in CANDIDATES:
        if "orth" in name and not place.prompts.spurious:
            continue
        for lam in LAMS if METHODS[name].has_lam else LAMS[:1]:
            if not METHODS[name].uses_images:
                if f"{name} {lam}" not in texts:
                    texts[f"{name} {lam}"] = place.fit(name, None, lam)
                yield texts[f"{name} {lam}"]
            elif reference is not None:
                try:
                    yield place.fit(name, reference, lam)
                except UnusableReferenceError:
                    return


# ---- what it comes to ------------------------------------------------------------------------------------------------


def distances(every: list[Place]) -> dict[str, dict[str, tuple[float, bool]]]:
    """Reference -> world -> how far it is from what is measured, and whether evaluators warn of that."""
    found: dict[str, dict[str, tuple[float, bool]]] = {"none": {}}
    for number, (kind, draw) in enumerate(REFERENCES.items(), 1):  # as in `rows_of`
        found[kind] = {}
        for place in every:
            reference = draw(place, np.random.default_rng(number))
            by = apart(reference, place.gallery)
            found[kind][place.name] = by, by > UNLIKE + 1 / len(reference)
    return found


def summary(rows: list[dict[str, Any]], far: Mapping[str, Mapping[str, tuple[float, bool]]]) -> dict[str, Any]:
    """By reference, and over all of them."""
    kinds = list(dict.fromkeys(row["reference"] for row in rows))
    parts = {kind: [kind] for kind in kinds} | {"genuine": list(GENUINE), "all": kinds}
    return {
        name: _summed([row for row in rows if row["reference"] in own])
        | {"unlike": sum(warned for kind in own for _, warned in far[kind].values())}
        for name, own in parts.items()
    }


def _summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    there = [row for row in rows if "error" not in row]
    gaining = [row for row in there if row["best_change"][2] < 0]
    most = sum(row["none"] - row["best"] for row in gaining)

    def told(cost: Callable[[Mapping[str, Any]], float]) -> dict[str, Any]:
        behind = [cost(row) - row["alone"] for row in there]
        return {
            "behind": {"largest": max(behind), "above 0.02": sum(one > 0.02 for one in behind)},
            "missed": 1 - sum(row["none"] - cost(row) for row in gaining) / most if most else None,
        }

    return {
        **told(lambda row: float(row["auto"])),
        "missed_interval": _over_worlds(gaining),
        "unguarded": told(_unguarded),
        "incautious": told(partial(_smallest, by=lambda one: one["change"][0])),
        "truth": told(partial(_smallest, by=lambda one: one["true"] - 1)),
        "settings": len(rows),
        "errors": len(rows) - len(there),
        "worse": sum(row["change"][1] > 0 for row in there),
        "gaining": len(gaining),
        "told": sum(bool(row["warned"]) for row in there),
        "left_out": sum(any("left out" in one for one in row["warned"]) for row in there),
    }


def _over_worlds(gaining: list[dict[str, Any]]) -> tuple[float, float] | None:
    """95 % interval of what is missed, were the worlds drawn anew, each with its references."""
    worlds = list(dict.fromkeys(row["world"] for row in gaining))
    if len(worlds) < 2:
        return None
    gains = np.zeros((len(worlds), 2))
    for row in gaining:
        gains[worlds.index(row["world"])] += row["none"] - row["auto"], row["none"] - row["best"]
    had, most = (draws(len(worlds), 2000, seed=0).numpy()[1:] @ gains).T
    return percentile_interval(1 - had / most)


def _unguarded(row: Mapping[str, Any]) -> float:
    """Cost of the smallest predicted gap of those beyond their interval, whatever texts alone choose."""
    return _smallest(row, lambda one: one["change"][0], [one for one in row["judged"] if one["change"][2] < 0])


def _smallest(
    row: Mapping[str, Any], by: Callable[[Mapping[str, Any]], float], among: list[dict[str, Any]] | None = None
) -> float:
    """Cost of the candidate whose gap changes least of all by `by`; without an edit where none lies below 0."""
    best = min(row["judged"] if among is None else among, key=by, default=None)
    cost: float = row["none"] if best is None or by(best) >= 0 else best["cost"]
    return cost


def errors(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Kind of evidence -> world -> root mean square error of the predicted gaps; images: genuine and all of them."""
    found: dict[str, dict[str, list[float]]] = {"texts": {}, "images": {}}
    for row in rows:
        if row["reference"] not in ("none", "all images"):
            continue
        kind = "texts" if row["reference"] == "none" else "images"
        for one in row.get("judged", ()):
            if "equalise" not in one["method"] and kind in one["gaps"]:
                found[kind].setdefault(row["world"].split(",")[0], []).append(one["gaps"][kind] - one["true"])
    by_world = {k: {w: float(np.sqrt(np.mean(np.square(v)))) for w, v in of.items()} for k, of in found.items()}
    seen = {kind: [v for world, v in of.items() if world != "vectors"] for kind, of in by_world.items()}
    return {kind: of | {"median": float(np.median(seen[kind]))} for kind, of in by_world.items()}


COVERED = ((20, 0.8), (100, 0.8), (400, 0.8), (100, 0.3), (400, 0.3))  # images, mean lean of the texts


def coverage(sets: int = 200, texts: int = 24, dim: int = 16) -> list[dict[str, Any]]:
    """How often centred and percentile intervals of a change hold the truth, and how often they lie below 0.

    Images of two values differ by 1 along an axis, in units of their deviation along each; texts lean along it, some
    more than others. The edit takes a part of that away. Texts and images are drawn anew each time.
    """
    axes = torch.eye(dim, dtype=torch.float64)
    removed = 0.6 * axes[0] + 0.8 * axes[1]

    def edited(rows: Tensor) -> Tensor:
        return rows - rows @ removed[:, None] * removed

    def drawn(n: int, m: int, lean: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        value = torch.randint(2, (n,), generator=draw)
        images = torch.randn(n, dim, generator=draw, dtype=torch.float64) + (0.5 - 1.0 * value[:, None]) * axes[0]
        leaning = lean * (0.5 + torch.rand(m, 1, generator=draw, dtype=torch.float64))
        return images, value, axes[2] + leaning * axes[0] + 0.05 * torch.randn(m, dim, generator=draw)

    found = []
    for n, lean in COVERED:
        images, value, about = drawn(20_000, 500, lean, seed=1)
        whole = PredictedGap.of(images, value, resamples=0)
        after, before = (float(whole.of_texts(t).square().mean()) for t in (edited(about), about))
        truth = (after / before) ** 0.5 - 1
        shares = {"centred": np.zeros(2), "percentile": np.zeros(2)}
        for seed in range(sets):
            images, value, about = drawn(n, texts, lean, seed + 10)
            gap, weights = PredictedGap.of(images, value, resamples=300, seed=seed), draws(texts, 300, seed=0)
            squares = [(gap.squares(t) * weights).sum(1) / weights.sum(1) for t in (about, edited(about))]
            roots = [(one.clamp(min=0) / squares[0][0].clamp(min=1e-3)).sqrt() for one in squares]
            change = (roots[1] - roots[0]).numpy()
            ends = (recentred_interval(change[0], change[1:]), percentile_interval(change[1:]))
            for counted, (low, high) in zip(shares.values(), ends, strict=True):
                counted += np.array([low <= truth <= high, high < 0]) / sets
        told = {name: {"holds": float(held), "below 0": float(below)} for name, (held, below) in shares.items()}
        found.append({"images": n, "lean": lean, "truth": truth, **told})
    return found


def draw(result: Result, path: Path) -> Path:
    """A line per reference: auto with it against auto without, one dot a world; and the share of the gain missed."""
    from vldebias.pictures import INK, save_png, subplots

    rows = result.provenance[0].settings["settings"]
    missed = {row["method"]: row.get("missed", 0.0) for row in records.rows_of(result)}
    kinds = list(dict.fromkeys(row["reference"] for row in rows))
    plot, (left, right) = subplots(1, 2, (9.5, 0.34 * len(kinds) + 1.2))
    for y, kind in enumerate(kinds):
        own = [row for row in rows if row["reference"] == kind and "error" not in row]
        worse = [row["change"][1] > 0 for row in own]
        colors = ["#c0392b" if bad else "#2a78b5" for bad in worse]
        left.scatter([row["auto"] - row["alone"] for row in own], [y] * len(own), s=16, c=colors, alpha=0.6)
        right.barh(y, missed[kind], color="#bab0ac")
    left.axvline(0.02, color=INK, linewidth=0.8, linestyle=":")
    right.axvline(0.25, color=INK, linewidth=0.8, linestyle=":")
    left.set_xlabel("cost with the reference minus cost without one", fontsize=8, color=INK)
    right.set_xlabel("share of the best candidate's gain that is missed", fontsize=8, color=INK)
    for axis, named in ((left, kinds), (right, [""] * len(kinds))):
        axis.set_yticks(range(len(kinds)), named, fontsize=8)
        axis.set_ylim(len(kinds) - 0.4, -0.6)
        axis.tick_params(labelsize=8, colors=INK)
        axis.spines[["top", "right"]].set_visible(False)
    plot.tight_layout()
    return save_png(plot, path, {"result": "auto", "commit": result.commit, "versions": result.versions})


@shows("docs/explanation/auto.md", "auto")
def page_rows(result: Result, kinds: Sequence[str] = ()) -> Cells:
    """A row for each kind of reference."""
    head = ["reference", "settings", "worse than none", "most behind no reference", "more than .02 behind"]
    lines = [[*head, "gain missed", "unguarded: behind, missed", "a warning", "left out", "told unlike"]]
    found = {row["method"]: row for row in records.rows_of(result)}
    for kind in kinds or found:
        row, (low, high) = found[kind], found[kind]["missed_interval"]
        counts = [f"{row['settings']:.0f}", f"{row['worse']:.0f}", f"{row['behind, largest']:+.3f}"]
        counts.append(f"{row['behind, above 0.02']:.0f}")
        other = f"{row['unguarded, behind, above 0.02']:.0f}, {row.get('unguarded, missed', 0):.0%}"
        warned = [f"{row[key]:.0f}" for key in ("told", "left_out", "unlike")]
        name = f"**{kind}**" if kind in ("genuine", "all") else kind
        lines.append([name, *counts, f"{row['missed']:.0%} [{low:.0%}, {high:.0%}]", other, *warned])
    return lines


@shows("docs/explanation/auto.md", "auto_again")
def genuine_rows(result: Result) -> Cells:
    return page_rows(result, ("none", *GENUINE, "genuine", "all"))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--plot", type=Path, help="write the picture here, as PNG")
    options.add_argument("--work", type=Path, help="lines of the worlds that are done")
    options.add_argument("--again", action="store_true", help="worlds drawn again")
    options.add_argument("--only", default="", help="worlds whose names begin so")
    given = options.parse_args()
    work: Path = given.work or given.json.with_suffix(".lines")
    every = list(places(given.again))
    for place in every:
        if place.name.startswith(given.only) and place.name not in _done(work):
            line = json.dumps({"world": place.name, "rows": list(rows_of(place))})
            with work.open("a", encoding="utf-8") as file_:
                file_.write(line + "\n")
            print(place.name, file=sys.stderr, flush=True)
    done = _done(work)
    if any(place.name not in done for place in every):
        return
    rows = [row for place in every for row in done[place.name]]
    far = distances(every)
    told = {"summary": summary(rows, far), "errors": errors(rows), "coverage": coverage()}
    print(json.dumps(told, indent=1))
    if given.again:
        rows = [{name: one for name, one in row.items() if name != "judged"} for row in rows]
    told = _rounded(told | {"apart": far, "settings": rows})
    kinds = [{"reference": kind, **row} for kind, row in told.pop("summary").items()]
    about, name = "What auto does, by the reference that it is given", "auto_again" if given.again else "auto"
    result = Result.of(name, [records.records("auto", about, kinds, "reference", **told)], seconds=None)
    if given.json:
        result.write(given.json)
    if given.plot:
        draw(result, given.plot)


def _done(work: Path) -> dict[str, list[dict[str, Any]]]:
    lines = work.read_text(encoding="utf-8").splitlines() if work.is_file() else []
    return {told["world"]: told["rows"] for told in map(json.loads, lines)}


def _rounded(told: Any) -> Any:
    if isinstance(told, float):
        return round(told, 5)
    if isinstance(told, dict):
        return {name: _rounded(one) for name, one in told.items()}
    return [_rounded(one) for one in told] if isinstance(told, (list, tuple)) else told


if __name__ == "__main__":
    main()
