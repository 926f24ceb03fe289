"""Find pictures below a folder, and leave out what editors, archives and network drives put
there."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.report.phrases import quantity
from vldebias.utils.pictures import ENDINGS

# What programs leave in folders of pictures, besides all that begins with a dot.
_LITTER = {
    "__macosx",  # archives made by macOS
    "@eadir",  # thumbnails of Synology
    "#recycle",
    "$recycle.bin",
    "system volume information",
    "lost+found",
    "thumbs.db",
    "ehthumbs.db",
    "desktop.ini",
    "icon\r",
    "__pycache__",
}
TEXT_ENDINGS = (".txt", ".caption")
# Absolute (also as Windows writes it), an address, or a step upward anywhere on the way.
OUTSIDE = r"^[/\\]|^[A-Za-z]:|^[A-Za-z][A-Za-z0-9+.-]*://|(^|[/\\])\.\.([/\\]|$)"


def is_litter(path: str | PurePosixPath) -> bool:
    """Tell whether a path below a folder is hidden, or is what a program left there."""
    parts = PurePosixPath(path).parts
    return any(part.startswith(".") or part.casefold() in _LITTER for part in parts)


def is_picture(path: str | PurePosixPath) -> bool:
    """Tell whether a name ends as those of pictures do."""
    return PurePosixPath(path).suffix.lower() in ENDINGS


def files_below(folder: Path) -> tuple[list[str], list[str]]:
    """Return the paths of all files below a folder, sorted, and those that are litter."""
    files = []
    litter = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name).relative_to(folder).as_posix()
            if is_litter(path):
                litter.append(path)
            else:
                files.append(path)
    return sorted(files), sorted(litter)


def left_out_of(facts: Mapping[str, Any]) -> list[str]:
    """Describe what was left out of a data set, a sentence for each reason, with the first three
    names.

    facts: `about` of its images: "skipped", images that cannot be read, and "files left out".
    """
    sentences = []
    skipped = [f"{image['id']} ({image['reason']})" for image in facts.get("skipped") or ()]
    if skipped:
        sentences.append(
            f"Left out, {quantity(len(skipped), 'image')} that cannot be read: {_first(skipped)}."
        )
    left_out = facts.get("files left out") or ()
    if left_out:
        sentences.append(
            f"Left out, {quantity(len(left_out), 'file')} that show no picture: {_first(left_out)}."
        )
    return sentences


def _first(names: Sequence[str]) -> str:
    """Write the first three of some names."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def captions_beside(files: Iterable[str]) -> dict[str, str]:
    """Return picture -> the text file of its name that stands beside it: "0/1.jpg" -> "0/1.txt"."""
    files = list(files)
    text_of_stem = {}
    for file in files:
        path = PurePosixPath(file)
        if path.suffix.lower() in TEXT_ENDINGS:
            text_of_stem[str(path.with_suffix(""))] = file
    pairs = {}
    for file in files:
        stem = str(PurePosixPath(file).with_suffix(""))
        if is_picture(file) and stem in text_of_stem:
            pairs[file] = text_of_stem[stem]
    return pairs


def is_outside(path: str) -> bool:
    """Tell whether a path leads out of its folder, or is no local file."""
    return re.search(OUTSIDE, path) is not None


def folder_of_paths(root: str | Path, images: str | Path | None) -> Path:
    """Return where relative paths of images start: the folder that is named, else the data set's
    own.

    Args:
        root: file or folder of the data set.
        images: the folder that the user names, if any.
    """
    if images is not None:
        return Path(images)
    if Path(root).is_dir():
        return Path(root)
    return Path(root).parent


def folder_of_images(table: Path, files: Sequence[str]) -> Path:
    """Return the folder that the paths of a table start from: its own, else the only one near it
    that has them.

    Args:
        table: the file.
        files: relative paths, such as those of its first rows.

    Raises:
        InvalidInputError: no folder near it has them, or several do.
    """
    # About twenty of them, from the whole list.
    sample = list(filter(str.strip, files))[:: max(1, len(files) // 20)][:20]

    def has_images(folder: Path) -> bool:
        return any((folder / file).is_file() for file in existing_names(folder, sample))

    folder = table.parent
    # Absolute paths and those that lead out have their own messages.
    if not sample or has_images(folder) or any(is_outside(file) for file in sample):
        return folder
    # "captions.txt" beside "Images/", before "annotations/captions.json" beside "train2017/".
    above = folder.absolute().parent
    below = _plain_folders(folder.absolute().iterdir())
    beside = _plain_folders([*above.iterdir(), above])
    folders = list(filter(has_images, below)) or list(filter(has_images, beside))
    if len(folders) == 1:
        return folders[0]
    problem = f"{len(folders)} folders near it have them: {folders[:3]}"
    if not folders:
        problem = "no folder near it has them"
    raise InvalidInputError(
        f"{table}: of {len(sample)} images that were looked for none is in {folder}, such as"
        f" {sample[0]!r}, and {problem}; name the folder that the paths start from (--image-root;"
        " in Python images=...)"
    )


def _plain_folders(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that are folders, without litter."""
    return [path for path in paths if path.is_dir() and not is_litter(path.name)]


def existing_names(root: Path, files: Sequence[str]) -> list[str]:
    """Return the paths of the files that a table names.

    A path that does not exist as written is resolved if it uses the separators of Windows, differs
    in case, or lacks the ending of the only picture with its name, as in tables of kohya's
    sd-scripts. Others stay as they are written.

    Each folder is listed once, since asking for each of 200,000 files takes long.

    Args:
        root: folder that the paths start from.
        files: paths as the table writes them.
    """
    names_in: dict[Path, Mapping[str, str]] = {}
    pictures_in: dict[Path, Mapping[str, list[str]]] = {}

    def names(folder: Path) -> Mapping[str, str]:
        if folder not in names_in:
            try:
                names_in[folder] = {name.casefold(): name for name in os.listdir(folder)}
            except OSError:
                names_in[folder] = {}
        return names_in[folder]

    def only_picture(path: Path) -> str | None:
        """Return the only picture of a folder that has this name before its ending."""
        if path.parent not in pictures_in:
            pictures_of_stem = defaultdict[str, list[str]](list)
            for name in names(path.parent).values():
                if is_picture(name):
                    pictures_of_stem[PurePosixPath(name).stem.casefold()].append(name)
            pictures_in[path.parent] = pictures_of_stem
        pictures = pictures_in[path.parent].get(path.name.casefold(), [])
        return pictures[0] if len(pictures) == 1 else None

    def exists(file: str) -> bool:
        path = root / file
        return names(path.parent).get(path.name.casefold()) == path.name or path.exists()

    found = []
    for file in files:
        path = file
        if not exists(path):
            path = file.strip().replace("\\", "/")
            # On Linux IMG.JPG and IMG.jpg are two names; a table of a Mac does not tell them apart.
            full_path = root / path
            path_in_case = names(full_path.parent).get(full_path.name.casefold())
            if path_in_case is None and full_path.name:
                path_in_case = only_picture(full_path)
            if path_in_case is not None:
                path = (PurePosixPath(path).parent / path_in_case).as_posix()
        found.append(path if exists(path) else file)
    return found
