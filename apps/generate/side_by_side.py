"""Generate images for a prompt with and without methods, from the same noise.

An interrupted run can be resumed in the same folder.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vldebias.judge.judges import Judge, MiniatureJudge
from vldebias.judge.plan import GeneratedImages, Plan, PlannedImage, identity
from vldebias.judge.scores import judge_images
from vldebias.judge.stored import SURE, decide
from vldebias.measure.rows import NONE
from vldebias.miniature import is_miniature
from vldebias.prompts import PromptSet
from vldebias.report.strip import row_title
from vldebias.study.grids import compose
from vldebias.study.tasks.variants import Variant, generate
from vldebias.utils.phrases import asked_for, in_words, largest_first, quantity
from vldebias.utils.progress import SILENT, Progress
from vldebias.wording import balance_prompts
from vldebias.wording.reasons import reason_in_words

from ..shares.answers import read_answers

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline
    from PIL.Image import Image

BATCH_SIZE = 8
FILES = "*/*/*.png"  # images in a folder, below the variant and the prompt
COLUMNS = 8  # maximum number of images per grid row
ANSWERS = "answers.jsonl"  # the file of `vldebias label` in a folder of images
JUDGE = "the packaged judge"
PEOPLE = "people"
# Default steps and guidance, for the miniature (True), which needs less of both, or not (False).
STEPS_AND_GUIDANCE = {True: (20, 3.0), False: (30, 7.5)}


@dataclass(frozen=True)
class Request:
    """A request to generate images for one prompt, with and without each method.

    Attributes:
        prompt: the prompt as the user wrote it.
        attributes: prompt sets for the bias to mitigate.
        methods: names of methods that support pipelines.
        images: number of images per row; image i in each row starts from the same noise.
        seed: random seed.
        steps, guidance: pipeline arguments. If None, the values in STEPS_AND_GUIDANCE.
    """

    prompt: str
    attributes: tuple[PromptSet, ...]
    methods: tuple[str, ...] = ("default",)
    images: int = 8
    seed: int = 0
    steps: int | None = None
    guidance: float | None = None

    def variants(self) -> dict[str, Variant]:
        """Return the variants by name, with the default named after the method it attaches.

        Raises:
            InvalidInputError: If a method is unknown or does not support pipelines.
        """
        variants = {}
        for method in self.methods:
            variant = Variant.build({"attribute": self.attributes, "method": method})
            # "default" becomes "balanced-prompts" if it balances prompts.
            variants[str(variant.planned["method"])] = variant
        return variants

    def plan(self, model: Mapping[str, object], *, is_miniature: bool) -> Plan:
        """Return the plan for "none" and the variants, all with the same seeds.

        Args:
            model: result of `vldebias.judge.plan.identity` for the pipeline.
            is_miniature: whether the pipeline is the miniature.
        """
        steps, guidance = STEPS_AND_GUIDANCE[is_miniature]
        if self.steps is not None:
            steps = self.steps
        if self.guidance is not None:
            guidance = self.guidance
        variants = {name: variant.planned for name, variant in self.variants().items()}
        names = [prompt_set.name for prompt_set in self.attributes]
        hashes = [prompt_set.hash for prompt_set in self.attributes]
        fields = {
            "model": dict(model),
            "prompt_set": ", ".join(names),
            "prompt_set_hash": ", ".join(hashes),
            # Treat the prompt as a separate concept that nothing was fitted on.
            "prompts": ((self.prompt, self.prompt, "unseen", None),),
            "variants": {NONE: {}} | variants,
            "seeds": (self.seed,),
            "images": self.images,
            "steps": steps,
            "guidance": guidance,
            "batch_size": BATCH_SIZE,
        }
        return Plan.build(fields)


@dataclass(frozen=True)
class Picture:
    """Facts about a generated image: its prompt, its values and the judge's answers.

    Attributes:
        method: name of the method; "none" for the unedited pipeline.
        seed: seed shared by all images in a column.
        noise: generator seed.
        prompt: prompt that the image was generated from.
        values: attribute -> value inserted into the prompt or set in cross-attention, or None. For
            several people, the number of people with each value.
        seen: attribute -> the judge's answer, or None if unknown. Empty without a judge, or if the
            image should show several people.
        left_unchanged: whether the prompt was left unchanged.
        file: path of the image, relative to the folder.
    """

    method: str
    seed: int
    noise: int
    prompt: str
    values: Mapping[str, str | dict[str, int | None] | None]
    seen: dict[str, str | None]
    left_unchanged: bool
    file: str

    @classmethod
    def read(
        cls,
        generated: GeneratedImages,
        image: PlannedImage,
        attributes: Sequence[PromptSet],
        seen: dict[str, str | None],
    ) -> Picture:
        """Collect the facts about an image from the metadata in its file.

        Args:
            generated: the images in the folder.
            image: the planned image.
            attributes: prompt set of each attribute.
            seen: attribute -> the judge's answer.
        """
        record = generated.record(image)
        value_of_attribute: dict[str, str | dict[str, int | None] | None] = {}
        for prompt_set, written in zip(attributes, record.values(len(attributes)), strict=True):
            if isinstance(written, Mapping):
                # Order the values as in the prompt set, not as they appear in the prompt.
                counts = {name: written[name] for name in prompt_set.attributes if name in written}
                value_of_attribute[prompt_set.name] = counts
            else:
                value_of_attribute[prompt_set.name] = written
        return cls(
            method=image.variant,
            seed=image.seed,
            noise=image.noise,
            prompt=record.generated_prompt or image.prompt,
            values=value_of_attribute,
            seen=seen,
            left_unchanged=record.left_unchanged,
            file=image.path,
        )


@dataclass(frozen=True)
class SideBySide:
    """The images generated for a request, row by row and in the order of the seeds.

    Attributes:
        request: the prompt, attributes, methods and settings.
        plan: the plan that lists the images.
        folder: folder that contains the images.
        pictures: facts about each image.
        reasons: attribute -> why the prompt was left unchanged, or None if it was changed.
        judged: the attributes that were looked for in the images.
        labelled_by: JUDGE, PEOPLE, or "" if the images have no labels.
        seconds: time per image, over the images that this run generated, or None if it generated
            none.
    """

    request: Request
    plan: Plan
    folder: Path
    pictures: tuple[Picture, ...]
    reasons: Mapping[str, str | None]
    judged: frozenset[str]
    labelled_by: str = ""
    seconds: float | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the row names, starting with "none"."""
        return tuple(self.plan.variants)

    def row(self, method: str) -> list[Picture]:
        """Return the images for one method."""
        return [picture for picture in self.pictures if picture.method == method]

    def seen(self, method: str, attribute: str) -> dict[str, int]:
        """Count a method's images by observed value. Empty if they were not judged.

        Args:
            method: name of the method; "none" for the unedited pipeline.
            attribute: name of the attribute.
        """
        row = self.row(method)
        # Unjudged attributes have no entry; unknown values are None.
        if not all(attribute in picture.seen for picture in row):
            return {}
        counts = Counter(picture.seen[attribute] for picture in row)
        if not counts.keys() - {None}:
            return {}
        prompt_set = next(part for part in self.request.attributes if part.name == attribute)
        return {name: counts[name] for name in prompt_set.attributes}

    def sentences(self) -> list[str]:
        """Return a sentence on the requested and observed counts for each attribute and row."""
        lines = []
        for prompt_set in self.request.attributes:
            for method in self.methods:
                title = row_title(method).capitalize()
                if len(self.request.attributes) > 1:
                    title += f" ({prompt_set.name})"
                lines.append(f"{title}: {self.counted(method, prompt_set.name)}.")
        return lines

    def counted(self, method: str, attribute: str) -> str:
        """Describe the requested and observed counts, such as "6 men and 2 women seen".

        Args:
            method: name of the method; "none" for the unedited pipeline.
            attribute: name of the attribute.
        """
        row = self.row(method)
        requested = [picture.values[attribute] for picture in row]
        seen = self.seen(method, attribute)
        if not any(requested):
            reason = self.reasons.get(attribute) if method != NONE else None
            start = f"left unchanged ({reason_in_words(reason)}), " if reason else ""
            counted = (
                f"{in_words(largest_first(seen))} seen" if seen else quantity(len(row), "image")
            )
        else:
            start = ""
            prompt_set = next(part for part in self.request.attributes if part.name == attribute)
            names = list(prompt_set.attributes)
            is_judged = attribute in self.judged
            counted = asked_for(filter(None, requested), names, seen, judged=is_judged)
        unclear = len(row) - sum(seen.values()) if seen else 0
        end = f", {unclear} unclear" if unclear else ""
        return f"{start}{counted}{end}"

    def to_dict(self) -> dict[str, object]:
        """Return settings, sentences and images as JSON values."""
        plan = self.plan
        return {
            "prompt": self.request.prompt,
            "attributes": [prompt_set.name for prompt_set in self.request.attributes],
            "pipeline": plan.model.get("id") or plan.model.get("pipeline"),
            "methods": plan.variants,
            "seed": plan.seeds[0],
            "steps": plan.steps or None,
            "guidance": plan.guidance if plan.steps else None,
            "seconds_per_image": self.seconds,
            "labelled_by": self.labelled_by,
            "reasons": dict(self.reasons),
            "sentences": self.sentences(),
            "pictures": [vars(picture) for picture in self.pictures],
        }

    def grid(self) -> Image:
        """Compose an image with a row per method and a column per seed.

        Rows with more than eight images are wrapped.
        """
        from vldebias.utils.pictures import read_png

        seeds = [picture.seed for picture in self.row(NONE)]
        starts = range(0, len(seeds), COLUMNS)
        images = {}
        for method in self.methods:
            pictures = [read_png(self.folder / picture.file)[0] for picture in self.row(method)]
            images[row_title(method)] = [pictures[start : start + COLUMNS] for start in starts]
        if len(seeds) <= COLUMNS:
            return compose([self.request.prompt], images, [f"seed {seed}" for seed in seeds])
        parts = [seeds[start : start + COLUMNS] for start in starts]
        texts = [f"seeds {part[0]} to {part[-1]}: {self.request.prompt}" for part in parts]
        return compose(texts, images, [""] * COLUMNS)


