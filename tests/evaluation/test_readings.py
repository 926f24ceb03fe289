"""Methods that are fitted to judged images: what is drawn for them, and that a task fits what one fits by hand."""

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from diffusers_tiny import sd

from vldebias import debias, load_prompts
from vldebias.cli import app
from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing import DrawnSet
from vldebias.evaluation.generation import GenerationTask
from vldebias.evaluation.judges import FunctionJudge
from vldebias.evaluation.readings import Drawing, read_judged
from vldebias.evaluation.variants import Variant
from vldebias.methods import METHODS, UCE, Need, Problem, load_edits
from vldebias.miniature import load_pipeline

WHOLE = load_prompts("professions-gender")
FEW = replace(
    WHOLE,
    name="few",
    classes=WHOLE.classes[:3],
    class_names=WHOLE.class_names[:3],
    groups=WHOLE.groups[:3],
    held_out_classes=WHOLE.held_out_classes[:1],
    held_out_class_names=WHOLE.held_out_class_names[:1],
    held_out_groups=(),
)
HOW: dict[str, Any] = {"steps": 1, "guidance": 1.0, "batch_size": 6, "options": {"height": 16, "width": 16}}
ROUNDS = (0.0, -0.2, 0.2)  # fewer men at the lower weight, more at the higher one
FITTED = {  # method -> the folders of its rounds, and what the judge adds in each: uce ends where nothing is missing
    "weighted-values": (["1-weighted-values", "2-weighted-values", "3-weighted-values"], ROUNDS),
    "uce": (["1-uce", "2-uce", "3-uce", "4-uce", "5-uce"], (0.0, -0.1, 0.1, -0.3, 0.0)),
}


def male(images: Any, shift: float) -> np.ndarray:
    """What the judge below says: by the brightness of an image, and by the round."""
    light = np.array([np.asarray(image).mean() / 255 for image in images])
    share = 0.6 + 0.2 * light + shift
    return np.stack([share, 1 - share], axis=1)


def reader(shifts: Iterable[float] = ROUNDS) -> FunctionJudge:
    """A judge that is asked round by round, and then about what is measured."""
    shifts = iter(shifts)
    return FunctionJudge(
        {"gender": ("male", "female")},
        lambda images: {"gender": male(images, next(shifts, 0.0))},
        name="light",
        version="1",
    )


@pytest.fixture(scope="module")
def pipe() -> Any:
    return load_pipeline()


class Asked:
    """Answers by what a judge said before: prompt -> shares of each round, in a list."""

    def __init__(self, *rounds: dict[str, tuple[float, ...]]) -> None:
        self.rounds, self.methods = list(rounds), []

    def __call__(self, method: Any, prompts: Any) -> dict[str, tuple[float, ...]]:
        self.methods.append(method)
        answers = self.rounds[len(self.methods) - 1]
        return {prompt: answers[prompt] for prompt in prompts if prompt in answers}


def answers(*shares: float) -> dict[str, tuple[float, ...]]:
    return {p: (share, 1 - share) for p, share in zip(FEW.classes, shares, strict=False)}


