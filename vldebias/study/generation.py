"""Compare generated images with and without methods (Table 7.7, section 7.6.4), as a judge labels
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, SerializeAsAny

from vldebias.data import UNKNOWN, cross, processes
from vldebias.errors import InvalidInputError, Lazily
from vldebias.hosts import resolve
from vldebias.hosts.clip.images import image_encoder
from vldebias.hosts.loading import Loaded
from vldebias.judge.judges import JUDGES, SURE, ClipJudge, Judge, JudgeSpec, decide
from vldebias.judge.plan import SEED_STEP, GeneratedImages, Plan, planned_prompts
from vldebias.judge.scores import judge_images, scored
from vldebias.measure.result import NONE, TaskResult
from vldebias.measure.rows import Strip
from vldebias.measure.shares import discrepancies
from vldebias.methods import get_method
from vldebias.options import Options
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, balance_prompts, fill
from vldebias.schema import Count, Name, Share, file_slug, one_of
from vldebias.study.auditing import read_prompts
from vldebias.study.inputs import Inputs
from vldebias.study.share_rows import ABOUT_GAP, ShareRows
from vldebias.study.task import Prompts, Task, register_task
from vldebias.study.variants import COLUMNS, ROWS, Variant, compose, generate

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray
else:
    pd = Lazily("pandas")

ABOUT = (
    "Every prompt generated from the same noise without and with the method. Shares are those of"
    f" the images that the judge can tell; the others are counted. {ABOUT_GAP} The interval of one"
    " prompt is over its images."
)
STRIP_ROWS, STRIP_COLUMNS = 4, 8  # images that the first screen of a page shows


@register_task
class GenerationTask(Task):
    """Generate images with and without edits, judge and measure them; an interrupted run resumes.

    name: first word of the blocks, "generation gender"; a task that is called like its attribute
    keeps that name.
    prompts: the set to generate: its classes, and if `stated` its pairs. subjects: generate these
    in place of its
        unseen concepts (section 7.6.4). prompts_file: or the prompts of this file, one per line,
        that leave the value open; the settings count the others by reason.
    attributes: of the judge; "gender x race" for their intersections. Where an attribute of the
    judge knows every
        concept of the prompts, the share of images that show their concept is measured too.
    variants: name -> how to debias, with any method for pipelines. The original pipeline, "none",
    always runs.
    images: per prompt and seed. seeds: of runs; image i of a run has the seed 10,000 x run + i.
    concepts: "train" (the prompts that an edit is fitted on), "unseen" or "both".
    stated: also generate prompts that state their attribute, with and without leaving them
    unchanged.
    as_written: also generate five everyday wordings of each concept that is not fitted on, and
    prompts without a
        person or with a named one, which no method should change
        (`vldebias.judge.plan.WORDINGS`, `OTHERS`).
    stated_images: per stated prompt, wording and other prompt, and seed; at most `images`.
    noun: what concepts are called in a report. sure: smallest probability with which a judge's
    answer counts. steps, guidance, batch_size, options: of the pipeline; options are further
    arguments such as {"height": 512}.
    """

    task: Literal["generation"] = "generation"
    name: Name = "generation"
    title: str = "Generated images"
    prompts: Prompts
    subjects: tuple[str, ...] = ()
    prompts_file: Path | None = None
    attributes: Annotated[tuple[str, ...], Field(min_length=1)]
    judge: Annotated[SerializeAsAny[JudgeSpec], one_of(JUDGES, "kind")] | None = None
    variants: Annotated[dict[str, Variant], Field(min_length=1)]
    images: Annotated[Count, Field(le=SEED_STEP)] = 100  # more would have the seeds of the next run
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    concepts: Literal["train", "unseen", "both"] = "both"
    stated: bool = True
    as_written: bool = False
    stated_images: Count = 8
    noun: str = "professions"
    steps: Count = 50
    guidance: float = 7.5
    batch_size: Count = 8
    options: dict[str, Any] = Field(default_factory=dict)
    sure: Share = SURE
    clip_score: bool = False
    fid: bool = False

    @classmethod
    def from_inputs(cls, inputs: Inputs, settings: Mapping[str, Any]) -> Self:
        """Return the task with the user's methods as variants.

        Raises:
            InvalidInputError: no folder for the images.
        """
        if "images" not in inputs.sources:
            raise InvalidInputError(
                "images: expected the folder that images are generated into, or lie in"
            )
        variants = {}
        for method in settings.get("methods") or ():
            name = get_method(method).name
            if name != NONE:
                variants[name] = {"method": name}
        if variants:
            settings = {"variants": variants, **settings}
        return super().from_inputs(inputs, settings)

    @property
    def prompt_set(self) -> PromptSet:
        """Return the prompt set to generate, with the task's own subjects or prompts as its unseen
        concepts."""
        prompts, groups = self.prompts, tuple[tuple[str, ...], ...]()
        if self.prompts_file is not None:
            name, texts = self.prompts_file.name, read_prompts(self.prompts_file)
            reasons = _reasons(texts, prompts)
            classes = names = tuple(
                text for text, why in zip(texts, reasons, strict=True) if why is None
            )
            if not names:
                left, came = list(prompts.attributes), dict(Counter(reasons))
                raise InvalidInputError(
                    f"{self.prompts_file}: no prompt leaves {left} open, got {came}; add some"
                )
        elif self.subjects:
            # "a photo of a waterbird", and as pairs "a photo of a waterbird with water background",
            # the same with land
            name, names = ", ".join(self.subjects), self.subjects
            classes = tuple(fill("a photo of a {concept}", concept=one) for one in names)
            words, pair = [own[0] for own in prompts.attributes.values()], prompts.templates[0]
            groups = tuple(
                tuple(fill(pair, concept=one, attribute=word) for word in words) for one in names
            )
        else:
            return prompts
        own: dict[str, Any] = {
            "held_out_class_names": names,
            "held_out_classes": classes,
            "held_out_groups": groups,
        }
        return replace(prompts, name=f"{prompts.name}, {name}", **own)

    @property
    def ways(self) -> dict[str, Variant]:
        """Return the variants with their prompt sets; if `stated`, also without leaving stated
        prompts unchanged."""
        ways = {}
        for name, variant in self.variants.items():
            fitted = variant.prompts or variant.projection is not None
            ways[name] = (
                variant if fitted else variant.model_copy(update={"prompts": (self.prompts,)})
            )
        bare = {"keep_stated": False, "only_stated": True}
        for name, variant in list(ways.items()):
            if self.stated and variant.keep_stated and not variant.rewrites:
                ways.setdefault(f"{name}, stated not kept", variant.model_copy(update=bare))
        return ways

    def plan(self, model: Mapping[str, Any] | None = None) -> Plan:
        """Return the plan of the images; model: the `identity` of the pipeline, once it is
        known."""
        prompts = self.prompt_set
        own = {
            name: getattr(self, name)
            for name in ("images", "steps", "guidance", "batch_size", "options")
        }
        own |= {"model": model or {}, "prompt_set": prompts.name, "prompt_set_hash": prompts.hash}
        own["prompts"] = planned_prompts(
            prompts, self.concepts, stated=self.stated, as_written=self.as_written
        )
        own["variants"] = {NONE: {}} | {
            name: variant.planned for name, variant in self.ways.items()
        }
        seeds, stated_images = (
            tuple(dict.fromkeys(self.seeds)),
            min(self.images, self.stated_images),
        )
        return Plan.build({**own, "seeds": seeds, "stated_images": stated_images})

    def with_options(self, options: Options) -> Self:
        """Return the task with the user's images, seeds, steps and lambda, and methods or edits as
        variants.

        A method that is not for pipelines is left to the other tasks of the suite.
        """
        if options.labels:
            raise InvalidInputError(
                "--labels: labels of generated images go with vldebias eval human --labels FILE"
            )
        if processes().world > 1:
            raise InvalidInputError(
                f"{self.name}: one process generates images; launch one, or leave it out by --only"
            )
        variants, first = dict(self.variants), next(iter(self.variants.values()))
        if options.methods is not None:
            named = [
                name for name in options.methods if name != NONE and get_method(name).pipelines
            ]
            own = {
                name: first.model_copy(update={"method": name, "projection": None})
                for name in named
            }
            variants = own or variants
        if options.lam is not None:
            lam = {"lam": options.lam}
            variants = {
                name: one if one.projection else one.model_copy(update=lam)
                for name, one in variants.items()
            }
        variants |= {path.resolve().name: Variant(projection=path) for path in options.projections}
        changed: dict[str, Any] = {"variants": variants}
        if options.prompts_file is not None:
            changed |= {"concepts": "unseen", "stated": False, "as_written": False}
        return super().with_options(options).model_copy(update=changed)

    def prepare(self, inputs: Inputs) -> dict[str, Any]:
        """Return the pipeline, the plan, the folder "<out>/images/<task>", the judge and, where
        needed, the scorer."""
        judge = inputs.sources.get("judge")
        if self.judge is not None:
            judge = self.judge.ready(self, inputs)
        if judge is None:
            raise InvalidInputError(
                f"{self.name}: expected `judge:`, which reads the generated images; add one"
            )
        folder = inputs.options.out / "images" / file_slug(self.name)
        return {
            "images": inputs.sources.get("images", folder),
            "judge": judge,
            "pipe": inputs.pipeline.host,
            "pipeline": inputs.pipeline,
            "plan": self.plan().model_dump_json(),
            "scorer": self._scorer(inputs),
            "progress": inputs.progress,
        }

    def _scorer(self, inputs: Inputs) -> Loaded | None:
        """Return the model of CLIPScore and FID: the user's, else that of the judge."""
        scorer = inputs.sources.get("scorer")
        if scorer is not None or not (self.clip_score or self.fid):
            return scorer
        if inputs.options.model is None and isinstance(self.judge, ClipJudge):
            return self.judge.loaded(inputs)
        return inputs.model

    def measure(
        self,
        images: str | Path,
        judge: Judge,
        *,
        pipe: Any = None,
        scorer: Loaded | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Generate, judge and measure images; return a result per attribute, and for CLIPScore and
        FID.

        images: the folder for the images; those that exist already are not generated again. Without
        `pipe`, a diffusers pipeline without an attachment, all of them have to be there. judge:
        reads the images (`vldebias.judge.judges`). scorer: the image-text model of CLIPScore
        and FID, with its preprocessing.

        Raises:
            AlreadyAttachedError, InvalidInputError: see `generate`; attributes that the judge does
                not read, before anything is generated; images of another prompt set.
        """
        prompts, quality = self.prompt_set, self.clip_score or self.fid
        if any(
            one not in judge.names
            for attribute in self.attributes
            for one in attribute.split(" x ")
        ):
            expected = (
                f"{list(judge.names)}, which judge {judge.name} reads, or intersections such as"
                " 'gender x race'"
            )
            raise InvalidInputError(
                f"attributes: got {list(self.attributes)}; expected some of {expected}"
            )
        if quality and scorer is None:
            raise InvalidInputError(
                f"{self.name}: expected an image-text model for CLIPScore and FID; give --model"
            )
        known = {
            attribute: {name.casefold(): i for i, name in enumerate(of)}
            for attribute, of in judge.names.items()
        }
        about, code_of = _stated(prompts, judge, known) if self.stated else ("", {})
        if pipe is None:
            made = GeneratedImages.open(images)
        else:
            made = generate(pipe, self.plan(), self.ways, images, progress=progress)
        if prompts.hash != made.plan.prompt_set_hash:
            came = made.plan.prompt_set
            raise InvalidInputError(
                f"{made.folder}: got another version of {came!r}; expected images of {prompts!r}"
            )
        said = judge_images(judge, made, progress=progress)
        table = pd.DataFrame(made.images)
        table["flagged"] = [made.about(image)["flagged"] for image in made]
        table["recognised"], concepts = (
            np.nan,
            table.concept.where(table.part != "others", "").str.casefold(),
        )
        for attribute, codes in known.items():  # the first that knows every concept
            if set(concepts) <= {"", *codes} and table.recognised.isna().all():
                right = said[attribute].argmax(axis=1) == concepts.map(codes)
                table["recognised"] = right.astype(float).where(concepts != "")
        table["unit"] = table.concept.where(
            table.part == "wordings", table.prompt
        )  # whose images make a row
        flagged = table.groupby("variant").flagged.sum().to_dict()
        settings = {
            "judge fingerprint": judge.fingerprint,
            "images that the safety checker blackened": flagged,
        }
        if self.prompts_file is not None:
            reasons = _reasons(read_prompts(self.prompts_file), self.prompts)
            settings["left out, by reason"] = dict(
                Counter(why for why in reasons if why is not None)
            )
        results: list[TaskResult] = []
        for attribute in self.attributes:
            read = {one: judge.names[one] for one in attribute.split(" x ")}
            labels = cross(*(decide(said[one], names, self.sure) for one, names in read.items()))
            own = {
                **settings,
                "judge": judge.name,
                "values": {one: list(names) for one, names in read.items()},
            }
            block = self.name if self.name == attribute else f"{self.name} {attribute}"
            title = f"Discrepancy of generated images, {attribute} (Table 7.7)"
            result = made.result(
                task=block, title=title, description=ABOUT, settings=self.settings(own)
            )
            table["code"] = np.where(labels.codes == UNKNOWN, len(labels.names), labels.codes)
            table["right"] = (
                labels.codes == table.stated.map(code_of) if attribute == about else np.nan
            )
            self._note_dealt(result, list(read.values()))
            self._add_shares(result, made, table, labels.names, not results)
            self._add_means(result, made, table, not results)
            results.append(result)
        if quality and scorer is not None:
            encoder = image_encoder(scorer.host, scorer.preprocess, name=scorer.name)
            texts = resolve(scorer.host, tokenizer=scorer.tokenizer)
            with progress.bar(f"{self.name}: CLIPScore, FID"):
                results += scored(
                    made,
                    encoder,
                    texts,
                    self.name,
                    clip=self.clip_score,
                    fid=self.fid,
                    **self._boot,
                )
        return results

    def _note_dealt(self, result: TaskResult, judged: Sequence[Sequence[str]]) -> None:
        """Note which methods deal the judged values to all images, whose shares are not drawn.

        judged: the values of each attribute.
        """
        methods = result.provenance.methods
        for name, variant in self.ways.items():
            if name in methods and variant.deals(judged):
                methods[name]["deals"] = True

    @property
    def _boot(self) -> dict[str, Any]:
        return {"resamples": self.resamples, "seed": self.seed}

    def _add_shares(
        self,
        result: TaskResult,
        made: GeneratedImages,
        table: pd.DataFrame,
        values: tuple[str, ...],
        pictures: bool,
    ) -> None:
        """Add what every prompt shows that states no value, and for one of the attributes pictures
        of it."""
        for part, own in table[table.stated.isna() & (table.part != "others")].groupby(
            "part", sort=False
        ):
            written = part == "wordings"
            subset = f"{self.noun}, as people write them" if written else f"{part} {self.noun}"
            counted = pd.crosstab([own.variant, own.unit], own.code)
            counted = counted.reindex(columns=range(len(values) + 1), fill_value=0)
            units, names = own.unit.unique(), own.drop_duplicates("unit").concept.tolist()
            counts = {
                name: counted.loc[name].reindex(units).to_numpy() for name in own.variant.unique()
            }
            rows = [f"{name}, as people write it" for name in names] if written else names
            right = None if own.recognised.isna().any() else _means(own, "recognised")
            share_rows = ShareRows(
                result, values, counts, rows, subset=subset, noun=self.noun, **self._boot
            )
            share_rows.add(recognised=right)
            if not pictures:  # of the images, which all attributes share
                continue
            # Some of the prompts, from those that show the first value least often; each column
            # shares a seed.
            order = np.argsort(counts[NONE][:, 0], kind="stable")
            chosen = order[
                np.linspace(0, len(order) - 1, min(ROWS, len(order))).round().astype(int)
            ]
            of = {
                key: list(images.index[:COLUMNS])
                for key, images in own.groupby(["variant", "unit"])
            }
            cells = {
                one: [[made.read(made.images[i]) for i in of[one, units[at]]] for at in chosen]
                for one in counts
            }
            heads = [str(i + 1) for i in range(len(cells[NONE][0]))]
            told = (
                f"{subset.capitalize()}: the same seeds column by column, as the pipeline is and"
                " debiased."
            )
            stem = f"{file_slug(result.provenance.task)}-{part}"
            result.pictures[f"{stem}-side-by-side"] = (
                told,
                compose([names[at] for at in chosen], cells, heads),
            )
            result.strips[f"{stem}-strip"] = _strip(made, own, counts, values)

    def _add_means(
        self, result: TaskResult, made: GeneratedImages, table: pd.DataFrame, others: bool
    ) -> None:
        """Add how often prompts that state the attribute get it, over all and by value; unknown
        counts as wrong.

        Resampled over concepts, which share their prompts. others: also add how many images of
        prompts that no method should change stay as they are, bit for bit.
        """

        def add(
            metric: str, column: str, own: pd.DataFrame, subset: str, n: Mapping[str, int]
        ) -> None:
            if own[column].notna().all():
                result.add_resampled(metric, _means(own, column), n=n, subset=subset, **self._boot)

        stated = table[table.stated.notna() & table.right.notna()]
        stated = stated.assign(unit=stated.concept.where(stated.concept != "", stated.prompt))
        for part, own in stated.sort_values("unit", kind="stable").groupby("part", sort=False):
            some = [
                ("stated_right", "right", own, ""),
                ("stated_recognised", "recognised", own, ""),
            ]
            some += [
                ("stated_right", "right", of, f", stated {value}")
                for value, of in own.groupby("stated")
            ]
            for metric, column, of, which in some:
                each = int(of.groupby(["variant", "prompt"]).size().iloc[0])
                n = {
                    self.noun: of.unit.nunique(),
                    "stated prompts": of.prompt.nunique(),
                    "images each": each,
                }
                add(metric, column, of, f"{part} {self.noun}{which}", n)
        if others:
            moved = table[(table.part == "others") & (table.variant != NONE)]
            pairs = [
                (made.read(one), made.read(one.under(NONE)))
                for one in (made.images[i] for i in moved.index)
            ]
            moved = moved.assign(same=[one.tobytes() == other.tobytes() for one, other in pairs])
            for which, own in moved.groupby("concept", sort=False):
                add("unchanged", "same", own, f"prompts {which}", {"prompts": own.prompt.nunique()})


def _reasons(texts: Sequence[str], prompts: PromptSet) -> list[str | None]:
    """Return why each text is left out; groups are, because a judge sees one value in a picture."""
    return balance_prompts(texts, prompts, seed=0, groups="leave").reasons


def _stated(
    prompts: PromptSet, judge: Judge, known: Mapping[str, Mapping[str, int]]
) -> tuple[str, dict[str, int]]:
    """Return the judge's attribute that the prompts state, and the judge's code of each of its
    values."""
    for attribute, codes in known.items():
        named = {
            value: [word.casefold() for word in (value, *words)]
            for value, words in prompts.attributes.items()
        }
        found = {
            value: codes[word]
            for value, words in named.items()
            for word in words[::-1]
            if word in codes
        }
        if len(found) == len(named) == len({*found.values()}):
            return attribute, found
    expected = (
        f"the values {list(prompts.attributes)} that {prompts.name!r} states; use another judge or"
        " stated=False"
    )
    raise InvalidInputError(f"judge {judge.name}: expected an attribute with {expected}")


def _means(table: pd.DataFrame, column: str) -> dict[str, Any]:
    """Return variant -> mean of a column over the images of each unit, in the order of the
    table."""
    every = table.groupby("variant", sort=False)
    return {
        str(name): of.groupby("unit", sort=False)[column].mean().to_numpy(float)
        for name, of in every
    }


def _strip(
    made: GeneratedImages,
    table: pd.DataFrame,
    counts: Mapping[str, NDArray[Any]],
    values: Sequence[str],
) -> Strip:
    """Return what each method makes of the prompts that lean most, from the same seeds.

    table: a row for each image. counts: method -> (p, values + 1) images of each prompt by what
    they show, unknown last.
    """
    methods = list(counts)[:STRIP_ROWS]
    units = list(table.unit.unique())
    leaning = np.argsort(-discrepancies(counts[NONE][:, :-1]), kind="stable")
    rows = []
    for place in leaning[: STRIP_ROWS // len(methods)]:
        for method in methods:
            images = table[(table.variant == method) & (table.unit == units[place])]
            shown = images[:STRIP_COLUMNS]
            seeds = [f"seed {seed}" for seed in shown.seed]
            name = "as generated" if method == NONE else method
            counted = _counted(counts[method][place], values)
            label = f"“{shown.prompt.iloc[0]}”, {name}: {counted}"
            rows.append((label, [made.read(made.images[at]) for at in shown.index]))
    caption = "What leans most, and what became of it: the same seed in each column."
    return Strip(caption, seeds, rows)


def _counted(counts: NDArray[Any], values: Sequence[str]) -> str:
    """Write how many images show each value, such as "22 female, 2 male"."""
    named = [f"{count} {value}" for count, value in zip(counts[:-1], values, strict=True) if count]
    unknown = [f"{counts[-1]} not told"] if counts[-1] else []
    return ", ".join([*named, *unknown])
