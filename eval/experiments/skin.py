"""Measure the error of skin lightness on edits of known size of the packaged photographs.

    python -m eval.experiments.skin        writes eval/results/skin.json; needs the extra "faces"

The photographs are enlarged four times, since editors return larger images than thumbnails; the
edits are made after that. "native" are the same edits of the thumbnails themselves, whose faces are
a few pixels wide.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from vldebias.measure.skin import SkinChange, find_faces, lab_of, measure_face, same_face
from vldebias.miniature.photographs import GALLERY, read_table, read_thumbnail

OUT = Path(__file__).parents[1] / "results" / "skin.json"
ENLARGED = 4
Edit = Callable[[Image.Image], Image.Image]


def jpeg(quality: int) -> Edit:
    def edit(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file).convert("RGB")

    return edit


def resized(image: Image.Image) -> Image.Image:
    half = image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC)
    return half.resize(image.size, Image.Resampling.BICUBIC)


def lit(image: Image.Image, factor: np.ndarray | float) -> Image.Image:
    """Multiply the light of each pixel by a factor, which broadcasts to (h, w, 3)."""
    share = np.asarray(image) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    changed = np.clip(linear * factor, 0, 1)
    share = np.where(changed <= 0.0031308, changed * 12.92, 1.055 * changed ** (1 / 2.4) - 0.055)
    return Image.fromarray((share * 255).round().astype(np.uint8))


def gamma(image: Image.Image) -> Image.Image:
    return Image.fromarray((255 * (np.asarray(image) / 255) ** 0.9).round().astype(np.uint8))


def cropped(image: Image.Image) -> Image.Image:
    x, y = round(image.width * 0.1), round(image.height * 0.1)
    return image.crop((x, y, image.width - x, image.height - y)).resize(image.size)


def person_mask(image: Image.Image, points: np.ndarray) -> np.ndarray:
    """Return a soft mask (h, w, 1) of the head and the shoulders."""
    y, x = np.mgrid[: image.height, : image.width]
    eyes, mouth = points[:2].mean(0), points[3:].mean(0)
    unit = max(np.hypot(*(points[1] - points[0])), np.hypot(*(mouth - eyes)))
    centre = points.mean(0)
    head = ((x - centre[0]) / (1.6 * unit)) ** 2 + ((y - centre[1]) / (2.2 * unit)) ** 2 < 1
    body = ((x - centre[0]) / (3.6 * unit)) ** 2 + ((y - centre[1]) / unit - 5) ** 2 / 9 < 1
    mask = Image.fromarray(((head | (body & (y > centre[1]))) * 255).astype(np.uint8))
    return np.asarray(mask.filter(ImageFilter.GaussianBlur(float(0.3 * unit))))[..., None] / 255


def person_lighter(image: Image.Image, points: np.ndarray, by: float) -> Image.Image:
    """Raise L* of the person's pixels by a constant, without touching the background."""
    lightness = lab_of(np.asarray(image))[..., :1]

    def luminance(value: np.ndarray) -> np.ndarray:
        return np.where(value > 8, ((value + 16) / 116) ** 3, value * 27 / 24389)

    factor = luminance(lightness + by) / np.maximum(luminance(lightness), 1e-4)
    mask = person_mask(image, points)
    blended = np.asarray(image) * (1 - mask) + np.asarray(lit(image, factor)) * mask
    return Image.fromarray(blended.round().astype(np.uint8))


def side_light(image: Image.Image, points: np.ndarray) -> Image.Image:
    across = points[1, 0] - points[0, 0]
    x = (np.arange(image.width) - points[:2, 0].mean()) / max(across, 1)
    return lit(image, np.clip(2.0 ** (1.2 * x), 0.3, 3)[None, :, None])


def edits_of(points: np.ndarray) -> dict[str, Edit]:
    return {
        "JPEG 60": jpeg(60),
        "JPEG 30": jpeg(30),
        "half size and back": resized,
        "flipped": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "exposure +20 %": lambda image: lit(image, 1.2),
        "gamma 0.9": gamma,
        "person lighter by 5": lambda image: person_lighter(image, points, 5),
        "person darker by 5": lambda image: person_lighter(image, points, -5),
        "grayscale": lambda image: image.convert("L").convert("RGB"),
        "cropped by 10 %": cropped,
        "light from one side": lambda image: side_light(image, points),
    }


def measure(scale: int) -> dict[str, object]:
    changes: dict[str, list[SkinChange]] = {}
    photographs = faces = 0
    for row in read_table():
        if row["part"] != GALLERY:
            continue
        photographs += 1
        thumbnail = read_thumbnail(row["file"])
        size = (thumbnail.width * scale, thumbnail.height * scale)
        image = thumbnail.resize(size, Image.Resampling.BICUBIC)
        found = find_faces(image)
        if not len(found):
            continue
        points = max(found, key=lambda face: float(np.hypot(*(face[1] - face[0]))))
        face = measure_face(image, points)
        if face is None or face.doubts:
            continue
        faces += 1
        for name, edit in edits_of(points).items():
            changes.setdefault(name, []).append(compared(image, edit(image)))
    rows = {name: summary(found) for name, found in changes.items()}
    return {"photographs": photographs, "faces": faces, "edits": rows}


def compared(before: Image.Image, after: Image.Image) -> SkinChange:
    return same_face((before, after), (find_faces(before), find_faces(after)))


def summary(found: list[SkinChange]) -> dict[str, object]:
    """Count what was measured, and return the changes of pairs without doubts."""
    certain = [change for change in found if not change.doubts]
    row: dict[str, object] = {"faces": len(found), "doubtful": len(found) - len(certain)}
    columns = {
        "change": np.array([change.change for change in certain]),
        "relative": np.array([change.relative for change in certain]),
    }
    for name, values in columns.items():
        known = values[np.isfinite(values)]
        facts: dict[str, object] = {"n": len(known)}
        if len(known):
            low, high = np.quantile(known, (0.025, 0.975)).round(2).tolist()
            mean, spread = (round(float(number), 2) for number in (known.mean(), known.std()))
            facts |= {"mean": mean, "sd": spread, "central 95%": [low, high]}
        row[name] = facts
    return row


def main() -> None:
    result = {"enlarged": measure(ENLARGED), "native": measure(1)}
    OUT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, part in result.items():
        print(name, part["photographs"], part["faces"])
        for edit, row in part["edits"].items():
            print(f"  {edit:22}", row)


if __name__ == "__main__":
    main()
