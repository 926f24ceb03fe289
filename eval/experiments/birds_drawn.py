"""Land and water behind drawn birds, before and after (section 7.6.4, Figure 7-6), on the miniature pipeline.

python -m eval.experiments.birds_drawn --json eval/results/birds_drawn.json   # some 10 minutes of one core; goes on
python -m eval.experiments.birds_drawn --images 2                             # a quick look
python -m eval.experiments.birds_drawn --picture eval/results/birds_drawn.png # and rows of images

The paper debiases "a photo of a waterbird" with pairs "a photo of a [animal] with water background" and the same with
land. The animals of this world are its species: every second one is in the pairs, the others and the two class words
are drawn, "a photo of a duck", from the same noise without and with each projection. The world's own classifier reads
the background and the bird, its CLIP is asked about both as well; unknown below .8.

none              the pipeline as it is
cali              the paper's matrix: Lemma 7.2, lambda = 500
orth              P0 of the two backgrounds
cali, waterbirds  debias(pipe, "waterbirds", method="cali"): cali on the prompts of Table A.5, which name this world's
                  class words and places and no species

Prompts that name the background, "a photo of a duck on land", are drawn without a projection, with the gate (copies of
the former) and, "stated not kept", with the projection in force. Figures of species are resampled over species with all
their images, those of one class word over its images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from eval.experiments.run import parser, run
from eval.metrics import CLASS_RECOGNISED, OTHER_BACKGROUND
from vldebias.evaluation.drawing import DrawnSet
from vldebias.evaluation.generation import GenerationTask, sheets
from vldebias.evaluation.grids import compose, pixels
from vldebias.evaluation.judges import ClipJudge, Judge, MiniatureJudge, Question, decide, judge_images
from vldebias.evaluation.result import TaskResult
from vldebias.evaluation.variants import NONE, Variant
from vldebias.miniature import load_clip, load_pipeline
from vldebias.miniature.words import BACKGROUNDS, CLASSES, PLACES, SPECIES
from vldebias.pictures import save_png
from vldebias.progress import Progress
from vldebias.prompts import PromptSet, fill, load_prompts, make_prompt_set

if TYPE_CHECKING:
    from PIL.Image import Image

PAIR = "a photo of a {concept} with {attribute} background"  # the paper's
ASKED = ("a photo of a {concept} on {attribute}", PAIR)
PLAIN = "a photo of a {concept}"
# Section 7.6.4 of the thesis, over the species of the miniature world.
FIT = make_prompt_set(
    "birds with backgrounds",
    {ground: [ground] for ground in BACKGROUNDS},
    SPECIES[::2],
    [PAIR],
    ["a photo of a {attribute} background"],
    class_template=PLAIN,
    stated_words=load_prompts("backgrounds").stated_words,
)
HALF = len(SPECIES) // 2  # the first half of the species live on land, and so with the places
PARTS: dict[str, tuple[str, ...]] = {
    "waterbird": ("waterbird",),
    "landbird": ("landbird",),
    "waterbirds": SPECIES[HALF + 1 :: 2],
    "landbirds": SPECIES[1:HALF:2],
}
VARIANTS = {
    "cali": Variant(prompts=(FIT,)),
    "orth": Variant(prompts=(FIT,), method="orth"),
    "cali, waterbirds": Variant(prompts=("waterbirds",)),
}
STEPS, GUIDANCE, BATCH, SURE = 12, 3.0, 32, 0.8
SEEDS = (0, 1, 2)
CLASS_WORD = 3  # times as many images of a class word, which is alone, as of each species
SHOWN, COLUMNS = 4, 10  # of a picture: species of either class, images of each


def home_of(concept: str) -> int:
    """The background, as an index of BACKGROUNDS, that a species or class word is expected on."""
    return CLASSES.index(concept) if concept in CLASSES else SPECIES.index(concept) // HALF


def drawn_prompts(part: str) -> PromptSet:
    """The pairs of `FIT`, with the subjects of a part in the place of what it was not fitted on."""
    subjects = PARTS[part]
    groups = [
        tuple(fill(text, concept=one, attribute=ground) for ground in BACKGROUNDS) for one in subjects for text in ASKED
    ]
    return replace(
        FIT,
        name=f"{FIT.name}, {part}",
        held_out_class_names=subjects,
        held_out_classes=tuple(fill(PLAIN, concept=one) for one in subjects),
        held_out_groups=tuple(groups),
    )


def task_of(part: str, images: int, **drawing: Any) -> GenerationTask:
    """What is drawn and measured of one part. drawing: in the place of the settings above."""
    settings: dict[str, Any] = {
        "steps": STEPS,
        "guidance": GUIDANCE,
        "batch_size": BATCH,
        "seeds": SEEDS,
        "sure": SURE,
    } | drawing
    return GenerationTask(
        name=part,
        prompts=drawn_prompts(part),
        attributes=("background",),
        variants=VARIANTS,
        images=images * (CLASS_WORD if len(PARTS[part]) == 1 else 1),
        stated_images=1,
        concepts="unseen",
        noun="birds",
        **settings,
    )


def add_grounds(result: TaskResult, drawn: DrawnSet, judge: Judge) -> None:
    """Rows that know where a bird is at home: the other background shown, and a bird of the class that was asked for.

    Where the background cannot be told it is not the other one; `unknown` counts those images.
    """
    read = judge_images(judge, drawn)
    grounds = decide(read["background"], judge.names["background"], SURE).codes
    classes = read["bird"].argmax(axis=1)
    (sheet,) = sheets(drawn, stated=False)
    home = np.array([home_of(concept) for concept in sheet.concepts])[:, None]
    count = {"birds": len(home), "images each": len(sheet.rows[NONE][0])}
    for metric, codes, wanted in ((OTHER_BACKGROUND, grounds, 1 - home), (CLASS_RECOGNISED, classes, home)):
        hits = {name: (codes[places] == wanted).astype(float) for name, places in sheet.rows.items()}
        units = {name: rows.mean(axis=1) if len(home) > 1 else rows[0] for name, rows in hits.items()}
        result.add_resampled(metric, units, n=count, subset="unseen birds")


def measure(
    pipe: Any,
    judge: Judge,
    work: Path,
    images: int,
    *,
    second: Judge | None = None,
    progress: Progress,
    **drawing: Any,
) -> Iterator[TaskResult]:
    """A result for each part, and one by the second judge; the folders of `work` let a stopped run go on."""
    for part in PARTS:
        task = task_of(part, images, **drawing)
        (result,) = task.measure(work / part, judge, pipe=pipe, progress=progress)
        readings = [(result, judge)]
        if second is not None:
            again = task.model_copy(update={"name": f"{part}, {second.name}"})
            (read,) = again.measure(work / part, second, progress=progress)
            readings.append((read, second))
        for found, reader in readings:
            add_grounds(found, DrawnSet.open(work / part), reader)
            yield found


def clip_judge() -> ClipJudge:
    """The world's CLIP, asked for the species, the class and the place in the words of its captions."""
    model, preprocess, tokenizer = load_clip()
    half = len(PLACES) // 2
    places = dict(zip(BACKGROUNDS, (PLACES[:half], PLACES[half:]), strict=True))
    asked = {"species": SPECIES, "bird": CLASSES, "background": places}
    questions = {name: Question.of(values, ("a photo of a {value}",)) for name, values in asked.items()}
    return ClipJudge(model, preprocess, tokenizer, questions=questions, name="miniature CLIP")


