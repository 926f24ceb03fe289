"""The experiment of section 7.6.4 on a tiny pipeline and a judge of colours: figures equal what is counted by hand."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from diffusers_tiny import sd

from eval.experiments import birds_drawn
from eval.experiments.birds_drawn import FIT, PARTS, VARIANTS, drawn_prompts, home_of
from vldebias.evaluation.drawing import DrawnSet
from vldebias.evaluation.judges import FunctionJudge
from vldebias.evaluation.result import TaskResult
from vldebias.miniature.words import BACKGROUNDS, CLASSES, SPECIES
from vldebias.progress import SILENT
from vldebias.prompts import StatedWords

FEW = {"waterbird": ("waterbird",), "landbirds": PARTS["landbirds"][:3]}
NAMES = {"species": SPECIES, "bird": CLASSES, "background": BACKGROUNDS}


def read(images: Any) -> dict[str, np.ndarray]:
    """The last digits of a picture's sum say what it shows; one in five has no background that can be told."""
    sums = np.array([int(np.asarray(image).sum()) for image in images])
    ground = np.where((sums % 5 == 0)[:, None], 0.5, np.eye(2)[sums // 5 % 2])
    return {"species": np.eye(len(SPECIES))[sums % len(SPECIES)], "bird": np.eye(2)[sums % 2], "background": ground}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, TaskResult]]:
    work, judge = tmp_path_factory.mktemp("birds"), FunctionJudge(NAMES, read, name="colours", version="1")
    second = FunctionJudge(NAMES, read, name="second", version="1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(birds_drawn, "PARTS", FEW)
        patch.setattr(birds_drawn, "VARIANTS", {name: VARIANTS[name] for name in ("cali", "cali, waterbirds")})
        how: dict[str, Any] = {"steps": 1, "seeds": (0,), "options": {"height": 16, "width": 16}, "resamples": 50}
        found = birds_drawn.measure(sd(), judge, work, 4, second=second, progress=SILENT, **how)
        return work, {part.provenance.task: part for part in found}


@pytest.mark.slow
def test_every_part_is_read_by_both_judges(parts: tuple[Path, dict[str, TaskResult]]) -> None:
    _, found = parts
    assert set(found) == {f"{part}{judge} background" for part in FEW for judge in ("", ", second")}
    for part in FEW:
        own, second = (
            [r.model_dump(exclude={"task"}) for r in found[f"{part}{j} background"].rows] for j in ("", ", second")
        )
        assert own == second


@pytest.mark.slow
@pytest.mark.parametrize("part", FEW)
@pytest.mark.parametrize("method", ["none", "cali", "cali, waterbirds"])
def test_other_background_and_class_are_what_is_counted_by_hand(
    parts: tuple[Path, dict[str, TaskResult]], part: str, method: str
) -> None:
    work, found = parts
    chosen = DrawnSet.open(work / part).select(variant=method)
    told = read([chosen.read(image) for image in chosen])
    home = np.array([home_of(image.concept) for image in chosen])
    rows = {
        row.metric: row
        for row in found[f"{part} background"].rows
        if row.method == method and row.subset == "unseen birds"
    }
    other = told["background"][np.arange(len(home)), 1 - home] == 1
    assert rows["other_background"].value == pytest.approx(other.mean())
    assert rows["class_recognised"].value == pytest.approx((told["bird"].argmax(1) == home).mean())
    assert rows["unknown"].value == pytest.approx((told["background"].max(1) < 0.8).mean())
    wanted = [SPECIES.index(i.concept) if i.concept in SPECIES else home_of(i.concept) for i in chosen]
    attribute = "species" if part == "landbirds" else "bird"
    assert rows["recognised"].value == pytest.approx((told[attribute].argmax(1) == wanted).mean())


@pytest.mark.slow
def test_prompts_that_name_the_background_are_copies_under_the_gate(parts: tuple[Path, dict[str, TaskResult]]) -> None:
    work, found = parts
    for part, subjects in FEW.items():
        asked = len(subjects) * len(birds_drawn.ASKED) * len(BACKGROUNDS)
        copies = found[f"{part} background"].provenance.settings["images left alone, copies of none"]
        assert {name: copies[name] for name in ("none", "cali", "cali, waterbirds")} == {
            "none": 0, "cali": asked, "cali, waterbirds": asked,
        }  # fmt: skip
        assert copies["cali, stated not kept"] == 0
        plain = DrawnSet.open(work / part).select(variant="cali")
        assert not any(plain.about(image)["left_alone"] for image in plain)


def test_nothing_that_is_drawn_was_fitted_on_and_all_stated_prompts_are_known_as_such() -> None:
    stated = StatedWords(FIT.stated_words)
    assert sorted((*FIT.class_names, *PARTS["landbirds"], *PARTS["waterbirds"])) == sorted(SPECIES)
    for part in PARTS:
        prompts = drawn_prompts(part)
        assert not any(stated.match(text) for text in prompts.held_out_classes)
        assert all(stated.match(text) for group in prompts.held_out_groups for text in group)
        assert {home_of(one) for one in PARTS[part]} == {CLASSES.index(part.removesuffix("s"))}
