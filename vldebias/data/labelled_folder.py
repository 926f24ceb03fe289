"""Open a folder of images, with the labels that people gave them."""

from __future__ import annotations

from pathlib import Path

from vldebias import programs
from vldebias.data.dataset import ImageData, file_images
from vldebias.data.folders import files_below, is_picture
from vldebias.data.labels import Labels
from vldebias.errors import InvalidInputError, warn_of_input

_ANSWERS = "answers.jsonl"  # the file that `vldebias label` writes


def images_of_folder(folder: str | Path) -> ImageData:
    """Open all images in a folder, with the labels that people gave them.

    Nested folders are included. Hidden files, temporary files and other files that are not images
    are skipped and listed in `about`.

    Args:
        folder: the folder. If people have labelled its images (`vldebias label`), it contains
            answers.jsonl.

    Returns:
        The images, with the names of their subfolders as the column "folder", and a column for
        each attribute that people were asked about. Images without an answer or with a tie have no
        label.

    Raises:
        InvalidInputError: If the folder contains no images.

    Warns:
        SuspectInputWarning: If answers cannot be read, because the programs are not installed.

    >>> from tempfile import TemporaryDirectory
    >>> from PIL import Image
    >>> with TemporaryDirectory() as folder:
    ...     Image.new("RGB", (8, 8)).save(f"{folder}/1.png")
    ...     print(images_of_folder(folder).ids)
    ('1.png',)
    """
    folder = Path(folder)
    below, litter = files_below(folder)
    files = [file for file in below if is_picture(file)]
    if not files:
        raise InvalidInputError(
            f"{folder}: found no images among {len(below) + len(litter)} files; expected files"
            " such as .png or .jpg"
        )
    labels = []
    # The label of "waterbird/001.jpg" is "waterbird", whereas "001.jpg" has no label.
    for file in files:
        parent, slash, _ = file.partition("/")
        labels.append(parent if slash else "")
    columns = {"folder": Labels.from_values(labels)}
    note_of_file: dict[str, str] = {}
    readers = list(programs.hooks("answers"))
    if not readers and (folder / _ANSWERS).is_file():
        warn_of_input(
            f"{folder / _ANSWERS}: not read, because the programs that come with vldebias (such as"
            " `vldebias label`) are not installed; pass the labels themselves"
        )
    for labels_of_people in readers:
        answered, notes = labels_of_people(folder, files)
        columns |= {name: Labels.from_values(values) for name, values in answered.items()}
        note_of_file |= notes
    other_kinds = [file for file in below if not is_picture(file) and file not in note_of_file]
    facts = {}
    if litter or other_kinds:
        facts["files left out"] = [*litter, *other_kinds]
    if note_of_file:
        facts["answers"] = [f"{file}: {note}" for file, note in note_of_file.items()]
    return file_images(folder.name, "all", folder, files, columns, about=facts)
