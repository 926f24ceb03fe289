"""Find images in a folder, ignoring files left by editors, archives and network drives."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from vldebias.errors import InvalidInputError, shortened, shown
from vldebias.utils.phrases import quantity
from vldebias.utils.pictures import ENDINGS

# Files and folders that operating systems and tools create, not including hidden ones, which start
# with a dot.
_LITTER = {
    "__macosx",  # archives made by macOS
    "@eadir",  # Synology thumbnails
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
_LONGEST_PATH = 1000  # characters; longer cells are encoded images
# The start of a JPEG, PNG, GIF or WebP in base64, which has no dots, or a data URL.
_ENCODED = re.compile(r"(?:/9j/|iVBORw0KGgo|R0lGOD|UklGR)[^.]{40,}$|data:image/")
TEXT_ENDINGS = (".txt", ".caption")
# Extensions of images that are not read. Messages list such images if they have captions.
UNREAD_PICTURES = (".heic", ".heif", ".jxl", ".svg", ".psd", ".dng", ".raw", ".cr2", ".nef", ".arw")
# Absolute paths (including Windows paths), URLs, and paths with "..".
OUTSIDE = r"^[/\\]|^[A-Za-z]:|^[A-Za-z][A-Za-z0-9+.-]*://|(^|[/\\])\.\.([/\\]|$)"


def is_litter(path: str | PurePosixPath) -> bool:
    """Return True if a relative path is hidden, or was created by an operating system or a tool."""
    parts = PurePosixPath(path).parts
    return any(part.startswith(".") or part.casefold() in _LITTER for part in parts)


def is_picture(path: str | PurePosixPath) -> bool:
    """Return True if a name has an image file extension."""
    return PurePosixPath(path).suffix.lower() in ENDINGS


def files_below(folder: Path) -> tuple[list[str], list[str]]:
    """Return the sorted paths of all files in a folder, and the subset that is litter."""
    files: list[str] = []
    litter: list[str] = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name).relative_to(folder).as_posix()
            (litter if is_litter(path) else files).append(path)
    return sorted(files), sorted(litter)


def left_out_of(facts: Mapping[str, Any]) -> list[str]:
    """Describe the images left out of a data set, in one sentence per reason.

    Args:
        facts: the images' `about`, with "skipped" (unreadable images), "files left out", and
            sentences about "answers".
    """
    sentences = []
    skipped = [f"{image['id']} ({image['reason']})" for image in facts.get("skipped") or ()]
    if skipped:
        sentences.append(
            f"Left out {quantity(len(skipped), 'image')} that cannot be read: {_first(skipped)}."
        )
    left_out = facts.get("files left out") or ()
    if left_out:
        sentences.append(
            f"Left out {quantity(len(left_out), 'file')} without an image: {_first(left_out)}."
        )
    return [*sentences, *facts.get("answers", ())]


def _first(names: Sequence[str]) -> str:
    """Join the first three names with commas, followed by "..." if there are more."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def captions_beside(files: Iterable[str]) -> dict[str, str]:
    """Map each image to the text file with the same name, such as "0/1.jpg" -> "0/1.txt"."""
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


def unread_pictures(files: Iterable[str]) -> list[str]:
    """Return images in unsupported formats, such as .heic, that have a text file next to them."""
    files = list(files)
    stems = {PurePosixPath(file).with_suffix("") for file in files if file.endswith(TEXT_ENDINGS)}
    return [
        file
        for file in files
        if PurePosixPath(file).suffix.lower() in UNREAD_PICTURES
        and PurePosixPath(file).with_suffix("") in stems
    ]


def is_outside(path: str, root: str | Path) -> bool:
    """Return True if a path leads outside a folder, or is not a local file.

    Args:
        path: path relative to the folder, or absolute.
        root: the folder.
    """
    if re.search(OUTSIDE, path) is None:
        return False
    # ".." is never accepted, because it may lead outside through a symbolic link.
    return ".." in Path(path).parts or not Path(path).is_relative_to(Path(root).absolute())


def refuse_outside(name: object, root: str | Path, files: Iterable[str]) -> None:
    """Reject paths outside the root, so that untrusted tables cannot access other files.

    Args:
        name: data name for the message.
        root: folder that all paths must be in.
        files: the paths to check, relative to `root`.
    """
    outside = [file for file in files if is_outside(file, root)]
    if outside:
        raise InvalidInputError(
            f"{name}: {len(outside)} paths lead outside {root} or are not local files, such as"
            f" {shortened(outside[0], 80)!r}; expected paths inside it; set their base folder"
            " (--image-root), or allow_outside=True for a trusted table (--set allow_outside=true)"
        )


