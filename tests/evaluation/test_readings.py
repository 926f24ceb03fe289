"""Methods that are fitted to judged images: what is drawn for them, and that a task fits what one fits by hand."""

import json
import sys
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
from vldebias.evaluation.task import Options
from vldebias.evaluation.variants import Variant
from vldebias.methods import METHODS, Balanced, Midpoint, Need, Problem, load_edits
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
ROUNDS = (0.0, -0.2, -0.1)  # more men at the midpoint, fewer at the level against that, in between at the last


def male(images: Any, shift: float) -> np.ndarray:
    """What the judge below says: by the brightness of an image, and by the round."""
    light = np.array([np.asarray(image).mean() / 255 for image in images])
    share = 0.6 + 0.2 * light + shift
    return np.stack([share, 1 - share], axis=1)


def reader() -> FunctionJudge:
    """A judge that is asked round by round, and then about what is measured."""
    shifts = iter(ROUNDS)
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


@pytest.mark.parametrize(("middle", "level"), [((0.9, 0.6, 0.4), -0.5), ((0.1, 0.4, 0.6), 0.5)])
def test_the_second_level_is_against_the_lean_and_the_third_follows(
    pipe: Any, middle: tuple[float, ...], level: float
) -> None:
    moved = tuple(share + 0.4 * level for share in middle)
    show, problem = Asked(answers(*middle), answers(*moved), answers(0.5, 0.5, 0.5)), Problem.of(pipe, FEW)
    method = METHODS["balanced"].read(problem, show)
    assert isinstance(method, Balanced)
    first, second, third = show.methods
    assert [first.level, second.level] == [0.0, level]
    levels = third.fit(problem, "sequence").offsets(problem.embed(FEW.classes, "sequence")).tolist()
    for prompt, a, b, own in zip(FEW.classes, middle, moved, levels, strict=True):
        assert method.readings[prompt] == {0.0: a, level: b, own: 0.5}
    assert Need.JUDGED not in method.needs
    assert method.settings() != third.settings()


def test_prompts_whose_pictures_say_nothing_are_left_out(pipe: Any) -> None:
    whole = replace(FEW, classes=WHOLE.classes[:5], class_names=WHOLE.class_names[:5])
    five = dict.fromkeys(whole.classes, (0.9, 0.1))
    lower = dict.fromkeys(whole.classes[1:], (0.6, 0.4))
    method = METHODS["balanced"].read(Problem.of(pipe, whole), Asked(five, lower, {whole.classes[1]: (0.5, 0.5)}))
    assert isinstance(method, Balanced)
    assert [len(method.readings[p]) for p in whole.classes[1:]] == [3, 2, 2, 2]
    assert whole.classes[0] not in method.readings


def test_a_task_fits_what_one_fits_by_hand_to_the_same_readings(tmp_path: Path) -> None:
    """The law: its shares are those that the judge said of the images that lie there, and its images those of them."""
    fields: dict[str, Any] = {"prompts": FEW, "attributes": ["gender"], "concepts": "unseen", "stated": False, **HOW}
    fields |= {"fit_images": 2, "images": 2, "resamples": 20}
    given = GenerationTask(variants={"balanced": {"method": "balanced"}}, **fields)
    pipe = sd()
    (result,) = given.evaluate(pipe, reader(), tmp_path / "images")
    home = tmp_path / "images" / "_readings" / "balanced"
    rounds = [DrawnSet.open(folder) for folder in sorted(home.iterdir())]
    assert [drawn.folder.name for drawn in rounds] == ["1-midpoint", "2-midpoint", "3-balanced"]
    seen: list[dict[str, tuple[float, ...]]] = []
    for drawn, shift in zip(rounds, ROUNDS, strict=True):
        shares = male([drawn.read(image) for image in drawn], shift).reshape(3, 2, 2).mean(1)
        seen.append({p: tuple(row) for p, row in zip(FEW.classes, shares.tolist(), strict=True)})
    method = METHODS["balanced"].read(Problem.of(pipe, FEW, lam=500.0), Asked(*seen))
    measured = DrawnSet.open(tmp_path / "images")
    by_hand = GenerationTask(variants={"balanced": Variant(method=method)}, **fields)
    by_hand.evaluate(pipe, reader(), tmp_path / "by hand")
    other = DrawnSet.open(tmp_path / "by hand")
    for image in measured:
        assert np.abs(np.asarray(measured.read(image), int) - np.asarray(other.read(image), int)).max() <= 1
    none, moved = (measured.select(variant=name) for name in ("none", "balanced"))
    assert any(measured.read(a) != measured.read(b) for a, b in zip(none, moved, strict=True))

    # The cost stands beside the needs; no noise is drawn for the fit and measured too.
    told = result.provenance.methods["balanced"]
    assert (told["judged"], told["needs"]) == (18, sorted(METHODS["balanced"].needs))
    assert {image.seed for drawn in rounds for image in drawn} == {-10000, -9999}
    assert not {i.noise for drawn in rounds for i in drawn} & {i.noise for i in measured}

    # Resumed: nothing is drawn, asked or changed.
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    silent = FunctionJudge({"gender": ("male", "female")}, lambda images: {}, name="light", version="1")
    (again,) = given.evaluate(pipe, silent, tmp_path / "images")
    assert again.rows == result.rows
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with pytest.raises(InvalidInputError, match="images was 2 and is 3 now"):
        GenerationTask(variants={"balanced": {"method": "balanced"}}, **fields | {"fit_images": 3}).evaluate(
            pipe, silent, tmp_path / "images"
        )


