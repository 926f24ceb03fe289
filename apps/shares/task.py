"""Measure the shares of attribute values among images, and their gap from equal shares.

The labels may come from a judge, the majority of annotators or a table. They are counted per
prompt, and `ShareRows` turns the counts into rows. Human labels for some of the images can correct
a judge's labels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from vldebias.data import Labels
from vldebias.data.label_values import groups_as_many_as_rows, matched, missing_labels, odd_values
from vldebias.data.layouts import IMAGE_COLUMNS, URL_COLUMNS
from vldebias.data.tables import as_texts, column_of, columns_of_counts, read_table
from vldebias.errors import (
    CLOSE_LABELS,
    InvalidInputError,
    did_you_mean,
    need,
    warn_of_input,
)
from vldebias.judge.plan import GeneratedImages
from vldebias.judge.stored import last_judgements
from vldebias.measure.classification import agreement
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.measure.shares import NOT_LABELLED
from vldebias.study.task import Task, register_task
from vldebias.study.tasks.share_rows import ABOUT_GAP, ShareRows
from vldebias.utils.files import digest
from vldebias.utils.phrases import quantity
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import Name
from vldebias.utils.table_rows import plain_name

from .answers import CANNOT_TELL, NO_MAJORITY, NO_PERSON, read_answers, table_of_answers
from .by_people import (
    how_people_agree,
    how_the_judge_errs,
    more_labels,
    who_appears,
)
from .correction import MORE_LABELS, corrected_block
from .group_names import (
    absent_groups,
    compared_over,
    refuse_probabilities,
    refuse_single_group,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from vldebias.study.inputs import Inputs

ROLES = ("prompt", "value", "method", "weight", "people")  # roles of table columns
LABELLED = ("value", "people")  # roles of columns that contain values
INCOMPLETE = "prompts without images from every method"
ABOUT = (
    "Shares of each value among image labels from a table or from annotators. An image without a"
    f" label counts as unknown. {ABOUT_GAP}"
)


@register_task
class SharesTask(Task):
    """Measure shares and discrepancy from an image table, or from answers about generated images.

    Attributes:
        table: .csv, .tsv, .parquet or .jsonl file with one row per image. If None, the answers are
            passed as --label-file and the images as --image-dir. Each image then has the value that
            most annotators chose, and these values also correct the judge's shares, if any.
        prompt: name of the prompt column.
        value: name of the label column.
        method: name of the method column. If None, all images belong to one method.
        weight: column with positive weights. If None, all weights are equal.
        people: column with human labels, empty for unlabelled images. These labels correct `value`,
            and the weights are inverse probabilities of being labelled.
        attribute: attribute that people labelled.
        values: groups that could occur, even if no image shows them. By default, the groups that
            occur.
        rename: text in the table -> the value it stands for.
        unknown: further labels that do not name a group. Refusals, "cannot tell", "N/A" and the
            like never do, unless they are in `values`.
        baseline: method that the others are compared with. Default: "none", if present.
        faces: whether several rows for the same image are different faces, which are counted
            separately.
    """

    task: Literal["shares"] = "shares"
    name: Name = "shares"
    title: str = "Shares of a table"
    table: Path | None = None
    prompt: str = "prompt"
    value: str = "value"
    method: str | None = None
    weight: str | None = None
    people: str | None = None
    attribute: str = ""
    values: tuple[str, ...] = ()
    rename: dict[str, str] = Field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    baseline: str = NONE
    faces: bool = False

    def prepare(self, inputs: Inputs) -> dict[str, object]:
        """Return the table, or the human answers and the folder of generated images."""
        if self.table is not None:
            return {"table": self.table}
        if "table" in inputs.sources:
            return {}
        labels = inputs.options.label_file
        folder = inputs.options.image_dir
        if not labels or folder is None:
            raise InvalidInputError(
                f"expected --label-file and --image-dir; this suite needs {inputs.needs}"
            )
        return {
            "labels": labels,
            "folder": folder,
            "plan": folder / "plan.json",
            "progress": inputs.progress,
        }

    def measure(
        self,
        table: str | Path | Mapping[str, Iterable[object]] | pd.DataFrame | None = None,
        *,
        labels: Sequence[Path] = (),
        folder: Path | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Measure a table, or human labels of generated images.

        Args:
            table: a file, or columns by name.
            labels: answer files for the generated images in `folder`.
            folder: folder of the generated images.
            progress: progress object that reports what is skipped.

        Returns:
            A result with shares and discrepancy, and a second one if human labels correct a judge's
            labels.

        Raises:
            InvalidInputError: If columns, values or weights are missing or invalid.
        """
        # A table takes precedence over labels, which may have been passed for the entire suite.
        if table is None and folder is not None:
            return self._measure_labels(GeneratedImages.open(folder), labels, progress)
        if isinstance(table, (str, Path)):
            source = str(table)
            columns = read_table(Path(table))
            if {"annotator", "attribute", "time"} <= {*columns.column_names}:
                # A correction is another line, and several people may label the same image.
                columns = need("pyarrow").table(table_of_answers(Path(table), self.value))
            data = {Path(table).name: digest(table)}
        else:
            source = "table"
            data = {}
            lists = {name: list(column) for name, column in dict(table or {}).items()}
            columns = need("pyarrow").table(lists)
        role_of_column: dict[str, str] = {}
        for role in ROLES:
            name = getattr(self, role)
            if name is None:
                continue
            if name in role_of_column:
                raise InvalidInputError(
                    f"{source}: column {name!r} is used both as {role_of_column[name]} and as"
                    f" {role}; expected a different column for each"
                )
            role_of_column[name] = role
        # Convert table cells to strings, with ROLES as columns and one row per image. Strip spaces,
        # since "female " in a spreadsheet means "female".
        texts = {}
        for name, role in role_of_column.items():
            texts[role] = as_texts(column_of(columns, name, source), f"{source}: {name}")
        images = need("pandas").DataFrame(texts).apply(lambda column: column.str.strip())
        blank = np.flatnonzero(images.prompt == "")
        if blank.size:
            raise InvalidInputError(
                f"{source}: {len(blank)} rows have an empty {self.prompt!r}, such as row"
                f" {blank[0] + 1}; fill in or remove these rows"
            )
        occurring = set(images.value).union(images.get("people", ()))
        absent = [name for name in (*self.rename, *self.unknown) if name not in occurring]
        if absent:
            warn_of_input(
                f"{source}: no label is {absent[0]!r} (--rename, --unknown); check its spelling and"
                " capital letters",
            )
        self._doubt_rows(images, columns, source)
        counts = columns_of_counts(columns, role_of_column)
        if counts and self.weight is None:
            warn_of_input(
                f"{source}: the numbers in column {counts[0]!r} are not used, and every row counts"
                " as one image; if they are numbers of images, write a row per image, or pass"
                f" --weight-column {counts[0]}, which gives the same shares with wider intervals",
            )
        empty = partial(TaskProvenance, model="not said", split="table", data=data)
        return self._blocks(images, source, lambda **fields: TaskResult(empty(**fields)))

    def _doubt_rows(self, images: pd.DataFrame, columns: pa.Table, source: str) -> None:
        """Reject repeated headers, and warn about suspicious rows.

        The warnings are about prompts that only differ in case or spaces, and about images with
        several rows.
        """
        is_header = (images.prompt == self.prompt) & (images.value == self.value)
        if is_header.any():
            raise InvalidInputError(
                f"{source}: row {int(is_header.argmax()) + 1} repeats the column names, as if two"
                " tables had been joined; remove it"
            )
        spellings = defaultdict[str, list[str]](list)
        for prompt in images.prompt.unique():
            spellings[" ".join(prompt.split()).casefold()].append(prompt)
        alike = [found for found in spellings.values() if len(found) > 1]
        if alike:
            warn_of_input(
                f"{source}: {self.prompt}: {len(alike)} prompts are written in several ways, such"
                f" as {' and '.join(map(repr, alike[0]))}, and each spelling counts as a separate"
                " prompt; use one spelling for each",
            )
        # Crowd-sourcing tables have names such as "Input.image_url".
        image_columns = [
            name
            for name in columns.column_names
            if plain_name(name.rpartition(".")[2]) in (*IMAGE_COLUMNS, *URL_COLUMNS)
            and name not in (self.prompt, self.value, self.method, self.weight, self.people)
        ]
        if self.faces or not image_columns:
            return
        keys = images[["method"]] if "method" in images else images[[]]
        files = as_texts(column_of(columns, image_columns[0], source), source)
        keys = keys.assign(image=files)
        repeated = keys[keys.duplicated() & (keys.image != "")]
        if len(repeated):
            warn_of_input(
                f"{source}: {len(repeated)} rows repeat the image of another row (column"
                f" {image_columns[0]!r}), such as {repeated.image.iloc[0]!r}, and count as separate"
                " images, so intervals are too narrow; if they are several faces in one image, pass"
                " --faces, otherwise keep one row per image, such as the annotators' majority",
            )

    def _doubt_single_images(self, rows: pd.DataFrame, source: str) -> None:
        """Warn if most prompts have one image, as when a service rewrites each prompt."""
        images_of_prompt = rows.groupby(["prompt", "method"]).size()
        single = int((images_of_prompt == 1).sum())
        if len(images_of_prompt) > 1 and single > len(images_of_prompt) / 2:
            warn_of_input(
                f"{source}: {self.prompt}: {single} of {len(images_of_prompt)} prompts have one"
                " image, whose shares are as uneven as can be, whatever it shows; pass the column"
                " of the original prompt (--prompt-column) or, to compare all images together, a"
                " column with the same text in every row",
            )

    def _blocks(
        self, images: pd.DataFrame, source: str, empty: Callable[..., TaskResult]
    ) -> list[TaskResult]:
        """Return a table's block and, if people labelled some of the images, the corrected block.

        Args:
            images: table with ROLES as columns.
            source: name of the table in messages.
            empty: function that creates a result from provenance fields.
        """
        labels = {role: self._labels(images, role, source) for role in LABELLED if role in images}
        # The judge and people share one list of values, so that their codes can be compared.
        names = self._value_names(labels, source)
        rows = self._rows(images, labels, names, source)
        # "none" comes first, because other methods are compared with it. The others keep the order
        # of the table.
        methods = sorted(rows.method.unique(), key=lambda name: name != NONE)
        # Means over prompts are paired by prompt, so each prompt needs images from every method.
        methods_of_prompt = rows.groupby("prompt", sort=False).method.nunique()
        prompts = methods_of_prompt.index[methods_of_prompt == len(methods)]
        if prompts.empty:
            raise InvalidInputError(
                f"{source}: no prompt has images from every method ({', '.join(sorted(methods))}),"
                " but methods are compared prompt by prompt; label or add images of the same"
                " prompts for each method"
            )
        rows["number"] = prompts.get_indexer(rows.prompt)
        rows = rows[rows.number >= 0]
        if not self.attribute:
            self._doubt_single_images(rows, source)
        counts = {}
        for method in methods:
            # (prompts, values + 1): weighted counts of the method's images, unknown last
            rows_of_method = rows[rows.method == method]
            total = np.zeros((len(prompts), len(names) + 1))
            np.add.at(total, (rows_of_method.number, rows_of_method.value), rows_of_method.counts)
            # With unequal weights, scale a prompt's counts so that they add up to Kish's effective
            # sample size (sum w)^2 / sum w^2. For example, ten images, one of which weighs as much
            # as the other nine together, have an effective size of 3.6.
            squared = np.bincount(rows_of_method.number, rows_of_method.counts**2)
            counts[method] = total * (total.sum(1) / squared)[:, None]
        measured = {
            "values": list(names),
            INCOMPLETE: len(methods_of_prompt) - len(prompts),
        }
        if not self.attribute:
            notes = [compared_over(names, are_named=bool(self.values))]
            unlabelled = np.flatnonzero(images.get("people", "unused") == "")
            if len(unlabelled):
                notes.append(
                    f"{len(unlabelled):,} of {quantity(len(images), 'image')} have no label by"
                    f" people, such as that in row {unlabelled[0] + 1}."
                )
            measured["notes"] = notes
        result = empty(
            task=self.name,
            title=self.title,
            description=ABOUT,
            n={"prompts": len(prompts), "images": len(rows)},
            settings=self.settings(measured),
        )
        ShareRows(
            result,
            names,
            counts,
            prompts.tolist(),
            resamples=self.resamples,
            seed=self.seed,
        ).add()
        if "people" not in rows:
            return [result]
        corrected = corrected_block(
            result, names, rows, counts, resamples=self.resamples, seed=self.seed
        )
        return [result, *corrected]

    def _labels(self, images: pd.DataFrame, role: str, source: str) -> Labels:
        """Return the labels in the column "value" or "people", after the settings are applied."""
        column = f"{source}: {getattr(self, role)}"
        texts = images[role].where(~images[role].isin(self.unknown), "").replace(self.rename)
        counts = texts[texts != ""].value_counts().sort_index()
        names = list(counts.index)
        # Annotators chose from fixed values, so nothing needs to be said about them.
        place = "" if self.attribute else column
        remedy = "if one of them is a group, list all groups (--groups)"
        no_groups = missing_labels(dict(counts), place, values=self.values, remedy=remedy)
        texts = texts.where(~texts.isin(no_groups), "")
        if self.attribute:
            # Annotators chose from fixed values, so labels cannot be misspelt.
            return Labels.from_values(texts, self.values or None)
        known = [name for name in names if name not in no_groups]
        refuse_probabilities(known, column)
        if self.values:
            return self._listed_labels(texts, known, column)
        labels = Labels.from_values(texts)
        problem = groups_as_many_as_rows(labels)
        if problem:
            raise InvalidInputError(f"{column}: {problem}")
        problems = odd_values(labels)
        if problems:
            warn_of_input(f"{column}: {'; also '.join(problems)}")
        return labels

    def _listed_labels(self, texts: pd.Series[str], names: Sequence[str], column: str) -> Labels:
        """Return labels as the groups that the user listed, with a warning if their form differs.

        Args:
            texts: the label of each image, "" if unknown.
            names: the labels that occur.
            column: description of the column for messages.

        Raises:
            InvalidInputError: If a label is not one of the groups.
        """
        group_of_label = matched(names, {group: group for group in self.values})
        strangers = [name for name in names if name not in (*self.values, *group_of_label)]
        if strangers:
            listed = ", ".join(self.values)
            hint = did_you_mean(strangers[0], self.values, "", CLOSE_LABELS)
            raise InvalidInputError(
                f"{column}: got {strangers[:8]}; the groups are {listed}; {hint and f'{hint} '}map"
                " each label to its group (--rename LABEL=GROUP), or add it to the groups"
                " (--groups)"
            )
        if group_of_label:
            counts = texts.value_counts()
            listed = ", ".join(
                f"{name!r} ({counts[name]} rows) as {group!r}"
                for name, group in group_of_label.items()
            )
            warn_of_input(f"{column}: read {listed}")
        return Labels.from_values(texts.replace(group_of_label))

    def _value_names(self, labels: Mapping[str, Labels], source: str) -> tuple[str, ...]:
        """Return the values in the settings or, if there are none, the values that occur.

        Raises:
            InvalidInputError: If there are fewer than two values.
        """
        judged = set(labels["value"].names)
        people = set(labels["people"].names) if "people" in labels else judged
        never_judged = sorted(people - judged)
        never_by_people = sorted(judged - people)
        # If the judge uses "female" and people use "woman", there are four values instead of two,
        # and the judge looks wrong about every image.
        if not self.values and never_judged and never_by_people:
            same = matched(never_judged, {name: name for name in never_by_people})
            flags = [f"--rename {name}={value}" for name, value in same.items()]
            warn_of_input(
                f"{source}: column {self.people!r} contains {never_judged}, which the judge never"
                f" uses, and lacks the judge's {never_by_people}; if two values mean the same, pass"
                f" {' '.join(flags) or '--rename A=B'}",
            )
        names = self.values or tuple(sorted(judged | people))
        refuse_single_group(names, f"{source}: {self.value}")
        absent = "" if self.values else absent_groups(names)
        if absent:
            warn_of_input(f"{source}: {self.value}: {absent}")
        return names

    def _rows(
        self,
        images: pd.DataFrame,
        labels: Mapping[str, Labels],
        names: Sequence[str],
        source: str,
    ) -> pd.DataFrame:
        """Return one row per image: prompt, method, judged and human codes, weight and count.

        Raises:
            InvalidInputError: If the baseline does not occur, or a weight is not a number above 0.
        """
        pd = need("pandas")
        rows = pd.DataFrame({"method": NONE, "weight": 1.0, **images})
        if self.baseline not in (NONE, *rows.method):
            raise InvalidInputError(
                f"baseline: expected one of {sorted(set(rows.method))}, got {self.baseline!r}"
            )
        weight = pd.to_numeric(rows.weight, errors="coerce")
        is_weight = (weight > 0) & (weight < np.inf)
        wrong = rows.weight[~is_weight]
        if wrong.size:
            raise InvalidInputError(
                f"{source}: {self.weight}: expected numbers above 0, got {wrong.iloc[0]!r} in row"
                f" {wrong.index[0] + 1}"
            )
        unknown = len(names)
        for role, column in labels.items():
            # Labels without a value have the code -1, which selects the last entry, unknown.
            code_of_label = np.array([*map(names.index, column.names), unknown])
            rows[role] = code_of_label[column.codes]
        # From here on, the baseline is called "none", because all changes are relative to "none".
        rows["method"] = rows.method.replace({self.baseline: NONE, "": "not said"})
        rows["weight"] = weight
        if "people" in rows:
            # An empty cell means that nobody labelled the image, whereas "unknown" is an answer.
            rows["people"] = rows.people.where(images.people != "", NOT_LABELLED)
            # The weights describe which images were sampled for labelling. For the judge, every
            # image counts once.
            rows["counts"] = 1.0
        else:
            rows["counts"] = weight
        return rows

    def _measure_labels(
        self, drawn: GeneratedImages, files: Sequence[Path], progress: Progress
    ) -> list[TaskResult]:
        """Measure the majority labels of images whose prompts do not state a value.

        If a judge has labelled the images, the human labels also correct the shares of the judge
        that labelled them last.
        """
        answers = _answers(files, self.attribute, self.values)
        if answers.empty:
            progress.print_line(f"{self.name}: skipped, because nobody labelled {self.attribute}")
            return []
        judge = last_judgements(drawn, self.attribute, self.values)
        images = _with_answers(drawn, answers, None if judge is None else judge[1])
        labelled = images[images.people != ""]
        if labelled.empty:
            raise InvalidInputError(
                f"labels: none of {len(images)} generated images is labelled; the labels are for"
                f" images such as {answers.image[0]}, but the folder contains"
                f" {images.path.iloc[0]}. Give paths relative to the folder"
            )
        # Compute the same metrics from human labels instead of the judge's labels.
        by_people = labelled.assign(value=labelled.people).drop(columns="people")
        empty = partial(drawn.result, split="generated, labelled by people")
        (result,) = self._blocks(by_people, "labels", empty)
        # (annotators, images), NaN where an annotator did not see an image
        votes = answers.pivot(index="annotator", columns="image", values="code")
        votes = votes.reindex(columns=images.path)
        result.provenance.settings |= {
            "annotators": list(votes.index),
            "judge": None if judge is None else judge[0],
        }
        findings = who_appears(labelled, self.values)
        corrected: list[TaskResult] = []
        if judge is not None:
            findings.append(how_the_judge_errs(labelled, self.values, judge[0]))
            # Correct only the parts that people labelled.
            part = images[images.part.isin(labelled.part)]
            corrected = self._blocks(part, "labels", empty)[1:]
        compared = result.provenance.n["prompts"]
        lost = result.provenance.settings[INCOMPLETE]
        if lost:
            findings.append(
                f"Only {compared} of {compared + lost} prompts have labelled images from every"
                " method, so only these are compared. Label more images (--questions)."
            )
        findings += self._add_agreement(result, votes)
        findings += [more_labels(block.provenance.settings[MORE_LABELS]) for block in corrected]
        result.provenance.settings |= {"findings": findings}
        return [result, *corrected]

    def _add_agreement(self, result: TaskResult, votes: pd.DataFrame) -> list[str]:
        """Add annotator agreement, and return a sentence about it.

        Nothing is added if there is only one annotator or one value. `votes` contains codes, with
        one row per annotator and one column per image.
        """
        try:
            agreed = agreement(votes, resamples=self.resamples, seed=self.seed)
        except InvalidInputError:
            return []
        n = {
            "images with two answers": agreed.units,
            "annotators": len(votes),
            "answers": agreed.answers,
        }
        for metric, interval in (("alpha", agreed.alpha), ("percent_agreement", agreed.percent)):
            ends = (interval.low, interval.high)
            result.add(metric, "all images", interval.value, ends, n=n)
        return [how_people_agree(agreed, len(votes))]


