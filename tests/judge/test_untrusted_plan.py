"""Test plans and images that others wrote: every value is checked before it is used."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.judge.plan import MOST_IMAGES, PLAN, GeneratedImages, ImageRecord
from vldebias.judge.stored import stored_answers
from vldebias.utils.pictures import write_png

PLANNED = {
    "format_version": 1,
    "model": {"pipeline": "X", "id": "x", "fingerprint": None},
    "prompt_set": "gender",
    "prompt_set_hash": "h",
    "prompts": [["A photo of a doctor.", "doctor", "unseen", None]],
    "variants": {"none": {}, "cali": {"method": "cali"}},
    "seeds": [0],
    "images": 2,
    "steps": 2,
    "guidance": 1.0,
    "batch_size": 4,
}


def opened(folder: Path, **changes: Any) -> GeneratedImages:
    (folder / PLAN).write_text(json.dumps(PLANNED | changes))
    return GeneratedImages.open(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": 10**9}, "images: "),
        ({"images": 10**19}, "images: "),
        ({"images": -1}, "images: "),
        ({"images_of_prompt": {"A photo of a doctor.": 10**9}}, "images_of_prompt"),
        ({"seeds": list(range(10**6))}, "4,000,000 images"),
        ({"seeds": [10**400]}, "seeds.0: "),
        ({"seeds": [-1]}, "seeds.0: "),
        ({"images": 10_000, "seeds": list(range(40))}, "800,000 images"),
        ({"variants": {}}, "'none'"),
        ({"variants": {"cali": {}}}, "'none'"),
        ({"steps": float("nan")}, "steps: "),
        ({"guidance": float("inf")}, "guidance: "),
        ({"batch_size": 0}, "batch_size: "),
        ({"model": {"fingerprint": {"structure": 1}}}, "structure"),
    ],
)
def test_a_plan_that_no_run_writes_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match="not a valid plan") as raised:
        opened(tmp_path, **changes)
    assert message in str(raised.value)


def test_the_largest_plan_counts_each_prompt_as_often_as_it_is_generated(tmp_path: Path) -> None:
    prompts = [[f"prompt {i}", "", "others", None] for i in range(1000)]
    images = opened(tmp_path, prompts=prompts, images=10_000, stated_images=1)
    assert len(images) == 2000
    assert len(prompts) * 10_000 > MOST_IMAGES


def test_a_model_without_a_description_is_reported_as_unknown(tmp_path: Path) -> None:
    images = opened(tmp_path, model={})
    result = images.result(settings={}, task="t", title="t", description="d")
    assert result.provenance.model == "unknown"


@refused(
    ({"value": {"female": -5}}, "metadata is not valid"),
    ({"value": {"female": "5"}}, "metadata is not valid"),
    ({"value": 7}, "metadata is not valid"),
    ({"generated prompt": ["A photo."]}, "metadata is not valid"),
    ({"flagged": {}}, "metadata is not valid"),
    ({"value": ["female", "male"]}, "2 values for 1 attributes"),
)
def test_metadata_that_no_run_writes_is_refused(tmp_path: Path, record: dict[str, Any]) -> None:
    images = opened(tmp_path)
    (image, *_) = images
    write_png(Image.new("RGB", (8, 8)), images.path(image), record)
    images.record(image).values(1)


def test_metadata_that_is_nested_too_deeply_is_an_unreadable_file(tmp_path: Path) -> None:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_itxt("vldebias", "[" * 100_000)
    images = opened(tmp_path)
    path = images.path(next(iter(images)))
    path.parent.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(path, pnginfo=info)
    with pytest.raises(OSError, match=r"\.png"):
        images.record(next(iter(images)))


def test_lines_that_no_judge_writes_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "judge.jsonl"
    lines = [
        '{"name": "clip", "names": {"gender": ["female", "male"]}}',
        "[1]",
        '{"names": 3}',
        '{"a.png -": {"gender": ["x"]}}',
        '{"a.png -": {"gender": [2.0, -1.0]}}',
        '{"n": ' + "1" * 5000 + "}",
        '{"b.png -": {"gender": [0.9, 0.1]}}',
        '{"c.png -": {"gen',
    ]
    file.write_text("\n".join(lines))
    stored = stored_answers(file)
    assert (stored.name, stored.names) == ("clip", {"gender": ["female", "male"]})
    assert stored.answers == {"b.png -": {"gender": [0.9, 0.1]}}


def test_an_image_with_only_a_value_is_neither_a_copy_nor_flagged() -> None:
    record = ImageRecord.model_validate({"value": "female"})
    assert record.values(1) == ("female",)
    assert not record.left_unchanged
    assert not record.flagged
