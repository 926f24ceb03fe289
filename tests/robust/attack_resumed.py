"""Work that is killed and taken up again: the embedding cache and drawing. It has to end as if nothing had happened.

A version is a data set, or noise, of its own in a folder of its own. What is read after a kill is the number of the
version that was under way, once it was taken up and is equal, to the bit, to one that was never killed, and once the
version before it, which was finished, is too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from vldebias.files import write_atomically

Work = Callable[[Path, int], bytes]  # does what is not done yet, and returns what is there then


def embed(folder: Path, version: int) -> bytes:
    """24 images in six shards, through an encoder of one layer."""
    import numpy as np
    from PIL import Image

    from vldebias.data import ImageData
    from vldebias.data.cache import embed_images
    from vldebias.progress import SILENT

    def read(index: int) -> Image.Image:
        return Image.fromarray(np.random.default_rng([version, index]).integers(0, 256, (2, 2, 3), dtype=np.uint8))

    data = ImageData("tiny", "test", tuple(map(str, range(24))), read, {}, f"version {version}")
    settings: dict[str, Any] = {"shard_size": 4, "batch_size": 4, "workers": 0, "progress": SILENT}
    return bytes(np.array(embed_images(data, _encoder(), folder, **settings).features).tobytes())


@lru_cache
def _encoder() -> Any:
    import numpy as np
    import torch

    from vldebias.hosts.images import ImageEncoder

    torch.manual_seed(0)
    tower = torch.nn.Linear(12, 6)

    def prepare(image: Any) -> dict[str, Any]:
        return {"pixel_values": torch.from_numpy(np.array(image, dtype=np.float32)).reshape(1, 12)}

    return ImageEncoder("tiny", tower, (tower,), "2x2", prepare, lambda batch: tower(batch["pixel_values"]))


def draw(folder: Path, version: int) -> bytes:
    """Eight images of the embedded pipeline, without and with a projection."""
    from vldebias.evaluation.drawing import draw as drawn_by
    from vldebias.evaluation.drawing import identity
    from vldebias.evaluation.plan import make_plan
    from vldebias.evaluation.variants import Variant

    pipe, people = _pipeline()
    variants = {"cali": Variant(prompts=(people,))}
    settings: dict[str, Any] = {"images": 1, "stated_images": 1, "steps": 1, "guidance": 3.0, "batch_size": 2}
    plan = make_plan(
        identity(pipe), people, variants, concepts="train", stated=False, seeds=[2 * version, 2 * version + 1],
        options={}, **settings,
    )  # fmt: skip
    drawn = drawn_by(pipe, plan, variants, folder)
    return b"".join(drawn.path(image).read_bytes() for image in drawn)


@lru_cache
def _pipeline() -> tuple[Any, Any]:
    from vldebias.miniature import load_pipeline
    from vldebias.prompts import PromptSet

    jobs = ("doctor", "nurse")
    return load_pipeline(), PromptSet(
        "people",
        groups=tuple((f"a photo of a male {job}", f"a photo of a female {job}") for job in jobs),
        classes=tuple(f"a photo of a {job}" for job in jobs),
        class_names=jobs,
        attributes={"male": ("male",), "female": ("female",)},
        stated_words=("male", "female"),
    )


def _writing(work: Work) -> Callable[[Path, int], None]:
    def write(path: Path, version: int) -> None:
        work(path / str(version), version)
        write_atomically(path / "done", str(version))

    return write


def _reading(work: Work) -> Callable[[Path], int]:
    def read(path: Path) -> int:
        done = int((path / "done").read_text(encoding="utf-8"))
        for version in (done, done + 1):
            if (path / str(version)).exists() and work(path / str(version), version) != _never_killed(work, version):
                raise ValueError(f"version {version} is not what it would be without a kill")
        return done

    return read


@lru_cache(maxsize=4)
def _never_killed(work: Work, version: int) -> bytes:
    with tempfile.TemporaryDirectory() as temporary:
        return work(Path(temporary), version)


# Name -> (write, read, seconds within which a kill comes).
RESUMED = {
    "kill: embedding cache": (_writing(embed), _reading(embed), 0.1),
    "kill: drawing": (_writing(draw), _reading(draw), 0.5),
}
