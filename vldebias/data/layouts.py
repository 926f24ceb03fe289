"""Recognise the format of images with captions: a table, a folder of images and texts, tars, COCO,
or what `datasets` opens.

Nothing here imports torch or datasets, so that a wrong column, separator or folder is reported at
once; only parquet needs pyarrow.
"""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vldebias.data.folders import (
    TEXT_ENDINGS,
    captions_beside,
    files_below,
    folder_of_images,
    is_outside,
    is_picture,
)
from vldebias.errors import InvalidInputError, did_you_mean, need
from vldebias.utils.json_tables import (
    Row,
    column_around,
    flat_rows,
    is_json_document,
    names_of,
    rows_of_json,
    rows_of_lines,
)
from vldebias.utils.text_tables import OTHER_FORMS, decoded, json_form, split_rows

TABLES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json")
PARQUET = (".parquet", ".arrow")
# Columns as tools call them; the first of each is the name in our own tables.
IMAGE_COLUMNS = (
    *("image", "image_path", "img_path", "img", "path", "file_path", "filepath", "file"),
    *("file_name", "filename", "image_file", "image_name", "image_filename"),
)
CAPTION_COLUMNS = (
    *("caption", "captions", "text", "txt", "title", "sentence", "sentences", "description"),
    *("alt", "alt_text", "comment"),
)
_URL_COLUMNS = ("url", "image_url", "img_url", "urls")
_URL = re.compile(r"https?://\S+", re.IGNORECASE)
_COCO_KEYS = ("images", "annotations", "file_name", "image_id", "caption")
_HEAD = 1 << 22  # bytes of a table that are looked at before anything is imported
_NAMED_BY = "name it with --image-column (open_clip: --csv-img-key; in Python image=...)"
_CAPTION_NAMED_BY = (
    "name it with --caption-column (open_clip: --csv-caption-key; in Python caption=...)"
)


@dataclass(frozen=True)
class Layout:
    """Describe the format of a data set with captions.

    kind: "table", "coco", "pairs" (images with a text file beside each), "tars", or "datasets"
    (what that library opens).
    files: the files; of pairs the paths of the images below the root.
    image, caption: columns of a table, None where it has none. header: the names of its columns
    where the file does not have them. images: the paths in its first rows; is_whole: these are all.
    """

    kind: str
    files: tuple[str, ...] = ()
    image: str | None = None
    caption: str | None = None
    header: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    is_whole: bool = False


def expanded(root: str | Path) -> list[str]:
    """Return the patterns that braces stand for, as webdataset and open_clip write them:
    "shard-{0000..0012}.tar", "{train,val}.tar" and "a-{0..9}.tar::b-{0..9}.tar"; a name without
    braces is itself."""
    text = str(root)
    if Path(text).exists():
        return [text]
    if "::" in text:
        return list(itertools.chain.from_iterable(map(expanded, text.split("::"))))
    ranges = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", text)
    if not ranges:
        return [text]
    first, last, listed = ranges.groups()
    if listed is not None:
        options = listed.split(",")
    else:
        numbers = range(int(first), int(last) + 1)
        options = [str(number).zfill(len(first)) for number in numbers]
    before = text[: ranges.start()]
    behind = text[ranges.end() :]
    return list(itertools.chain.from_iterable(expanded(before + part + behind) for part in options))


def find_layout(
    root: str | Path,
    *,
    image: str | None = None,
    caption: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    reads_captions: bool = True,
) -> Layout:
    """Return the format of a data set with captions.

    Args:
        root: a file, a folder, a pattern with * or braces, or an id of the hub.
        image: column of the images, as the user names it; None: found by its name.
        caption: column of the captions, as the user names it; None: found by its name.
        separator: between the cells of a table, as the user names it; None: found.
        encoding: of a table, as the user names it; None: found.
        reads_captions: whether captions are wanted, or images alone.

    Raises:
        InvalidInputError: files that are not there, an empty file, no such column, several that
            may be meant, a list of URLs; the message says what to do.
    """
    if not str(root).strip():
        raise InvalidInputError(
            f"data: expected a file, a folder or an id of the hub, got {str(root)!r}"
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
    if path.suffix.lower() in TABLES and not is_coco(path, encoding):
        return _layout_of_table(
            path, image, caption, separator, encoding, reads_captions=reads_captions
        )
    return _layout_of_file(path, image)


def _layout_of_file(path: Path, image: str | None) -> Layout:
    """Return the layout of a file that is no table, by its ending; what `datasets` opens it finds
    by its name."""
    ending = path.suffix.lower()
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
            f"{path}: got {form} that ends in {ending or 'nothing'}; expected a table"
            f" ({', '.join(TABLES)}), .parquet, .tar or a folder: save or unpack it as one of these"
        )
    return Layout("datasets")


