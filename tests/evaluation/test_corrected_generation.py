"""Drawn images that a judge read, people labelled some of, and a second judge read too."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_by_hand import GENDERS, PEOPLE, Reader, paint

from vldebias.errors import InvalidInputError
from vldebias.evaluation import AnnotationsTask
from vldebias.evaluation.drawing import DrawnSet
from vldebias.evaluation.generation import GenerationTask
from vldebias.evaluation.judge_kinds import ClipSpec, MiniatureSpec, TableSpec, judge_to_compare
from vldebias.evaluation.judges import FunctionJudge, TableJudge, kept_judges
from vldebias.evaluation.task import Options, Session
from vldebias.evaluation.variants import Variant


class Wrong(Reader):
    """Calls every image that is not male a man every second time."""

    def _read(self, images: Any) -> dict[str, np.ndarray]:
        found = super()._read(images)
        found["gender"] = found["gender"].copy()
        found["gender"][::2] = [0.9, 0.1]
        return found


def task(**fields: Any) -> GenerationTask:
    given = {"prompts": PEOPLE, "variants": {"cali": Variant(prompts=(PEOPLE,))}, "attributes": ["gender"]}
    return GenerationTask(**{**given, "resamples": 50, **fields})


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[DrawnSet, dict[str, str]]:
    """Images, and what each truly shows."""
    folder, shows = paint(tmp_path_factory.mktemp("drawn"), np.random.default_rng(3), images=20)
    return folder, {path: (*GENDERS, "cannot tell")[shown[0]] for path, shown in shows.items()}


def answers(path: Path, truth: dict[str, str], every: int) -> Path:
    said = [one for i, one in enumerate(sorted(truth.items())) if i % every == 0]
    rows = [f"{image},{who},{value},{every}" for image, value in said for who in ("ada", "ben")]
    path.write_text("image,annotator,value,weight\n" + "\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("every", [1, 5])
def test_a_wrong_judge_is_corrected_beside_its_figures(
    every: int, drawn: tuple[DrawnSet, dict[str, str]], tmp_path: Path
) -> None:
    folder, truth = drawn
    raw, mended = task(labels=[answers(tmp_path / "a.csv", truth, every)]).measure(folder, Wrong("wrong"))
    rows = {(row.metric, row.method, row.subset): row for row in mended.rows}
    for method in ("none", "cali"):
        images = [i for i in folder if i.variant == method and i.stated is None and i.part == "unseen"]
        share = np.mean([truth[image.path] == "male" for image in images])
        found = rows["corrected_share", method, "unseen professions: male"]
        assert found.interval[0] <= share <= found.interval[1]
        assert rows["share", method, "unseen professions: male"].interval[0] > share
        assert found.value == pytest.approx(share) or every > 1
        assert rows["judge_moves_share", method, "unseen professions: male"].interval[0] > 0
        assert found.n["images"] == len(images)
    assert mended.provenance.task == f"{raw.provenance.task} corrected"
    assert "unseen professions: more labels, drawn likewise, that halve the interval" in mended.provenance.settings


def test_people_who_were_asked_elsewhere_correct_what_lies_beside_the_images(
    drawn: tuple[DrawnSet, dict[str, str]], tmp_path: Path
) -> None:
    """`eval human` finds the answers of the judge in the folder."""
    folder, truth = drawn
    task().measure(folder, Wrong("beside"))
    assert "beside" not in [one.name for one in kept_judges(folder)]  # by its name, not by its version
    labels = answers(tmp_path / "a.csv", truth, 2)
    human = AnnotationsTask(name="gender", title="t", attribute="gender", names=list(GENDERS), resamples=50)
    found = human.measured(Session(Options(out=tmp_path, labels=(labels,), drawn=folder.folder)))
    assert [part.provenance.task for part in found] == ["gender", "gender corrected"]
    share = np.mean([truth[i.path] == "male" for i in folder if i.variant == "cali" and i.stated is None])
    row = next(r for r in found[1].rows if (r.metric, r.method, r.subset) == ("corrected_share", "cali", "male"))
    assert row.interval[0] <= share <= row.interval[1]


def test_a_sample_with_weights_is_corrected_by_them(drawn: tuple[DrawnSet, dict[str, str]], tmp_path: Path) -> None:
    """All that the judge calls women are asked about and a fifth of the others: answers that count alike would lie."""
    folder, truth = drawn
    task().measure(folder, Wrong("weighted"))
    judged = dict(zip((i.path for i in folder), kept_judges(folder)[-1].said("gender", GENDERS, 0.8)[0], strict=True))
    asked = [(i, 1 if judged[i.path] == "female" else 5) for i in folder if i.stated is None and i.part == "unseen"]
    rows = [f"{i.path},ada,{truth[i.path]},{w}" for n, (i, w) in enumerate(asked) if n % w == 0]
    (tmp_path / "a.csv").write_text("image,annotator,value,weight\n" + "\n".join(rows) + "\n")
    human = AnnotationsTask(name="gender", title="t", attribute="gender", names=list(GENDERS), resamples=50)
    found = human.measured(Session(Options(out=tmp_path, labels=(tmp_path / "a.csv",), drawn=folder.folder)))
    rows = {(r.task, r.metric, r.method, r.subset): r for r in found[0].rows + found[1].rows}
    chosen = [i.path for i, _ in asked if i.variant == "none"]
    share = np.mean([truth[path] == "male" for path in chosen])
    row = rows["gender corrected", "corrected_share", "none", "male"]
    assert row.interval[0] <= share <= row.interval[1]
    assert row.n["images"] == len(chosen)
    assert rows["gender", "share", "none", "male"].value == pytest.approx(share, abs=0.12)
    assert found[0].provenance.settings["answers count"] == "one over the probability of being asked"


def test_a_confusion_table_is_solved_for_and_refused_before_anything_is_judged(
    drawn: tuple[DrawnSet, dict[str, str]], tmp_path: Path
) -> None:
    folder, truth = drawn
    table, judge = tmp_path / "c.csv", Wrong("confused")
    images = [i for i in folder if i.stated is None and i.part == "unseen" and i.variant == "none"]
    task().measure(folder, judge)
    judged = dict(zip((i.path for i in folder), kept_judges(folder)[-1].said("gender", GENDERS, 0.8)[0], strict=True))
    counts = {t: [sum(truth[i.path] == t and judged[i.path] == s for i in images) for s in GENDERS] for t in GENDERS}
    lines = [",".join(map(str, (t, *(100 * n for n in row)))) for t, row in counts.items()]
    table.write_text("\n".join([f"true,{','.join(GENDERS)}", *lines]))
    _, solved = task(judge_confusion=table).measure(folder, judge)
    rows = {(row.metric, row.method, row.subset): row for row in solved.rows}
    known = [truth[i.path] for i in images if truth[i.path] in GENDERS]
    share = rows["share", "none", "unseen professions: male"]
    assert share.interval[0] <= np.mean([one == "male" for one in known]) <= share.interval[1]
    assert solved.provenance.task.endswith("by confusion")
    asked = Reader()
    for content, said in (("true,male,female\nmale,6,4\nfemale,5,5\n", "c.csv: confusion table: is not invertible"),
                          ("true,man,woman\nman,6,4\nwoman,1,9\n", r"expected a row for each value .* got \['man'"),
                          ("true,male,female\nmale,x,4\nfemale,1,9\n", "c.csv: expected counts")):  # fmt: skip
        table.write_text(content)
        with pytest.raises(InvalidInputError, match=said):
            task(judge_confusion=table).measure(folder, asked)
    assert asked.asked == 0


def test_what_second_judge_names(drawn: tuple[DrawnSet, dict[str, str]], tmp_path: Path) -> None:
    first = ClipSpec(model="ViT-L-14", pretrained="openai", prompts={"gender": {"male": ["m"], "female": ["f"]}})
    named = {
        name: judge_to_compare(name, first, Reader(), ["gender"]) for name in ("miniature", "ViT-B-32:openai", "a/b")
    }
    assert isinstance(named["miniature"], MiniatureSpec)
    models = [(one.model, one.pretrained) for one in named.values() if isinstance(one, ClipSpec)]
    assert models == [("ViT-B-32", "openai"), ("a/b", None)]
    (tmp_path / "t.csv").write_text("image,gender\n" + f"{drawn[0].plan.all_images[0].path},male\n")
    table = judge_to_compare(str(tmp_path / "t.csv"), None, Reader(), ["gender", "gender x age"])
    assert isinstance(table, TableSpec)
    assert table.values == {"gender": GENDERS}
    assert judge_to_compare(str(tmp_path / "t.csv"), None, Reader(), ["age"]) is None
    (tmp_path / "j.yaml").write_text("{kind: classifier, model: a/b, attribute: gender, values: {male: [Man]}}")
    read = judge_to_compare(str(tmp_path / "j.yaml"), None, Reader(), ["gender"])
    assert (read.kind, read.model) == ("classifier", "a/b")
    (tmp_path / "j.yaml").write_text("{kind: oracle}")
    with pytest.raises(InvalidInputError, match=r"j.yaml: expected `kind:` with one of"):
        judge_to_compare(str(tmp_path / "j.yaml"), None, Reader(), ["gender"])
    with pytest.raises(InvalidInputError, match="--second-judge a/b: the suite's judge is not asked by prompts"):
        judge_to_compare("a/b", MiniatureSpec(), Reader(), ["gender"])


def test_a_second_model_is_not_the_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """--judge takes the place of the first judge's model, not of the one that it is compared with."""
    spec = {"prompts": {"gender": {"male": ["m"], "female": ["f"]}}}
    own = task(judge=ClipSpec(model="one", **spec), second_judge=ClipSpec(model="two", **spec))
    session = Session(Options(out=tmp_path, judge="mine"))
    monkeypatch.setattr(session, "image_text", lambda model, pretrained=None: model)
    assert own.judging_model(session) == own.judging_model(session, own.judge) == "mine"
    assert own.judging_model(session, own.second_judge) == "two"


