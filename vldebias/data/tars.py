"""Read images and captions from webdataset and img2dataset tars.

Consecutive files with the same name form a sample; their extensions are its fields (jpg, txt,
json).

The reader of `datasets` is not used. It rejects tars in which one of the first samples lacks a
field, images have different extensions, or text is not UTF-8. It also merges samples whose names
contain dots, and returns the first samples of a truncated tar without an error.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from vldebias.data.caption_cells import captions_of
from vldebias.data.cleaning import clean_captions
from vldebias.data.dataset import Facts, ImageData, fingerprint_files, fingerprint_of
from vldebias.data.folders import is_litter, is_picture
from vldebias.data.label_values import missing_labels
from vldebias.data.labels import ColumnNames, Labels, mapped_columns
from vldebias.data.layouts import CAPTION_COLUMNS, find_captions
from vldebias.data.splits import SPLIT, files_name_split, no_split_column, rows_of_split
from vldebias.errors import InvalidInputError, need, shown, warn_of_input
from vldebias.utils.files import refuse_special
from vldebias.utils.json_tables import parsed, refuse_half_pairs
from vldebias.utils.pictures import decode
from vldebias.utils.table_rows import flat
from vldebias.utils.text_tables import decoded_text

if TYPE_CHECKING:
    from datasets import IterableDataset
    from PIL import Image

# Endings of text fields, as in webdataset.
_TEXTS = ("txt", "text", "caption", "transcript", "cap")
_NUMBERS = ("cls", "cls2", "index", "id")
_JSON = ("json", "jsn")
_LONGEST = 1 << 22  # maximum size in bytes of a text or JSON field


@dataclass
class Sample:
    """Describe one sample in a tar.

    Attributes:
        key: file name without extensions.
        tar: path of the tar.
        places: field -> (offset, size) in the tar, for image fields.
        values: field -> value, for other fields.
    """

    key: str
    tar: Path
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)

    def read(self, name: str) -> Image.Image:
        """Load a field's image.

        Raises:
            OSError: If there is no image, or it cannot be read.
        """
        if name not in self.places:
            raise OSError("the cell is empty")
        offset, size = self.places[name]
        with self.tar.open("rb") as file:
            file.seek(offset)
            content = file.read(size)
        return decode(content)


def open_tars(  # noqa: PLR0913  (each locates the data or names a field)
    source: str,
    files: Sequence[str | Path],
    *,
    name: str,
    split: str,
    own_split: str | None = None,
    image: str | None = None,
    caption: str | None = None,
    labels: ColumnNames | None = None,
    unknown: Collection[str] | None = None,
    about: Facts | None = None,
) -> ImageData:
    """Open samples in tars. Text is loaded immediately, images on demand.

    Args:
        source: data name for messages.
        files: the tars, in order.
        name: data set name.
        split: split name.
        own_split: value of a field `split`, also in JSON, of the samples to keep. Default: all.
        image: image field. Default: found by its extension.
        caption: caption field. With "auto", it is found by name, and an error is raised if there is
            none. Default: found by name, if there is one.
        labels: label fields; "json.NAME" is a value in a JSON field.
        unknown: labels that mean a missing value. Default: as described in `missing_labels`.
        about: additional metadata for reports.

    Raises:
        InvalidInputError: If a file is not a tar, a field does not exist, several fields are
            possible, or text is not stored next to its image.
    """
    samples = [sample for file in files for sample in samples_of(Path(file))]
    fields = list(dict.fromkeys(name for sample in samples for name in _fields_of(sample)))
    samples, is_part = _of_split(source, samples, fields, own_split)
    image = _image_field(source, samples, fields, image)
    caption = _caption_field(source, samples, fields, caption)
    _report_incomplete(source, samples, image, caption)
    captions: list[str] = []
    more_captions: list[tuple[str, ...]] = []
    if caption is not None:
        cells = [_value(sample, caption) for sample in samples]
        texts = captions_of(cells, f"{source}: field {caption!r}")
        captions, more_captions = clean_captions(source, *texts)
    columns = {}
    for label, column in mapped_columns(labels or ()).items():
        if not _has(samples, column):
            raise InvalidInputError(
                f"{source}: expected a field {column!r}; the fields are {fields}"
            )
        values = Labels.from_values(
            Labels.text_of(_value(sample, column)).strip() for sample in samples
        )
        place = f"{source}: field {column!r}"
        columns[label] = values.without(missing_labels(values.counts, place, unknown=unknown))

    paths = [Path(file) for file in files]

    def fingerprint() -> str:
        of_files = fingerprint_files([path.name for path in paths], paths)
        return fingerprint_of([split, of_files]) if is_part else of_files

    return ImageData(
        name=name,
        split=split,
        # Keys may recur across tars, so rows are identified by number, as in a stream.
        ids=tuple(f"{number:08d}" for number in range(len(samples))),
        read=lambda index: samples[index].read(image),
        labels=columns,
        fingerprint=fingerprint,
        captions=tuple(captions),
        more_captions=tuple(more_captions),
        about={"root": source, **(about or {})},
    )


def samples_of(path: Path) -> list[Sample]:
    """Return a tar's samples in order, ignoring hidden files and macOS metadata.

    Raises:
        InvalidInputError: If the file is not a tar or is damaged, or two of its files have the same
            sample and field.
    """
    refuse_special(path)
    try:
        # "r:" rejects compressed tars, because images are accessed by offset.
        with tarfile.open(path, "r:") as tar:
            members = [member for member in tar if member.isfile() and not is_litter(member.name)]
            for member in members:
                # Holes would take memory that the file does not have on disk.
                if member.issparse():
                    raise tarfile.TarError(f"{shown(member.name)} is sparse; pack it without -S")
            # tarfile stops without an error if a tar is damaged or truncated.
            size = path.stat().st_size
            with path.open("rb") as file:
                file.seek(tar.offset)
                block = file.read(tarfile.BLOCKSIZE)
            if tar.offset > size or any(block) or 0 < len(block) < tarfile.BLOCKSIZE:
                raise EOFError(
                    f"it is damaged or truncated at byte {min(tar.offset, size):,} of {size:,}"
                )
            if not block:
                warn_of_input(
                    f"{path}: the end-of-archive marker is missing; if the file was truncated, copy"
                    " it again",
                )
            samples = _grouped(path, tar, members)
    # tarfile raises ValueError for invalid headers, such as a sparse file without a map.
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise InvalidInputError(
            f"{path}: cannot be opened: {error}. Expected a webdataset tar of images and text files"
        ) from None
    if not samples:
        raise InvalidInputError(
            f"{path}: expected files such as 0001.jpg and 0001.txt, got no samples"
        )
    return samples


def _grouped(path: Path, tar: tarfile.TarFile, members: Sequence[tarfile.TarInfo]) -> list[Sample]:
    """Group consecutive files with the same name into samples."""
    has_dots = _names_have_dots([member.name for member in members])
    samples: list[Sample] = []
    for member in members:
        key, name = _key_and_field(member.name, has_dots)
        if not name:
            continue
        if not samples or samples[-1].key != key:
            samples.append(Sample(key, path))
        sample = samples[-1]
        if name in _fields_of(sample):
            raise InvalidInputError(
                f"{path}: expected one file per field, got two with the ending .{name} for sample"
                f" {key!r}"
            )
        ending = name.rpartition(".")[2]
        if is_picture(f"a.{ending}"):
            sample.places[name] = (member.offset_data, member.size)
        elif ending in (*_TEXTS, *_JSON, *_NUMBERS) and member.size <= _LONGEST:
            file = tar.extractfile(member)
            content = b"" if file is None else file.read()
            sample.values[name] = _parsed(content, ending, f"{path}: {member.name}")
    return samples


def _names_have_dots(names: Sequence[str]) -> bool:
    """Return True if sample names contain dots, as in "v1.0_0001.jpg".

    In webdataset, a name ends at its first dot, so "0001.seg.png" has the field "seg.png". If
    nearly every such field occurs only once, the "fields" are probably parts of names.
    """
    pairs = [_key_and_field(name, has_dots=False) for name in names]
    dotted = {ending for _, ending in pairs if "." in ending}
    return len(dotted) > len({key for key, _ in pairs})


def _key_and_field(name: str, has_dots: bool) -> tuple[str, str]:
    """Return the key of the sample to which a file belongs, and its field."""
    path = PurePosixPath(name)
    stem, _, ending = path.name.rpartition(".") if has_dots else path.name.partition(".")
    return (path.parent / stem).as_posix(), ending.lower()


def _parsed(content: bytes, ending: str, source: str) -> object:
    """Parse a field as a number, JSON or text."""
    if ending in _NUMBERS:
        try:
            return int(content)
        except ValueError:
            raise InvalidInputError(f"{source}: expected a number, got {content[:20]!r}") from None
    text = decoded_text(content, source)
    if ending not in _JSON:
        return text.strip()
    value = parsed(text, source)
    refuse_half_pairs(value, source)
    return value


def _of_split(
    source: str, samples: list[Sample], fields: Sequence[str], split: str | None
) -> tuple[list[Sample], bool]:
    """Return the samples of a split, and whether a field names it.

    Raises:
        InvalidInputError: If no sample is in the split, or no field names splits.
    """
    names = (SPLIT, *(f"{name}.{SPLIT}" for name in _JSON))
    field_of_split = next((name for name in names if split and _has(samples, name)), "")
    if split is None or (not field_of_split and split == "train"):
        return samples, False
    if not field_of_split:
        if files_name_split([sample.tar for sample in samples], split):
            return samples, False
        raise no_split_column(source, split, fields)
    splits = Labels.from_values(_value(sample, field_of_split) for sample in samples)
    return [samples[row] for row in rows_of_split(source, split, splits)], True


def _fields_of(sample: Sample) -> list[str]:
    return [*sample.places, *sample.values]


def _value(sample: Sample, name: str) -> object:
    """Return a field's value; "json.caption" is a value inside the JSON field "json"."""
    if name in sample.values:
        return sample.values[name]
    outer, _, inner = name.partition(".")
    value = sample.values.get(outer)
    return value.get(inner) if isinstance(value, dict) else None