def side_by_side(
    pipe: DiffusionPipeline,
    request: Request,
    folder: Path,
    *,
    progress: Progress = SILENT,
) -> SideBySide:
    """Generate the requested images, except for those that already exist in the folder.

    Args:
        pipe: diffusers pipeline that `vldebias.debias` supports, without an attachment.
        request: the prompt, the attributes and the methods.
        folder: output folder. It must not contain images generated with different settings.
        progress: object that shows progress bars.

    Raises:
        InvalidInputError: If a method is unknown, or the folder contains images generated with
            different settings.
        OSError: If the disk is full; finished images are kept.
    """
    has_judge = is_miniature(pipe)
    plan = request.plan(identity(pipe), is_miniature=has_judge)
    n_before = len(list(folder.glob(FILES)))
    start = time.monotonic()
    generated = generate(
        pipe, plan, request.variants(), folder, follow_seeds=True, progress=progress
    )
    n_new = len(list(folder.glob(FILES))) - n_before
    seconds = (time.monotonic() - start) / n_new if n_new else None
    attributes = request.attributes
    seen, labelled_by = labels_of(generated, attributes, has_judge=has_judge, progress=progress)
    judged = frozenset(seen[0]).intersection(*seen)
    pictures = tuple(
        Picture.read(generated, image, attributes, values)
        for image, values in zip(generated, seen, strict=True)
    )
    # The judge looks at one person, so its answers say nothing about images of several people.
    several = {
        name
        for picture in pictures
        for name, value in picture.values.items()
        if isinstance(value, Mapping)
    }
    for picture in pictures:
        for name in several & picture.seen.keys():
            del picture.seen[name]
    # For each attribute, determine why balanced prompts leave the prompt unchanged. The reason is
    # None if they change it.
    reasons: dict[str, str | None] = dict.fromkeys(part.name for part in attributes)
    if any(variant.assigns_values for variant in request.variants().values()):
        for prompt_set in attributes:
            # If no image was assigned a value, apply the rules again, without a model, to get the
            # reason.
            if all(picture.values[prompt_set.name] is None for picture in pictures):
                (reason,) = balance_prompts([request.prompt], prompt_set, seed=0).reasons
                # If the rules would change the prompt, it was too long for the pipeline's encoder.
                reasons[prompt_set.name] = str(reason or "truncated")
    return SideBySide(
        request, generated.plan, folder, pictures, reasons, judged, labelled_by, seconds
    )


