"""Detect the format of images with captions.

The formats are tables, folders of images and text files, tars, COCO captions, and everything that
`datasets` can load.

This module imports neither torch nor datasets, so that a wrong column, separator or folder is
reported immediately. Only parquet files require pyarrow.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vldebias.data.folders import (
    TEXT_ENDINGS,
    captions_beside,
    files_below,
    folder_of_images,
    is_picture,
    refuse_outside,
    unread_pictures,
)
from vldebias.errors import InvalidInputError, did_you_mean, need, shown
from vldebias.utils.files import read_json, refuse_lfs_pointer, refuse_special
from vldebias.utils.json_tables import Row, is_json_document
from vldebias.utils.table_rows import (
    JSON_ENDINGS,
    SEPARATOR_OF_ENDING,
    cell_of,
    find_column,
    fitting_columns,
    hint_of_header,
    read_rows,
)
from vldebias.utils.text_tables import OTHER_FORMS, decoded, json_form

TABLES = (*SEPARATOR_OF_ENDING, *JSON_ENDINGS)
PARQUET = (".parquet", ".arrow")
# Column names used by common tools, most common first.
IMAGE_COLUMNS = (
    *("image", "image_path", "img_path", "img", "path", "file_path", "filepath", "file"),
    *("file_name", "filename", "image_file", "image_name", "image_filename"),
    *("jpg", "jpeg", "png", "webp"),  # fields of tars
)
CAPTION_COLUMNS = (
    *("caption", "captions", "text", "txt", "title", "sentence", "sentences", "description"),
    *("alt", "alt_text", "comment", "transcript", "cap"),
)
LAYOUT = (
    "a dataset id, a folder of parquet, arrow, tar or image files, a .parquet, .arrow or .tar file,"
    " or a pattern such as shards/*.tar"
)
URL_COLUMNS = ("url", "image_url", "img_url", "urls")
_URL = re.compile(r"https?://\S+", re.IGNORECASE)
# Addresses of other machines, and commands, as webdataset accepts them.
_REMOTE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://|pipe:", re.IGNORECASE)
_COCO_KEYS = ("images", "annotations", "file_name", "image_id", "caption")
_HEAD = 1 << 22  # number of bytes read from a table to find its columns
_SET_IMAGE = "set --image-column (open_clip: --csv-img-key; in Python image=...)"
_SET_CAPTION = "set --caption-column (open_clip: --csv-caption-key; in Python caption=...)"


@dataclass(frozen=True)
class Layout:
    """Describe the format of a data set with captions.

    Attributes:
        kind: "table", "coco", "pairs" (images with text files next to them), "tars", or "datasets"
            (loaded with that library).
        files: paths of the files that contain the data; for pairs, all paths in the folder,
            relative to it.
        image: image column of a table.
        caption: caption column of a table, or None.
        header: column names of a table without a header line.
        images: image paths in the first rows of a table.
        is_complete: whether these first rows are the entire table.
    """

    kind: str
    files: tuple[str, ...] = ()
    image: str | None = None
    caption: str | None = None
    header: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    is_complete: bool = False


def expanded(root: str | Path) -> list[str]:
    """Expand braces in a name, as webdataset and open_clip do.

    Examples are "shard-{0000..0012}.tar", "{train,val}.tar" and "a-{0..9}.tar::b-{0..9}.tar".
    """
    text = str(root)
    if Path(text).exists():
        return [text]
    if "::" in text:
        return list(itertools.chain.from_iterable(map(expanded, text.split("::"))))
    ranges = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{},]*,[^{}]*))\}", text)
    if not ranges:
        return [text]
    first, last, listed = ranges.groups()
    if listed is not None:
        options = listed.split(",")
    else:
        numbers = range(int(first), int(last) + 1)
        options = [str(number).zfill(len(first)) for number in numbers]
    before = text[: ranges.start()]
    after = text[ranges.end() :]
    return list(itertools.chain.from_iterable(expanded(before + part + after) for part in options))


def find_layout(
    root: str | Path,
    *,
    image: str | None = None,
    caption: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    reads_captions: bool = True,
) -> Layout:
    """Detect the format of a data set with captions.

    Args:
        root: a file, a folder, a pattern with * or braces, or an id on the hub.
        image: image column. Default: found by name.
        caption: caption column. Default: found by name.
        separator: table separator. Default: detected.
        encoding: table encoding. Default: detected.
        reads_captions: whether captions are needed in addition to images.

    Raises:
        InvalidInputError: If files do not exist or are empty, a column does not exist, several
            columns are possible, or the data are URLs.
    """
    if not str(root).strip():
        raise InvalidInputError(
            f"data: expected a file, a folder or an id on the hub, got {str(root)!r}"
        )
    if _REMOTE.match(str(root)):
        raise InvalidInputError(
            f"{root}: remote files are not read; download them, and pass their folder"
        )
    paths = expanded(root)
    path = Path(root).expanduser()
    is_pattern = len(paths) > 1 or (not path.exists() and glob.has_magic(str(root)))
    if is_pattern:
        return _layout_of_pattern(root, paths)
    if path.is_dir():
        return _layout_of_folder(path, reads_captions)
    if not path.is_file():
        _refuse_absent(root, path.suffix.lower())
        return Layout("datasets")
    if path.stat().st_size == 0:
        raise InvalidInputError(f"{path}: the file is empty; expected images and captions")
    if path.suffix.lower() not in TABLES or is_coco(path, encoding):
        return _layout_of_file(path, image)
    # The layout of a table depends on its first rows.
    names, first, is_complete = _first_rows(path, separator, encoding)
    header: tuple[str, ...] = ()
    form = path.suffix.lower().removeprefix(".")
    if image is None and caption is None and not fitting_columns(names, IMAGE_COLUMNS):
        header = _missing_header(path, names, form)
    if header:
        first = [dict(zip(header, row.values(), strict=True)) for row in first]
        names = list(header)
    image = _column(path, names, image, IMAGE_COLUMNS, "images", _SET_IMAGE, form)
    cells = [str(cell_of(row, image) or "") for row in first]
    if any(_URL.fullmatch(cell.strip()) for cell in cells[:50]):
        captions = fitting_columns(names, CAPTION_COLUMNS) or ["caption"]
        raise InvalidInputError(_fetch_first(path, form, image, captions[0]))
    if reads_captions:
        caption = _column(path, names, caption, CAPTION_COLUMNS, "captions", _SET_CAPTION, form)
        if image == caption:
            raise InvalidInputError(same_column(str(path), image, names))
    images = tuple(map(without_number, cells))
    used_caption = caption if reads_captions else None
    return Layout("table", (str(path),), image, used_caption, header, images, is_complete)


def _layout_of_file(path: Path, image: str | None) -> Layout:
    """Return the layout of a file that is not a table, based on its extension."""
    ending = path.suffix.lower()
    refuse_lfs_pointer(path)
    if ending in TABLES:
        return Layout("coco", (str(path),))
    if ending == ".tar":
        _refuse_compressed_tar(path)
        return Layout("tars", (str(path),))
    if ending == ".parquet":
        _refuse_parquet_of_urls(path, image)
    elif ending != ".arrow":
        form = OTHER_FORMS.get(ending, "a file")
        raise InvalidInputError(
            f"{path}: got {form} with {f'the ending {ending}' if ending else 'no ending'}; expected"
            f" a table ({', '.join(TABLES)}), .parquet, .tar or a folder; convert or unpack it"
        )
    return Layout("datasets")


def refuse_absent_images(
    layout: Layout, *, images: str | Path | None = None, allow_outside: bool = False
) -> None:
    """Raise an error if none of the images in a table's first rows exists.

    Args:
        layout: result of `find_layout`. Only tables are checked.
        images: base folder for the paths. Default: detected.
        allow_outside: whether to allow absolute paths and paths with "..".

    Raises:
        InvalidInputError: If paths lead outside the folder, or none of the images exists.
    """
    if layout.kind != "table":
        return
    path = Path(layout.files[0])
    if not allow_outside:
        refuse_outside(path, images or path.parent, layout.images)
    # Only check complete tables, since a large one may lack only the images of its first rows.
    if images is None and layout.is_complete:
        folder_of_images(path, layout.images)


def _refuse_absent(root: str | Path, ending: str) -> None:
    """Raise an error for a path that does not exist and cannot be a hub id."""
    text = str(root)
    looks_like_path = (
        ending in (*TABLES, *PARQUET, ".tar")
        or text.startswith(("/", ".", "~"))
        or text.endswith("/")
        or text.count("/") > 1
        or "\\" in text
    )
    if looks_like_path:
        parent = Path(root).expanduser().parent
        names = [path.name for path in parent.iterdir()] if parent.is_dir() else []
        hint = did_you_mean(Path(root).name, names, "check the path.")
        raise InvalidInputError(
            f"{root}: no such file or folder; expected captions with images; {hint}"
        )


def _layout_of_pattern(root: str | Path, patterns: Sequence[str]) -> Layout:
    """Return the layout of the files that match patterns. Each pattern must match a file."""
    files: list[str] = []
    missing = []
    for pattern in patterns:
        matches = sorted(glob.glob(str(Path(pattern).expanduser()), recursive=True))
        if not matches:
            missing.append(pattern)
        files += matches
    if missing:
        raise InvalidInputError(
            f"{root}: {len(missing)} of {len(patterns)} files do not exist, such as {missing[0]!r};"
            " check the pattern"
        )
    if all(file.lower().endswith(".tar") for file in files):
        for file in files:
            _refuse_compressed_tar(Path(file))
        return Layout("tars", tuple(files))
    return Layout("datasets")


def _layout_of_folder(folder: Path, reads_captions: bool) -> Layout:
    """Detect the layout of a folder from the files in it."""
    files, _ = files_below(folder)
    if not files:
        raise InvalidInputError(
            f"{folder}: the folder is empty; expected images and captions, or tars"
        )
    for file in _ending_in(files, *TABLES, *PARQUET, *TEXT_ENDINGS, ".tar"):
        refuse_special(folder / file)
    tars = _ending_in(files, ".tar")
    if tars:
        for tar in tars:
            _refuse_compressed_tar(folder / tar)
        return Layout("tars", _below(folder, tars))
    if {"state.json", "dataset_dict.json"} & set(files):
        return _layout_of_saved(folder, files)
    metadata = _fitting_files(files, r"(.*/)?metadata\.(csv|jsonl|parquet)")
    parquet = _ending_in(files, ".parquet")
    pictures = list(filter(is_picture, files))
    for table in metadata:
        _refuse_metadata_of_others(folder / table, pictures)
    unread = unread_pictures(files)
    if unread and not pictures:
        raise InvalidInputError(
            f"{folder}: got {len(unread)} images in a format that is not read, such as {unread[0]};"
            " convert them to .jpg or .png"
        )
    if metadata or not pictures:
        tables: tuple[str, ...] = ()
        if reads_captions and parquet and not metadata:
            _refuse_parquet_of_urls(folder / parquet[0], None)
            # Ignore the statistics that img2dataset writes next to parquet files.
            if _fitting_files(files, r".*_stats\.json"):
                tables = _below(folder, parquet)
        return Layout("datasets", tables)
    coco = _fitting_files(files, r"(.*/)?captions_[^/]*\.json")
    if coco:
        return Layout("coco", _below(folder, coco))
    if captions_beside(files):
        return Layout("pairs", tuple(files))
    # `datasets` also loads folders with a subfolder per class. Their captions are created from a
    # template.
    if reads_captions:
        _refuse_pictures_without_captions(folder, files, pictures)
    return Layout("datasets")


def _layout_of_saved(folder: Path, files: Sequence[str]) -> Layout:
    """Return the files of a folder that was written by `save_to_disk` of datasets."""
    if "state.json" not in files:
        splits = [str(PurePosixPath(file).parent) for file in files if file.endswith("/state.json")]
        raise InvalidInputError(
            f"{folder}: got the splits {shown(splits)}, as save_to_disk writes them; pass the"
            " folder of one split"
        )
    state = read_json(folder / "state.json")
    saved = state.get("_data_files") if isinstance(state, dict) else None
    names = [entry.get("filename") for entry in saved or () if isinstance(entry, dict)]
    return Layout("datasets", _below(folder, [name for name in files if name in names]))


def _refuse_metadata_of_others(table: Path, pictures: Sequence[str]) -> None:
    """Raise an error if metadata.csv or metadata.jsonl lists only nonexistent files.

    Otherwise, `datasets` would return rows with unreadable images.
    """
    if table.suffix == ".parquet" or not pictures:
        return
    names, rows, _ = _first_rows(table, None, None)
    if "file_name" not in names:
        return
    listed = [str(row.get("file_name") or "") for row in rows]
    listed = list(filter(None, listed))
    if listed and not any((table.parent / file).is_file() for file in listed):
        raise InvalidInputError(
            f"{table}: none of the {len(listed):,} files in the column 'file_name', such as"
            f" {listed[0]!r}, exists in {table.parent}; expected names such as {pictures[0]!r}"
        )


def _fitting_files(files: Sequence[str], pattern: str) -> list[str]:
    """Return the files whose entire path matches a pattern."""
    return [file for file in files if re.fullmatch(pattern, file, re.DOTALL)]


def _ending_in(files: Sequence[str], *endings: str) -> list[str]:
    """Return the files with one of these extensions, ignoring case."""
    return [file for file in files if file.lower().endswith(endings)]


def _below(folder: Path, files: Sequence[str]) -> tuple[str, ...]:
    """Prepend the folder to each file path."""
    return tuple(str(folder / file) for file in files)


def _refuse_pictures_without_captions(
    folder: Path, files: Sequence[str], pictures: Sequence[str]
) -> None:
    """Raise an error that explains where image captions may be stored."""
    stems = {PurePosixPath(file).stem for file in pictures}
    by_name = [file for file in files if PurePosixPath(file).stem in stems]
    texts = _ending_in(by_name, *TEXT_ENDINGS)
    tables = _ending_in(sorted(set(files).difference(by_name)), *TABLES)
    facts = _ending_in(by_name, ".json")
    remedy = "expected a .txt with the same name next to each image, or a table"
    if texts:
        remedy = f"there are text files in another folder, such as {texts[0]}; move each of them"
        remedy += " next to its image"
    elif tables:
        remedy = f"pass the table with the captions, such as {folder / tables[0]}"
    elif facts:
        remedy = f"{remedy}; captions are not read from {facts[0]}; set img2dataset's caption"
        remedy += " column (--caption_col), so that it writes a .txt for each image"
    raise InvalidInputError(
        f"{folder}: got {len(pictures)} images without captions; {remedy}, or set `label` and"
        " `caption_template` to write captions from a column"
    )


def _refuse_parquet_of_urls(path: Path, image: str | None) -> None:
    """Raise an error if a parquet file contains URLs instead of images, or cannot be read."""
    try:
        names = need("pyarrow.parquet").read_schema(path).names
    except (OSError, ValueError) as error:  # pyarrow's errors subclass ValueError
        raise InvalidInputError(f"{path}: cannot be read as parquet: {error}") from None
    if image is not None and find_column(names, image) is None:
        raise InvalidInputError(
            f"{path}: no column {image!r}; the columns are {shown(names)}; {_SET_IMAGE}"
        )
    if image is None and not fitting_columns(names, IMAGE_COLUMNS):
        url = fitting_columns(names, URL_COLUMNS)
        if url:
            caption = fitting_columns(names, CAPTION_COLUMNS) or ["caption"]
            raise InvalidInputError(_fetch_first(path, "parquet", url[0], caption[0]))


def is_coco(path: Path, encoding: str | None) -> bool:
    """Return True if a file is a JSON object with the keys of COCO captions.

    Args:
        path: path of the file.
        encoding: file encoding. If None, it is detected.

    Raises:
        InvalidInputError: If the object contains neither COCO captions nor rows.
    """
    if path.suffix.lower() != ".json":
        return False
    refuse_lfs_pointer(path)
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if json_form(decoded_head(head, str(path), encoding)) != "object":
        return False
    # Searching 90 MB for the keys is much faster than parsing the file.
    content = path.read_bytes()
    missing = [key for key in _COCO_KEYS if f'"{key}"'.encode() not in content]
    if not missing:
        return True
    if "images" not in missing and "annotations" not in missing:
        raise InvalidInputError(
            f"{path}: expected COCO's captions_*.json, got annotations without"
            f" {', '.join(missing)} (instances_*.json has no captions)"
        )
    try:
        read_rows(decoded(content, str(path), encoding), ".json", str(path))
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{error}. It is not COCO's captions_*.json either, because it has no"
            f" {', '.join(missing)} (instances_*.json has no captions)"
        ) from None
    return False


def _refuse_compressed_tar(path: Path) -> None:
    """Reject a compressed tar, because images are accessed by offset."""
    with path.open("rb") as file:
        start = file.read(6)
    command_of_magic = {
        b"\x1f\x8b": "gunzip",
        b"BZh": "bunzip2",
        b"\xfd7zXZ": "unxz",
        b"\x28\xb5\x2f\xfd": "unzstd",
    }
    for magic, command in command_of_magic.items():
        if start.startswith(magic):
            raise InvalidInputError(
                f"{path}: expected an uncompressed tar, in which images can be read by their"
                f" offset; decompress it ({command} < {path} > plain.tar)"
            )


def decoded_head(content: bytes, source: str, encoding: str | None) -> str:
    """Decode the beginning of a text file, dropping an incomplete final character.

    Args:
        content: the first bytes of the file.
        source: the file named in messages.
        encoding: file encoding. If None, it is detected.
    """
    # An incomplete UTF-8 character has at most three bytes.
    if encoding is None:
        for cut in range(4):
            try:
                return content[: len(content) - cut].decode("utf-8-sig")
            except UnicodeDecodeError:
                continue
    if len(content) % 2:
        content = content[:-1]
    return decoded(content, source, encoding)


def find_captions(names: Sequence[str], place: str) -> str | None:
    """Return the column or field with captions, also inside a field "json", or None.

    Args:
        names: column names. A value inside a JSON field has a name such as "json.caption".
        place: data name for messages.

    Raises:
        InvalidInputError: If several columns are possible.
    """
    fitting = fitting_columns(names, CAPTION_COLUMNS)
    if len(fitting) > 1:
        raise InvalidInputError(
            f"{place}: captions may be in any of {fitting}; choose one with --caption-column"
            " (in Python caption=...)"
        )
    inside = [f"{field}.{key}" for field in ("json", "jsn") for key in CAPTION_COLUMNS]
    return next((name for name in (*fitting, *inside) if name in names), None)


def _missing_header(path: Path, first_line: Sequence[str], form: str) -> tuple[str, ...]:
    """Return column names for a table without a header; () if it has one.

    Raises:
        InvalidInputError: If the first line contains a URL.
    """
    urls = [cell for cell in first_line if _URL.fullmatch(cell.strip())]
    show_picture = [
        cell not in urls and is_picture(without_number(cell.strip())) for cell in first_line
    ]
    if urls:
        # Name each column once: the address, the file if there is one, and the longest text.
        columns = [f"column{number}" for number in range(1, len(first_line) + 1)]
        places = {first_line.index(urls[0]): "url"}
        if True in show_picture:
            places[show_picture.index(True)] = "image"
        texts = [place for place in range(len(first_line)) if place not in places]
        if texts:
            places[max(texts, key=lambda place: len(first_line[place].split()))] = "caption"
        for place, name in places.items():
            columns[place] = name
        if True not in show_picture:
            raise InvalidInputError(_fetch_first(path, form, "url", "caption", columns))
        raise InvalidInputError(
            f"{path}: the first line has data instead of names for its {len(columns)} columns;"
            f" {_name_columns(path, form, columns)}"
        )
    if show_picture == [True, False]:
        return "image", "caption"
    if show_picture == [False, True]:
        return "caption", "image"
    return ()


def without_number(cell: str) -> str:
    """Strip the caption number from a path, as in Flickr8k's "1000268201.jpg#0"."""
    return re.sub(r"#\d+$", "", cell)