def _has(samples: Sequence[Sample], name: str) -> bool:
    """Return True if any sample has a value for a field."""
    return any(_value(sample, name) is not None for sample in samples)


def _image_field(
    source: str, samples: Sequence[Sample], fields: Sequence[str], name: str | None
) -> str:
    """Return the given image field or, by default, the one that contains images.

    Raises:
        InvalidInputError: If there is no such field, or several are possible.
    """
    fields_of_images = list(dict.fromkeys(chain.from_iterable(s.places for s in samples)))
    if name is not None:
        if name not in fields_of_images:
            raise InvalidInputError(f"{source}: expected a field {name!r}; the fields are {fields}")
        return name
    if not fields_of_images:
        raise InvalidInputError(f"{source}: expected images, got the fields {fields}")
    plain = [name for name in fields_of_images if "." not in name]
    first, *further = plain or fields_of_images
    if further and any(len(sample.places) > 1 for sample in samples):
        raise InvalidInputError(
            f"{source}: images may be in any of {[first, *further]}; choose one with --image-column"
            " (in Python image=...)"
        )
    # Image extensions that differ between samples (jpg, png) count as the same field.
    for sample in samples:
        for ending in further:
            if ending in sample.places:
                sample.places[first] = sample.places.pop(ending)
    return first