def test_the_command_fits_what_the_function_fits(pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vldebias.evaluation.judges.MiniatureJudge", reader)
    path = FEW.to_yaml(tmp_path / "few.yaml")
    flags = [
        "--judge",
        "miniature",
        "--fit-images",
        "1",
        "--steps",
        "1",
        "--guidance",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    arguments = ["debias", str(path), "--pipeline", "miniature", "--method", "balanced", *flags, "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "sequence" in json.loads(done.stdout)["roles"]
    drawing = Drawing(images=1, steps=1, guidance=1.0)
    method, images = read_judged(pipe, path, reader(), tmp_path / "again", drawing=drawing)
    assert images == 9
    saved, prompts = load_edits(tmp_path / "out"), list(WHOLE.held_out_classes[:4])
    with torch.no_grad(), debias(pipe, saved):
        one = pipe.encode_prompt(prompts, "cpu", 1, False)[0]
    with torch.no_grad(), debias(pipe, path, method=method):
        torch.testing.assert_close(pipe.encode_prompt(prompts, "cpu", 1, False)[0], one)


def test_without_a_judge_it_is_said_what_to_do(pipe: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"uses judged images: .* `vldebias debias --method balanced --judge"):
        debias(pipe, FEW, method="balanced")
    with pytest.raises(InvalidInputError, match=r"method 'midpoint' needs no judged images; fit it with"):
        read_judged(pipe, FEW, reader(), tmp_path, method="midpoint")
    with pytest.raises(InvalidInputError, match="method 'midpoint' reads no judged images"):
        Midpoint().read(Problem.of(pipe, FEW), Asked())
    with pytest.raises(InvalidInputError, match="few: expected class prompts, which are drawn for the fit, got none"):
        read_judged(pipe, replace(FEW, classes=(), class_names=()), reader(), tmp_path)
    other = FunctionJudge({"age": ("young", "old")}, lambda images: {}, name="ages", version="1")
    with pytest.raises(InvalidInputError, match=r"none of its attributes has the values \['male', 'female'\]"):
        read_judged(pipe, FEW, other, tmp_path)
    tones = GenerationTask(
        prompts=FEW,
        attributes=["gender"],
        stated=False,
        variants={"both": {"method": "balanced", "prompts": [FEW, "skin-tone"]}},
    )
    with pytest.raises(InvalidInputError, match="both: is fitted on one prompt set, got 2"):
        tones.evaluate(pipe, reader(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "balanced"], r"--method balanced uses judged images: fit it with `vldebias debias --judge NAME`"),
        (["--method", "cali", "--judge", "miniature"], r"--judge is for methods that need judged images"),
        (
            ["--method", "balanced", "--judge", "miniature", "--max-loss", "0.1"],
            r"on one prompt set and without --max-loss",
        ),
    ],
)
def test_the_command_refuses_before_anything_is_loaded(arguments: list[str], message: str, tmp_path: Path) -> None:
    given = ["debias", "gender", "--pipeline", str(tmp_path / "none"), "--out", str(tmp_path / "out"), *arguments]
    with pytest.raises(InvalidInputError, match=message):
        CliRunner().invoke(app, given, catch_exceptions=False)


def test_the_user_chooses_how_many_images_it_is_fitted_to(tmp_path: Path) -> None:
    given = GenerationTask(prompts=FEW, attributes=["gender"], variants={"cali": {}})
    assert given.with_options(Options(out=tmp_path)).fit_images == 4
    chosen = given.with_options(Options(out=tmp_path, methods=("balanced",), fit_images=9))
    assert chosen.fit_images == 9
    assert list(chosen.variants) == ["balanced"]