def _first_rows(
    path: Path, separator: str | None, encoding: str | None
) -> tuple[list[str], list[Row], bool]:
    """Return a table's columns, its first rows, and whether these are all of its rows."""
    refuse_lfs_pointer(path)
    with path.open("rb") as file:
        content = file.read(_HEAD)
    is_complete = len(content) < _HEAD
    head = decoded if is_complete else decoded_head
    text = head(content, str(path), encoding)
    if not text.strip():
        raise InvalidInputError(f"{path}: the file is empty; expected a row for each image")
    ending = path.suffix.lower()
    if ending in JSON_ENDINGS and is_json_document(text, ending):
        text = decoded(path.read_bytes(), str(path), encoding)
    elif not is_complete:
        text = text[: text.rfind("\n") + 1]
    names, rows, _ = read_rows(text, ending, str(path), separator=separator)
    return names, rows, is_complete


def _column(
    path: Path,
    names: Sequence[str],
    name: str | None,
    known: Sequence[str],
    content: str,
    remedy: str,
    form: str,
) -> str:
    """Return the given column, or the only column with a known name.

    Raises:
        InvalidInputError: If there is no such column, or several are possible.
    """
    if name is not None:
        found = find_column(names, name)
        if found is None:
            raise InvalidInputError(
                f"{path}: no column {name!r} for {content}; the columns are {shown(list(names))};"
                f" {remedy}{hint_of_header(names)}"
            )
        return found
    fitting = fitting_columns(names, known)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InvalidInputError(
            f"{path}: {content} may be in any of the columns {fitting}; {remedy}"
        )
    url = fitting_columns(names, URL_COLUMNS)
    if url and content == "images":
        caption = fitting_columns(names, CAPTION_COLUMNS) or ["caption"]
        raise InvalidInputError(_fetch_first(path, form, url[0], caption[0]))
    hint = hint_of_header(names)
    if not hint and len(names) == 1 and form in ("csv", "tsv", "txt"):
        hint = "; if this is more than one column, pass --set separator=semicolon"
    raise InvalidInputError(
        f"{path}: no column for {content}; expected one of {', '.join(known)}; the columns are"
        f" {shown(list(names))}; {remedy}{hint}"
    )