def labels_of(
    images: GeneratedImages,
    attributes: Sequence[PromptSet],
    *,
    has_judge: bool,
    progress: Progress = SILENT,
) -> tuple[list[dict[str, str | None]], str]:
    """Return each image's value by attribute (None if unclear), and who labelled the images.

    Args:
        images: the images and their folder.
        attributes: prompt set of each attribute. Attributes without labels are omitted.
        has_judge: whether the packaged judge knows such images. Otherwise, the answers that
            `vldebias label` stored in the folder are used.
        progress: object that shows progress bars.
    """
    if has_judge:
        return _seen(images, attributes, progress), JUDGE
    file = images.folder / ANSWERS
    if not file.is_file():
        return [{} for _ in images], ""
    votes: dict[tuple[str, str], Counter[str]] = {}
    for answer in read_answers([file]):
        votes.setdefault((answer.image, answer.attribute), Counter())[answer.value] += 1
    seen: list[dict[str, str | None]] = []
    for image in images:
        values: dict[str, str | None] = {}
        for prompt_set in attributes:
            counts = votes.get((image.path, prompt_set.name))
            if counts is None:
                continue
            value, count = counts.most_common(1)[0]
            # A tie, "cannot tell" and the like leave the value open.
            is_majority = 2 * count > counts.total() and value in prompt_set.attributes
            values[prompt_set.name] = value if is_majority else None
        seen.append(values)
    return seen, PEOPLE