# ---- the picture ---------------------------------------------------------------------------------------------


def picture(work: Path, method: str) -> tuple[Image, Mapping[str, Any]]:
    """The class words, then the first species of either class in the world's order, without and with a method."""
    about = {
        "rule": f"class words, then the first {SHOWN} species of either class that the pairs lack; first images drawn",
        "rows": f"the pipeline as it is, then with {method} from the same noise",
    }
    texts, images = list[str](), dict[str, list[Any]]({NONE: [], method: []})
    for part, subjects in PARTS.items():
        drawn = DrawnSet.open(work / part)
        for concept in subjects[:SHOWN]:
            texts.append(concept)
            for name, rows in images.items():
                chosen = drawn.select(variant=name, concept=concept).images[:COLUMNS]
                rows.append([pixels(drawn.read(image)) for image in chosen])
    return compose(texts, images, [str(i + 1) for i in range(len(images[NONE][0]))]), about


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__)
    options.add_argument("--images", type=int, default=12, help="of each species and seed")
    options.add_argument("--steps", type=int, default=STEPS, help="of denoising")
    options.add_argument("--work", type=Path, default=Path("results/birds_drawn"), help="where images are kept")
    options.add_argument("--picture", type=Path, help="also write rows of images here")
    options.add_argument("--method", default="cali", choices=VARIANTS, help="that the picture shows")
    given = options.parse_args(arguments)
    judge = MiniatureJudge()
    torch.set_num_threads(1)
    work = given.work / f"{given.steps}-steps"
    with Progress.on() as progress:
        how = {"second": clip_judge(), "progress": progress, "steps": given.steps}
        run("birds_drawn", lambda: measure(load_pipeline(), judge, work, given.images, **how), given.json)
    if given.picture:
        plot, about = picture(work, given.method)
        save_png(plot, given.picture, about)


if __name__ == "__main__":
    main()
