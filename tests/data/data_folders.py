"""Tiny data sets in the exact formats in which the real ones lie on the disk."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

_NAMES = """
    5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose Black_Hair Blond_Hair
    Blurry Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee Gray_Hair Heavy_Makeup High_Cheekbones Male
    Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks
    Sideburns Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick Wearing_Necklace
    Wearing_Necktie Young
"""
ATTRIBUTES = _NAMES.split()


def picture(seed: int = 0, size: tuple[int, int] = (8, 6)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def as_bytes(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def save(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed).save(path)


def waterbirds(root: Path, rows: Sequence[tuple[int, int, int]], images: bool = True) -> Path:
    """rows: (y, split, place). The layout of waterbird_complete95_forest2water2."""
    lines = ["img_id,img_filename,y,split,place,place_filename"]
    for i, (y, split, place) in enumerate(rows):
        file = f"{i % 3 + 1:03d}.Some_Bird/Some_Bird_{i:04d}_{79 * i}.jpg"
        lines.append(f"{i + 1},{file},{y},{split},{place},/o/ocean/{i:08d}.jpg")
        if images:
            save(root / file, i)
    root.mkdir(parents=True, exist_ok=True)
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")
    return root


def celeba_values(n: int) -> np.ndarray:
    """(n, 40) of -1 and 1."""
    return np.random.default_rng(n).integers(0, 2, (n, len(ATTRIBUTES))) * 2 - 1


def celeba_txt(folder: Path, values: np.ndarray, splits: Sequence[int]) -> Path:
    """list_attr_celeba.txt and list_eval_partition.txt as the authors write them: padded to columns."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [str(len(values)), " ".join(ATTRIBUTES) + " "]
    lines += [f"{i + 1:06d}.jpg " + " ".join(f"{v:2d}" for v in row) for i, row in enumerate(values)]
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    parts = [f"{i + 1:06d}.jpg {split}" for i, split in enumerate(splits)]
    (folder / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    return folder


def celeba_csv(folder: Path, values: np.ndarray, splits: Sequence[int]) -> Path:
    """The same as on Kaggle."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["image_id," + ",".join(ATTRIBUTES)]
    lines += [f"{i + 1:06d}.jpg," + ",".join(map(str, row)) for i, row in enumerate(values)]
    (folder / "list_attr_celeba.csv").write_text("\n".join(lines) + "\n")
    parts = ["image_id,partition", *(f"{i + 1:06d}.jpg,{split}" for i, split in enumerate(splits))]
    (folder / "list_eval_partition.csv").write_text("\n".join(parts) + "\n")
    return folder


def fairface(root: Path, part: str, rows: Sequence[tuple[str, str, str]], images: Path | None = None) -> Path:
    """rows: (age, gender, race)."""
    root.mkdir(parents=True, exist_ok=True)
    lines = ["file,age,gender,race,service_test"]
    for i, row in enumerate(rows):
        lines.append(f"{part}/{i + 1}.jpg,{','.join(row)},{i % 2 == 0}")
        save((images or root) / f"{part}/{i + 1}.jpg", i)
    (root / f"fairface_label_{part}.csv").write_text("\n".join(lines) + "\n")
    return root