def _seen(
    generated: GeneratedImages, attributes: Sequence[PromptSet], progress: Progress
) -> list[dict[str, str | None]]:
    """Return the packaged judge's answers for each image, by attribute. None means unknown.

    Attributes that the judge does not know are omitted.
    """
    judge = MiniatureJudge().ready()
    names = {prompt_set.name: judged_as(judge, prompt_set) for prompt_set in attributes}
    chances = judge_images(judge, generated, progress) if any(names.values()) else {}
    seen: list[dict[str, str | None]] = [{} for _ in generated]
    for prompt_set in attributes:
        name = names[prompt_set.name]
        if name is None:
            continue
        values = [plain_value(value) for value in judge.names[name]]
        codes = decide(chances[name], values, SURE).codes
        for picture, code in zip(seen, codes, strict=True):
            picture[prompt_set.name] = values[code] if code >= 0 else None
    return seen


def judged_as(judge: Judge, prompt_set: PromptSet) -> str | None:
    """Return the judge's attribute whose values match a prompt set's values, or None.

    Args:
        judge: a classifier that can answer about several attributes.
        prompt_set: the attribute's prompt set.
    """
    for name, values in judge.names.items():
        if set(map(plain_value, values)) == set(prompt_set.attributes):
            return name
    return None


def plain_value(value: str) -> str:
    """Convert a judge's value to its name in prompt sets, such as "light-skinned" to "light"."""
    return value.removesuffix("-skinned")
