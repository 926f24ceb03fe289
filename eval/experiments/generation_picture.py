"""The picture of the README: one profession without, with the default and with stated values, chosen by a rule.

python -m eval.experiments.generation_picture    # draws where nothing is drawn yet, picks, eval/results/median.png

Of the unseen professions that the pipeline draws as one gender nine times in ten, the one whose discrepancy changes by
the median amount under the last method that is shown; its images of the first seed, in the order in which they were
drawn. What is shown stands in the PNG as JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.experiments.generation import SEEDS, STEPS, Studio
from eval.experiments.generation_measures import Seen, counted
from eval.experiments.run import RESULTS
from vldebias.evaluation.report.charts import contact_sheet
from vldebias.metrics.discrepancy import discrepancies
from vldebias.miniature.portraits import GENDERS
from vldebias.pictures import save_png

ROWS, SHOWN = ("default", "stated value"), 8
LEANS = 0.9  # share of one gender from which on a profession is among those that are looked at


@dataclass(frozen=True, eq=False)
class Unseen:
    """What was drawn of the unseen professions under some methods, "none" first.

    Attributes:
        names: of the professions. pixels: method -> (professions, images, 3, h, w) in [0, 1], of the first seed.
        women: method -> (professions,) share. order: professions by the change of their discrepancy under the last
            method, which falls most in the first one.
    """

    names: Sequence[str]
    pixels: Mapping[str, Tensor]
    women: Mapping[str, NDArray[np.float64]]
    order: NDArray[np.intp]

    @classmethod
    def of(cls, studio: Studio, methods: Sequence[str], images: int) -> Unseen:
        """Drawn where it is not there yet. The change is that from "none" to the last of the methods."""
        forms = {form.name: form for form in studio.forms()}
        prompts, pixels, found, women = studio.prompts.held_out_classes, {}, {}, {}
        for method in ("none", *methods):
            drawn = [studio.pixels(forms[method], "unseen", prompts, images, seed) for seed in SEEDS]
            counts = counted(Seen.of(drawn, len(prompts)).gender, len(GENDERS))
            pixels[method] = as_images(drawn[0]).unflatten(0, (len(prompts), -1))
            found[method], women[method] = discrepancies(counts), counts[:, GENDERS.index("female")] / counts.sum(1)
        order = np.argsort(found[methods[-1]] - found["none"], kind="stable")
        return cls(studio.prompts.held_out_class_names, pixels, women, order)

    def middle(self, count: int) -> NDArray[np.intp]:
        """The professions whose change is the median one and those around it in the order, `count` of them."""
        first = (len(self.order) - count) // 2
        return self.order[first : first + count]


def as_images(pixels: NDArray[np.uint8]) -> Tensor:
    """Pixels (n, h, w, 3) -> images (n, 3, h, w) in [0, 1]."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--work", type=Path, default=Path("results/generation"), help="where drawn pixels are kept")
    options.add_argument("--methods", nargs="+", default=list(ROWS), help="rows below that of none")
    options.add_argument("--images", type=int, default=8, help="of each profession and seed, as they were drawn")
    options.add_argument("--out", type=Path, default=RESULTS / "median.png")
    given = options.parse_args()
    unseen = Unseen.of(Studio(given.work / f"{STEPS}-steps", given.images), given.methods, given.images)
    leaning = [i for i in unseen.order if max(unseen.women["none"][i], 1 - unseen.women["none"][i]) >= LEANS]
    chosen = leaning[(len(leaning) - 1) // 2]
    rows = {
        f"{m.replace(' ', '-')}: {100 * unseen.women[m][chosen]:.0f} % women": p[chosen, :SHOWN]
        for m, p in unseen.pixels.items()
    }
    about = {
        "profession": unseen.names[chosen],
        "rule": f"median change of discrepancy under {given.methods[-1]} of the {len(leaning)} of {len(unseen.names)} "
        f"unseen professions that are drawn as one gender {LEANS:.0%} of the time or more",
        "women": {method: round(float(share[chosen]), 3) for method, share in unseen.women.items()},
        "images counted": given.images * len(SEEDS),
        "images shown": min(SHOWN, given.images),
        "steps": STEPS,
    }
    plot = contact_sheet(list(rows.items()))
    plot.set_dpi(100)
    save_png(plot, given.out, about)
    print(about)


if __name__ == "__main__":
    main()
