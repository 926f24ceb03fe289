"""Create tiny images, data sets in the layouts of the real ones, and an encoder with exact
features."""

import io
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vldebias.data import Embeddings, ImageData, Labels, embed_images
from vldebias.hosts.clip.images import ImageEncoder, Pixels
from vldebias.utils.progress import SILENT

_NAMES = """
    5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose
    Black_Hair Blond_Hair
    Blurry Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee Gray_Hair Heavy_Makeup
    High_Cheekbones Male
    Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose
    Receding_Hairline Rosy_Cheeks
    Sideburns Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick
    Wearing_Necklace Wearing_Necktie Young
"""
ATTRIBUTES = _NAMES.split()
RACES = (
    "White",
    "Black",
    "Latino_Hispanic",
    "East Asian",
    "Southeast Asian",
    "Indian",
    "Middle Eastern",
)
AGES = ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70")


def picture(seed: int = 0, size: tuple[int, int] = (8, 6)) -> Image.Image:
    """Return an image decoded from PNG, because Pillow distinguishes between image classes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    return Image.open(io.BytesIO(as_bytes(Image.fromarray(pixels))))


def as_bytes(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def save(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed).save(path)


def waterbirds(root: Path, rows: Sequence[tuple[int, int, int]]) -> Path:
    """Write the layout of waterbird_complete95_forest2water2. Rows are (y, split, place)."""
    lines = ["img_id,img_filename,y,split,place,place_filename"]
    for i, (y, split, place) in enumerate(rows):
        file = f"{i % 3 + 1:03d}.Some_Bird/Some_Bird_{i:04d}_{79 * i}.jpg"
        lines.append(f"{i + 1},{file},{y},{split},{place},/o/ocean/{i:08d}.jpg")
        save(root / file, i)
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")
    return root


def celeba(
    tables: Path, images: Path, values: np.ndarray, splits: Sequence[int], *, kaggle: bool = False
) -> None:
    """Write CelebA with attributes (n, 40) of -1 and 1, as padded text files or as the csv files
    from Kaggle."""
    tables.mkdir(parents=True, exist_ok=True)
    files = [f"{i + 1:06d}.jpg" for i in range(len(values))]
    if kaggle:
        lines = ["image_id," + ",".join(ATTRIBUTES)]
        lines += [
            f"{file}," + ",".join(map(str, row)) for file, row in zip(files, values, strict=True)
        ]
        parts = [
            "image_id,partition",
            *(f"{file},{split}" for file, split in zip(files, splits, strict=True)),
        ]
    else:
        lines = [str(len(values)), " ".join(ATTRIBUTES) + " "]
        lines += [
            f"{file} " + " ".join(f"{v:2d}" for v in row)
            for file, row in zip(files, values, strict=True)
        ]
        parts = [f"{file} {split}" for file, split in zip(files, splits, strict=True)]
    ending = "csv" if kaggle else "txt"
    (tables / f"list_attr_celeba.{ending}").write_text("\n".join(lines) + "\n")
    (tables / f"list_eval_partition.{ending}").write_text("\n".join(parts) + "\n")
    for i, file in enumerate(files):
        save(images / file, i)


def fairface(
    root: Path, part: str, rows: Sequence[tuple[str, str, str]], images: Path | None = None
) -> Path:
    """Write FairFace. Rows are (age, gender, race)."""
    root.mkdir(parents=True, exist_ok=True)
    lines = ["file,age,gender,race,service_test"]
    for i, row in enumerate(rows):
        lines.append(f"{part}/{i + 1}.jpg,{','.join(row)},{i % 2 == 0}")
        save((images or root) / f"{part}/{i + 1}.jpg", i)
    (root / f"fairface_label_{part}.csv").write_text("\n".join(lines) + "\n")
    return root


DIM = 6


class Tower(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.linear = nn.Linear(12, DIM)
        with torch.no_grad():  # small integers, so that sums are exact for any batch size
            self.linear.weight.copy_(torch.randint(-2, 3, (DIM, 12), generator=generator))
            self.linear.bias.fill_(1.0)


@dataclass
class Counting:
    """Record the sizes of the batches, and stop before image number `stop_at`."""

    seed: int = 0
    preprocessing: str = "2x2"
    scale: float = 1.0
    stop_at: int | None = None
    stop_with: type[BaseException] = KeyboardInterrupt
    batches: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        tower = Tower(self.seed)

        def forward(batch: Pixels) -> Tensor:
            pixels = batch["pixel_values"]
            if self.stop_at is not None and self.images + len(pixels) > self.stop_at:
                raise self.stop_with
            self.batches.append(len(pixels))
            return tower.linear(pixels) * self.scale

        self.encoder = ImageEncoder("tiny", tower, (tower,), self.preprocessing, prepare, forward)

    @property
    def images(self) -> int:
        return sum(self.batches)


def prepare(image: Image.Image) -> Pixels:
    return {"pixel_values": torch.from_numpy(np.array(image, dtype=np.float32)).reshape(1, 12)}


def small(index: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(index).integers(0, 16, (2, 2, 3), dtype=np.uint8))


def broken(index: int) -> OSError:
    return OSError(f"image {index} is truncated <_io.BytesIO object at {hex(id(object()))}>")


def make_data(
    n: int, bad: Collection[int] = (), *, error: Callable[[int], OSError] = broken, **changes: Any
) -> ImageData:
    def read(index: int) -> Image.Image:
        if index in bad:
            raise error(index)
        return small(index)

    settings = {
        "name": "tiny/set",
        "split": "test",
        "labels": {"parity": Labels(np.arange(n) % 2, ("even", "odd"))},
        "fingerprint": f"{n} pictures",
        "captions": tuple(f"picture {i}" for i in range(n)),
        "about": {"root": Path("here")},
    }
    return ImageData(ids=tuple(f"img{i}" for i in range(n)), read=read, **(settings | changes))


def embed(data: Any, encoder: Counting, folder: Path, **options: Any) -> Embeddings:
    return embed_images(data, encoder.encoder, folder, progress=SILENT, **options)


def naive(rows: Sequence[int], seed: int = 0) -> np.ndarray:
    linear = Tower(seed).linear
    with torch.no_grad():
        features = [linear(prepare(small(i))["pixel_values"])[0].numpy() for i in rows]
    return np.array(features, dtype=np.float32).reshape(len(rows), DIM)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def shards(folder: Path) -> list[Path]:
    return sorted(folder.rglob("shard-*.safetensors"))