def test_labels_of_something_else_leave_the_judge_alone(drawn: tuple[DrawnSet, dict[str, str]], tmp_path: Path) -> None:
    line = {"image": "none/x/1.png", "annotator": "ada", "attribute": "glasses", "value": "with"}
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n")
    assert len(task(labels=[tmp_path / "a.jsonl"]).measure(drawn[0], Reader())) == 1


def test_two_judges_of_the_same_images_are_compared(drawn: tuple[DrawnSet, dict[str, str]], tmp_path: Path) -> None:
    """A table made elsewhere, with the values in another order, that is right about every image."""
    folder, truth = drawn
    table = tmp_path / "labels.csv"
    table.write_text("image,gender\n" + "".join(f"{p},{v.replace('cannot tell', '')}\n" for p, v in truth.items()))
    judge = TableJudge(table, ["gender"], {"gender": ["female", "male"]})
    (same,) = task().measure(folder, Reader(), second=judge)
    rows = {(row.metric, row.method): row for row in same.rows if row.metric.startswith("judges_")}
    assert {rows["judges_agree", m].value for m in ("none", "cali")} == {1.0}
    assert rows["judges_alpha", "cali"].value == 1.0
    (differ,) = task().measure(folder, Wrong("second"), second=judge)
    assert next(row for row in differ.rows if row.metric == "judges_agree").value < 0.9
    strange = FunctionJudge({"gender": ("m", "f")}, lambda images: {"gender": np.ones((len(images), 2)) / 2},
                            name="strange", version="1")  # fmt: skip
    with pytest.raises(InvalidInputError, match="say which of its labels means which value"):
        task().measure(folder, Reader(), second=strange)
