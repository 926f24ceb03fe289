"""Create a small study: images arranged as if they had been generated, and the modules of the
labelling page."""

from pathlib import Path
from typing import Any

from PIL import Image

from apps.label import engine as engines
from apps.label import study as studies
from apps.shares.answers import AnnotationLog
from tests.study.painted_by_hand import people
from vldebias.judge.plan import GeneratedImages
from vldebias.study.tasks.generation import GenerationTask
from vldebias.utils.pictures import write_png

TRAIN = ("doctor", "nurse")
UNSEEN = ("pilot", "baker")
GENDER = studies.Question("gender", ("male", "female"))
AGE = studies.Question("age", ("young", "old"))
PEOPLE = people("professions-gender", TRAIN, UNSEEN)


def draw(folder: Path, images: int = 3, **changes: Any) -> GeneratedImages:
    """Save plain images for every prompt under "none" and "cali", each in a different colour, with
    the prompt in the metadata."""
    defaults = {
        "attribute": PEOPLE,
        "attributes": ["gender"],
        "variants": {"cali": {}},
        "images": images,
    }
    task = GenerationTask.build(
        defaults | {"stated_images": 1, "steps": 1, "batch_size": 1} | changes
    )
    generated = task.plan({"pipeline": "Painter", "id": "by hand", "fingerprint": None}).settle(
        folder
    )
    for i, image in enumerate(generated):
        write_png(
            Image.new("RGB", (8, 8), (40 + i, 90, 160)),
            generated.path(image),
            {"prompt": image.prompt},
        )
    return generated


def study(folder: Path, *questions: Any, out: Path | None = None, **options: Any) -> Any:
    """Return the engine for a folder that also contains the answers."""
    log = AnnotationLog(out or folder / "answers.jsonl")
    return engines.Labelling(
        studies.ImageFolder.open(folder), questions or (GENDER,), log, **options
    )