def refuse_absent_images(
    layout: Layout, *, images: str | Path | None = None, allow_outside: bool = False
) -> None:
    """Refuse a table whose images are not there, by its first rows.

    Args:
        layout: of `find_layout`; others than tables are not looked at.
        images: folder that paths start from; None: found.
        allow_outside: take absolute paths and paths with "..".

    Raises:
        InvalidInputError: paths that lead out of the folder, or none of the images is there.
    """
    if layout.kind != "table":
        return
    path = Path(layout.files[0])
    outside = [file for file in layout.images if is_outside(file)]
    if outside and not allow_outside:
        raise InvalidInputError(
            f"{path}: {len(outside)} of its first {len(layout.images)} paths lead out of"
            f" {images or path.parent} or are no local files, such as {outside[0]!r}; write them"
            " from the folder of the table or --image-root, or trust the table: --set"
            " allow_outside=true (in Python allow_outside=True)"
        )
    # The first rows of a large table may be the only ones without images.
    if images is None and layout.is_whole:
        folder_of_images(path, layout.images)


def _refuse_absent(root: str | Path, ending: str) -> None:
    """Refuse a path that is not there; a name such as "nlphuji/flickr30k" may be one of the hub."""
    text = str(root)
    if _URL.fullmatch(text):
        raise InvalidInputError(
            f"{root}: is a URL, and nothing is downloaded here; download it and name the file"
        )
    looks_like_path = (
        ending in (*TABLES, *PARQUET, ".tar")
        or text.startswith(("/", ".", "~"))
        or text.count("/") > 1
        or "\\" in text
    )
    if looks_like_path:
        parent = Path(root).expanduser().parent
        names = [path.name for path in parent.iterdir()] if parent.is_dir() else []
        hint = did_you_mean(Path(root).name, names, "check the path.")
        raise InvalidInputError(
            f"{root}: there is no such file or folder; expected captions with images; {hint}"
        )


def _layout_of_pattern(root: str | Path, patterns: Sequence[str]) -> Layout:
    """Return the layout of the files that patterns name; each of several must name one."""
    files: list[str] = []
    missing = []
    for pattern in patterns:
        matches = sorted(glob.glob(str(Path(pattern).expanduser()), recursive=True))
        if not matches:
            missing.append(pattern)
        files += matches
    if missing:
        raise InvalidInputError(
            f"{root}: {len(missing)} of {len(patterns)} names find no file, such as"
            f" {missing[0]!r}; check the pattern"
        )
    if all(file.lower().endswith(".tar") for file in files):
        for file in files:
            _refuse_compressed_tar(Path(file))
        return Layout("tars", tuple(files))
    return Layout("datasets")


def _layout_of_folder(folder: Path, reads_captions: bool) -> Layout:
    """Return the layout of a folder."""
    files, _ = files_below(folder)
    if not files:
        raise InvalidInputError(
            f"{folder}: the folder has no files; expected images and captions, or tars"
        )
    tars = _ending_in(files, ".tar")
    if tars:
        for tar in tars:
            _refuse_compressed_tar(folder / tar)
        return Layout("tars", _below(folder, tars))
    metadata = _fitting_files(files, r"(.*/)?metadata\.(csv|jsonl|parquet)")
    parquet = _ending_in(files, ".parquet")
    pictures = list(filter(is_picture, files))
    for table in metadata:
        _refuse_metadata_of_others(folder / table, pictures)
    if metadata or not pictures:
        if reads_captions and parquet and not metadata:
            _refuse_parquet_of_urls(folder / parquet[0], None)
            # img2dataset writes statistics beside, which are no rows.
            if _fitting_files(files, r".*_stats\.json"):
                return Layout("datasets", _below(folder, parquet))
        return Layout("datasets")
    coco = _fitting_files(files, r"(.*/)?captions_[^/]*\.json")
    if coco:
        return Layout("coco", _below(folder, coco))
    if captions_beside(files):
        return Layout("pairs", tuple(files))
    # A folder of classes is what `datasets` reads; its captions come from a template.
    if reads_captions:
        _refuse_pictures_without_captions(folder, files, pictures)
    return Layout("datasets")


