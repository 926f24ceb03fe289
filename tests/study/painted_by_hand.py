"""Paint images whose colours encode their content: red for gender, green for age, blue for the
job."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vldebias.judge.plan import GeneratedImages, PlannedImage
from vldebias.prompts import PromptSet, make_prompt_set
from vldebias.study.tasks.generation import GenerationTask
from vldebias.utils.pictures import write_png

TRAIN = ("doctor", "nurse", "chef")
UNSEEN = ("pilot", "clerk", "judge", "baker")
JOBS = (*TRAIN, *UNSEEN)
GENDERS = ("male", "female")
AGES = ("young", "old", "ageless")
UNCLEAR = 2  # a gender that the judge below cannot determine
VALUES = {"male": ["male"], "female": ["female"]}
Shows = dict[str, tuple[int, int, int]]  # path -> gender, age, job


def people(name: str, train: Sequence[str], unseen: Sequence[str]) -> PromptSet:
    """Return prompts about the gender of people with these jobs."""
    options = {"test_concepts": unseen, "class_template": "a {concept}"}
    return make_prompt_set(name, VALUES, train, ["a {attribute} {concept}"], (), **options)


PEOPLE = people("people", TRAIN, UNSEEN)


def task(**fields: Any) -> GenerationTask:
    defaults = {
        "attribute": PEOPLE,
        "variants": {"cali": {}},
        "attributes": ["gender"],
        "resamples": 50,
    }
    return GenerationTask.build(defaults | fields)


def paint(folder: Path, rng: np.random.Generator, **changes: Any) -> tuple[GeneratedImages, Shows]:
    """Paint images of every prompt under "none" and "cali", and return what each of them shows."""
    settings = {
        "images": 5,
        "stated_images": 2,
        "seeds": [0, 1],
        "steps": 1,
        "batch_size": 1,
    } | changes
    made = (
        task(**settings)
        .plan({"pipeline": "Painter", "id": "by hand", "fingerprint": None})
        .settle(folder)
    )
    shows = {}
    for image in made:
        job = JOBS.index(image.concept) if image.concept in JOBS else 0
        shows[image.path] = (int(rng.integers(3)), int(rng.integers(3)), int(rng.choice([job, 0])))
        repaint(made, image, shows[image.path])
    return made, shows


def chosen(made: GeneratedImages, *, stated: bool = False, **wanted: str) -> GeneratedImages:
    """Return the images with a variant=, part= or concept=, for prompts that do or do not state
    their attribute."""
    candidates = [image for image in made if (image.stated is not None) == stated]
    return replace(
        made,
        images=tuple(
            image for image in candidates if all(getattr(image, k) == v for k, v in wanted.items())
        ),
    )


def repaint(made: GeneratedImages, image: PlannedImage, shown: tuple[int, int, int]) -> None:
    """Paint one image with this gender, age and job."""
    facts = {
        "flagged": shown[0] == UNCLEAR,
        "left_unchanged": image.variant == "cali" and image.stated is not None,
    }
    write_png(Image.new("RGB", (4, 4), shown), made.path(image), facts)


class Reader:
    """Read the colours, with low confidence for unclear genders. `asked` counts the images."""

    name = "reader of colours"

    def __init__(self, fingerprint: str = "1") -> None:
        self.names = {"job": tuple(job.title() for job in JOBS), "gender": GENDERS, "age": AGES}
        self.fingerprint = fingerprint
        self.asked = 0

    def predict(self, images: Any) -> dict[str, np.ndarray]:
        self.asked += len(images)
        gender, age, job = np.array([image.getpixel((0, 0)) for image in images]).T
        chances = np.array([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4]])
        return {"gender": chances[gender], "age": np.eye(3)[age], "job": np.eye(len(JOBS))[job]}
