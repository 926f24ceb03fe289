"""The picture of the README: one profession without, with and with sampled values, chosen by a rule and not by hand.

python -m eval.experiments.generation --images 12                  # draws, once
python -m eval.experiments.generation_picture                      # picks, draws eval/results/median.png

Of the unseen professions the one whose discrepancy changes by the median amount under the first method that is shown;
its images of the first seed, in the order in which they were drawn. What is shown stands in the PNG as JSON.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from eval.experiments.generation import SEEDS, STEPS, Seen, Studio, counted
from eval.experiments.run import RESULTS
from vldebias.evaluation.report.charts import contact_sheet
from vldebias.metrics.discrepancy import discrepancies
from vldebias.miniature.portraits import GENDERS
from vldebias.pictures import write_png


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--work", type=Path, default=Path("results/generation"), help="where drawn pixels are kept")
    options.add_argument("--methods", nargs="+", default=["cali", "steer"], help="rows below that of none")
    options.add_argument("--images", type=int, default=12, help="of each profession and seed, as they were drawn")
    options.add_argument("--out", type=Path, default=RESULTS / "median.png")
    given = options.parse_args()
    studio = Studio(given.work / f"{STEPS}-steps", given.images)
    forms = {form.name: form for form in studio.forms()}
    prompts, names = studio.prompts.held_out_classes, studio.prompts.held_out_class_names
    pixels, found, women = {}, {}, {}
    for method in ("none", *given.methods):
        drawn = [studio.pixels(forms[method], "unseen", prompts, given.images, seed) for seed in SEEDS]
        counts = counted(Seen.of(drawn, len(prompts)).gender, len(GENDERS))
        pixels[method] = torch.from_numpy(drawn[0]).permute(0, 3, 1, 2).unflatten(0, (len(prompts), -1)).float() / 255
        found[method], women[method] = discrepancies(counts), counts[:, GENDERS.index("female")] / counts.sum(1)
    change = found[given.methods[0]] - found["none"]
    chosen = int(np.argsort(change, kind="stable")[(len(change) - 1) // 2])
    rows = {f"{m}: {100 * women[m][chosen]:.0f} % women": pixels[m][chosen] for m in pixels}
    about = {
        "profession": names[chosen],
        "rule": f"median change of discrepancy under {given.methods[0]} of {len(names)} unseen professions",
        "women": {method: round(float(share[chosen]), 3) for method, share in women.items()},
        "images counted": given.images * len(SEEDS),
        "images shown": given.images,
        "steps": STEPS,
    }
    drawn_plot = io.BytesIO()
    contact_sheet(list(rows.items())).savefig(drawn_plot, format="png", dpi=100)
    write_png(Image.open(drawn_plot).convert("RGB"), given.out, about, optimize=True)
    print(about)


if __name__ == "__main__":
    main()
