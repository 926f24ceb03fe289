"""Test that captions in all formats are read without settings, or raise helpful errors."""

import json
import os
import tarfile
import warnings
from pathlib import Path
from typing import Any

import brought
import pyarrow as pa
import pytest
from brought import CAPTIONS, FORMS, N
from data_parts import picture, save
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.refusals import refused
from vldebias.data import ImageData, open_data
from vldebias.data.cleaning import clean_captions, cleaned
from vldebias.data.folders import existing_names
from vldebias.data.layouts import expanded, find_layout, refuse_absent_images
from vldebias.errors import InvalidInputError, VldebiasWarning

pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("hf_cache")


def opened(root: Path | str, *split: str, **options: Any) -> tuple[ImageData, list[str]]:
    """Return the data and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", VldebiasWarning)
        data = open_data("captions", root, *split, **options)
    assert isinstance(data, ImageData)
    return data, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("form", FORMS)
def test_every_format_is_read_without_settings(form: str, tmp_path: Path) -> None:
    data, warned = opened(FORMS[form](tmp_path), "train")
    assert data.captions == CAPTIONS
    for number in range(N):
        image = data.read(number)
        assert image.size == picture(number).size
        # The bytes of the image are unchanged.
        assert image.tobytes() == brought_pixels(number)
    for message in warned:
        assert "images were found in" in message or "quotes are not closed" in message


def brought_pixels(number: int) -> bytes:
    from vldebias.utils.pictures import decode

    return decode(brought.jpeg(number)).tobytes()


def test_several_captions_of_an_image_are_merged_into_one_row(tmp_path: Path) -> None:
    data, _ = opened(brought.flickr8k(tmp_path / "8"))
    assert data.more_captions[1] == ("two pilots again",)
    data, _ = opened(brought.flickr30k(tmp_path / "30"))
    assert data.more_captions[1] == ('"Quoted" two pilots',)


def test_the_broken_row_of_flickr30k_is_an_empty_caption(tmp_path: Path) -> None:
    table = brought.flickr30k(tmp_path)
    rows = table.read_text().splitlines()
    # As released: "2199200615.jpg| 4   A dog runs across the grass .". Here, it is among 24
    # complete rows.
    rows += [f"0.jpg| {number}| more {number}" for number in range(2, 18)]
    table.write_text("\n".join([*rows, "2.jpg| 4   A dog runs across the grass ."]))
    data, warned = opened(table)
    assert data.captions == CAPTIONS
    expected = "1 of 25 rows lack their last cell ('comment'), which was read as empty"
    assert f"{expected}; the first is in line 26" in "".join(warned)
    # Several such rows cannot be an accident.
    table.write_text("\n".join([rows[0], *[row for row in rows if "| 0|" in row], "1.jpg| 0 a"]))
    with pytest.raises(InvalidInputError, match="line 6: expected 3 columns, got 2"):
        opened(table)


@pytest.mark.parametrize("form", [brought.coco, brought.texts_beside])
@pytest.mark.parametrize("named", ["labels", "caption", "image"])
def test_column_names_for_formats_without_columns_raise_errors(
    form: Any, named: str, tmp_path: Path
) -> None:
    column = ["gender"] if named == "labels" else "gender"
    message = rf"got {named} .*gender.*(COCO's captions|text files next to them) have no columns"
    with pytest.raises(InvalidInputError, match=message):
        opened(form(tmp_path), **{named: column})


def test_incomplete_samples_are_counted(tmp_path: Path) -> None:
    files = [file for number in range(N) for file in brought.members(number)]
    lacking = [file for file in files if file[0] not in ("000000000.txt", "000000002.jpg")]
    lacking = [file for file in lacking if file[0] != "000000000.json"]
    data, warned = opened(brought.write_tar(tmp_path / "a.tar", lacking))
    assert data.captions == ("", *CAPTIONS[1:])
    assert "1 of 4 samples have no text, such as 000000000" in warned[0]
    assert "1 of 4 samples have no image, such as 000000002" in warned[1]
    with pytest.raises(OSError, match="the cell is empty"):
        data.read(2)
    (brought.texts_beside(tmp_path) / "3.txt").unlink()
    data, warned = opened(tmp_path / "own")
    assert data.captions == CAPTIONS[:3]
    assert "1 of 4 images have no text file next to them and are left out" in warned[0]


def test_captioned_images_in_formats_that_are_not_read_are_counted(tmp_path: Path) -> None:
    save(tmp_path / "some" / "0.png")
    for name in ("1.heic", "2.JXL"):
        (tmp_path / "some" / name).touch()
    for number in range(3):
        (tmp_path / "some" / f"{number}.txt").write_text("a nurse")
    data, warned = opened(tmp_path / "some")
    assert len(data) == 1
    assert "skipped 2 images with captions" in warned[0]
    assert "1.heic, 2.JXL; convert them" in warned[0]
    (tmp_path / "some" / "0.png").unlink()
    with pytest.raises(InvalidInputError, match=r"2 images in a format that is not read.*1\.heic"):
        opened(tmp_path / "some")


@refused(
    ("0.txt", "une infirmière".encode("cp1252"), r"a.tar: 0\.txt: cannot be read as utf-8"),
    (
        "0.json",
        b'{"caption": "cut \\ud83d"}',
        r"a.tar: 0\.json: got .*cut ', which is half",
    ),
)
def test_texts_in_a_tar_are_read_as_utf8_or_the_member_is_named(
    tmp_path: Path, name: str, content: bytes
) -> None:
    files = [("0.jpg", brought.jpeg(0)), (name, content)]
    opened(brought.write_tar(tmp_path / "a.tar", files))


def test_sparse_members_of_a_tar_raise_an_error(tmp_path: Path) -> None:
    info = tarfile.TarInfo("0.txt")
    info.size, info.type = 512, tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    # One part at 0 with 512 bytes, of a file with 8 GB.
    header[386:410] = b"%011o\0%011o\0" % (0, 512)
    header[483:495] = b"%011o\0" % (8 * 1024**3 - 1)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(bytes(header) + b"A" * 512 + bytes(1024))
    with pytest.raises(InvalidInputError, match=r"'0\.txt' is sparse"):
        opened(tmp_path / "a.tar")


@refused(
    ("captions_val.json", {"caption": 5}, "annotation 1: expected a caption in text, got 5"),
    ("captions_val.json", {"file_name": "0\0.jpg"}, r"image 1: .* a zero byte in '0\\x00.jpg'"),
    ("a.jsonl", {"file_name": "0\0.jpg", "caption": "a"}, r"image 1: .* a zero byte in"),
    ("a.json", {"file_name": "0.jpg", "caption": "cut \ud83d"}, r"entry 1: got .*cut ', which"),
    ("a.jsonl", {"file_name": "0.jpg", "caption": "cut \ud83d"}, r"line 1: got .*cut ', which"),
)
def test_texts_and_paths_that_cannot_exist_are_named(
    tmp_path: Path, name: str, fields: dict[str, object]
) -> None:
    brought.images(tmp_path)
    row = {"id": 1, "image_id": 1, "file_name": "0.jpg", "caption": "a nurse", **fields}
    content: object = {"images": [row], "annotations": [row]} if "val" in name else [row]
    text = json.dumps(row if name.endswith("l") else content)
    (tmp_path / name).write_text(text)
    opened(tmp_path / name)


@pytest.mark.parametrize("name", ["a.tar", "a.csv", "0.txt", "a.parquet"])
def test_a_pipe_in_a_folder_is_not_opened(tmp_path: Path, name: str) -> None:
    brought.images(tmp_path)
    os.mkfifo(tmp_path / name)
    with pytest.raises(InvalidInputError, match="expected a file, got a pipe"):
        opened(tmp_path)


def test_an_image_that_is_a_pipe_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("image,caption\n0.jpg,a nurse\n1.jpg,a pilot\n")
    brought.images(tmp_path)
    (tmp_path / "0.jpg").unlink()
    os.mkfifo(tmp_path / "0.jpg")
    data, _ = opened(tmp_path / "a.csv")
    assert data.fingerprint
    with pytest.raises(OSError, match="a pipe or a device"):
        data.read(0)


def test_a_folder_written_by_save_to_disk_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"image": [picture(number) for number in range(N)], "text": list(CAPTIONS)}
    features = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})
    dataset = datasets.Dataset.from_dict(rows, features=features)
    dataset.save_to_disk(tmp_path / "one")
    assert opened(tmp_path / "one")[0].captions == CAPTIONS
    datasets.DatasetDict({"train": dataset}).save_to_disk(tmp_path / "several")
    with pytest.raises(InvalidInputError, match=r"splits \['train'\].*the folder of one split"):
        opened(tmp_path / "several")


def test_damaged_text_in_parquet_is_named(tmp_path: Path) -> None:
    cells = pa.array([b"caf\xe9"]).view(pa.string())
    parquet.write_table(pa.table({"image": ["0.jpg"], "caption": cells}), tmp_path / "a.parquet")
    with pytest.raises(InvalidInputError, match=r"UTF-8, got b'caf\\xe9'"):
        opened(tmp_path / "a.parquet")


def test_nested_lists_are_no_images(tmp_path: Path) -> None:
    table = pa.table({"image": [[["0.jpg"]]], "caption": ["a nurse"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InvalidInputError, match="'image': expected images or paths, got List"):
        opened(tmp_path / "a.parquet")


def test_columns_of_a_download_report_are_named_once_each(tmp_path: Path) -> None:
    row = ["a nurse at work", "img/0.jpg", "image/jpeg", "https://host.example/0.jpg"]
    (tmp_path / "a.tsv").write_text("\t".join(row) + "\n" + "\t".join(reversed(row)))
    with pytest.raises(InvalidInputError, match=r"caption\\timage\\tcolumn3\\turl' .*a\.tsv"):
        opened(tmp_path / "a.tsv")


def test_no_cell_is_printed_whole(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("\n".join(f"{number}\t{'A' * 9999}" for number in range(3)))
    with pytest.raises(InvalidInputError) as raised:
        opened(tmp_path / "a.tsv")
    assert len(str(raised.value)) < 1000


def test_files_from_other_programs_in_a_tar_are_not_samples(tmp_path: Path) -> None:
    files = []
    for number in range(N):
        files += [(f"._{name}", b"\0\5\26\7") for name, _ in brought.members(number)]
        files += brought.members(number)
    data, warned = opened(brought.write_tar(tmp_path / "a.tar", files))
    assert (data.captions, warned) == (CAPTIONS, [])


def test_webdataset_fields_may_contain_a_dot(tmp_path: Path) -> None:
    files = []
    for number in range(N):
        files += [*brought.members(number), (f"{number:09d}.seg.png", b"no picture that is read")]
    data, warned = opened(brought.write_tar(tmp_path / "a.tar", files))
    assert (data.captions, warned) == (CAPTIONS, [])
    assert data.read(1).tobytes() == brought_pixels(1)


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.95])
def test_a_truncated_tar_raises_an_error(cut: float, tmp_path: Path) -> None:
    path = brought.names_with_dots(tmp_path)
    content = path.read_bytes().rstrip(b"\0")
    path.write_bytes(content[: int(cut * len(content))])
    with pytest.raises(InvalidInputError, match=r"dots\.tar: cannot be opened"):
        opened(path)


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@refused(
    ("a.csv", "", "the file is empty"),
    ("a.csv", "\n\n", "the file is empty"),
    ("a.csv", "a,b\n1,2\n", "no column for images; .*'a', 'b'.*csv-img-key"),
    ("a.csv", "image,x\n0.jpg,a\n", "no column for captions; .*--caption-column .*csv-caption-key"),
    ("a.csv", "filepath,img,title\nx,y,z\n", "images may be in any .*'filepath', 'img'.*image-col"),
    ("a.csv", "filepath,title,alt\nx,y,z\n", "captions may be in any of .*'title', 'alt'"),
    ("a.csv", "image;caption,x|y\n1;2,3|4\n", "no column for images.*"),
    ("a.csv", "image,caption\n0.jpg,a, b\n", "line 2: expected 2 columns"),
    ("3m.tsv", "a dog\thttps://x.org/a.jpg\n", "input_format tsv --url_col url"),
    ("12m.tsv", "url\tcaption\nhttps://x.org/a.jpg\ta dog\n", "img2dataset --url_list .*12m.tsv"),
    ("laion.csv", "TEXT,URL\na dog,http://x.org/a.jpg\n", "--url_col URL --caption_col TEXT"),
    ("a.jsonl", '{"image": "https://x.org/a", "caption": "c"}\n', "jsonl --url_col im"),
    ("a.jsonl", "[1]\n", "a list of objects"),
    ("a.jsonl", '{"image": "0.jpg", "caption": "c"}\n[1]\n', "line 2: expected an object"),
    ("a.jsonl", '{"image": {"path": "0.jpg"}, "caption": "c"}\n', r"\['image.path', 'caption'\]"),
    ("a.json", '{"images": [], "annotations": [{"bbox": 1}]}', "instances_.*has no captions"),
    ("a.json", "[1]", "a list of objects"),
    ("a.json", '{"name": "a nurse"}', "expected a list of objects .* has no images, annotations"),
    ("a.xlsx", "x", "a spreadsheet with the ending .xlsx; expected a table"),
    ("a.csv", b"PK\x03\x04\x14\x00\x06\x00\xec", "expected text, got a spreadsheet"),
    ("a.csv.gz", "x", "an archive with the ending .gz"),
    ("a.tar", b"\x1f\x8b\x08\x00", "expected an uncompressed tar.*gunzip < "),
    ("a.tar", b"\x28\xb5\x2f\xfd\x00", "expected an uncompressed tar.*unzstd < "),
    ("a.csv", "image,caption\nnot/there.jpg,a nurse\n", "none of the 1 images .*--image-root"),
    ("folder/a.jpg", "x", "1 images without captions; expected a .txt with the same name"),
)
def test_errors_of_invalid_data_explain_the_cause(
    tmp_path: Path, name: str, content: str | bytes
) -> None:
    path = write(tmp_path / name, content)
    save(tmp_path / "0.jpg")
    opened(path.parent if "folder" in name else path)


@pytest.mark.parametrize("root", ["", "*.tar"])
def test_a_compressed_tar_after_a_plain_one_raises_an_error(tmp_path: Path, root: str) -> None:
    for name, content in (("0.tar", b"0" * 512), ("1.tar", b"\x1f\x8b\x08\x00")):
        write(tmp_path / name, content)
    with pytest.raises(InvalidInputError, match=r"1\.tar: expected an uncompressed tar"):
        opened(tmp_path / root if root else tmp_path)


@refused(
    ("captions/0.txt", "there are text files in another folder, such as captions/0.txt"),
    ("images/0.json", "a .txt with the same name .*caption_col"),
    ("captions/all.txt", "pass the table with the captions, such as .*all.txt"),
)
def test_the_error_for_images_without_captions_suggests_other_files(
    tmp_path: Path, name: str
) -> None:
    save(tmp_path / "images/0.jpg")
    opened(write(tmp_path / name, "{}").parent.parent)


ROWS = [("0.jpg", "a nurse"), ("1.jpg", "a pilot")]
OBJECTS = [{"image": file, "caption": text} for file, text in ROWS]


@pytest.mark.parametrize(
    ("name", "content", "warning"),
    [
        ("lines.json", "\n".join(map(json.dumps, OBJECTS)), None),
        ("list.jsonl", json.dumps(OBJECTS, indent=1), None),
        ("blank.csv", "image,caption\n0.jpg,a nurse\n1.jpg,a pilot\n,\n,\n", "ignored 2 empty"),
        (
            "listed.csv",
            'image,caption\n0.jpg,"[\'a nurse\']"\n1.jpg,"[""a pilot"", ""a man""]"\n',
            "2 cells of column 'caption' are lists written as text",
        ),
    ],
)
def test_formats_with_unusual_extensions_or_lists_are_read_with_a_warning(
    name: str, content: str, warning: str | None, tmp_path: Path
) -> None:
    for file, _ in ROWS:
        save(tmp_path / file)
    data, warned = opened(write(tmp_path / name, content))
    assert tuple(data.captions) == ("a nurse", "a pilot")
    assert not data.more_captions or data.more_captions == ((), ("a man",))
    assert bool(warned) == (warning is not None)
    assert all(str(warning) in message for message in warned)


def test_bytes_in_a_table_of_captions_are_images(tmp_path: Path) -> None:
    content = [brought.jpeg(number) for number in range(2)]
    columns = {"content": content, "text": ["a nurse", "a pilot"]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    data, _ = opened(tmp_path / "a.parquet")
    assert tuple(data.captions) == ("a nurse", "a pilot")
    assert data.read(1).mode == "RGB"


def test_extensions_with_two_dots_in_all_samples_are_fields(tmp_path: Path) -> None:
    files = []
    for number, (_, text) in enumerate(ROWS):
        files += [(f"{number}.v2.JPG", brought.jpeg(number)), (f"{number}.v2.TXT", text.encode())]
    data, _ = opened(brought.write_tar(tmp_path / "a.tar", files))
    assert tuple(data.captions) == ("a nurse", "a pilot")


def test_a_table_with_paths_outside_its_folder_raises_an_error_before_reading(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.csv", "image,caption\nD:\\img\\0.jpg,a nurse\n")
    with pytest.raises(InvalidInputError, match=r"1 paths lead outside .*allow_outside=true"):
        refuse_absent_images(find_layout(path))
    refuse_absent_images(find_layout(path), allow_outside=True)
    path = write(tmp_path / "b.csv", "image,caption\n0.jpg,a nurse\n")
    with pytest.raises(InvalidInputError, match=r"none of the 1 images .*--image-root"):
        refuse_absent_images(find_layout(path))
    refuse_absent_images(find_layout(path), images=tmp_path)
    save(tmp_path / "0.jpg")
    refuse_absent_images(find_layout(path))


def test_a_parquet_file_of_urls_raises_an_error_and_one_of_images_does_not(tmp_path: Path) -> None:
    columns = {"URL": ["http://x.org/a.jpg"], "TEXT": ["a dog"], "WIDTH": [1]}
    parquet.write_table(pa.table(columns), tmp_path / "laion.parquet")
    with pytest.raises(InvalidInputError, match="--input_format parquet --url_col URL"):
        opened(tmp_path / "laion.parquet")


@refused(
    ("no/where/a.csv", "no such file or folder"),  # Several folders are not a Hub id.
    ("./none", "no such file"),
    ("shards/{0..3}.tar", "do not exist"),
    ("a-{0..1}.tar", r"1 of 2 files do not exist, such as .a-1\.tar"),
    ("https://example.org/captions.csv", "captions.csv: remote files are not read"),
    ("", "expected a file, a folder or .* got ''"),
)
def test_missing_files_raise_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.chdir(tmp_path)
    brought.write_tar(tmp_path / "a-0.tar", brought.members(0))
    opened(root)


def test_captions_that_are_not_next_to_their_images_raise_an_error(tmp_path: Path) -> None:
    files = sorted(
        (file for number in range(N) for file in brought.members(number) if "json" not in file[0]),
        key=lambda file: file[0].endswith("txt"),
    )
    with pytest.raises(InvalidInputError, match=r"text, but '000000000.jpg' is not next to a text"):
        opened(brought.write_tar(tmp_path / "a.tar", files))


def test_splits_of_folders_and_coco_are_separated(tmp_path: Path) -> None:
    for part in ("train", "val"):
        brought.texts_beside(tmp_path / "made" / part)
        (tmp_path / "made" / part / "own").rename(tmp_path / part)
    for part in ("train", "val"):
        (tmp_path / "all" / part).parent.mkdir(exist_ok=True)
        (tmp_path / part).rename(tmp_path / "all" / part)
    (tmp_path / "all/val/3.txt").write_text("held out")
    assert opened(tmp_path / "all", "train")[0].captions == CAPTIONS
    assert opened(tmp_path / "all", "val")[0].captions[3] == "held out"
    assert len(opened(tmp_path / "all", "all")[0]) == 2 * N
    with pytest.raises(InvalidInputError, match="expected split train or val or all"):
        opened(tmp_path / "all", "test")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Tom &amp; Jerry", "Tom & Jerry"),
        ("a &amp;quot;b&amp;quot;", 'a "b"'),
        ("<b>bold</b> nurse", "bold nurse"),
        ('a <a href="x">link</a><br/>here', "a link here"),
        ("denise%27s+chicken", "denise's chicken"),
        ("a nurse%27s hat", "a nurse's hat"),
        ("caf%C3%A9", "café"),
        # Similar strings must not change.
        ("AT&T and R&B;", "AT&T and R&B;"),
        ("a <3 heart, 2 < 3 > 1", "a <3 heart, 2 < 3 > 1"),
        ("portrait of <PERSON>", "portrait of <PERSON>"),
        ("100%25 or 50%de cotton", "100%25 or 50%de cotton"),
        ("C++ and a+b", "C++ and a+b"),
        ("100%ff", "100%ff"),
        ("line one\nline two", "line one\nline two"),
        ("https://x.org/a%20b.jpg", "https://x.org/a%20b.jpg"),
    ],
)
def test_html_and_url_escapes_are_removed_from_captions(before: str, after: str) -> None:
    assert cleaned(before) == after


@given(st.lists(st.text(max_size=30), max_size=8))
def test_cleaning_preserves_the_number_of_captions_and_counts_changes(texts: list[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        after, _ = clean_captions("here", texts)
    assert after == [cleaned(text) for text in texts]
    changed = sum(a != b for a, b in zip(texts, after, strict=True))
    assert [f"{changed} of {len(texts)} captions" in str(w.message) for w in caught] == [
        True
    ] * bool(changed)


def test_alternatives_and_several_patterns_are_expanded_to_names() -> None:
    assert expanded("{a,b}/{0..1}.tar") == ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]
    assert expanded("a/{0..1}.tar::b/*.tar") == ["a/0.tar", "a/1.tar", "b/*.tar"]


def test_an_empty_tar_raises_an_error(tmp_path: Path) -> None:
    path = brought.write_tar(tmp_path / "empty.tar", [])
    with pytest.raises(InvalidInputError, match=r"empty\.tar.*got no samples"):
        opened(path)


def test_windows_paths_and_extensions_in_a_different_case_are_found(tmp_path: Path) -> None:
    save(tmp_path / "img/a.png")
    save(tmp_path / "img/B.PNG")
    names = ["img/a.png", "img\\a.png", "img/a.PNG", " img/b.png", "img/c.png", "img//a.png"]
    found = ["img/a.png", "img/a.png", "img/a.png", "img/B.PNG", "img/c.png", "img//a.png"]
    assert existing_names(tmp_path, names) == found


def test_given_columns_override_detected_columns(tmp_path: Path) -> None:
    path = brought.table(tmp_path, "a.csv", ("filepath", "title"))
    rows = path.read_text().replace("filepath,title", "filepath,title,alt").splitlines()
    path.write_text("\n".join([rows[0], *(f"{row},x{n}" for n, row in enumerate(rows[1:]))]))
    assert opened(path, caption="alt")[0].captions == ("x0", "x1", "x2", "x3")
    assert opened(path, caption="Title")[0].captions == CAPTIONS
    with pytest.raises(InvalidInputError, match="no column 'words' for captions; the columns are"):
        opened(path, caption="words")


def test_captions_of_unlisted_images_are_reported(tmp_path: Path) -> None:
    path = brought.coco(tmp_path)
    annotated = json.loads(path.read_text())
    annotated["annotations"].append({"id": 9, "image_id": 99, "caption": "of nothing"})
    path.write_text(json.dumps(annotated))
    data, warned = opened(path)
    assert len(data) == N
    assert any("1 of 5 captions refer to images" in message for message in warned)


@pytest.mark.parametrize("ending", ["", ".jpg"])
def test_sd_scripts_captions_are_matched_by_file_name(ending: str, tmp_path: Path) -> None:
    files = brought.images(tmp_path)
    entries = {
        Path(file).stem + ending: {"caption": caption}
        for file, caption in zip(files, CAPTIONS, strict=True)
    }
    (tmp_path / "meta_cap.json").write_text(json.dumps(entries))
    data, warned = opened(tmp_path / "meta_cap.json")
    assert (data.captions, warned) == (CAPTIONS, [])
    # Names without extensions match the only image with that name.
    assert data.read(2).tobytes() == brought_pixels(2)


def test_each_line_of_a_text_file_is_a_caption(tmp_path: Path) -> None:
    brought.images(tmp_path, names=["0.jpg", "1.jpg"])
    (tmp_path / "0.txt").write_text("a nurse\n\n  a tired nurse \n")
    (tmp_path / "1.txt").write_bytes("ein müder Pilot\r\nzwei Köche\n".encode("cp1252"))
    with pytest.raises(InvalidInputError, match=r"1\.txt: cannot be read as utf-8"):
        opened(tmp_path)
    data, warned = opened(tmp_path, encoding="cp1252")
    assert data.captions == ("a nurse", "ein müder Pilot")
    assert data.more_captions == (("a tired nurse",), ("zwei Köche",))
    assert any("2 of 2 text files have several lines" in message for message in warned)


def test_a_metadata_csv_with_missing_files_raises_an_error_with_the_first_file(
    tmp_path: Path,
) -> None:
    brought.images(tmp_path)
    rows = "".join(f"picture{number}.jpg,a nurse {number}\n" for number in range(N))
    (tmp_path / "metadata.csv").write_text(f"file_name,text\n{rows}")
    with pytest.raises(InvalidInputError, match=r"such as 'picture0.jpg', .* '0.jpg'"):
        open_data("captions", tmp_path)
