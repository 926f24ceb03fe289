"""Draw the first picture of the README: who appears before and after, with real models.

`python -m eval.first_plot` draws eval/results/first_plot.png from committed counts:

- left: public counts of images from Stable Diffusion 3.5 (`eval/counts/sd35`), with nothing stated
  and with female and male stated in turn, which is what balanced prompts write
- right: a search with CLIP (`eval/results/first_plot.json`), for professions drawn by a seed
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.experiments.first_plot import K
from eval.experiments.stated_values import MODEL, read_images
from eval.tables import RESULTS, read

SEED = 0
SHOWN = 12  # professions per panel
MISSPELLED = "A photo of eceptionist"  # in the list of the paper
INK, LINE, FILLED = "#333333", "#9aa7b5", "#0b6e63"
PATH = RESULTS / "first_plot.png"

Dumbbell = tuple[float, float, str]  # share of women before and after, profession


def of_images() -> list[Dumbbell]:
    """Return the shares of women in images of Stable Diffusion 3.5, by profession."""
    images = read_images()
    images = images[(images["ethnicity"] == "") & (images["profession"] != "")]
    women = images.pivot(index="profession", columns="gender", values="Female")
    people = images.assign(people=images[["Female", "Male", "Non-binary"]].sum(axis=1))
    total = people.pivot(index="profession", columns="gender", values="people")
    rows = []
    for profession in women.index:
        shown, counted = women.loc[profession], total.loc[profession]
        in_turn = (shown["female"] + shown["male"]) / (counted["female"] + counted["male"])
        rows.append((shown[""] / counted[""], in_turn, profession))
    return sorted(rows)


def of_search() -> list[Dumbbell]:
    """Return the shares of women among the first results of CLIP, for professions by a seed."""
    (part,) = [p for p in read("first_plot").provenance if p.task == "half women"]
    women: dict[str, list[int]] = part.settings["women"]
    women = {query: counts for query, counts in women.items() if query != MISSPELLED}
    drawn = random.Random(SEED).sample(sorted(women), SHOWN)
    return sorted(
        (women[query][0] / K, women[query][1] / K, query.removeprefix("A photo of "))
        for query in drawn
    )


def draw_panel(
    axis: Any, rows: Sequence[Dumbbell], title: str, case: str, before: str, after: str
) -> None:
    """Draw a dumbbell per profession, and a legend that says what the two dots are."""
    for i, (first, second, _) in enumerate(rows):
        axis.plot([first, second], [i, i], color=LINE, linewidth=2, zorder=1)
    places = range(len(rows))
    axis.scatter(
        [row[0] for row in rows], places, s=46, facecolor="white", edgecolor=INK, zorder=2,
        label=before,
    )  # fmt: skip
    axis.scatter([row[1] for row in rows], places, s=46, color=FILLED, zorder=3, label=after)
    axis.axvline(0.5, linestyle=":", color=INK, linewidth=1, zorder=0)
    axis.set_yticks(places, [row[2].capitalize() for row in rows])
    axis.set_xlim(-0.04, 1.04)
    axis.set_xticks([0, 0.5, 1], ["no women", "half", "all women"])
    axis.set_title(title, loc="left", x=-0.03, fontsize=12, fontweight="bold", pad=22)
    axis.text(-0.03, 1.025, case, transform=axis.transAxes, fontsize=10.5)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(left=False)
    axis.legend(
        loc="upper left", bbox_to_anchor=(-0.03, -0.09), frameon=False, fontsize=10.5,
        handletextpad=0.2, borderaxespad=0,
    )  # fmt: skip


def draw(path: Path = PATH) -> None:
    """Draw both panels."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"font.size": 11}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(11.4, 5.4), layout="constrained")
        draw_panel(
            left,
            of_images(),
            f"Generate: {MODEL}",
            "10 images per profession before, 20 after",
            "nothing stated",
            "female and male stated in turn\n(public images, not a run of vldebias)",
        )
        draw_panel(
            right,
            of_search(),
            "Search: CLIP ViT-B/32",
            f"the first {K} of 804 faces, 402 of them women",
            "as found",
            "re-ranked by vldebias, without labels",
        )
        figure.savefig(path, dpi=110, metadata={"Software": None})
        plt.close(figure)


if __name__ == "__main__":
    draw()
