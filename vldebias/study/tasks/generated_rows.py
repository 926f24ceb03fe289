"""Create result rows and images from generated images and a judge's answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vldebias.data import cross
from vldebias.data.labels import UNKNOWN
from vldebias.errors import Lazily
from vldebias.judge.judges import Judge
from vldebias.judge.plan import GeneratedImages
from vldebias.judge.stored import decide
from vldebias.measure.resampling import wilson_interval
from vldebias.measure.rows import NONE, WORSE_STRIP, Strip, TaskResult
from vldebias.measure.shares import discrepancies
from vldebias.report.strip import row_title
from vldebias.study.grids import COLUMNS, ROWS, compose
from vldebias.study.tasks.share_rows import ShareRows
from vldebias.utils.phrases import in_words
from vldebias.utils.schema import file_slug

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image
else:
    pd = Lazily("pandas")

# Numbers of rows and columns of the image strip at the top of a page.
STRIP_ROWS = 4
STRIP_COLUMNS = 8
Counts = NDArray[np.integer] | NDArray[np.float64]


def image_table(
    generated: GeneratedImages,
    answers: Mapping[str, np.ndarray],
    codes: Mapping[str, Mapping[str, int]],
) -> pd.DataFrame:
    """Return a table with one row per image, which combines the plan with the judge's answers.

    It adds three columns to those in the plan:

    - flagged: whether the safety checker blackened the image.
    - recognised: 1 if the image shows its concept, 0 otherwise. The value is missing if none of the
      judge's attributes includes all concepts.
    - unit: identifies the prompts whose images are combined into one result row.

    Args:
        generated: the generated images and their plan.
        answers: attribute -> the judge's probabilities (n, values).
        codes: attribute -> value in lower case -> its column in the answers.
    """
    table = pd.DataFrame(generated.images)
    table["flagged"] = [generated.record(image).flagged for image in generated]
    table["recognised"] = np.nan
    # Prompts such as "A red car in the rain." do not have a concept to recognise.
    concepts = table.concept.where(table.part != "others", "").str.casefold()
    for attribute, code_of_value in codes.items():
        # Use the first attribute that includes every concept.
        if set(concepts) <= {"", *code_of_value}:
            is_right = answers[attribute].argmax(axis=1) == concepts.map(code_of_value)
            recognised = is_right.astype(float).where(concepts != "")
            if recognised.notna().any():
                table["recognised"] = recognised
                break
    # The five wordings of "nurse" form one unit, because a single wording has too few images to
    # estimate a gap. Each class prompt is its own unit.
    table["unit"] = table.concept.where(table.part == "wordings", table.prompt)
    return table


@dataclass(frozen=True)
class GeneratedRows:
    """Generated images with a judge's answers, from which rows are added to a result.

    Attributes:
        generated: the generated images and their plan.
        table: one row per image, from `image_table`.
        answers: attribute -> probabilities (n, values).
        judge: the classifier that gave the answers.
        sure: minimum probability at which an answer counts.
        noun: the noun for concepts in reports.
        resamples: number of bootstrap resamples.
        seed: bootstrap seed.
    """

    generated: GeneratedImages
    table: pd.DataFrame
    answers: Mapping[str, np.ndarray]
    judge: Judge
    sure: float
    noun: str
    resamples: int
    seed: int

    @property
    def flagged(self) -> dict[str, int]:
        """Return the number of images that the safety checker blackened, by variant."""
        return self.table.groupby("variant").flagged.sum().to_dict()

    def values_of(self, attribute: str) -> dict[str, list[str]]:
        """Map each part of an attribute such as "gender x race" to its values."""
        return {name: list(self.judge.names[name]) for name in attribute.split(" x ")}

    def add(
        self,
        result: TaskResult,
        attribute: str,
        code_of_stated: Mapping[str, int] | None,
        has_pictures: bool,
    ) -> None:
        """Add the rows for an attribute.

        Args:
            result: the result to add rows to.
            attribute: name of the attribute, or an intersection such as "gender x race".
            code_of_stated: stated value -> the judge's code. None if the prompts state a different
                attribute.
            has_pictures: whether to also add images, and the share of identical images for
                prompts that no method should change.
        """
        labels = cross(
            *(
                decide(self.answers[name], tuple(values), self.sure)
                for name, values in self.values_of(attribute).items()
            )
        )
        # Unknown images get a separate column after the values, because they are counted but
        # excluded from the shares.
        unknown = len(labels.names)
        right = np.full(len(self.table), np.nan)
        if code_of_stated is not None:
            right = labels.codes == self.table.stated.map(code_of_stated)
        code = np.where(labels.codes == UNKNOWN, unknown, labels.codes)
        table = self.table.assign(code=code, right=right)

        # Only measure gaps on prompts that leave the value open. If a prompt states a value, uneven
        # shares are correct.
        is_open = table.stated.isna() & (table.part != "others")
        for part, images in table[is_open].groupby("part", sort=False):
            self._add_shares(result, str(part), images, labels.names, has_pictures)
        self._add_stated(result, table)
        if not has_pictures:
            return
        # For prompts that no method should change, add the share of images that are bit-identical.
        images = table[(table.part == "others") & (table.variant != NONE)]
        is_same = []
        for row in images.index:
            image = self.generated.images[row]
            before = self.generated.read(image.under(NONE))
            # Compare pixels, because file metadata differ.
            is_same.append(self.generated.read(image).tobytes() == before.tobytes())
        images = images.assign(same=is_same)
        for kind, members in images.groupby("concept", sort=False):
            n = {"prompts": members.prompt.nunique()}
            self._add_mean(result, "unchanged", "same", members, f"prompts {kind}", n)

    def _add_shares(
        self,
        result: TaskResult,
        part: str,
        images: pd.DataFrame,
        values: tuple[str, ...],
        has_pictures: bool,
    ) -> None:
        """Add the shares for one part of the plan, whose prompts do not state a value."""
        is_written = part == "wordings"
        counted = pd.crosstab([images.variant, images.unit], images.code)
        # Values that do not occur get a column of zeros.
        counted = counted.reindex(columns=range(len(values) + 1), fill_value=0)
        units = images.unit.unique()
        names = images.drop_duplicates("unit").concept.tolist()
        # method -> (prompts, values + 1)
        methods = images.variant.unique()
        counts = {method: counted.loc[method].reindex(units).to_numpy() for method in methods}
        if is_written:
            subset = f"{self.noun}, as people write them"
            prompts = [f"{name}, as people write it" for name in names]
        else:
            subset = f"{part} {self.noun}"
            prompts = names
        recognised = None
        if images.recognised.notna().all():
            recognised = _means(images, "recognised")
        share_rows = ShareRows(
            result,
            values,
            counts,
            prompts,
            subset=subset,
            noun=self.noun,
            resamples=self.resamples,
            seed=self.seed,
        )
        share_rows.add(recognised)
        if not has_pictures:
            return
        stem = f"{file_slug(result.provenance.task)}-{part}"
        caption = (
            f"{subset.capitalize()}: original and debiased pipeline, with the same seed in each"
            " column."
        )
        picture = self._side_by_side(images, counts, names)
        result.pictures[f"{stem}-side-by-side"] = (caption, picture)
        result.strips[f"{stem}-strip"] = self._strip(images, counts, values)
        losses = _losses(share_rows, images)
        if losses:
            _, method, place, loss = max(losses, key=lambda loss: loss[0])
            strip = self._worse_strip(images, counts, values, method, place, loss)
            result.strips[f"{stem}{WORSE_STRIP}"] = strip

    def _side_by_side(
        self, images: pd.DataFrame, counts: Mapping[str, Counts], names: Sequence[str]
    ) -> Image:
        """Compose a grid of the images for some prompts, with one row per method.

        The images in a column share a seed. Prompts are sorted by how often their images show the
        first value, and chosen at even intervals.
        """
        units = images.unit.unique()
        # Cover the full range of shares of the first value, so that prompts are not cherry-picked.
        order = np.argsort(counts[NONE][:, 0], kind="stable")
        places = np.linspace(0, len(order) - 1, min(ROWS, len(order))).round().astype(int)
        chosen = order[places]
        cells = images.groupby(["variant", "unit"])
        rows_of_cell = {cell: list(members.index[:COLUMNS]) for cell, members in cells}
        pictures = {}
        for method in counts:
            pictures[method] = [self._read(rows_of_cell[method, units[place]]) for place in chosen]
        heads = [str(column + 1) for column in range(len(pictures[NONE][0]))]
        return compose([names[place] for place in chosen], pictures, heads)

    def _read(self, rows: Iterable[int]) -> list[Image]:
        """Return the images for the given table rows."""
        return [self.generated.read(self.generated.images[row]) for row in rows]

    def _strip(
        self, images: pd.DataFrame, counts: Mapping[str, Counts], values: Sequence[str]
    ) -> Strip:
        """Return an image strip for the most skewed prompts, with each method and the same seeds.

        The strip has four rows, such as two prompts with two methods, or one prompt with four.
        """
        methods = list(counts)[:STRIP_ROWS]
        units = images.unit.unique()
        # Show the prompts that are most skewed without a method, because a change is only visible
        # there.
        leaning = np.argsort(-discrepancies(counts[NONE][:, :-1]), kind="stable")
        rows = []
        chosen = leaning[: STRIP_ROWS // len(methods)]
        has_several = len(chosen) > 1
        for place in chosen:
            for method in methods:
                is_cell = (images.variant == method) & (images.unit == units[place])
                shown = images[is_cell][:STRIP_COLUMNS]
                seeds = [f"seed {seed}" for seed in shown.seed]
                label = f"{row_title(method)}: {_counted(counts[method][place], values)}"
                if is_cell.sum() > len(shown):
                    label += f", of {is_cell.sum()}; the first {len(shown)} are shown"
                if has_several:
                    label = f"“{shown.prompt.iloc[0]}”, {label}"
                rows.append((label, self._read(shown.index)))
        if has_several:
            caption = "The most skewed prompts, with the same seed in each column."
        else:
            text = shown.prompt.iloc[0]
            caption = f"The most skewed prompt, with the same seed in each column: “{text}”."
        return Strip(caption, seeds, rows)

    def _worse_strip(
        self,
        images: pd.DataFrame,
        counts: Mapping[str, Counts],
        values: Sequence[str],
        method: str,
        place: int,
        loss: str,
    ) -> Strip:
        """Return an image strip for a prompt that a method made worse, with and without the method.

        It shows the first seeds, not the worst images.

        Args:
            images: rows of the images.
            counts: method -> counts (prompts, values + 1).
            values: names of the attribute's values.
            method: method that made the prompt worse.
            place: position of the prompt in `counts`.
            loss: what got worse, in words.
        """
        unit = images.unit.unique()[place]
        members = images[images.unit == unit]
        rows = []
        for name in (NONE, method):
            images_of_method = members[members.variant == name]
            shown = images_of_method[:STRIP_COLUMNS]
            label = f"{row_title(name)}: {_counted(counts[name][place], values)}"
            if images_of_method.recognised.notna().all():
                right = int(images_of_method.recognised.sum())
                label += f"; {right} of {len(images_of_method)} show the requested subject"
            if len(images_of_method) > len(shown):
                label += f"; the first {len(shown)} of {len(images_of_method)} images are shown"
            rows.append((label, self._read(shown.index)))
        caption = (
            f"Who got worse: “{unit}” under {row_title(method)}, {loss}; the same seed in each"
            " column."
        )
        return Strip(caption, [f"seed {seed}" for seed in shown.seed], rows)

    def _add_stated(self, result: TaskResult, table: pd.DataFrame) -> None:
        """Add the share of images that show the value stated in their prompt, overall and by value.

        Unknown images count as wrong. The bootstrap resamples concepts, because the prompts for a
        concept are related.
        """
        stated = table[table.stated.notna() & table.right.notna()]
        unit = stated.concept.where(stated.concept != "", stated.prompt)
        # Sort the units, because their order determines the resamples and must not depend on the
        # plan.
        stated = stated.assign(unit=unit).sort_values("unit", kind="stable")
        for part, images in stated.groupby("part", sort=False):
            subset = f"{part} {self.noun}"
            n = self._n_stated(images)
            self._add_mean(result, "stated_right", "right", images, subset, n)
            self._add_mean(result, "stated_recognised", "recognised", images, subset, n)
            for value, members in images.groupby("stated"):
                subset_of_value = f"{subset}, stated {value}"
                n = self._n_stated(members)
                self._add_mean(result, "stated_right", "right", members, subset_of_value, n)

    def _n_stated(self, images: pd.DataFrame) -> dict[str, int]:
        """Count the concepts, prompts and images in a row about prompts that state a value."""
        return {
            self.noun: images.unit.nunique(),
            "stated prompts": images.prompt.nunique(),
            "images each": int(images.groupby(["variant", "prompt"]).size().iloc[0]),
        }

    def _add_mean(
        self,
        result: TaskResult,
        metric: str,
        column: str,
        images: pd.DataFrame,
        subset: str,
        n: Mapping[str, int],
    ) -> None:
        """Add a column's mean over units, unless the column has missing values."""
        if images[column].notna().all():
            means = _means(images, column)
            result.add_resampled(
                metric, means, n=n, subset=subset, resamples=self.resamples, seed=self.seed
            )


