"""Generation: figures of hand-painted images equal what is counted by hand; the whole way on the miniature."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from drawn_by_hand import GENDERS, JOBS, PEOPLE, UNCLEAR, UNSEEN, Reader, Shows, paint

from vldebias import load_prompts
from vldebias.data import UNKNOWN
from vldebias.diagnostics import pair_distance
from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing.drawn import DrawnSet
from vldebias.evaluation.drawing.plan import Variant
from vldebias.evaluation.generation.evaluator import evaluate_generation, generate
from vldebias.evaluation.generation.pair_distances import pair_distances
from vldebias.evaluation.generation.parts import measure_drawn
from vldebias.evaluation.judging.judges import FunctionJudge, MiniatureJudge
from vldebias.evaluation.part import Part
from vldebias.evaluation.result import Result
from vldebias.fitting import Fit
from vldebias.hosts import resolve
from vldebias.metrics import discrepancy
from vldebias.miniature import load_clip, load_pipeline
from vldebias.prompts import PromptSet, make_prompt_set

FAST: dict[str, Any] = {"resamples": 50, "seed": 0}


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> tuple[DrawnSet, Shows]:
    return paint(tmp_path_factory.mktemp("painted"), np.random.default_rng(5))


@pytest.fixture(scope="module")
def parts(painted: tuple[DrawnSet, Shows]) -> dict[str, Part]:
    attributes = ["gender", "age", "gender x age"]
    found = measure_drawn(painted[0], Reader(), PEOPLE, task="generation", attributes=attributes, noun="jobs", **FAST)
    return {part.protocol.task: part for part in found}


def value(parts: dict[str, Part], task: str, metric: str, method: str, subset: str) -> float:
    found = [f for f in parts[task].figures if (f.metric, f.method, f.subset) == (metric, method, subset)]
    assert len(found) == 1
    low, high = found[0].interval
    assert low - 1e-9 <= found[0].value <= high + 1e-9
    return found[0].value


def genders(painted: tuple[DrawnSet, Shows], variant: str, concept: str, stated: bool = False) -> np.ndarray:
    drawn, shows = painted
    found = np.array([shows[i.path][0] for i in drawn.select(variant=variant, concept=concept, stated=stated)])
    return np.where(found == UNCLEAR, UNKNOWN, found)


@pytest.mark.parametrize("method", ["none", "cali"])
def test_bias_is_what_is_counted_by_hand(painted: tuple[DrawnSet, Shows], parts: dict[str, Part], method: str) -> None:
    task, subset = "generation gender", "unseen jobs"
    by_job = {job: genders(painted, method, job) for job in UNSEEN}
    found = {job: discrepancy(codes, 2, unknown=UNKNOWN) for job, codes in by_job.items()}
    assert value(parts, task, "discrepancy", method, subset) == pytest.approx(np.mean([*found.values()]))
    unknown = np.mean([(codes == UNKNOWN).mean() for codes in by_job.values()])
    assert value(parts, task, "unknown", method, subset) == pytest.approx(unknown)
    for job, codes in by_job.items():
        assert value(parts, task, "discrepancy", method, job) == pytest.approx(found[job])
        assert value(parts, task, "share", method, f"{job}: male") == pytest.approx((codes == 0).mean())
    drawn, shows = painted
    right = [shows[i.path][2] == JOBS.index(i.concept) for i in drawn.select(variant=method, part="unseen")]
    assert 0 < np.mean(right) < 1
    for attribute in ("gender", "age", "gender x age"):
        assert value(parts, f"generation {attribute}", "recognised", method, subset) == pytest.approx(np.mean(right))


def test_intersections_are_counted_as_values_of_their_own(
    painted: tuple[DrawnSet, Shows], parts: dict[str, Part]
) -> None:
    drawn, shows = painted
    found = []
    for job in UNSEEN:
        shown = [shows[i.path] for i in drawn.select(variant="cali", concept=job)]
        found.append(discrepancy([g * 3 + a for g, a, _ in shown if g != UNCLEAR], 6))
    assert value(parts, "generation gender x age", "discrepancy", "cali", "unseen jobs") == pytest.approx(
        np.mean(found)
    )
    assert not any(f.metric == "share" for f in parts["generation gender x age"].figures)
    shares = [f.subset for f in parts["generation age"].figures if f.metric == "share"]
    assert {s.partition(": ")[2] for s in shares} == {"young", "old", "ageless"}


@pytest.mark.parametrize("method", ["none", "cali", "cali, stated not kept"])
def test_stated_prompts_are_right_where_they_show_what_they_state(
    painted: tuple[DrawnSet, Shows], parts: dict[str, Part], method: str
) -> None:
    drawn, shows = painted
    stated = drawn.select(variant=method, part="unseen", stated=True)
    right = np.array([shows[i.path][0] == GENDERS.index(str(i.stated)) for i in stated])
    male = np.array([i.stated == "male" for i in stated])
    task = "generation gender"
    assert value(parts, task, "stated_right", method, "unseen jobs") == pytest.approx(right.mean())
    assert value(parts, task, "stated_right", method, "unseen jobs, stated male") == pytest.approx(right[male].mean())
    shown = np.mean([shows[i.path][2] == JOBS.index(i.concept) for i in stated])
    assert value(parts, task, "stated_recognised", method, "unseen jobs") == pytest.approx(shown)
    assert not any(f.metric.startswith("stated") for f in parts["generation age"].figures)


def test_parts_methods_and_changes(painted: tuple[DrawnSet, Shows], parts: dict[str, Part]) -> None:
    figures = parts["generation gender"].figures
    means = [f for f in figures if f.subset in ("train jobs", "unseen jobs")]
    assert {(f.metric, f.subset) for f in means if f.metric in ("discrepancy", "unknown")} == {
        (metric, subset) for metric in ("discrepancy", "unknown") for subset in ("train jobs", "unseen jobs")
    }
    assert {f.method for f in figures if f.metric == "discrepancy"} == {"none", "cali"}
    by = {(f.metric, f.method, f.subset): f for f in figures}
    for (metric, method, subset), figure in by.items():
        if method == "none" or metric == "share":
            assert figure.change is None
            continue
        assert figure.change is not None
        assert figure.change[0] == pytest.approx(figure.value - by[metric, "none", subset].value)
        assert figure.change[1] <= figure.change[0] <= figure.change[2]
        assert (figure.lam, figure.strength) == (500.0, 1.0)
    assert by["discrepancy", "none", "unseen jobs"].n == {"jobs": 4, "images each": 10}


def test_the_protocol_says_what_was_done(painted: tuple[DrawnSet, Shows], parts: dict[str, Part]) -> None:
    drawn, shows = painted
    protocol = parts["generation gender"].protocol
    assert (protocol.model, protocol.prompts, protocol.prompts_hash) == ("by hand", "people", PEOPLE.hash)
    assert protocol.n == {"prompts": 7, "stated": 14, "images": len(drawn)}
    assert protocol.seeds == [0, 1]
    assert protocol.methods["none"] == {}
    assert protocol.methods["cali"]["sets"] == {"people": PEOPLE.hash}
    settings = protocol.settings
    assert settings["judge fingerprint"] == Reader().fingerprint
    assert settings["values"] == {"gender": ["male", "female"]}
    assert settings["sure"] == 0.8
    unclear = sum(shows[i.path][0] == UNCLEAR for i in drawn if i.variant == "none")
    assert settings["images that the safety checker blackened"]["none"] == unclear


def test_plots_show_the_same_seeds_and_where_shares_moved(parts: dict[str, Part]) -> None:
    plots = parts["generation gender"].plots
    assert set(plots) == {
        f"generation-gender-{part}-{kind}" for part in ("train", "unseen") for kind in ("side-by-side", "shares-cali")
    }
    told, sheet = plots["generation-gender-unseen-side-by-side"]
    assert told.startswith("Unseen jobs: the same seeds")
    assert len(sheet.axes) == 4 * 2
    assert [axis.get_ylabel() == "cali" for axis in sheet.axes] == [False, True] * 4
    assert parts["generation age"].plots == {}  # of three values, and the images stand with the first attribute


def test_prompts_of_which_nothing_can_be_told_count_most_and_are_counted(tmp_path: Path) -> None:
    drawn, _ = paint(tmp_path, np.random.default_rng(0), stated=False)
    blind = FunctionJudge(
        {"gender": GENDERS}, lambda images: {"gender": np.full((len(images), 2), 0.5)}, name="blind", version="1"
    )
    (part,) = measure_drawn(drawn, blind, PEOPLE, task="t", attributes=["gender"], **FAST)
    for figure in part.figures:
        expected = {"discrepancy": 0.5**0.5, "discrepancy_squared": 0.5, "unknown": 1.0, "share": 0.0}
        assert figure.value == pytest.approx(expected[figure.metric])
        if figure.subset == "pilot":
            assert figure.interval == pytest.approx((0, 0.5**0.5))
    told = part.protocol.settings["prompts where nothing can be told, with the largest discrepancy"]
    assert told["unseen professions"] == {"none": 4, "cali": 4}
    assert [name for name in part.plots if "shares" in name] == []


@pytest.mark.parametrize(("task", "called"), [("gender", "gender"), ("generation", "generation gender")])
def test_a_task_that_is_called_like_its_attribute_is_not_called_so_twice(
    painted: tuple[DrawnSet, Shows], task: str, called: str
) -> None:
    (part,) = measure_drawn(painted[0], Reader(), PEOPLE, task=task, attributes=["gender"], noun="jobs", **FAST)
    assert {part.protocol.task, *(figure.task for figure in part.figures)} == {called}


def test_prompts_of_one_concept_are_resampled_together(painted: tuple[DrawnSet, Shows]) -> None:
    """To see men everywhere is right for one prompt of every concept: half, without any doubt."""

    def men(images: Any) -> dict[str, np.ndarray]:
        return {"gender": np.tile([1.0, 0.0], (len(images), 1))}

    judge = FunctionJudge({"gender": GENDERS}, men, name="men", version="1")
    (part,) = measure_drawn(painted[0], judge, PEOPLE, task="t", attributes=["gender"], noun="jobs", **FAST)
    for figure in part.figures:
        if (figure.metric, figure.subset) == ("stated_right", "unseen jobs"):
            assert (figure.value, *figure.interval) == (0.5, 0.5, 0.5)
            assert figure.n == {"jobs": 4, "stated prompts": 8, "images each": 4}


def test_what_does_not_fit_is_refused_before_anything_is_drawn(painted: tuple[DrawnSet, Shows], tmp_path: Path) -> None:
    drawn, _ = painted
    other = PromptSet("other", (("a man", "a woman"),))
    with pytest.raises(InvalidInputError, match="was drawn with another version of 'people'"):
        measure_drawn(drawn, Reader(), other, task="t", attributes=["gender"])
    ages = FunctionJudge({"age": ("young", "old")}, lambda images: {}, name="ages", version="1")
    never = SimpleNamespace(components={}, scheduler=SimpleNamespace(config={}), name_or_path="")
    settings: dict[str, Any] = {"task": "t", "variants": {"cali": Variant((PEOPLE,))}, "images": 1}
    with pytest.raises(
        InvalidInputError, match=r"attributes: expected some of \['job', 'gender', 'age'\].*got \['race'\]"
    ):
        evaluate_generation(never, PEOPLE, Reader(), tmp_path, attributes=["race"], **settings)
    with pytest.raises(InvalidInputError, match="got 'gender'"):
        evaluate_generation(never, PEOPLE, Reader(), tmp_path, attributes="gender", **settings)
    with pytest.raises(InvalidInputError, match=r"none of its attributes has the values \['male', 'female'\]"):
        evaluate_generation(never, PEOPLE, ages, tmp_path, attributes=["age"], **settings)
    assert list(tmp_path.iterdir()) == []


def test_stated_values_are_found_by_their_words(painted: tuple[DrawnSet, Shows]) -> None:
    from vldebias.evaluation.generation.parts import stated_attribute

    assert stated_attribute(PEOPLE, Reader()) == ("gender", {"male": 0, "female": 1})
    tones = {"pale": 0, "light": 1, "tan": 2, "brown": 3, "dark": 4}
    assert stated_attribute(load_prompts("skin-tone"), MiniatureJudge()) == ("tone", tones)


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
@pytest.mark.parametrize(("host", "role"), [("clip", "joint"), ("pipeline", "sequence")])
def test_pair_distances_are_those_of_the_diagnostics(host: str, role: str) -> None:
    tones = {tone: [tone] for tone in ("pale", "tan", "dark-skinned")}  # three prompts a group, three pairs
    prompts = make_prompt_set("tones", tones, ["nurse", "plumber", "chef"], test_concepts=["pilot", "clerk"])
    model, _, tokenizer = load_clip()
    target = resolve(load_pipeline()) if host == "pipeline" else resolve(model, tokenizer=tokenizer)
    variants = {"cali": Variant((prompts,)), "weak": Variant((prompts,), lam=10.0, strength=0.5)}
    found = {(f.method, f.subset): f for f in pair_distances(target, prompts, variants, task="t pairs", **FAST)}
    for subset, pairs in (("train", prompts.pairs), ("unseen", prompts.held_out_pairs)):
        rows = target.embed([p for pair in pairs for p in pair], role).unflatten(0, (len(pairs), 2))
        assert found["none", subset].value == pytest.approx(pair_distance(rows))
        for name, variant in variants.items():
            projection = Fit.of(target, prompts, variant.method, variant.lam).solve(role)
            moved = projection(rows, variant.strength)
            assert found[name, subset].value == pytest.approx(pair_distance(moved))
            assert found[name, subset].value < found["none", subset].value
    assert found["none", "unseen"].n == {"professions": 2, "pairs": 6}


def test_the_whole_way_on_the_miniature(tmp_path: Path) -> None:
    """Draw, judge, measure, and again from what is there: the same result."""
    words = {"male": ("male",), "female": ("female",)}
    jobs = ("nurse", "plumber")
    groups = tuple((f"A photo of a male {job}.", f"A photo of a female {job}.") for job in jobs)
    classes = tuple(f"A photo of a {job}." for job in jobs)
    few = PromptSet("few", groups, classes=classes, class_names=jobs, attributes=words, stated_words=("male", "female"))
    settings: dict[str, Any] = {"task": "generation", "attributes": ["gender"], "concepts": "train", "images": 2}
    settings |= {"variants": {"cali": Variant((few,))}, "stated_images": 1, "steps": 4, "model": "miniature", **FAST}
    first = evaluate_generation(load_pipeline(), few, MiniatureJudge(), tmp_path, **settings)
    again = evaluate_generation(load_pipeline(), few, MiniatureJudge(), tmp_path, **settings)
    assert [part.figures for part in first] == [part.figures for part in again]
    assert [part.protocol.task for part in first] == ["generation gender", "generation pairs"]
    assert first[0].protocol.model == "miniature"
    recognised = [f for f in first[0].figures if (f.metric, f.method) == ("recognised", "none")]
    assert recognised[0].value > 0.5
    result = Result(
        name="t",
        figures=[f for part in first for f in part.figures],
        protocols=[part.protocol for part in first],
        versions={},
        commit=None,
        seconds=0,
    )
    assert Result.read(result.write(tmp_path / "result.json")) == result
    without = evaluate_generation(load_pipeline(), few, MiniatureJudge(), tmp_path, pair_table=False, **settings)
    assert [part.protocol.task for part in without] == ["generation gender"]


def pipe(prompts: list[str], *, generator: list[torch.Generator], **_: Any) -> SimpleNamespace:
    noise = torch.stack([torch.randn(3, 2, 2, generator=g) for g in generator])
    return SimpleNamespace(images=noise + torch.tensor([float(len(p)) for p in prompts]).view(-1, 1, 1, 1))


def test_images_do_not_depend_on_the_batch_and_are_clamped() -> None:
    prompts, seeds, seen = ["", "", "", "", ""], [3, 1, 4, 1, 5], []
    one = generate(pipe, prompts, seeds, batch_size=1)
    many = generate(pipe, prompts, seeds, batch_size=3, on_batch=seen.append)
    assert torch.equal(one, many)
    assert torch.equal(one[1], one[3])
    assert not torch.equal(one[0], one[1])
    assert float(one.min()) == 0  # noise around 0 is clamped at both ends
    assert float(one.max()) <= 1
    assert seen == [3, 2]