def _caption_field(
    source: str, samples: Sequence[Sample], fields: Sequence[str], name: str | None
) -> str | None:
    """Return the caption field, which may be inside JSON, or None if there is none.

    Raises:
        InvalidInputError: If the field does not exist, or "auto" finds no field with captions.
    """
    if name not in (None, "auto") or "auto" in fields:
        if not _has(samples, str(name)):
            raise InvalidInputError(f"{source}: expected a field {name!r}; the fields are {fields}")
        return name
    # Fields such as "v2.txt" arise if samples have names like "a.v2.txt".
    dotted = [field for field in fields if field.rpartition(".")[2] in _TEXTS]
    inside = [f"{field}.{key}" for field in _JSON for key in CAPTION_COLUMNS]
    found = find_captions([*fields, *(key for key in inside if _has(samples, key))], source)
    if len(dotted) == 1 and found not in fields:
        return dotted[0]
    if found is not None:
        return found
    if name == "auto":
        raise InvalidInputError(
            f"{source}: expected captions in a field {', '.join(CAPTION_COLUMNS[:5])}, got the"
            f" fields {fields}; choose one with --caption-column (in Python caption=...), or create"
            " captions from a label with label=... and caption_template='a photo of a {}.'"
        )
    return None


def _report_incomplete(
    source: str, samples: Sequence[Sample], image: str, caption: str | None
) -> None:
    """Raise an error if text is not stored next to its image; warn about incomplete samples."""
    if caption is None:
        return
    without_text = [s for s in samples if image in s.places and _value(s, caption) is None]
    without_image = [s for s in samples if image not in s.places and _value(s, caption) is not None]
    complete = len(samples) - len(without_text) - len(without_image)
    if without_text and without_image and complete <= len(samples) // 100:
        raise InvalidInputError(
            f"{source}: expected each image next to its text, but '{without_text[0].key}.{image}'"
            f" is not next to a text file, and '{without_image[0].key}.{caption}' is not next to an"
            " image. In the WebDataset format, a sample's files must be adjacent; repack the tar"
            " with its files sorted by name (tar --sort=name -cf new.tar FOLDER)"
        )
    consequences = {
        "text": (without_text, "they have no caption, and are not used for training"),
        "image": (without_image, "they cannot be read"),
    }
    for lack, (incomplete, consequence) in consequences.items():
        if incomplete:
            keys = ", ".join(sample.key for sample in incomplete[:3])
            warn_of_input(
                f"{source}: {len(incomplete)} of {len(samples)} samples have no {lack}, such as"
                f" {keys}; {consequence}",
            )


