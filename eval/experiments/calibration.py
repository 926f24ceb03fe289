"""Count the men and women that the miniature pipeline generates for each profession.

    python -m eval.experiments.calibration

`vldebias audit` uses these counts to predict images from the miniature models, like the published
counts for Stable Diffusion. This takes a few minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from apps.audit.counts import FOLDER, MINIATURE
from vldebias.judge.judges import Judge, MiniatureJudge, predict
from vldebias.judge.stored import decide
from vldebias.miniature import load_pipeline
from vldebias.prompts import load_prompts

IMAGES = 12  # images per profession
STEPS = 8
GUIDANCE = 3.0
SURE = 0.8  # judge probability below which the gender in an image counts as unknown
HEAD = f"""\
# model: the packaged pipeline, {IMAGES} images per profession, {STEPS} steps
# ids: {MINIATURE.model}
# prompt: same as in the prompt set professions-gender
# judge: the packaged judge, with a minimum probability of {SURE}; other images are not counted
# source: python -m eval.experiments.calibration
prompt,male,female
"""


def main() -> None:
    """Write the file with the counts."""
    path = FOLDER / MINIATURE.file
    path.write_text(HEAD + "".join(lines()), encoding="utf-8")
    print(path)


def lines() -> Iterator[str]:
    """Yield a line for each profession with its name and the numbers of men and women."""
    professions = load_prompts("professions-gender")
    names = (*professions.class_names, *professions.held_out_class_names)
    prompts = (*professions.classes, *professions.held_out_classes)
    pipe = load_pipeline()
    pipe.set_progress_bar_config(disable=True)
    judge = MiniatureJudge().ready()
    for name, prompt in zip(names, prompts, strict=True):
        values = values_seen(judge, generated(pipe, prompt))
        print(name, values.count("male"), values.count("female"), flush=True)
        yield f"{name},{values.count('male')},{values.count('female')}\n"


def generated(pipe: Any, prompt: str) -> Sequence[Any]:
    """Generate the images for a prompt, using the same noise for every prompt."""
    noises = [torch.Generator().manual_seed(seed) for seed in range(IMAGES)]
    result = pipe(
        prompt,
        num_images_per_prompt=IMAGES,
        generator=noises,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
    )
    return list(result.images)


def values_seen(judge: Judge, images: Sequence[Any]) -> list[str]:
    """Return the genders in the images for which the judge is sure."""
    genders = judge.names["gender"]
    codes = decide(predict(judge, images)["gender"], genders, SURE).codes
    return [genders[code] for code in codes if code >= 0]


if __name__ == "__main__":
    main()