def _refuse_metadata_of_others(table: Path, pictures: Sequence[str]) -> None:
    """Refuse a metadata.csv or metadata.jsonl none of whose names is a file of its folder.

    `datasets` would return rows whose pictures cannot be read.
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
            f"{table}: none of the {len(listed):,} files that it names is in {table.parent}, the"
            f" first is {listed[0]!r}; expected names such as {pictures[0]!r}; correct the column"
            " 'file_name'"
        )


def _fitting_files(files: Sequence[str], pattern: str) -> list[str]:
    """Return the files whose whole path fits a pattern."""
    return [file for file in files if re.fullmatch(pattern, file, re.DOTALL)]


def _ending_in(files: Sequence[str], *endings: str) -> list[str]:
    """Return the files with one of these endings, also in capitals."""
    return [file for file in files if file.lower().endswith(endings)]


def _below(folder: Path, files: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of files of a folder."""
    return tuple(str(folder / file) for file in files)


def _refuse_pictures_without_captions(
    folder: Path, files: Sequence[str], pictures: Sequence[str]
) -> None:
    """Raise InvalidInputError, which says where the captions of the pictures may be."""
    stems = {PurePosixPath(file).stem for file in pictures}
    by_name: list[str] = []
    other_files: list[str] = []
    for file in files:
        named_files = by_name if PurePosixPath(file).stem in stems else other_files
        named_files.append(file)
    texts = _ending_in(by_name, *TEXT_ENDINGS)
    tables = _ending_in(other_files, *TABLES)
    facts = _ending_in(by_name, ".json")
    remedy = "expected a .txt of the same name beside each image, or a table"
    if texts:
        remedy = f"texts of their names are in another folder, such as {texts[0]}: put each"
        remedy += " beside its image"
    elif tables:
        remedy = f"name the table that has them, such as --data {folder / tables[0]}"
    elif facts:
        remedy = f"{remedy}; {facts[0]} is not read for captions: give img2dataset the column of"
        remedy += " the captions (--caption_col), and it writes a .txt for each image"
    raise InvalidInputError(
        f"{folder}: got {len(pictures)} images without captions; {remedy}; or make captions from a"
        " label (label, caption_template)"
    )


def _refuse_parquet_of_urls(path: Path, image: str | None) -> None:
    """Refuse a parquet file that has URLs and no images, or that cannot be read."""
    try:
        names = need("pyarrow.parquet").read_schema(path).names
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise InvalidInputError(f"{path}: cannot be read as parquet: {error}") from None
    if image is not None and image not in names and column_around(names, image) is None:
        raise InvalidInputError(f"{path}: no column {image!r}; there are {names}; {_NAMED_BY}")
    known = (*IMAGE_COLUMNS, "jpg", "jpeg", "png", "webp")
    if image is None and not fitting_columns(names, known):
        url = fitting_columns(names, _URL_COLUMNS)
        if url:
            caption = fitting_columns(names, CAPTION_COLUMNS) or ["caption"]
            raise InvalidInputError(_fetch_first(path, "parquet", url[0], caption[0]))


def is_coco(path: Path, encoding: str | None) -> bool:
    """Tell whether a file is COCO's captions: one JSON object with their keys.

    Args:
        path: the file.
        encoding: as the user names it; None: found.

    Raises:
        InvalidInputError: the object is neither that nor rows in another form.
    """
    if path.suffix.lower() != ".json":
        return False
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if json_form(decoded_head(head, path, encoding)) != "object":
        return False
    # 90 million bytes are searched at once, and parsed later.
    content = path.read_bytes()
    missing = [key for key in _COCO_KEYS if f'"{key}"'.encode() not in content]
    if not missing:
        return True
    if "images" not in missing and "annotations" not in missing:
        raise InvalidInputError(
            f"{path}: looks like COCO's annotations, without {', '.join(missing)}; expected its"
            " captions_*.json (instances_*.json has no captions)"
        )
    try:
        rows_of_json(decoded(content, str(path), encoding), str(path))
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{error}. It is not COCO's captions_*.json either, since it lacks"
            f" {', '.join(missing)} (instances_*.json has no captions)"
        ) from None
    return False