def stream_of_tars(files: Sequence[str | Path]) -> IterableDataset:
    """Return the samples in tars as a `datasets` stream with one shard per tar.

    The fields are taken from the first tar.
    """
    datasets = need("datasets")
    features: dict[str, object] = {}
    for sample in samples_of(Path(files[0])):
        features |= dict.fromkeys(sample.places, datasets.Image(decode=False))
        for name, value in _flat(sample).items():
            features[name] = datasets.Value("int64" if isinstance(value, int) else "string")
    features["__key__"] = datasets.Value("string")
    tars = [str(file) for file in files]
    return datasets.IterableDataset.from_generator(
        _rows_of_tars,
        features=datasets.Features(features),
        gen_kwargs={"tars": tars, "fields": tuple(features)},
    )


def _flat(sample: Sample) -> dict[str, object]:
    """Return a sample's strings and numbers. JSON values have names such as "json.caption"."""
    values: dict[str, object] = {}
    for name, value in sample.values.items():
        inner = flat(value, sample.key) if isinstance(value, dict) else {"": value}
        for key, part in inner.items():
            text = part
            if not isinstance(part, int | str | None):
                text = json.dumps(part)
            elif isinstance(part, int) and key:
                text = str(part)  # the field may be a string in other samples
            values[f"{name}.{key}".removesuffix(".")] = text
    return values


def _rows_of_tars(tars: Sequence[str], fields: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield the samples in each tar in turn, with undecoded images."""
    for path in tars:
        with Path(path).open("rb") as file:
            for sample in samples_of(Path(path)):
                row: dict[str, object] = dict.fromkeys(fields)
                row |= {"__key__": sample.key, **_flat(sample)}
                for name, (offset, size) in sample.places.items():
                    file.seek(offset)
                    row[name] = {"bytes": file.read(size), "path": f"{sample.key}.{name}"}
                yield {name: row[name] for name in fields}