def _answers(files: Sequence[Path], attribute: str, values: Sequence[str]) -> pd.DataFrame:
    """Return the answers about an attribute as a data frame, with values as strings and codes."""
    read = [dict(answer) for answer in read_answers(files) if answer.attribute == attribute]
    answers = need("pandas").DataFrame(read)
    if not answers.empty:
        answers["code"] = Labels.from_values(answers.value, (*values, CANNOT_TELL, NO_PERSON)).codes
    return answers


def _with_answers(
    drawn: GeneratedImages, answers: pd.DataFrame, judged: Sequence[str] | None
) -> pd.DataFrame:
    """Return the images whose prompts do not state a value, with the majority answers.

    `judged` (n,) contains the judge's label for each generated image, or is None without a judge.
    """
    weighted = answers.assign(weight=answers.weight.astype(float).fillna(1.0))
    of_image = weighted.groupby("image")
    majority = of_image.value.agg(_majority)
    images = need("pandas").DataFrame(drawn.images).rename(columns={"variant": "method"})
    images["value"] = "" if judged is None else judged
    # Class prompts for the same concept, such as "nurse", form one unit. Wordings and other prompts
    # are separate units.
    is_concept = images.part.isin(["train", "unseen"])
    images["prompt"] = images.concept.where(is_concept, images.prompt)
    images["people"] = images.path.map(majority).fillna("")
    images["weight"] = images.path.map(of_image.weight.last()).fillna(1.0)
    return images[images.stated.isna()]


def _majority(values: pd.Series[str]) -> str:
    """Return the value that most annotators chose, or NO_MAJORITY if there is a tie."""
    # Choosing the first value in a tie would favour this value.
    modes = values.mode()
    return NO_MAJORITY if len(modes) > 1 else modes[0]