def _refuse_compressed_tar(path: Path) -> None:
    """Refuse a tar that is compressed: images are read where they stand in the file."""
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
                f"{path}: is compressed; expected a plain tar, of which images are read where they"
                f" stand: decompress it ({command} < {path} > plain.tar)"
            )


def decoded_head(content: bytes, path: Path, encoding: str | None) -> str:
    """Decode the beginning of a text file, without a character that is cut off at its end.

    Args:
        content: the first bytes of the file.
        path: of the file, for messages.
        encoding: as the user names it; None: found.
    """
    # At most three bytes of a character of UTF-8 are left at the end.
    if encoding is None:
        for cut in range(4):
            try:
                return content[: len(content) - cut].decode("utf-8-sig")
            except UnicodeDecodeError:
                continue
    if len(content) % 2:
        content = content[:-1]
    return decoded(content, str(path), encoding)


def _layout_of_table(
    path: Path,
    image: str | None,
    caption: str | None,
    separator: str | None,
    encoding: str | None,
    *,
    reads_captions: bool,
) -> Layout:
    """Return the columns of a table by its first rows."""
    names, first, is_whole = _first_rows(path, separator, encoding)
    header: tuple[str, ...] = ()
    form = path.suffix.lower().removeprefix(".")
    if image is None and caption is None and not fitting_columns(names, IMAGE_COLUMNS):
        header = _missing_header(path, names, form)
    if header:
        first = [dict(zip(header, row.values(), strict=True)) for row in first]
        names = list(header)
    image = _column(path, names, image, IMAGE_COLUMNS, "images", _NAMED_BY, form)
    cells = [str(row.get(image) or "") for row in first]
    if any(_URL.fullmatch(cell.strip()) for cell in cells[:50]):
        captions = fitting_columns(names, CAPTION_COLUMNS) or ["caption"]
        raise InvalidInputError(_fetch_first(path, form, image, captions[0]))
    if reads_captions:
        caption = _column(
            path, names, caption, CAPTION_COLUMNS, "captions", _CAPTION_NAMED_BY, form
        )
    paths = tuple(map(without_number, cells))
    used_caption = caption if reads_captions else None
    return Layout("table", (str(path),), image, used_caption, header, paths, is_whole)


def _missing_header(path: Path, first_line: Sequence[str], form: str) -> tuple[str, ...]:
    """Return the names of the two columns of a table without them, whose first line shows a
    picture; () where it shows none.

    Raises:
        InvalidInputError: the first line shows a URL.
    """
    urls = [cell for cell in first_line if _URL.fullmatch(cell.strip())]
    if urls:
        columns = ["caption"] * len(first_line)
        columns[first_line.index(urls[0])] = "url"
        raise InvalidInputError(_fetch_first(path, form, "url", "caption", columns))
    show_picture = [is_picture(without_number(cell.strip())) for cell in first_line]
    if show_picture == [True, False]:
        return "image", "caption"
    if show_picture == [False, True]:
        return "caption", "image"
    return ()


def without_number(cell: str) -> str:
    """Return the path in a cell without the number of its caption, as Flickr8k and Flickr30k have
    it: "1000268201.jpg#0"."""
    return re.sub(r"#\d+$", "", cell)


def check_columns(path: Path, columns: Iterable[str | None]) -> None:
    """Refuse a table that lacks one of some columns, by its first rows; a pattern is not looked at.

    Args:
        path: the table, or a pattern of tables.
        columns: names that are needed; None is skipped.

    Raises:
        InvalidInputError: no such column, or no table.
    """
    if path.suffix.lower() == ".parquet" or not path.is_file():
        return
    if path.suffix.lower() not in TABLES:
        raise InvalidInputError(
            f"{path}: expected a table that ends in {', '.join(TABLES)} or .parquet"
        )
    names, _, _ = _first_rows(path, None, None)
    plain = {_plain(name) for name in names}
    # Columns of nested objects have a dot: "labels.gender". The object of another row may have
    # parts that the first rows lack.
    objects = {name.partition(".")[0] for name in plain}
    for column in columns:
        if column is not None and _plain(column.partition(".")[0]) not in plain | objects:
            raise InvalidInputError(f"{path}: expected a column {column!r}; there are {names}")


