"""Test that each packaged suite is valid, included in the wheel and only refers to existing names,
and that mistakes are reported by name."""

import json
import tomllib
from pathlib import Path

import pytest

from apps.baselines.classifiers import BASELINES
from tests.study import made_figures
from tests.study.made_figures import BIRDS
from vldebias.errors import InvalidInputError
from vldebias.study.suite import load_suite
from vldebias.study.tasks.generation import GenerationTask
from vldebias.study.tasks.groups import GroupsTask
from vldebias.study.tasks.retrieval import RetrievalTask
from vldebias.study.tasks.texts import TextsTask
from vldebias.utils.files import packaged

ROOT = Path(__file__).parents[2]

SUITE = {**made_figures.SUITE, "tasks": [BIRDS]}


def with_task(**changed: object) -> dict[str, object]:
    return {**SUITE, "tasks": [{k: v for k, v in {**BIRDS, **changed}.items() if v is not None}]}


@pytest.mark.parametrize("name", packaged("suites"))
def test_names_in_a_packaged_suite_exist(name: str) -> None:
    suite = load_suite(name)
    assert suite.name == name
    for task in suite.tasks:
        if isinstance(task, GroupsTask):
            assert task.attribute.classes
            assert set(task.baselines) <= set(BASELINES)
            assert not task.lams or task.lam in task.lams
        elif isinstance(task, RetrievalTask):
            assert len(task.queries) >= 10
            assert all(
                len(column.split(" x ")) == len(sets) for column, sets in task.attribute.items()
            )
        elif isinstance(task, GenerationTask):
            for spec in task.variants.values():
                assert all(prompt_set.pairs for prompt_set in spec.attribute)
        elif isinstance(task, TextsTask):
            assert all(prompt_set.held_out_pairs for prompt_set in task.attribute.values())


JUDGED = {
    "task": "generation",
    "name": "g",
    "title": "G",
    "attribute": "professions-gender",
    "attributes": ["gender"],
}
JUDGED |= {"judge": {"kind": "cilp"}, "variants": {"cali": {"attribute": ["professions-gender"]}}}


def test_required_suites_are_included_in_the_wheel() -> None:
    named = {"waterbirds", "celeba", "fairface", "generation", "backgrounds", "human", "miniature"}
    assert named <= set(packaged("suites"))
    (fairface,) = load_suite("fairface").tasks  # as in the paper
    assert (fairface.k, fairface.prior, fairface.lam, fairface.seed) == ([1000], "uniform", 1000, 0)
    generation = load_suite("generation").tasks[1]
    assert (generation.images, generation.variants["cali"].lam) == (100, 500)
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]["wheel"]
    assert packed["force-include"]["eval/suites"] == "vldebias/_resources/suites"
    assert all((ROOT / source).exists() for source in packed["force-include"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**SUITE, "titel": "x"}, "titel: .*'title'"),
        (with_task(data={"name": "x", "spilt": "a"}), r"tasks\.0\.data: spilt: .*name, split"),
        (with_task(task="group"), r"tasks\.0: .*`task:` .*(?=.*groups)(?=.*shares)(?=.*texts)"),
        (with_task(label=None), r"tasks\.0\.label: missing"),
        ({"tasks": SUITE["tasks"]}, r": title: missing"),
        (with_task(lam=-1), r"tasks\.0\.lam: .*-1"),
        (with_task(methods=["orto"]), r"tasks\.0\.methods: .*'orth'"),
        (with_task(methods=5), r"tasks\.0\.methods: .*5.*names"),
        ({**SUITE, "tasks": [BIRDS, BIRDS.copy()]}, "'birds'"),
        ({**SUITE, "tasks": [JUDGED]}, "judge: .*`kind:` .*miniature, classifier, clip, vlm"),
    ],
)
def test_mistakes_in_suites_are_reported(content: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_suite(path)
    assert str(path) in str(caught.value)