def _means(table: pd.DataFrame, column: str) -> dict[str, NDArray[np.float64]]:
    """Return, by variant, the means of a column over the images of each unit, in table order."""
    means = {}
    for variant, images in table.groupby("variant", sort=False):
        of_unit = images.groupby("unit", sort=False)[column].mean()
        means[str(variant)] = of_unit.to_numpy(float)
    return means


def _losses(share_rows: ShareRows, images: pd.DataFrame) -> list[tuple[float, str, int, str]]:
    """Return each loss that exceeds chance, as (size, method, prompt position, description)."""
    losses = []
    # Find prompts whose gap from equal shares increased, with an interval above 0.
    for method in share_rows.counts:
        for place in range(len(share_rows.prompts)):
            moved, low, _ = share_rows.gap_change(method, place)
            if method != NONE and low > 0:
                before = share_rows.gaps[NONE][place]
                description = f"gap from even shares {before:.2f} to {before + moved:.2f}"
                losses.append((moved, method, place, description))
    # If the judge cannot recognise the subjects, only the gap can be compared.
    if images.recognised.isna().any():
        return losses
    # Find prompts whose subject is shown less often, with intervals that do not overlap.
    groups = images.groupby(["variant", "unit"], sort=False).recognised
    hits = groups.sum().astype(int)
    sizes = groups.size()
    for place, unit in enumerate(images.unit.unique()):
        hits_before = int(hits[NONE, unit])
        size_before = int(sizes[NONE, unit])
        least_before, _ = wilson_interval(hits_before, size_before)
        for method in images.variant.unique():
            hits_after = int(hits[method, unit])
            size_after = int(sizes[method, unit])
            _, most_after = wilson_interval(hits_after, size_after)
            if most_after < least_before:
                lost = hits_before / size_before - hits_after / size_after
                description = (
                    f"subject shown in {hits_before} of {size_before} images, then in {hits_after}"
                    f" of {size_after}"
                )
                losses.append((lost, method, place, description))
    return losses


def _counted(counts: Counts, values: Sequence[str]) -> str:
    """Format the number of images for each value, such as "22 women and 2 men"."""
    count_of_value = {value: int(n) for n, value in zip(counts[:-1], values, strict=True) if n}
    words = in_words(count_of_value)
    if counts[-1]:
        words += f", {counts[-1]} unclear"
    return words.removeprefix(", ")
