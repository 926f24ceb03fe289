"""Write captions, labels and prompts in the formats of other tools. Each function returns the path
to pass."""

import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from data_parts import as_bytes, picture
from pyarrow import parquet

CAPTIONS = ("a nurse, tired", "two pilots", "a judge in court", "an old farmer")
N = len(CAPTIONS)


def jpeg(number: int) -> bytes:
    return as_bytes(picture(number), "JPEG")


def images(folder: Path, ending: str = ".jpg", names: Sequence[str] = ()) -> list[str]:
    """Write the images and return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = names or [f"{number}{ending}" for number in range(N)]
    for number, name in enumerate(names):
        (folder / name).write_bytes(jpeg(number))
    return list(names)


def cell(text: str, separator: str) -> str:
    return f'"{text}"' if separator in text else text


def table(
    root: Path,
    name: str,
    head: tuple[str, str] | None,
    separator: str = ",",
    encoding: str = "utf-8",
    captions: Sequence[str] = CAPTIONS,
) -> Path:
    """Write a table with two columns, and images in img/ next to it."""
    files = images(root / "img")
    rows = [head] if head else []
    rows += [(f"img/{file}", text) for file, text in zip(files, captions, strict=True)]
    lines = [separator.join(cell(text, separator) for text in row) for row in rows]
    (root / name).write_bytes("\n".join([*lines, ""]).encode(encoding))
    return root / name


def open_clip(root: Path) -> Path:
    """Write open_clip's default format: a tab-separated .csv with filepath and title."""
    return table(root, "train.csv", ("filepath", "title"), "\t")


def open_clip_comma(root: Path) -> Path:
    return table(root, "train.csv", ("filepath", "title"))


def semicolon_of_windows(root: Path) -> Path:
    return table(root, "pairs.csv", ("image_path", "text"), ";", "utf-8-sig")


def pipe_in_text(root: Path) -> Path:
    return table(root, "pairs.txt", ("img", "sentence"), "|")


def utf16_of_excel(root: Path) -> Path:
    return table(root, "pairs.csv", ("file_name", "description"), "\t", "utf-16")