def refuse_no_paths(source: object, files: Sequence[str]) -> None:
    """Raise an error if cells contain images in base64 instead of paths, or characters of no path.

    Args:
        source: the data, for the message.
        files: the cells.
    """
    for row, file in enumerate(files, 1):
        if "\0" in file:
            raise InvalidInputError(
                f"{source}: image {row}: expected a path, got a zero byte in {shown(file)}; write"
                " the table again without it"
            )
    encoded = next((file for file in files if _ENCODED.match(file)), "")
    longest = encoded or max(files, key=len, default="")
    if encoded or len(longest) > _LONGEST_PATH:
        raise InvalidInputError(
            f"{source}: expected paths of images, got {longest[:30]!r}... ({len(longest):,}"
            " characters); if these are images in base64, decode them into files, and list the"
            " paths"
        )


def folder_of_paths(root: str | Path, images: str | Path | None) -> Path:
    """Return the base folder for relative image paths.

    Args:
        root: data set file or folder.
        images: base folder. Default: the data set's folder.
    """
    if images is not None:
        return Path(images)
    return Path(root) if Path(root).is_dir() else Path(root).parent


def folder_of_images(table: Path, files: Sequence[str]) -> Path:
    """Return the base folder for the paths in a table.

    This is the table's folder, or the only nearby folder that contains the files.

    Args:
        table: path of the table.
        files: relative paths, for example from the first rows.

    Raises:
        InvalidInputError: If no nearby folder contains the files, or several do.
    """
    refuse_no_paths(table, files)
    # Check about twenty files, spread over the entire list.
    sample = list(filter(str.strip, files))[:: max(1, len(files) // 20)][:20]

    def has_images(folder: Path) -> bool:
        return any((folder / file).is_file() for file in existing_names(folder, sample))

    folder = table.parent
    # Paths outside the folder have their own error message.
    if not sample or has_images(folder) or any(is_outside(file, folder) for file in sample):
        return folder
    # First, folders next to the table ("captions.txt" and "Images/"); then, folders next to its
    # folder ("annotations/captions.json" and "train2017/").
    parent = folder.absolute().parent
    subfolders = _plain_folders(folder.absolute().iterdir())
    siblings = _plain_folders([*parent.iterdir(), parent])
    folders = list(filter(has_images, subfolders)) or list(filter(has_images, siblings))
    if len(folders) == 1:
        return folders[0]
    problem = f"{len(folders)} nearby folders contain some of them: {folders[:3]}"
    if not folders:
        problem = "no nearby folder contains any of them"
    raise InvalidInputError(
        f"{table}: {folder} contains none of the {len(sample)} images checked, such as"
        f" {sample[0]!r}, and {problem}; set the base folder of the paths (--image-root; in Python"
        " images=...)"
    )


def _plain_folders(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that are folders, without litter."""
    return [path for path in paths if path.is_dir() and not is_litter(path.name)]


def existing_names(root: Path, files: Sequence[str]) -> list[str]:
    """Replace the paths in a table with the paths of existing files.

    A path that does not exist as written is matched to an existing file if it uses Windows
    separators, writes accents differently, differs in case, or lacks the extension of the only
    image with its name, as in tables for kohya's sd-scripts. Other paths are unchanged.

    Args:
        root: base folder of the paths.
        files: paths as they appear in the table.
    """
    # List each folder once, because checking 200,000 files one by one is slow.
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
        """Return the only image in a folder with this name and any extension."""
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
            # macOS decomposes letters with accents in the names of the files that it archives.
            forms = [unicodedata.normalize(form, path) for form in ("NFC", "NFD")]
            path = next(filter(exists, forms), path)
            # IMG.JPG and IMG.jpg are different files on Linux, but the same file on a Mac.
            full_path = root / path
            path_in_case = names(full_path.parent).get(full_path.name.casefold())
            if path_in_case is None and full_path.name:
                path_in_case = only_picture(full_path)
            if path_in_case is not None:
                path = (PurePosixPath(path).parent / path_in_case).as_posix()
        found.append(path if exists(path) else file)
    return found
