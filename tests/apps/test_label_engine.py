"""Test the labelling study without a page: order, blinding, answers, corrections, and resuming."""

import io
import shlex
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_parts import AGE, GENDER, draw, engines, studies, study
from PIL import Image
from typer.testing import CliRunner

from apps.label.session import open_study
from apps.shares.answers import CANNOT_TELL, NO_PERSON, AnnotationLog
from tests.refusals import refused
from vldebias.cli import app
from vldebias.errors import InvalidInputError
from vldebias.judge.plan import PlannedImage
from vldebias.report.result import Result


class Paper(studies.ImageFolder):
    """Provide image records without files."""

    def png(self, record: Any) -> bytes:
        return record.path.encode()


def paper(*paths: str) -> Paper:
    records = tuple(
        PlannedImage("p", "c", path=path, variant="none", seed=i) for i, path in enumerate(paths)
    )
    return Paper(Path("nowhere"), records, records)


def images_seen(engine: Any, name: str, choice: int = 0) -> list[bytes]:
    """Return all images in the order in which an annotator who always gives the same answer sees
    them."""
    place = engine.start(name)
    images = []
    while place.step is not None:
        images.append(engine.view(place).png)
        place = engine.answer(place, choice)
    return images


def test_every_annotator_sees_all_images_once_with_shared_images_first(
    tmp_path: Path,
) -> None:
    images = paper(*(f"{i}.png" for i in range(2 * engines.SHARED)))
    first = engines.SHARED

    def engine(seed: int = 0) -> Any:
        return engines.Labelling(images, [GENDER], AnnotationLog(tmp_path / "log"), seed=seed)

    ada, ada_again, ben, other_seed = (
        [image.path for image in engine(seed)._order(name)]
        for name, seed in (("ada", 0), ("ada", 0), ("ben", 0), ("ada", 1))
    )
    files = [record.path for record in images.records]
    assert images_seen(engine(), "ada") == [path.encode() for path in ada]
    assert sorted(ada) == sorted(ben) == sorted(files)
    assert ada == ada_again
    assert len({tuple(order) for order in (ada, ben, other_seed, files)}) == 4
    assert set(ada[:first]) == set(ben[:first])
    assert ada[:first] != ben[:first]
    assert ada[first:] != ben[first:]


@given(
    st.sets(st.integers(0, 99), min_size=2, max_size=12), st.sets(st.integers(100, 199), max_size=6)
)
@settings(max_examples=30, deadline=None)
def test_adding_images_does_not_reorder_the_others(first: set[int], later: set[int]) -> None:
    def order(numbers: set[int]) -> list[str]:
        engine = engines.Labelling(
            paper(*map(str, sorted(numbers))), [GENDER], AnnotationLog(Path("none.jsonl"))
        )
        return [record.path for record in engine._order("ada")]

    assert [path for path in order(first | later) if int(path) in first] == order(first)


def test_the_page_does_not_reveal_the_source(tmp_path: Path) -> None:
    generated = draw(tmp_path)
    engine = study(tmp_path, GENDER, AGE)
    place = engine.start("ada")
    png = engine.view(place).png
    text = repr(replace(engine.view(place), png=None)) + repr(place)
    words = set()
    for image in generated:
        words |= {image.path, image.variant, image.prompt, image.concept}
    assert {word for word in words if word in text} == set()
    with Image.open(io.BytesIO(png)) as image:
        assert image.size == (8, 8)
        assert not image.info
    assert b"prompt" not in png
    original = generated.path(
        next(i for i in generated if i.path == engine._asked("ada", place.step)[0].path)
    )
    assert b"prompt" in original.read_bytes()  # otherwise the test above could not fail
    with Image.open(original) as source, Image.open(io.BytesIO(png)) as sent:
        assert source.convert("RGB").tobytes() == sent.convert("RGB").tobytes()


def test_large_images_are_downscaled_for_the_page(tmp_path: Path) -> None:
    Image.new("RGB", (3000, 1500)).save(tmp_path / "large.jpg")
    png = studies.ImageFolder.open(tmp_path).png(studies.ImageFolder.open(tmp_path).records[0])
    assert Image.open(io.BytesIO(png)).size == (1024, 512)