def json_lines(root: Path) -> Path:
    files = images(root / "img")
    rows = [{"file": f"img/{f}", "captions": [t]} for f, t in zip(files, CAPTIONS, strict=True)]
    (root / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root / "pairs.jsonl"


def json_array(root: Path) -> Path:
    files = images(root / "img")
    rows = [{"path": f"img/{f}", "alt": t} for f, t in zip(files, CAPTIONS, strict=True)]
    (root / "pairs.json").write_text(json.dumps(rows))
    return root / "pairs.json"


def parquet_of_paths(root: Path) -> Path:
    files = images(root / "img")
    columns = {"filepath": [f"img/{file}" for file in files], "title": list(CAPTIONS)}
    parquet.write_table(pa.table(columns), root / "pairs.parquet")
    return root / "pairs.parquet"


def flickr8k(root: Path) -> Path:
    """Write Flickr8k as published on Kaggle: captions.txt next to Images/, with several rows per
    image (here two)."""
    files = images(root / "Images")
    rows = ["image,caption"]
    for file, text in zip(files, CAPTIONS, strict=True):
        rows += [f"{file},{cell(text, ',')}", f"{file},{text.split(',')[0]} again"]
    (root / "captions.txt").write_text("\n".join(rows) + "\n")
    return root / "captions.txt"


def flickr8k_token(root: Path) -> Path:
    """Write the released file: no column names, and caption numbers after the file names."""
    files = images(root / "Flicker8k_Dataset")
    rows = [f"{f}#{k}\t{t}" for f, t in zip(files, CAPTIONS, strict=True) for k in range(2)]
    (root / "Flickr8k.token.txt").write_text("\n".join(rows) + "\n")
    return root / "Flickr8k.token.txt"


def flickr30k(root: Path) -> Path:
    """Write Flickr30k as published on Kaggle: results.csv with pipes, next to flickr30k_images/."""
    files = images(root / "flickr30k_images")
    rows = ["image_name| comment_number| comment"]
    for file, text in zip(files, CAPTIONS, strict=True):
        rows += [f"{file}| 0| {text}", f'{file}| 1| "Quoted" {text}']
    (root / "results.csv").write_text("\n".join(rows) + "\n")
    return root / "results.csv"


def coco(root: Path) -> Path:
    """Write annotations/captions_train2017.json next to train2017/."""
    files = images(root / "train2017", names=[f"{n:012d}.jpg" for n in range(N)])
    annotated = {
        "info": {},
        "images": [{"id": 10 + n, "file_name": file} for n, file in enumerate(files)],
        "annotations": [
            {"id": n, "image_id": 10 + n, "caption": text} for n, text in enumerate(CAPTIONS)
        ],
    }
    (root / "annotations").mkdir(parents=True)
    (root / "annotations/captions_train2017.json").write_text(json.dumps(annotated))
    return root / "annotations/captions_train2017.json"


def texts_beside(root: Path) -> Path:
    """Write an image folder with a .txt file next to each image, as for kohya's sd-scripts and
    other trainers."""
    for number, file in enumerate(images(root / "own")):
        (root / "own" / file).with_suffix(".txt").write_text(CAPTIONS[number])
    return root / "own"


def img2dataset_row(number: int) -> dict[str, object]:
    return {"key": f"{number:09d}", "caption": CAPTIONS[number], "url": "u", "status": "success"}


def img2dataset_sides(root: Path) -> None:
    """Write the table and the statistics that img2dataset puts next to each shard."""
    rows = [img2dataset_row(number) for number in range(N)]
    parquet.write_table(pa.Table.from_pylist(rows), root / "00000.parquet")
    (root / "00000_stats.json").write_text('{"count": 4, "successes": 4}')


def img2dataset_files(root: Path) -> Path:
    """Write the output of `--output_format files`: jpg, txt and json in numbered folders."""
    folder = root / "images/00000"
    images(folder, names=[f"{number:09d}.jpg" for number in range(N)])
    for number, text in enumerate(CAPTIONS):
        (folder / f"{number:09d}.txt").write_text(text)
        (folder / f"{number:09d}.json").write_text(json.dumps(img2dataset_row(number)))
    img2dataset_sides(root / "images")
    return root / "images"


def write_tar(path: Path, files: Sequence[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def members(number: int, name: str = "{:09d}") -> list[tuple[str, bytes]]:
    key = name.format(number)
    facts = json.dumps(img2dataset_row(number)).encode()
    text = CAPTIONS[number].encode()
    return [(f"{key}.jpg", jpeg(number)), (f"{key}.json", facts), (f"{key}.txt", text)]


def img2dataset_webdataset(root: Path) -> Path:
    """Write the output of `--output_format webdataset`: tars with tables and statistics."""
    for shard, numbers in enumerate(((0, 1), (2, 3))):
        files = [file for number in numbers for file in members(number)]
        write_tar(root / f"images/{shard:05d}.tar", files)
    img2dataset_sides(root / "images")
    return root / "images"


def brace_pattern(root: Path) -> Path:
    return img2dataset_webdataset(root) / "{00000..00001}.tar"


def names_with_dots(root: Path) -> Path:
    files = [file for number in range(N) for file in members(number, "v1.{}_x")]
    return write_tar(root / "dots.tar", files)


def img2dataset_parquet(root: Path) -> Path:
    """Write the output of `--output_format parquet`: images in a column."""
    (root / "images").mkdir(parents=True)
    rows = [{**img2dataset_row(number), "jpg": jpeg(number)} for number in range(N)]
    parquet.write_table(pa.Table.from_pylist(rows), root / "images/00000.parquet")
    (root / "images/00000_stats.json").write_text('{"count": 4, "successes": 4}')
    return root / "images"


FORMS: Mapping[str, Callable[[Path], Path]] = {
    function.__name__: function
    for function in (
        open_clip,
        open_clip_comma,
        semicolon_of_windows,
        pipe_in_text,
        utf16_of_excel,
        json_lines,
        json_array,
        parquet_of_paths,
        flickr8k,
        flickr8k_token,
        flickr30k,
        coco,
        texts_beside,
        img2dataset_files,
        img2dataset_webdataset,
        brace_pattern,
        names_with_dots,
        img2dataset_parquet,
    )
}
"""Every caption format that is read without settings."""


def prompt_lines(root: Path) -> Path:
    (root / "prompts.txt").write_text("\n".join(CAPTIONS))
    return root / "prompts.txt"


def wildcards(root: Path) -> Path:
    (root / "people.txt").write_text("\n".join(["# people", *CAPTIONS, "#1 fan"][:-1]))
    return root / "people.txt"


def prompt_table(root: Path) -> Path:
    rows = [f"{number},{cell(text, ',')}" for number, text in enumerate(CAPTIONS)]
    (root / "prompts.csv").write_text("\n".join(["id,prompt", *rows]))
    return root / "prompts.csv"


def prompt_tabs(root: Path) -> Path:
    rows = [f"{number}\t{text}" for number, text in enumerate(CAPTIONS)]
    (root / "prompts.tsv").write_text("\n".join(["id\ttext", *rows]))
    return root / "prompts.tsv"


def prompt_objects(root: Path) -> Path:
    lines = [json.dumps({"prompt": text}) for text in CAPTIONS]
    (root / "prompts.jsonl").write_text("\n".join(lines))
    return root / "prompts.jsonl"


def prompt_array(root: Path) -> Path:
    (root / "prompts.json").write_text(json.dumps(CAPTIONS))
    return root / "prompts.json"


def prompt_parquet(root: Path) -> Path:
    parquet.write_table(pa.table({"prompt": list(CAPTIONS)}), root / "prompts.parquet")
    return root / "prompts.parquet"


PROMPTS: Mapping[str, Callable[[Path], Path]] = {
    function.__name__: function
    for function in (
        prompt_lines,
        wildcards,
        prompt_table,
        prompt_tabs,
        prompt_objects,
        prompt_array,
        prompt_parquet,
    )
}
"""Every prompt format."""