class TestScalesOfUce:
    """Unified concept editing, read in rounds."""

    def test_each_round_is_read_with_what_was_missing_in_those_before(self, pipe: Any) -> None:
        rounds = [answers(0.9, 0.4, 0.5), answers(0.7, 0.3, 0.51), answers(0.5, 0.5, 0.5)]
        show = Asked(*rounds)
        method = METHODS["uce"].read(Problem.of(pipe, FEW), show)
        assert isinstance(method, UCE)
        first, second, third = FEW.classes
        assert [m.scales[first][1] for m in show.methods] == pytest.approx([0.0, 0.4, 0.6])
        assert method.scales[second] == pytest.approx((0.3, -0.3))
        assert method.scales[third] == (0.0, 0.0)  # within the tolerance all along
        assert Need.JUDGED not in method.needs
        assert len(show.methods) == 3  # nothing was missing in the last round

    @pytest.mark.parametrize("best", range(5))
    def test_the_round_that_came_closest_to_even_is_kept(self, best: int, pipe: Any) -> None:
        shares = [0.9, 0.2, 0.9, 0.2, 0.9]
        shares[best] = 0.6
        show = Asked(*(answers(share, share, share) for share in shares))
        method = METHODS["uce"].read(Problem.of(pipe, FEW), show)
        assert len(show.methods) == 5  # no more than that, though they do not come even
        assert method is show.methods[best]

    def test_a_prompt_whose_pictures_say_nothing_stays_where_it_is(self, pipe: Any) -> None:
        show = Asked(answers(0.9, 0.9, 0.9), answers(0.9), answers(0.8, 0.8), answers(0.7), answers(0.6))
        method = METHODS["uce"].read(Problem.of(pipe, FEW), show)
        assert isinstance(method, UCE)
        assert [alpha[1] for alpha in method.scales.values()] == pytest.approx([1.3, 0.7, 0.4])
        with pytest.raises(InvalidInputError, match="uce: the judge tells the value of no image of 3 prompts"):
            METHODS["uce"].read(Problem.of(pipe, FEW), Asked({}))

    def test_it_goes_on_from_scales_and_with_concepts_of_ones_own(self, pipe: Any) -> None:
        nurse, given = FEW.classes[1], {"lam": 2.0, "preserve": ("A cat.",)}
        show = Asked(answers(0.9, 0.7), answers(0.9, 0.6))
        method = UCE({nurse: (0.1, -0.1)}, **given).read(Problem.of(pipe, FEW), show, rounds=2)
        assert method.scales == {nurse: pytest.approx((-0.1, 0.1))}
        assert method.settings() == UCE(method.scales, **given).settings()

    def test_what_it_refuses_before_anything_is_drawn(self, pipe: Any) -> None:
        with pytest.raises(InvalidInputError, match="uce: expected one attribute, got 2"):
            METHODS["uce"].read(Problem.of(pipe, [FEW, "skin-tone"]), Asked())
        with pytest.raises(InvalidInputError, match="uce: expected 2 scales for each concept, not so for"):
            UCE({"A nurse.": (0.1, 0.2, 0.3)}).read(Problem.of(pipe, FEW), Asked())


@pytest.mark.parametrize("name", FITTED)
def test_a_task_fits_what_one_fits_by_hand_to_the_same_readings(name: str, tmp_path: Path) -> None:
    """The law: its shares are those that the judge said of the images that lie there, and its images those of them."""
    fields: dict[str, Any] = {"prompts": FEW, "attributes": ["gender"], "concepts": "unseen", "stated": False, **HOW}
    fields |= {"fit_images": 2, "images": 2, "resamples": 20}
    folders, shifts = FITTED[name]
    given = GenerationTask(variants={name: {"method": name}}, **fields)
    pipe = sd()
    (result,) = given.measure(tmp_path / "images", reader(shifts), pipe=pipe)
    home = tmp_path / "images" / "_readings" / name
    rounds = [DrawnSet.open(folder) for folder in sorted(home.iterdir())]
    assert [drawn.folder.name for drawn in rounds] == folders
    seen: list[dict[str, tuple[float, ...]]] = []
    for drawn, shift in zip(rounds, shifts, strict=True):
        shares = male([drawn.read(image) for image in drawn], shift).reshape(3, 2, 2).mean(1)
        seen.append({p: tuple(row) for p, row in zip(FEW.classes, shares.tolist(), strict=True)})
    method = METHODS[name].read(Problem.of(pipe, FEW, lam=500.0), Asked(*seen))
    measured = DrawnSet.open(tmp_path / "images")
    by_hand = GenerationTask(variants={name: Variant(method=method)}, **fields)
    by_hand.measure(tmp_path / "by hand", reader(()), pipe=pipe)
    other = DrawnSet.open(tmp_path / "by hand")
    for image in measured:
        assert np.abs(np.asarray(measured.read(image), int) - np.asarray(other.read(image), int)).max() <= 1
    none, moved = (measured.select(variant=variant) for variant in ("none", name))
    assert any(measured.read(a) != measured.read(b) for a, b in zip(none, moved, strict=True))

    # The cost stands beside the needs; no noise is drawn for the fit and measured too.
    told = result.provenance.methods[name]
    assert (told["judged"], told["needs"]) == (6 * len(folders), sorted(METHODS[name].needs))
    assert {image.seed for drawn in rounds for image in drawn} == {-10000, -9999}
    assert not {i.noise for drawn in rounds for i in drawn} & {i.noise for i in measured}

    # Resumed: nothing is drawn, asked or changed.
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    silent = FunctionJudge({"gender": ("male", "female")}, lambda images: {}, name="light", version="1")
    (again,) = given.measure(tmp_path / "images", silent, pipe=pipe)
    assert again.rows == result.rows
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with pytest.raises(InvalidInputError, match="images was 2 and is 3 now"):
        GenerationTask(variants={name: {"method": name}}, **fields | {"fit_images": 3}).measure(
            tmp_path / "images", silent, pipe=pipe
        )


