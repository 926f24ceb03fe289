"""A folder of images painted by hand, whose colours say what they show: red the gender, green the concept."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vldebias.evaluation.drawing import Drawn, DrawnSet, make_plan
from vldebias.evaluation.variants import Variant
from vldebias.pictures import write_png
from vldebias.prompts import PromptSet

TRAIN, UNSEEN = ("doctor", "nurse", "chef"), ("pilot", "clerk", "judge", "baker")
JOBS = (*TRAIN, *UNSEEN)
GENDERS, AGES = ("male", "female"), ("young", "old", "ageless")
UNCLEAR = 2  # a gender that the judge below cannot tell


def _groups(jobs: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((f"a male {job}", f"a female {job}") for job in jobs)


PEOPLE = PromptSet(
    "people",
    groups=_groups(TRAIN),
    classes=tuple(f"a {job}" for job in TRAIN),
    class_names=TRAIN,
    held_out_groups=_groups(UNSEEN),
    held_out_classes=tuple(f"a {job}" for job in UNSEEN),
    held_out_class_names=UNSEEN,
    attributes={"male": ("male",), "female": ("female",)},
    stated_words=("male", "female"),
)
Shows = dict[str, tuple[int, int, int]]  # path -> gender, age, job


def paint(folder: Path, rng: np.random.Generator, **changes: Any) -> tuple[DrawnSet, Shows]:
    """Images of every prompt under "none" and "cali" that show this and that; returns what each shows."""
    settings = {"concepts": "both", "stated": True, "images": 5, "stated_images": 2, "seeds": [0, 1], "steps": 1}
    settings |= {"guidance": 1.0, "batch_size": 1, "options": {}} | changes
    model = {"pipeline": "Painter", "id": "by hand", "fingerprints": {}}
    plan = make_plan(model, PEOPLE, {"cali": Variant(prompts=(PEOPLE,))}, **settings)
    folder.mkdir(parents=True, exist_ok=True)
    plan.settle(folder)
    drawn = DrawnSet.open(folder)
    shows = {}
    for image in drawn:
        shown = (int(rng.integers(3)), int(rng.integers(3)), int(rng.choice([JOBS.index(image.concept or JOBS[0]), 0])))
        shows[image.path] = shown
        repaint(drawn, image, shown)
    return drawn, shows


def chosen(drawn: DrawnSet, *, stated: bool = False, **of: str) -> DrawnSet:
    """The images of a variant=, part= or concept=, of prompts that state their attribute or that do not."""
    own = [one for one in drawn if (one.stated is not None) == stated]
    return replace(drawn, images=tuple(one for one in own if all(getattr(one, k) == v for k, v in of.items())))


def repaint(drawn: DrawnSet, image: Drawn, shown: tuple[int, int, int]) -> None:
    """One image that shows this gender, age and job."""
    about = {"flagged": shown[0] == UNCLEAR, "left_alone": image.variant == "cali" and image.stated is not None}
    write_png(Image.new("RGB", (4, 4), shown), drawn.path(image), about)


class Reader:
    """Reads the colours; is not sure of unclear genders. `asked` counts the images that it was shown."""

    name = "reader of colours"

    def __init__(self, fingerprint: str = "1") -> None:
        self.names = {"job": tuple(job.title() for job in JOBS), "gender": GENDERS, "age": AGES}
        self.fingerprint, self.asked = fingerprint, 0

    def predict(self, images: Any) -> dict[str, np.ndarray]:
        self.asked += len(images)
        gender, age, job = np.array([image.getpixel((0, 0)) for image in images]).T
        chances = np.array([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4]])
        return {"gender": chances[gender], "age": np.eye(3)[age], "job": np.eye(len(JOBS))[job]}
