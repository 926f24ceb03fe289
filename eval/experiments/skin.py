"""Measure the error of skin lightness on edits of known size of the packaged photographs.

Most edits change nobody's skin, so at most one in twenty of their pairs should count as changed.

    python -m eval.experiments.skin --json eval/results/skin.json

Needs the extra "faces".

The photographs are enlarged four times, since editors return larger images than thumbnails; the
edits are made after that. "portraits" are enlarged and cropped to the largest face, which leaves
less background. "native" are edits of the thumbnails themselves, whose faces are a few pixels wide.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from apps.captions.rows import share_of
from apps.edits.edits import VISIBLE
from apps.edits.skin import SIDE, SkinChange, find_faces, lab_of, measure_face, same_face
from eval.tables import parser, run
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.miniature.photographs import GALLERY, read_table, read_thumbnail
from vldebias.utils.pictures import decode

ENLARGED = 4
LEAST = 3  # faces for a row
LEAST_EYES, AROUND = (
    9,
    5.5,
)  # pixels between the eyes of a portrait, and half its side relative to it
Edit = Callable[[Image.Image], Image.Image]


def jpeg(quality: int) -> Edit:
    def edit(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return decode(file.getvalue())

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


def gamma(image: Image.Image, exponent: float) -> Image.Image:
    return Image.fromarray((255 * (np.asarray(image) / 255) ** exponent).round().astype(np.uint8))


def multiplied(image: Image.Image, factor: np.ndarray) -> Image.Image:
    """Multiply pixel values by a factor, which broadcasts to (h, w, 3), as editors do."""
    pixels = np.clip(np.asarray(image) * factor, 0, 255)
    return Image.fromarray(pixels.round().astype(np.uint8))


def vignette(image: Image.Image, depth: float) -> Image.Image:
    """Darken the corners by a share, and the rest by the square of the distance from the centre."""
    y, x = np.mgrid[-1 : 1 : image.height * 1j, -1 : 1 : image.width * 1j]
    return multiplied(image, (1 - depth * (x**2 + y**2) / 2)[..., None])


def darker_side(image: Image.Image) -> Image.Image:
    return multiplied(image, np.linspace(1, 0.8, image.width)[None, :, None])


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
    contrast = ImageEnhance.Contrast
    return {
        **{f"JPEG {quality}": jpeg(quality) for quality in (90, 60, 30, 15)},
        "half size and back": resized,
        "flipped": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "cropped by 10%": cropped,
        "exposure +20%": lambda image: lit(image, 1.2),
        "exposure -20%": lambda image: lit(image, 0.8),
        "gamma 0.9": lambda image: gamma(image, 0.9),
        "gamma 1.2": lambda image: gamma(image, 1.2),
        "contrast +20%": lambda image: contrast(image).enhance(1.2),
        "contrast -20%": lambda image: contrast(image).enhance(0.8),
        "warmer": lambda image: multiplied(image, np.array([1.08, 1, 0.88])),
        "cooler": lambda image: multiplied(image, np.array([0.9, 1, 1.1])),
        "vignette, corners 25% darker": lambda image: vignette(image, 0.25),
        "vignette, corners 50% darker": lambda image: vignette(image, 0.5),
        "one side of the image 20% darker": darker_side,
        "person lighter by 5": lambda image: person_lighter(image, points, 5),
        "person darker by 5": lambda image: person_lighter(image, points, -5),
        "person lighter by 5, vignette": lambda image: vignette(
            person_lighter(image, points, 5), 0.25
        ),
        "grayscale": lambda image: image.convert("L").convert("RGB"),
        "light from one side": lambda image: side_light(image, points),
    }


def portrait(image: Image.Image) -> Image.Image | None:
    """Crop an image to its largest face, or return None if this is too small."""
    faces = find_faces(image)
    eyes = [float(np.hypot(*(face[1] - face[0]))) for face in faces]
    if not eyes or max(eyes) < LEAST_EYES:
        return None
    x, y = faces[int(np.argmax(eyes))].mean(0)
    half = AROUND * max(eyes)
    left, top = max(0, round(x - half)), max(0, round(y - half))
    right, bottom = min(image.width, round(x + half)), min(image.height, round(y + half))
    cut = image.crop((left, top, right, bottom))
    scale = SIDE / max(cut.size)
    size = (round(cut.width * scale), round(cut.height * scale))
    return cut.resize(size, Image.Resampling.BICUBIC)


NATIVE = ("JPEG 60", "half size and back", "exposure +20%", "person lighter by 5")


def changes(scale: int, chosen: Sequence[str], *, portraits: bool) -> dict[str, list[SkinChange]]:
    """Return edit -> the changes of faces that are not doubtful before it."""
    found: dict[str, list[SkinChange]] = {}
    for row in read_table():
        if row["part"] != GALLERY:
            continue
        thumbnail = read_thumbnail(row["file"])
        size = (thumbnail.width * scale, thumbnail.height * scale)
        enlarged = thumbnail.resize(size, Image.Resampling.BICUBIC)
        image = portrait(enlarged) if portraits else enlarged
        if image is None:
            continue
        faces = find_faces(image)
        if not len(faces):
            continue
        points = max(faces, key=lambda face: float(np.hypot(*(face[1] - face[0]))))
        face = measure_face(image, points)
        if face is None or face.doubts:
            continue
        for name, edit in edits_of(points).items():
            if name in chosen or not chosen:
                edited = edit(image)
                change = same_face((image, edited), (faces, find_faces(edited)))
                found.setdefault(name, []).append(change)
    return found


def measure() -> Iterator[TaskResult]:
    photographs = sum(row["part"] == GALLERY for row in read_table())
    tasks = (("enlarged", ENLARGED, ()), ("portraits", ENLARGED, ()), ("native", 1, NATIVE))
    for task, scale, chosen in tasks:
        found = changes(scale, chosen, portraits=task == "portraits")
        n_faces = len(next(iter(found.values())))
        result = TaskResult(
            TaskProvenance(
                task=task,
                title="Skin lightness after edits of known size",
                description="Mean change of L* over faces, and the central 95% of the faces as"
                " interval; share of pairs that are left out",
                split="packaged photographs",
                n={"faces": n_faces, "photographs": photographs},
                settings={"enlarged": scale},
            )
        )
        for name, of_edit in found.items():
            certain = [change for change in of_edit if not change.doubts]
            left_out = 1 - len(certain) / len(of_edit)
            result.add("share", NONE, left_out, n={"faces": len(of_edit)}, subset=name)
            for metric, column in (("lightness_change", 1), ("relative_change", 2)):
                values = np.array([change[column] for change in certain])
                known = values[np.isfinite(values)]
                if len(known) >= LEAST:
                    ends = tuple(np.quantile(known, (0.025, 0.975)).tolist())
                    mean = float(known.mean())
                    n = {"faces": len(known)}
                    result.add(metric, NONE, mean, ends, n=n, subset=name)
                if metric == "relative_change" and len(known):
                    for side, hits in (("lighter", known > VISIBLE), ("darker", known < -VISIBLE)):
                        share = share_of(hits.sum(), len(hits))
                        figures = (f"relative_{side}", NONE, share.value, share[1:])
                        result.add(*figures, n={"faces": len(known)}, subset=name)
        yield result


if __name__ == "__main__":
    print(run("skin", measure, parser(__doc__).parse_args().json))
