"""Open the real photographs that ship with the package, with their titles and labels.

The 1,615 colour photographs from the US Farm Security Administration and Office of War Information
(1939 to 1944) are works of the US government. See `photographs/README.md` for the source, credit
and rights. The package contains all titles, but thumbnails only for the gallery.
"""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from vldebias.errors import need

if TYPE_CHECKING:
    from PIL import Image

    from vldebias.data import ImageData

NAME = "photographs"
GALLERY, REFERENCE = "gallery", "reference"  # names of the parts
FOLDER = Path(__file__).parent / NAME
GENDERS = ("female", "male")
CREDIT = "Library of Congress, Prints and Photographs Division, FSA/OWI Collection"


def read_table() -> list[dict[str, str]]:
    """Load the table of all photographs.

    Each row contains the file, the title, the gender ("" unless both readers in `read_labels` saw
    only women, or only men) and the part ("gallery", "reference" or "").
    """
    return read_rows(FOLDER / "photographs.csv")


def read_labels() -> list[dict[str, str]]:
    """Load the labels that two readers gave to 388 thumbnails, independently and without titles.

    Each row contains the file and the labels "reader_a" and "reader_b": "women", "men", "both",
    "unclear" or "none". `photographs/README.md` contains the rule. The readers are vision-language
    models, not people.
    """
    return read_rows(FOLDER / "labels.csv")


def read_rows(path: Path) -> list[dict[str, str]]:
    """Load the rows of a packaged table."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_thumbnail(file: str) -> Image.Image:
    """Load the gallery thumbnail with a file name."""
    # Open the archive for every image, because threads cannot share an open archive.
    with zipfile.ZipFile(FOLDER / "thumbnails.zip") as archive:
        content = archive.read(file)
    with need("PIL.Image").open(io.BytesIO(content), formats=("JPEG",)) as picture:
        image: Image.Image = picture.convert("RGB")
    return image


def open_thumbnails() -> ImageData:
    """Open the gallery thumbnails, with titles as captions and genders as labels."""
    from vldebias.data import ImageData, Labels
    from vldebias.data.dataset import fingerprint_of

    rows = [row for row in read_table() if row["part"] == GALLERY]
    files = tuple(row["file"] for row in rows)
    return ImageData(
        name=NAME,
        split=GALLERY,
        ids=files,
        read=lambda index: read_thumbnail(files[index]),
        labels={"gender": Labels.from_values([row["gender"] for row in rows], GENDERS)},
        fingerprint=fingerprint_of(files),
        captions=tuple(row["title"] for row in rows),
        about={"credit": CREDIT},
    )
