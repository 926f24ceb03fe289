"""Test generation: figures for hand-painted images match manual counts, and the full path runs on
the miniature."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.study.painted_by_hand import (
    GENDERS,
    JOBS,
    UNCLEAR,
    UNSEEN,
    Reader,
    Shows,
    chosen,
    paint,
    repaint,
    task,
)
from vldebias import fit_projections, load_prompts
from vldebias.data.labels import UNKNOWN
from vldebias.errors import InvalidInputError
from vldebias.hosts.loading import Loaded
from vldebias.judge.judges import Judge, MiniatureJudge
from vldebias.judge.plan import OTHERS, GeneratedImages
from vldebias.measure.metric import computed
from vldebias.measure.rows import WORSE_STRIP, TaskResult
from vldebias.metrics import discrepancy
from vldebias.miniature import load_clip, load_pipeline
from vldebias.prompts import PromptSet, make_prompt_set
from vldebias.report.result import Result
from vldebias.study.evaluating import evaluate
from vldebias.study.grids import CELL, GAP, layout
from vldebias.study.inputs import Inputs
from vldebias.utils.options import Options

HASH = load_prompts("professions-gender").hash
Painted = tuple[GeneratedImages, Shows]
Parts = dict[str, TaskResult]


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Painted:
    return paint(tmp_path_factory.mktemp("painted"), np.random.default_rng(5))


@pytest.fixture(scope="module")
def parts(painted: Painted) -> Parts:
    attributes = ["gender", "age", "gender x age"]
    measured = task(attributes=attributes, noun="jobs").measure(painted[0].folder, Reader())
    return {part.provenance.task: part for part in measured}


def value(parts: Parts, block: str, metric: str, method: str, subset: str) -> float:
    matching_rows = [
        f for f in parts[block].rows if (f.metric, f.method, f.subset) == (metric, method, subset)
    ]
    assert len(matching_rows) == 1
    low, high = matching_rows[0].interval
    assert low - 1e-9 <= matching_rows[0].value <= high + 1e-9
    return matching_rows[0].value


def genders(painted: Painted, **wanted: str) -> np.ndarray:
    values = np.array([painted[1][image.path][0] for image in chosen(painted[0], **wanted)])
    return np.where(values == UNCLEAR, UNKNOWN, values)


@pytest.mark.parametrize("method", ["none", "cali"])
def test_bias_matches_a_manual_count(painted: Painted, parts: Parts, method: str) -> None:
    block = "generation gender"
    subset = "unseen jobs"
    by_job = {job: genders(painted, variant=method, concept=job) for job in UNSEEN}
    discrepancies = {job: discrepancy(codes, 2, unknown=UNKNOWN) for job, codes in by_job.items()}
    assert value(parts, block, "discrepancy", method, subset) == pytest.approx(
        np.mean([*discrepancies.values()])
    )
    unknown = np.mean([(codes == UNKNOWN).mean() for codes in by_job.values()])
    assert value(parts, block, "unknown", method, subset) == pytest.approx(unknown)
    for job, codes in by_job.items():
        assert value(parts, block, "discrepancy", method, job) == pytest.approx(discrepancies[job])
        assert value(parts, block, "share", method, f"{job}: male") == pytest.approx(
            (codes == 0).mean()
        )
    drawn, shows = painted
    right = [
        shows[i.path][2] == JOBS.index(i.concept)
        for i in chosen(drawn, variant=method, part="unseen")
    ]
    for attribute in ("gender", "age", "gender x age"):
        assert value(
            parts, f"generation {attribute}", "recognised", method, subset
        ) == pytest.approx(np.mean(right))


def test_intersections_are_counted_as_separate_values(painted: Painted, parts: Parts) -> None:
    drawn, shows = painted
    shown = [[shows[i.path] for i in chosen(drawn, variant="cali", concept=job)] for job in UNSEEN]
    mean = np.mean(
        [discrepancy([g * 3 + a for g, a, _ in labels if g != UNCLEAR], 6) for labels in shown]
    )
    assert value(
        parts, "generation gender x age", "discrepancy", "cali", "unseen jobs"
    ) == pytest.approx(mean)
    assert not any(f.metric == "share" for f in parts["generation gender x age"].rows)
    shares = [f.subset for f in parts["generation age"].rows if f.metric == "share"]
    assert {s.partition(": ")[2] for s in shares} == {"young", "old", "ageless"}


@pytest.mark.parametrize("method", ["none", "cali", "cali, stated not kept"])
def test_images_of_stated_prompts_are_correct_if_they_show_the_stated_value(
    painted: Painted, parts: Parts, method: str
) -> None:
    drawn, shows = painted
    stated = chosen(drawn, variant=method, part="unseen", stated=True)
    right = np.array([shows[i.path][0] == GENDERS.index(str(i.stated)) for i in stated])
    male = np.array([i.stated == "male" for i in stated])
    block = "generation gender"
    assert value(parts, block, "stated_right", method, "unseen jobs") == pytest.approx(right.mean())
    assert value(parts, block, "stated_right", method, "unseen jobs, stated male") == pytest.approx(
        right[male].mean()
    )
    shown = np.mean([shows[i.path][2] == JOBS.index(i.concept) for i in stated])
    assert value(parts, block, "stated_recognised", method, "unseen jobs") == pytest.approx(shown)
    assert not any(f.metric.startswith("stated") for f in parts["generation age"].rows)


def test_parts_methods_and_changes_are_measured(painted: Painted, parts: Parts) -> None:
    measured = parts["generation gender"]
    figures = measured.rows
    assert {f.subset for f in figures if f.metric == "unknown"} >= {"train jobs", "unseen jobs"}
    assert {f.method for f in figures if f.metric == "discrepancy"} == {"none", "cali", "random"}
    stated = [f for f in figures if (f.metric, f.subset) == ("stated_right", "unseen jobs")]
    assert [f.method for f in stated] == ["none", "cali", "cali, stated not kept"]
    figure_of_name = {(f.metric, f.method, f.subset): f for f in figures}
    assert figure_of_name["discrepancy", "none", "unseen jobs"].n == {"jobs": 4, "images each": 10}
    drawn, shows = painted
    black = Counter(image.variant for image in drawn if shows[image.path][0] == UNCLEAR)
    settings = measured.provenance.settings
    assert settings["images that the safety checker blackened"] == black


def test_changes_are_differences_from_none(parts: Parts) -> None:
    figures = parts["generation gender"].rows
    value_without = {(f.metric, f.subset): f.value for f in figures if f.method == "none"}
    for figure in figures:
        is_fact = figure.metric in ("share", "discrepancy_deviation")
        if figure.method in ("none", "random") or is_fact:
            assert figure.change is None
            continue
        change, low, high = figure.change
        assert change == pytest.approx(figure.value - value_without[figure.metric, figure.subset])
        assert low <= change <= high
        assert (figure.lam, figure.strength) == (500.0, 1.0)


def test_pictures_are_shown_side_by_side_by_job(painted: Painted, parts: Parts) -> None:
    """Jobs that show the first value least often come first."""
    drawn, shows = painted
    plots = parts["generation gender"].pictures
    assert set(plots) == {f"generation-gender-{part}-side-by-side" for part in ("train", "unseen")}
    _, sheet = plots["generation-gender-unseen-side-by-side"]
    step = CELL + GAP
    _, left, above = layout(10 * step)
    assert sheet.size == (left + 10 * step, above + 4 * 2 * step)

    def count_of_first_value(job: str) -> int:
        return int((genders(painted, variant="none", concept=job) == 0).sum())

    for row, job in enumerate(sorted(UNSEEN, key=count_of_first_value)):
        top = above + 2 * row * step
        cells = [sheet.getpixel((left + column * step, top)) for column in range(10)]
        images = chosen(drawn, variant="none", part="unseen", concept=job)
        assert cells == [shows[image.path] for image in images]
    assert parts["generation age"].pictures == {}  # the images belong to the first attribute


def test_the_prompt_that_got_worse_is_shown_next_to_the_images_without_the_method(
    tmp_path: Path,
) -> None:
    """The images are even at first and then all show one gender, so there is one row without and
    one with the method. If nothing changed, there is no such picture."""
    made, _ = paint(tmp_path, np.random.default_rng(0), stated=False, images=20)
    unlucky = UNSEEN[1]
    for image in made:
        is_changed = image.concept == unlucky and image.variant == "cali"
        # Images with the same noise have the same position among the images for the prompt.
        gender = 0 if is_changed else image.seed % 2
        job = JOBS.index(image.concept) if image.concept in JOBS else 0
        repaint(made, image, (gender, 0, job))
    (part,) = task(noun="jobs", stated=False, images=20).measure(made.folder, Reader())
    assert [stem for stem in part.strips if stem.endswith(WORSE_STRIP)] == [
        f"generation-gender-unseen{WORSE_STRIP}"
    ]
    strip = part.strips[f"generation-gender-unseen{WORSE_STRIP}"]
    assert strip.caption.startswith(f"Who got worse: “a {unlucky}” under cali")
    before, after = strip.rows
    assert before[0].startswith("as generated: 20 men and 20 women; 40 of 40")
    assert after[0].startswith("cali: 40 men; 40 of 40")
    assert [len(images) for _, images in strip.rows] == [8, 8]
    assert "the first 8 of 40" in after[0]


def test_prompts_without_known_images_count_most_and_are_reported(tmp_path: Path) -> None:
    drawn, _ = paint(tmp_path, np.random.default_rng(0), stated=False)
    blind = Judge(
        "blind", {"gender": GENDERS}, lambda images: {"gender": np.full((len(images), 2), 0.5)}, "1"
    )
    (part,) = task().measure(drawn.folder, blind)
    one_sided = np.array([4.0, 0.0])
    for figure in part.rows:
        # Each share metric has the value that it has if all images show the same value.
        expected = {metric.name: compute(one_sided) for metric, compute in computed("shares")}
        assert expected["discrepancy"] == pytest.approx(0.5**0.5)
        assert expected["kl_from_uniform"] == pytest.approx(np.log(2))
        expected |= {"discrepancy_deviation": 0.0, "unknown": 1.0, "share": 0.0}
        assert figure.value == pytest.approx(expected[figure.metric])
        if figure.subset == "pilot":
            assert figure.interval == pytest.approx((0, 0.5**0.5))


def test_prompts_of_one_concept_are_resampled_together(painted: Painted) -> None:
    """Always showing men is correct for one prompt in every concept, which is exactly half."""
    men = Judge(
        "men",
        {"gender": GENDERS},
        lambda images: {"gender": np.tile([1.0, 0.0], (len(images), 1))},
        "1",
    )
    (part,) = task(noun="jobs").measure(painted[0].folder, men)
    for figure in part.rows:
        if (figure.metric, figure.subset) == ("stated_right", "unseen jobs"):
            assert (figure.value, *figure.interval) == (0.5, 0.5, 0.5)
            assert figure.n == {"jobs": 4, "stated prompts": 8, "images each": 4}


def test_invalid_settings_are_rejected_before_anything_is_generated(
    painted: Painted, tmp_path: Path
) -> None:
    another = {"attribute": PromptSet("other", (("a man", "a woman"),))}
    for fields, refusal in (
        (another, "a different version of 'people'"),
        ({"fid": True}, "CLIPScore and FID"),
    ):
        with pytest.raises(InvalidInputError, match=refusal):
            task(**fields).measure(painted[0].folder, Reader())
    ages = SimpleNamespace(names={"age": ("young", "old")}, name="ages", fingerprint="1")
    never = SimpleNamespace(components={}, scheduler=SimpleNamespace(config={}), name_or_path="")
    with pytest.raises(InvalidInputError, match=r"\['race'\]"):
        task(attributes=["race"]).measure(tmp_path, Reader(), pipe=never)
    with pytest.raises(InvalidInputError, match=r"\['male', 'female'\]"):
        task(attributes=["age"]).measure(tmp_path, ages, pipe=never)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:FID of")
def test_generation_end_to_end_on_the_miniature(tmp_path: Path) -> None:
    """Generating, judging and measuring again reuses the images and gives the same result."""
    few = make_prompt_set("few", {"male": ["male"], "female": ["female"]}, ["nurse", "plumber"])
    small = {
        "attribute": few,
        "concepts": "train",
        "images": 2,
        "stated_images": 1,
        "steps": 4,
        "guidance": 3.0,
    }
    model, preprocess, tokenizer = load_clip()
    how = {"pipe": load_pipeline(), "scorer": Loaded(model, "miniature", tokenizer, preprocess)}
    small["variants"] = {"cali": {}, "balanced-prompts": {"method": "balanced-prompts"}}
    generation_task = task(**small, clip_score=True, fid=True)
    first, again = (
        generation_task.measure(tmp_path, MiniatureJudge().ready(), **how) for _ in "12"
    )
    assert [part.rows for part in first] == [part.rows for part in again]
    methods = first[0].provenance.methods
    assert [name for name in methods if methods[name].get("assigns_values")] == ["balanced-prompts"]
    tasks = [part.provenance.task for part in first]
    assert tasks == ["generation gender", "generation: CLIPScore", "generation: FID"]
    assert (
        next(f.value for f in first[0].rows if (f.metric, f.method) == ("recognised", "none")) > 0.5
    )
    result = Result.from_tasks("t", first, seconds=0)
    assert Result.read(result.write(tmp_path / "result.json")) == result


def test_evaluate_generates_the_given_methods(tmp_path: Path) -> None:
    """Methods are variants of the pipeline. Without a folder for the images, nothing is
    generated."""
    tiny_set = make_prompt_set("one", {"male": ["male"], "female": ["female"]}, ["nurse"])
    fields = {
        "attribute": tiny_set,
        "methods": ["none", "cali"],
        "judge": MiniatureJudge().ready(),
        "attributes": ["gender"],
    }
    fields |= {"concepts": "train", "stated": False, "steps": 1, "batch_size": 100, "resamples": 5}
    with pytest.raises(InvalidInputError, match="images: got no folder"):
        evaluate(load_pipeline(), task="generation", **fields)
    result = evaluate(load_pipeline(), tmp_path, task="generation", **fields)
    assert {row.method for row in result.rows if row.metric == "unknown"} == {"none", "cali"}
    made = GeneratedImages.open(tmp_path)
    assert {name: settings.get("method") for name, settings in made.plan.variants.items()} == {
        "none": None,
        "cali": "cali",
    }
    assert len(list(tmp_path.glob("*/*/*.png"))) == len(made) == 2 * 100


def test_user_methods_and_saved_edits_can_be_variants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    fit_projections(
        load_pipeline(), "professions-gender", method="cali", lam=3.0
    ).only.save_pretrained(folder)
    generation_task = task(variants={"cali": {"attribute": "professions-gender", "strength": 0.5}})
    methods = ("none", "difference", "equalise", "orth-cali")
    variants = generation_task.with_options(
        Options(out=tmp_path, methods=methods, lam=7.0, projections=(folder,))
    ).variants
    assert list(variants) == ["difference", "orth-cali", "mine"]
    for name in ("difference", "orth-cali"):
        variant = variants[name]
        assert (variant.method, variant.lam, variant.strength) == (name, 7.0, 0.5)
    sets = {"professions-gender": HASH}
    assert {"method": "cali", "lam": 3.0, "sets": sets}.items() <= variants["mine"].planned.items()
    assert generation_task.with_options(Options(out=tmp_path)) == generation_task
    numbers = {"images": 100, "stated_images": 8, "steps": 50, "guidance": 7.5, "batch_size": 8}
    flags = {"stated": True, "as_written": False, "clip_score": False, "fid": False}
    for name, default in (numbers | flags | {"seeds": (0,)}).items():
        assert getattr(generation_task, name) == default, name
    no_pipeline = Options(out=tmp_path, methods=("bend-vlm",))
    assert generation_task.with_options(no_pipeline) == generation_task
    with pytest.raises(InvalidInputError, match="did you mean 'cali'"):
        generation_task.with_options(Options(out=tmp_path, methods=("calli",)))
    with pytest.raises(InvalidInputError, match="eval human --label-file"):
        generation_task.with_options(Options(out=tmp_path, label_file=(tmp_path,)))
    monkeypatch.setattr(
        "vldebias.study.tasks.generation.processes", lambda: SimpleNamespace(world=2)
    )
    with pytest.raises(InvalidInputError, match="a single process to generate images"):
        generation_task.with_options(Options(out=tmp_path))


def test_the_judge_of_a_suite_has_its_own_model_unless_the_user_chooses_one(
    tmp_path: Path,
) -> None:
    clip = {
        "kind": "clip",
        "model": "miniature",
        "prompts": {"gender": {"male": "a man", "female": "a woman"}},
    }
    inputs = Inputs(Options(out=tmp_path, pipeline="miniature"))
    with pytest.raises(InvalidInputError, match="add `judge:`"):
        task().prepare(inputs)
    prepared = task(judge=clip, fid=True).prepare(inputs)
    assert prepared["scorer"].name == "miniature"
    assert prepared["images"] == tmp_path / "images" / "generation"
    assert prepared["judge"].names == {"gender": GENDERS, "professions": JOBS}
    assert task(judge=clip).prepare(inputs)["scorer"] is None
    inputs_of_suite = Inputs(
        Options(out=tmp_path, pipeline="miniature", model="miniature", judge="no-such-model")
    )
    assert (
        task(judge={"kind": "miniature"}, clip_score=True).prepare(inputs_of_suite)["scorer"]
        is inputs_of_suite.model
    )
    for judge, used, refusal in (
        (clip | {"model": None}, inputs, "no image-text"),
        (clip, inputs_of_suite, "no-such-model"),
    ):
        with pytest.raises(InvalidInputError, match=refusal):
            task(judge=judge).prepare(used)


def test_prompts_in_custom_wording_are_measured(tmp_path: Path) -> None:
    """All wordings of a concept form one row. The worst one is shown next to the mean, and chance
    next to the gap."""
    drawn, shows = paint(
        tmp_path, np.random.default_rng(6), as_written=True, stated=False, stated_images=3, images=4
    )
    (part,) = task(noun="jobs", as_written=True).measure(drawn.folder, Reader())
    rows = {(row.metric, row.method, row.subset): row for row in part.rows}
    subset = "jobs, as people write them"
    by_job = {}
    for job in UNSEEN:
        shown = genders((drawn, shows), variant="cali", concept=job, part="wordings")
        assert len(shown) == 5 * 3 * 2  # wordings, images and seeds
        by_job[job] = discrepancy(shown, 2, unknown=UNKNOWN)
        assert rows["discrepancy", "cali", f"{job}, as people write it"].value == pytest.approx(
            by_job[job]
        )
    assert rows["discrepancy", "cali", subset].value == pytest.approx(np.mean([*by_job.values()]))
    assert rows["discrepancy", "cali", f"{subset}, the worst"].value == pytest.approx(
        max(by_job.values())
    )
    squares = rows["discrepancy_squared", "random", subset]
    assert squares.interval[0] < 0 < squares.interval[1]
    assert squares.value == pytest.approx(0, abs=0.01)  # the estimate is unbiased
    chance = rows["discrepancy", "random", subset]
    assert chance.interval[0] < chance.value < chance.interval[1]
    known = [
        (genders((drawn, shows), variant="none", concept=job, part="wordings") != UNKNOWN).sum()
        for job in UNSEEN
    ]
    # This is the gap of a fair coin.
    assert chance.value == pytest.approx(
        np.mean([(1 / (np.pi * n)) ** 0.5 for n in known]), rel=0.1
    )
    assert ("recognised", "cali", subset) in rows, "the judge knows every concept"
    assert [name for metric, _, name in rows if metric == "unchanged"] == [
        f"prompts {kind}" for kind in OTHERS
    ]
    for kind in OTHERS:
        images = [
            i for i in chosen(drawn, variant="cali", part="others") if i.prompt in OTHERS[kind]
        ]
        share = np.mean([shows[i.path] == shows[i.under("none").path] for i in images])
        assert rows["unchanged", "cali", f"prompts {kind}"].value == pytest.approx(share)


def test_the_users_guidance_scale_overrides_the_suites(tmp_path: Path) -> None:
    """A guidance scale of 0 is valid, and pictures with a different guidance scale need a separate
    plan."""
    generation_task = task(attribute="professions-gender", variants={"cali": {"method": "cali"}})
    for scale in (0.0, 12.0):
        chosen_task = generation_task.with_options(Options(out=tmp_path, guidance=scale))
        assert (chosen_task.guidance, chosen_task.plan().guidance) == (scale, scale)
    chosen_task.plan().settle(tmp_path / "drawn")
    picture = tmp_path / "drawn" / "none" / "concept" / "0.png"
    picture.parent.mkdir(parents=True)
    picture.touch()
    with pytest.raises(InvalidInputError, match="guidance"):
        generation_task.plan().settle(tmp_path / "drawn")


def test_prompts_from_a_file_are_generated_if_they_leave_the_value_open(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(
        "A photo of a nurse.\nA photo of a plumber.\nA female chef.\nA red car.\n"
    )
    options = Options(out=tmp_path, prompts_file=tmp_path / "mine.txt", images=2, steps=2)
    generation_task = task(
        attribute="professions-gender",
        variants={"balanced-prompts": {"method": "balanced-prompts"}},
    )
    (part,) = generation_task.with_options(options).measure(
        tmp_path / "drawn", MiniatureJudge().ready(), pipe=load_pipeline()
    )
    shown = {row.subset for row in part.rows if row.metric == "share"}
    assert shown == {"A photo of a nurse.: male", "A photo of a plumber.: male"}
    assert part.provenance.settings["left out, by reason"] == {"stated": 1, "no person": 1}
    (tmp_path / "mine.txt").write_text("A red car.\n")
    with pytest.raises(InvalidInputError, match=r"mine.txt: .*'no person'"):
        generation_task.with_options(options).plan()
