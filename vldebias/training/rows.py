"""Rows before the first step: images that are not there, held-out ones that are learned from, groups of images."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from vldebias.data.dataset import ImageData, ImageStream
from vldebias.data.labels import Labels, cross
from vldebias.diagnostics import hidden_groups
from vldebias.errors import InvalidInputError, warn
from vldebias.prompts import load_prompts
from vldebias.training.sampling import numpy_generator
from vldebias.training.scores import image_features, pixel_batches, text_features
from vldebias.training.settings import TrainSettings

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

TEXTS = "texts"  # the column of groups that is none
MISSING = 0.1  # share of images that are not there from which on it is an error
SIDE, NEAR = 16, 3.0  # of thumbnails; root mean square of the differences of 0 .. 255 that a new JPEG can make
LOOKED_AT = 2000, 500  # images to learn from and held-out ones whose thumbnails are compared


def paths_of(data: ImageData) -> list[str]:
    """Where each image lies; "" where it is no file of its own, which a few rows tell for all: asking each may cost."""
    few = {0, len(data) // 2, len(data) - 1}
    if data.path is None or not any(data.path(row) for row in few):
        return [""] * len(data)
    return [data.path(row) for row in range(len(data))]


def present(data: ImageData, settings: TrainSettings) -> ImageData:
    """The rows whose image is there, with a warning where some are not; images that are no files of their own are.

    Raises:
        InvalidInputError: more than a tenth are not there, and `allow_missing` does not say to go on; any, where
            on_error is "raise".
    """
    paths = paths_of(data)
    there = np.array([not path or "://" in path or os.path.exists(path) for path in paths], dtype=bool)
    if there.all():
        return data
    gone = (~there).mean()
    first = paths[int(np.flatnonzero(~there)[0])]
    note = f"{data.name}: {(~there).sum()} of {len(data)} images ({gone:.0%}) are not there, such as {first}"
    if settings.on_error == "raise" or not there.any() or (gone > MISSING and not settings.allow_missing):
        raise InvalidInputError(
            f"{note}; expected at most {MISSING:.0%}. Name the folder that paths start from (--image-root), or go on "
            "without them (--allow-missing, on_error skip)"
        )
    warn(f"{note}; they are left out")
    return data[there]


@dataclass(frozen=True)
class Overlap:
    """Held-out images that are also learned from, among those that were looked at.

    same: they are the same files. near: their thumbnails differ by no more than a new JPEG of an image does.
    """

    same: int
    near: int
    held_out: int
    compared: int


def check_held_out(held_out: ImageData, learned: ImageData | ImageStream, *, look: bool = True) -> Overlap | None:
    """How many held-out images are learned from; warns of some. None of a stream.

    look: compare thumbnails too, which reads some images.

    Raises:
        InvalidInputError: the held-out data are those that are learned from, or nine in ten of their files are.
    """
    where = f"held-out data {held_out.name} {held_out.split}"
    remedy = "name another split (--val-split) or other data (--val-data)"
    if not isinstance(learned, ImageData):
        return None
    if held_out.fingerprint == learned.fingerprint:
        raise InvalidInputError(f"{where}: they are the data to learn from, so their scores say nothing; {remedy}")
    same = len((set(paths_of(held_out)) & set(paths_of(learned))) - {""})
    if same >= 0.9 * len(held_out):
        raise InvalidInputError(f"{where}: {same} of {len(held_out)} images are files to learn from as well; {remedy}")
    most = LOOKED_AT if look else (0, 0)
    theirs, ours = (_thumbnails(data, n) for data, n in zip((learned, held_out), most, strict=True))
    near = int((torch.cdist(ours, theirs).amin(1) <= NEAR * SIDE * 3**0.5).sum()) if len(ours) and len(theirs) else 0
    if same or near:
        warn(
            f"{where}: {same} of {len(held_out)} images are files to learn from as well, and of {len(ours)} that were "
            f"looked at {near} are next to equal to one of {len(theirs)} images to learn from: their scores flatter"
        )
    return Overlap(same, near, len(ours), len(theirs))


def _thumbnails(data: ImageData, most: int) -> torch.Tensor:
    """(m, 3 side^2) values in 0 .. 255 of images drawn at random; those that cannot be read are left out."""

    def small(row: int) -> NDArray[np.float32] | None:
        try:
            return np.asarray(data.read(row).resize((SIDE, SIDE)), dtype=np.float32).ravel()
        except OSError:
            return None

    rows = numpy_generator("thumbnails", len(data)).permutation(len(data))[:most]
    with ThreadPoolExecutor(4) as pool:
        pictures = [one for one in pool.map(small, rows.tolist()) if one is not None]
    return torch.from_numpy(np.stack(pictures)) if pictures else torch.empty(0, 3 * SIDE**2)


def groups_of(data: ImageData, settings: TrainSettings, towers: Towers) -> Labels | None:
    """The groups of the rows: the values of `settings.group_columns`, together; None where nobody asks.

    The column "texts" is the value of `group_texts` whose texts the towers find nearest, unknown where an image cannot
    be read.
    """
    if not settings.group_columns:
        return None
    by_texts = {TEXTS: _by_texts(data, settings, towers)} if TEXTS in settings.group_columns else {}
    labels = cross(*(by_texts.get(name) or data.column(name) for name in settings.group_columns))
    present = np.unique(labels.codes[labels.known])
    if len(present) < 2:
        raise InvalidInputError(f"{data.name}: columns {settings.group_columns}: expected two groups or more with rows")
    code = np.full(len(labels.names) + 1, -1)
    code[present] = np.arange(len(present))  # without the combinations that do not occur
    return Labels(code[labels.codes], tuple(labels.names[k] for k in present))


def _by_texts(data: ImageData, settings: TrainSettings, towers: Towers) -> Labels:
    """See `vldebias.diagnostics.hidden_groups`."""
    assert settings.group_texts is not None
    values: Mapping[str, Sequence[str]] = load_prompts(settings.group_texts).by_value()
    texts = torch.stack([normalize(text_features(towers, own, 256).mean(0), dim=0) for own in values.values()])
    how = {"batch_size": 64, "workers": settings.workers, "skipped": dict[int, str]()}
    parts = [
        (rows, image_features(towers, images).cpu())
        for rows, images in pixel_batches(range(len(data)), data.read, towers.prepare, **how)  # type: ignore[arg-type]
    ]
    rows, features = (torch.cat(column) for column in zip(*parts, strict=True))
    one = ["all"] * len(rows)
    found = hidden_groups(features, one, "texts", texts=texts.cpu(), names=tuple(values)).parts()
    codes = np.full(len(data), -1)
    codes[rows.numpy()] = found.codes
    return Labels(codes, found.names)
