"""Generate images for people to label, and measure the labels (Table 7.8)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from vldebias.errors import InvalidInputError
from vldebias.judge.plan import GeneratedImages, Plan
from vldebias.measure.rows import TaskResult
from vldebias.study.inputs import Inputs
from vldebias.study.task import AttributeField, Task, register_task
from vldebias.study.tasks.generation import GenerationTask
from vldebias.study.tasks.variants import Variant, generate
from vldebias.utils.files import digest
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import Count, Name, file_slug

from ..shares.answers import ANSWERS
from ..shares.task import SharesTask

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


@register_task
class PeopleTask(Task):
    """Generate images of unseen concepts and measure the majority labels of annotators.

    The sample follows section 7.6.3: 25 images of each unseen profession, with and without a
    method, from the same noise. It uses the prompts and noise of the first 25 images in the suite
    `generation`, so both show the same images up to rounding. There are no results until someone
    has labelled the images; until then, the task prints the command that opens the labelling page.

    If the user passes answers and an image folder, nothing is generated.

    Attributes:
        attribute: prompt set whose unseen concepts are generated.
        question: what people label, such as "gender".
        values: values of the attribute.
        variants: name -> how to debias. The original pipeline, "none", is always included.
        images: number of images per prompt.
        steps, guidance, batch_size, options: pipeline settings.
    """

    task: Literal["people"] = "people"
    name: Name = "people"
    title: str = "Generated images, labelled by people"
    attribute: AttributeField
    question: str
    values: tuple[str, ...]
    variants: Annotated[dict[str, Variant], Field(min_length=1)]
    images: Count = 25
    steps: Count = 50
    guidance: float = 7.5
    batch_size: Count = 8
    options: dict[str, object] = Field(default_factory=dict)

    @property
    def generation(self) -> GenerationTask:
        """Return the task that generates the images, without a judge."""
        names = {"resamples", "seed", "attribute", "variants", "images"}
        names |= {"steps", "guidance", "batch_size", "options"}
        settings = {name: getattr(self, name) for name in names}
        # Use the plan from the suite `generation`, so that people and the judge see the same
        # images.
        return GenerationTask(
            name=self.name,
            attributes=(self.question,),
            concepts="unseen",
            stated=False,
            **settings,
        )

    @property
    def shares(self) -> SharesTask:
        """Return the task that measures the answers."""
        return SharesTask(
            name=self.name,
            title=self.title,
            attribute=self.question,
            values=self.values,
            resamples=self.resamples,
            seed=self.seed,
        )

    def plan(self) -> Plan:
        """Return the plan that lists the images to generate."""
        return self.generation.plan()

    def folder(self, out: Path) -> Path:
        """Return the image folder, inside the results folder."""
        return out / "images" / file_slug(self.name)

    def label_command(self, out: Path) -> str:
        """Return the command that opens the labelling page for all images."""
        folder = self.folder(out)
        return f"vldebias label {folder} --attribute {self.question} --questions 0"

    def prepare(self, inputs: Inputs) -> dict[str, object]:
        """Return the inputs for `measure`.

        These are the user's answers and image folder or, if they are not given, the pipeline, the
        output folder and the answers about its images.
        """
        # With the user's images and answers, nothing is generated and no pipeline is needed.
        if inputs.options.label_file or inputs.options.image_dir is not None:
            return self.shares.prepare(inputs)
        if "pipeline" not in inputs.sources:
            raise InvalidInputError(
                "expected --label-file and --image-dir, or --pipeline; this suite needs"
                f" {inputs.needs}"
            )
        folder = self.folder(inputs.options.out)
        return {
            "images": folder,
            "answers": [folder / ANSWERS],
            # This is part of the suite's key, so that new answers trigger a new measurement.
            "answered": digest(folder / ANSWERS) if (folder / ANSWERS).is_file() else None,
            "pipe": inputs.pipeline.host,
            "pipeline": inputs.pipeline,
            "plan": self.plan().model_dump_json(),
            "command": self.label_command(inputs.options.out),
            "progress": inputs.progress,
        }

    def measure(
        self,
        images: str | Path | None = None,
        answers: Sequence[Path] = (),
        *,
        labels: Sequence[Path] = (),
        folder: Path | None = None,
        pipe: DiffusionPipeline | None = None,
        command: str = "vldebias label",
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Generate the missing images, and measure the answers.

        Args:
            images: output folder for generated images.
            answers: answer files for the generated images, as written by `vldebias label`; missing
                files are ignored.
            labels: answer files for the images in `folder`, to measure them without generating
                any.
            folder: folder with the user's images.
            pipe: diffusers pipeline. If None, all images must already be in the folder.
            command: command that opens the labelling page, printed if there are no answers.
            progress: object that shows progress bars.

        Returns:
            A result with the shares, discrepancy and annotator agreement, or an empty list if
            nobody has labelled the images yet.
        """
        if images is None:
            return self.shares.measure(labels=labels, folder=folder, progress=progress)
        if pipe is None:
            sample = GeneratedImages.open(images)
        else:
            task = self.generation
            sample = generate(pipe, task.plan(), task.resolved_variants, images, progress=progress)
        files = [path for path in answers if path.is_file()]
        if not files:
            progress.print_line(f"{self.name}: {len(sample)} images to label: {command}")
            # Missing answers are not an error, so that the run continues with the remaining tasks.
            return []
        return self.shares.measure(labels=files, folder=sample.folder, progress=progress)