class Twin:
    """Model what an annotator should see: answers by question, and the current position."""

    def __init__(self, images: int, questions: int) -> None:
        self.k = questions
        self.given_answers = [[None] * questions for _ in range(images)]
        self.step: int | None = 0

    def open(self, step: int) -> bool:
        answers = self.given_answers[step // self.k]
        mixed = any(a not in (None, NO_PERSON) for a in answers)
        return answers[step % self.k] is None or (answers[step % self.k] == NO_PERSON and mixed)

    def first_open(self, start: int) -> int | None:
        steps = list(range(len(self.given_answers) * self.k))
        return next((s for s in steps[start:] + steps[:start] if self.open(s)), None)

    def alone(self, step: int) -> int:
        is_nobody = all(a == NO_PERSON for a in self.given_answers[step // self.k])
        return step // self.k * self.k if is_nobody else step

    def answer(self, value: str) -> None:
        if self.step is None:
            return
        image, question = divmod(self.step, self.k)
        self.given_answers[image] = (
            [NO_PERSON] * self.k if value == NO_PERSON else self.given_answers[image]
        )
        self.given_answers[image][question] = value
        self.step = self.first_open(self.step + 1)

    def back(self) -> None:
        end = len(self.given_answers) * self.k if self.step is None else self.step
        self.step = self.alone(max(end - 1, 0))

    def forward(self) -> None:
        if self.step is None or self.open(self.step):
            return
        is_nobody = all(a == NO_PERSON for a in self.given_answers[self.step // self.k])
        following = self.step + self.k if is_nobody else self.step + 1
        self.step = (
            following if following < len(self.given_answers) * self.k else self.first_open(0)
        )


@given(
    st.lists(st.sampled_from(["0", "1", "2", "3", "back", "forward", "restart"]), max_size=40),
    st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_any_session_matches_its_model(
    tmp_path_factory: Any, acts: Sequence[str], images: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "answers.jsonl"
    folder = paper(*map(str, range(images)))

    def new() -> Any:
        return engines.Labelling(folder, [GENDER, AGE], AnnotationLog(path))

    engine = new()
    twin = Twin(images, 2)
    place = engine.start("ada")
    for act in acts:
        if act == "restart":
            engine = new()
            place = engine.start("ada")
            twin.step = twin.first_open(0)
        elif act in ("back", "forward"):
            place = getattr(engine, act)(place)
            getattr(twin, act)()
        else:
            question = engine.view(place).question
            place = engine.answer(place, int(act))
            twin.answer(question.choices[int(act)] if question else "")
        assert place.step == twin.step
    view = engine.view(place)
    order = [record.path for record in engine._order("ada")]
    answers = {key[1:]: answer.value for key, answer in AnnotationLog(path).answers().items()}
    expected_answers = {}
    for image, (gender, age) in zip(order, twin.given_answers, strict=True):
        expected_answers |= {(image, "gender"): gender, (image, "age"): age}
    assert answers == {key: value for key, value in expected_answers.items() if value is not None}
    assert view.done == sum(
        not twin.open(2 * i) and not twin.open(2 * i + 1) for i in range(images)
    )


def test_a_click_does_not_check_every_image_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, labelling 10,000 images would take 100 times as long as labelling 1,000."""
    images = paper(*(f"{i}.png" for i in range(200)))
    engine = engines.Labelling(images, [GENDER, AGE], AnnotationLog(tmp_path / "log"))
    place = engine.start("ada")
    checked = []
    is_open = engine._is_open

    def count(annotator: str, step: int) -> bool:
        checked.append(step)
        return is_open(annotator, step)

    monkeypatch.setattr(engine, "_is_open", count)
    for _ in range(20):
        place = engine.answer(place, 0)
        view = engine.view(place)
    assert (view.done, view.image) == (10, 11)
    assert len(checked) < 20 * 10


def test_concurrent_annotators_do_not_interfere(tmp_path: Path) -> None:
    engine = engines.Labelling(paper(*map(str, range(12))), [GENDER], AnnotationLog(tmp_path / "x"))
    names = [f"annotator {i}" for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: images_seen(engine, names[i], i % 4), range(8)))
    answers = engine.log.answers()
    assert len(answers) == 8 * 12 == len(engine.log.read())
    assert all(
        answer.value == GENDER.choices[names.index(answer.annotator) % 4]
        for answer in answers.values()
    )


def test_invalid_choices_and_files_with_other_choices_are_rejected(tmp_path: Path) -> None:
    log = AnnotationLog(tmp_path / "x")
    engine = engines.Labelling(paper("a"), [GENDER], log)
    for number in (-1, 4):
        with pytest.raises(InvalidInputError, match=f"expected 0 to 3, got {number}"):
            engine.answer(engine.start("ada"), number)
    assert not log.path.exists()
    log.append("a", "ada", "gender", "man")
    log.append("a", "ada", "size", "large")
    with pytest.raises(InvalidInputError, match="'man' about gender"):
        engines.Labelling(paper("a"), [GENDER], log)


@pytest.mark.parametrize(
    "name", ["ben-2", "Jean-Luc O'Neill", "अनिता", "دانا", "李 雷", "a.b_c", "José"]
)
def test_names_of_people_are_accepted(name: str) -> None:
    assert studies.annotator_name(f"  {name} ") == name


def test_the_printed_commands_measure_the_answers_about_any_attribute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each image counts once, also after a correction, as the majority of the answers."""
    monkeypatch.chdir(tmp_path)
    photos = Path("my photos")
    photos.mkdir()
    for number in range(12):
        Image.new("RGB", (8, 8)).save(photos / f"{number}.png")
    study = open_study(photos, ["glasses", "hair"], ["with,without", "long hair,short"])
    for name in ("ada", "ben", "eve"):
        first = place = study.start(name)
        while place.step is not None:
            # Every second image shows glasses. All have short hair, but Eve never says so.
            record, question = study._asked(name, place.step)
            choice = int(name != "eve")
            if question.attribute == "glasses":
                choice = int(Path(record.path).stem) % 2
            if place is first:
                study.answer(place, 1 - choice)
            place = study.answer(place, choice)
    commands = study.next_command().splitlines()
    assert len(commands) == 2
    for command, share in zip(commands, (0.5, 0.0), strict=True):
        program, *words = shlex.split(command)
        assert program == "vldebias"
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        folder = Path(words[words.index("--out") + 1])
        result = Result.read(folder / "result.json")
        assert result.provenance[0].n == {"prompts": 1, "images": 12}
        shares = [row.value for row in result.rows if row.metric == "share"]
        assert shares[0] == pytest.approx(share)


@refused(
    ("...", "name"),
    ("../../etc/passwd", "/"),
    ("<b>ada</b>", "<"),
    ("ada\u202egnp", r"U\+202E"),
    ("a" * 10_000, "10000"),
)
def test_unusual_names_are_rejected(name: str) -> None:
    studies.annotator_name(name)


def test_similar_names_are_one_annotator_and_a_closed_study_admits_no_new_ones(
    tmp_path: Path,
) -> None:
    assert studies.annotator_name("Jose\u0301") == "José"
    assert studies.annotator_name("a  b\tc") == "a b c"
    engine = engines.Labelling(
        paper("a"), [GENDER], AnnotationLog(tmp_path / "x"), annotators=["Ada", "Ben", "Ada"]
    )
    assert engine.start("BEN").annotator == "Ben"
    assert engine.progress() == {"Ada": 0, "Ben": 0}
    with pytest.raises(InvalidInputError, match="Ada, Ben"):
        engine.start("eve")


def test_values_come_from_the_command_line_or_a_prompt_set() -> None:
    (gender,) = studies.questions_of(["gender"])
    assert gender.choices == ("male", "female", CANNOT_TELL, NO_PERSON)
    (glasses, race) = studies.questions_of(["glasses", "race"], ["with, without", "fairface-race"])
    assert glasses.values == ("with", "without")
    assert len(race.choices) == 9  # there is a key for each value
    assert studies.questions_of(["tone"], prompt_set="skin-tone")[0].values[0] == "pale"
    assert studies.questions_of(["gender"], ["man,woman"], "professions-gender")[0].values == (
        "man",
        "woman",
    )


def test_the_classes_of_a_set_are_asked_about_and_the_last_page_uses_them(tmp_path: Path) -> None:
    (question,) = studies.questions_of(["class"], ["waterbirds"])
    assert question.choices == ("landbird", "waterbird", CANNOT_TELL)  # birds are no people
    assert NO_PERSON in studies.questions_of(["class"], ["celeba"])[0].choices
    assert studies.questions_of(["class"], ["cat, dog"])[0].values == ("cat", "dog")
    for number in range(30):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number:02d}.png")
    study = open_study(tmp_path, ["class"], ["waterbirds"], most=10)
    assert study.next_command().startswith(f"vldebias debias waterbirds --reference {tmp_path} ")
    # Files may be sorted by class, so the first ones are no sample.
    chosen = [image.path for image in study.folder.records]
    assert len(chosen) == 10
    assert max(chosen) > "15"


@refused(
    ([], [], "--attribute gender"),
    (["gender", "gender"], [], "expected distinct attributes"),
    (
        ["glasses"],
        [],
        r"--attribute glasses: the values of this attribute are unknown; .* age, backgrounds",
    ),
    (["gender"], ["male"], "two or more different values such as male,female, got 'male'"),
    (["gender"], ["male,no person"], "'no person' is always offered; remove it"),
    (["size"], [",".join(map(str, range(30)))], "at most 18 values, one per key, got 30"),
)
def test_invalid_questions_are_rejected(attributes: list[str], choices: list[str]) -> None:
    studies.questions_of(attributes, choices)


def test_unseen_concepts_are_labelled_and_missing_images_are_counted(
    tmp_path: Path,
) -> None:
    generated = draw(tmp_path)
    folder = studies.ImageFolder.open(tmp_path)
    kinds = {(record.variant, record.concept, record.seed) for record in folder.records}
    assert kinds == set(product(("none", "cali"), ("pilot", "baker"), range(3)))
    assert (folder.prompt_set, folder.missing) == ("professions-gender", 0)
    assert all(record.stated is None for record in folder.everything)
    assert len(generated) > len(folder.everything) == 24
    for image in generated:
        if (image.variant, image.part) == ("cali", "unseen"):
            generated.path(image).unlink()
    folder = studies.ImageFolder.open(tmp_path)
    assert (len(folder.records), folder.missing) == (6, 6)
    shutil.rmtree(tmp_path / "none")
    with pytest.raises(InvalidInputError, match="none of its 12 images"):
        studies.ImageFolder.open(tmp_path)


def test_the_image_folder_of_a_result_is_found(tmp_path: Path) -> None:
    draw(tmp_path / "out" / "images" / "gender")
    assert studies.ImageFolder.open(tmp_path / "out").root == tmp_path / "out" / "images" / "gender"
    assert studies.ImageFolder.open(tmp_path / "out" / "images").prompt_set == "professions-gender"
    draw(tmp_path / "out" / "images" / "race")
    with pytest.raises(
        InvalidInputError, match=r"images from several tasks; choose one of .*gender, .*race"
    ):
        studies.ImageFolder.open(tmp_path / "out")


def test_any_folder_of_images_works_and_subfolders_are_variants(tmp_path: Path) -> None:
    for path in (
        "b.png",
        "a.JPG",
        ".hidden.png",
        "two/after/doctor/1.png",
        "two/none/doctor/1.png",
        "two/none/nurse/1.png",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / path)
    (tmp_path / "notes.txt").write_text("")
    records = studies.ImageFolder.open(tmp_path / "two").records
    kinds = {("after", "doctor"), ("none", "doctor"), ("none", "nurse")}
    assert {(r.variant, r.concept) for r in records} == kinds
    assert len({r.seed for r in records if r.concept == "doctor"}) == 1
    shutil.rmtree(tmp_path / "two")
    records = studies.ImageFolder.open(tmp_path).records
    assert [(r.path, r.variant, r.seed) for r in records] == [
        ("a.JPG", "images", 0),
        ("b.png", "images", 1),
    ]


def test_a_key_pressed_while_the_answer_is_saved_corrects_that_answer(tmp_path: Path) -> None:
    draw(tmp_path / "images")
    labelling = study(tmp_path / "images")
    first = labelling.start("ada")
    second = labelling.answer(first, 0, first.step)
    # The first image is still displayed.
    assert labelling.answer(second, 0, first.step) == second  # the same key again
    assert labelling.answer(second, 1, first.step) == second
    answers = labelling.log.read()
    assert [answer.value for answer in answers] == ["male", "female"]
    assert len({answer.image for answer in answers}) == 1