def same_column(place: str, image: str, names: Sequence[str]) -> str:
    """Return the error for a column that is used for both the images and the captions.

    Args:
        place: where the column is, such as the path of the table.
        image: name of the column.
        names: names of all columns.
    """
    return (
        f"{place}: column {shown(image)} cannot contain both the images and the captions; the"
        f" columns are {shown(list(names))}; set --image-column and --caption-column"
    )


def _fetch_first(path: Path, form: str, url: str, caption: str, columns: Sequence[str] = ()) -> str:
    """Return the error for a table of URLs, with a command that downloads the images.

    Args:
        path: path of the table.
        form: format of the table, such as "csv".
        url: name of the column with image URLs.
        caption: name of the caption column.
        columns: column names of a table without a header line.
    """
    form = {"txt": "tsv", "ndjson": "jsonl"}.get(form, form)
    header = ""
    if columns:
        header = f" {_name_columns(path, form, columns)}, and"
    return (
        f"{path}: expected images, got URLs;{header} download the images with img2dataset"
        f" --url_list {path} --input_format {form} --url_col {url} --caption_col {caption}"
        " --output_format webdataset --output_folder images, then pass them: --data 'images/*.tar'"
    )


def _name_columns(path: Path, form: str, columns: Sequence[str]) -> str:
    """Return advice to add a first line with the names of the columns."""
    names = ("\\t" if form in ("tsv", "txt") else ",").join(columns)
    return f"add a first line with column names (sed -i '1i {names}' {path})"