def _first_rows(
    path: Path, separator: str | None, encoding: str | None
) -> tuple[list[str], list[Row], bool]:
    """Return the names of the columns of a table, its first rows, and whether these are all."""
    with path.open("rb") as file:
        content = file.read(_HEAD)
    is_whole = len(content) < _HEAD
    text = decoded(content, str(path), encoding)
    if not text.strip():
        raise InvalidInputError(f"{path}: the file is empty; expected a row for each image")
    if path.suffix.lower() in (".json", ".jsonl", ".ndjson"):
        if is_json_document(text, path.suffix):
            document = decoded(path.read_bytes(), str(path), encoding)
            rows = rows_of_json(document, str(path))
        else:
            lines = text.split("\n")
            rows, _ = rows_of_lines(lines if is_whole else lines[:-1], str(path))
        rows = flat_rows(rows, str(path))
        return names_of(rows), rows, is_whole
    if not is_whole:
        text = text[: text.rfind("\n") + 1]
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    names, *cells = split_rows(text, str(path), separator=separator, usual=usual)
    return names, [dict(zip(names, row, strict=True)) for row in cells], is_whole


def _plain(name: str) -> str:
    """Return the name of a column without case, and with blanks and hyphens as underscores."""
    return re.sub(r"[\s-]+", "_", name.strip()).casefold()


def fitting_columns(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the columns that are called as one of the known ones; the first known name alone where
    a column is called exactly so.

    Args:
        names: columns of the table.
        known: names that such a column may have, the usual one first.
    """
    if known[0] in names:
        return [known[0]]
    return [name for name in names if _plain(name) in known]


def _column(
    path: Path,
    names: Sequence[str],
    name: str | None,
    known: Sequence[str],
    content: str,
    remedy: str,
    form: str,
) -> str:
    """Return the column that a user names, or the only one that is called as such columns are.

    Raises:
        InvalidInputError: none, or several.
    """
    if name is not None:
        fitting = [column for column in names if _plain(column) == _plain(name)]
        if name in names:
            fitting = [name]
        if len(fitting) != 1:
            raise InvalidInputError(
                f"{path}: no column {name!r} of {content}; there are {list(names)}; {remedy}"
            )
        return fitting[0]
    fitting = fitting_columns(names, known)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InvalidInputError(
            f"{path}: {content} may be in any of the columns {fitting}; {remedy}"
        )
    url = fitting_columns(names, _URL_COLUMNS)
    if url and content == "images":
        caption = fitting_columns(names, CAPTION_COLUMNS) or ["caption"]
        raise InvalidInputError(_fetch_first(path, form, url[0], caption[0]))
    hint = ""
    if len(names) == 1 and form in ("csv", "tsv", "txt"):
        hint = "; if these are several columns, say what separates them (--separator)"
    raise InvalidInputError(
        f"{path}: no column of {content}; expected one of {', '.join(known)}; there are"
        f" {list(names)}; {remedy}{hint}"
    )


def _fetch_first(path: Path, form: str, url: str, caption: str, columns: Sequence[str] = ()) -> str:
    """Write that a table has URLs, and the command that fetches their images.

    columns: what the columns are, of a table without their names.
    """
    form = {"txt": "tsv", "ndjson": "jsonl"}.get(form, form)
    header = ""
    if columns:
        names = "\\t".join(columns) if form == "tsv" else ",".join(columns)
        header = f" its first line should name the columns (sed -i '1i {names}' {path});"
    return (
        f"{path}: is a list of URLs, and nothing is downloaded here;{header} fetch the images"
        f" with img2dataset --url_list {path} --input_format {form} --url_col {url} --caption_col"
        f" {caption} --output_format webdataset --output_folder images, then name these:"
        " --data 'images/*.tar'"
    )