def test_the_command_fits_what_the_function_fits(pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, (folders, shifts) = "uce", FITTED["uce"]
    monkeypatch.setattr("vldebias.evaluation.judges.MiniatureJudge", lambda: reader(shifts))
    path = FEW.to_yaml(tmp_path / "few.yaml")
    flags = "--pipeline miniature --judge miniature --fit-images 1 --steps 1 --guidance 1 --json"
    arguments = ["debias", str(path), "--method", name, "--out", str(tmp_path / "out"), *flags.split()]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "sequence" in json.loads(done.stdout)["roles"]
    drawing = Drawing(images=1, steps=1, guidance=1.0)
    method, images = read_judged(pipe, path, reader(shifts), tmp_path / "again", method=name, drawing=drawing)
    assert images == 3 * len(folders)
    saved, prompts = load_edits(tmp_path / "out"), list(WHOLE.held_out_classes[:4])
    with torch.no_grad(), debias(pipe, saved):
        one = pipe.encode_prompt(prompts, "cpu", 1, False)[0]
    with torch.no_grad(), debias(pipe, path, method=method):
        torch.testing.assert_close(pipe.encode_prompt(prompts, "cpu", 1, False)[0], one)


def test_without_a_judge_it_is_said_what_to_do(pipe: Any, tmp_path: Path) -> None:
    for name in FITTED:
        with pytest.raises(
            InvalidInputError, match=rf"uses judged images: .* `vldebias debias --method {name} --judge"
        ):
            debias(pipe, FEW, method=name)
    with pytest.raises(InvalidInputError, match=r"method 'cali' needs no judged images; fit it with"):
        read_judged(pipe, FEW, reader(), tmp_path, method="cali")
    with pytest.raises(InvalidInputError, match="method 'cali' reads no judged images"):
        METHODS["cali"].read(Problem.of(pipe, FEW), Asked())
    with pytest.raises(InvalidInputError, match="few: expected class prompts, which are drawn for the fit, got none"):
        read_judged(pipe, replace(FEW, classes=(), class_names=()), reader(), tmp_path)
    other = FunctionJudge({"age": ("young", "old")}, lambda images: {}, name="ages", version="1")
    with pytest.raises(InvalidInputError, match=r"none of its attributes has the values \['male', 'female'\]"):
        read_judged(pipe, FEW, other, tmp_path)
    tones = GenerationTask(
        prompts=FEW,
        attributes=["gender"],
        stated=False,
        variants={"both": {"method": "weighted-values", "prompts": [FEW, "skin-tone"]}},
    )
    with pytest.raises(InvalidInputError, match="both: is fitted on one prompt set, got 2"):
        tones.measure(tmp_path, reader(), pipe=pipe)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("uce", r"--method uce uses judged images: fit it with `vldebias debias --judge NAME`"),
        ("cali --judge miniature", r"--judge is for methods that need judged images"),
        ("weighted-values --judge miniature --max-loss 0.1", r"on one prompt set and without --max-loss"),
    ],
)
def test_the_command_refuses_before_anything_is_loaded(arguments: str, message: str, tmp_path: Path) -> None:
    given = ["debias", "gender", "--pipeline", str(tmp_path / "none"), "--out", str(tmp_path / "out"), "--method"]
    given += arguments.split()
    with pytest.raises(InvalidInputError, match=message):
        CliRunner().invoke(app, given, catch_exceptions=False)