def refuse_unreachable(name: str) -> None:
    """Reject a name that is neither a path nor cached if the hub cannot be reached.

    `load_dataset` would fail too, but only after importing `datasets` and torch.

    Raises:
        InvalidInputError: If the name is neither a path nor cached, and the hub cannot be reached.
    """
    if Path(name).exists() or _may_be_cached(name):
        return
    from vldebias.projection.hub import offline_reason

    with offline_reason() as why_offline:
        if why_offline:
            raise cannot_open(name, f"there is no such file or folder, and {why_offline}")


def _may_be_cached(name: str) -> bool:
    """Return True if a cache contains a data set, ignoring case and separators in its name."""
    from huggingface_hub import constants

    def letters(text: str) -> str:
        return re.sub(r"[\W_]", "", text).casefold()

    datasets_cache = os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME, "datasets")
    ending = letters(name.rpartition("/")[2])
    caches = filter(Path.is_dir, (Path(datasets_cache), Path(constants.HF_HUB_CACHE)))
    names = [path.name for cache in caches for path in cache.iterdir()]
    return any(letters(name).endswith(ending) for name in names)


def cannot_open(root: str | Path, trouble: str) -> InvalidInputError:
    """Return the error for a data set that cannot be opened.

    Args:
        root: data set, as passed by the user.
        trouble: why it cannot be opened.
    """
    return InvalidInputError(f"{root}: cannot be opened: {trouble}. Expected {LAYOUT}")
