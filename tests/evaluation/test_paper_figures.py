"""What the paper's tables take, by a clock that is made up, and their rows beside the published figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from vldebias.errors import InvalidInputError
from vldebias.evaluation.paper import Run, compared, estimate, paper, plan
from vldebias.evaluation.result import Measurement, Result
from vldebias.evaluation.retrieval import RetrievalTask
from vldebias.evaluation.task import load_suite
from vldebias.loading import Loaded
from vldebias.options import Options
from vldebias.progress import SILENT


def test_the_estimate_of_a_pipeline_is_linear_in_images_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seconds for each batch and two for each step, as a clock says that goes on by them."""
    now = [0.0]

    class Pipe:
        def __call__(self, prompts: list[str], *, num_inference_steps: int) -> None:
            now[0] += 5 + 2 * num_inference_steps

        def set_progress_bar_config(self, **_: bool) -> None: ...

    monkeypatch.setattr("vldebias.evaluation.paper.time.monotonic", lambda: now[0])
    (run,) = plan(None, ["generation"])
    run.sizes, (_, task, *_) = [400], run.tasks
    seconds = estimate(run, Loaded(Pipe(), "p"), Options(out=Path()))
    assert seconds == pytest.approx(400 / min(task.batch_size, 4) * (5 + 2 * task.steps))


def test_the_estimate_of_a_model_is_linear_in_images_and_its_samples_rank_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seconds for each call and two for each image; a split of 50 has no sample of 128."""
    now, asked = [0.0], []

    def measure(run: Run, loaded: Loaded, options: Options) -> None:
        now[0] += 3 + 2 * sum(min(options.limit, size) for size in run.sizes)
        asked.extend(task.k for task in run.tasks if isinstance(task, RetrievalTask))

    monkeypatch.setattr("vldebias.evaluation.paper.time.monotonic", lambda: now[0])
    monkeypatch.setattr(Run, "measure", measure)
    run = Run("ViT-B-32:openai", False, tasks=[*load_suite("fairface").tasks], sizes=[50, 1000])
    assert estimate(run, Loaded(None, "m"), Options(out=Path())) == pytest.approx(3 + 2 * 1050)
    assert {max(ks) for ks in asked} == {16, 64}


def test_generated_people_stand_beside_the_published_figures(tmp_path: Path) -> None:
    (run,) = plan(None, ["generation"], pipeline="own/pipe")
    how = {"interval": (0.3, 0.5), "better": "lower", "n": {"professions": 20, "images each": 1000}}
    names = {"task": "gender", "metric": "discrepancy", "method": "cali", "subset": "unseen professions"}
    result = Result(
        rows=[Measurement(**names, value=0.4, **how)], provenance=[], name="x", versions={}, commit=None, seconds=0
    )
    t = compared([run], {run.name: result}, tmp_path).set_index(["data", "metric", "method"])
    assert (run.generates, run.model, len(t), t.table.unique().tolist()) == (True, "own/pipe", 8, ["7.6 and 7.7"])
    row = t.loc["gender", "discrepancy, unseen professions", "cali"]
    assert (row.published, row.measured, row.low, row.high) == (0.354, 0.4, 0.3, 0.5)
    assert (row.difference, row.n) == (pytest.approx(0.046), "20 professions, 1,000 images each")
    assert t.loc["pairs race", "pair_distance, unseen", "none"].published == 0.69
    assert t.measured.isna().sum() == 7


def test_a_part_that_is_not_there_is_not_run_and_a_time_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInputError, match="celebs"):
        plan(None, ["celebs"])
    spent, runs = [], plan(None, ["celeba", "generation"], ["RN50"], pipeline="miniature")
    assert [run.missing.keys() for run in runs] == [{"celeba"}, set()]
    monkeypatch.setattr("vldebias.evaluation.paper.estimate", lambda *_: spent.append(1) or 12.34)
    for _ in range(2):
        assert paper(tmp_path, runs, Options(out=tmp_path), SILENT, stop_after_estimate=True).measured.isna().all()
    assert (len(spent), [run.seconds for run in runs]) == (1, [None, 12.3])
    assert not (tmp_path / "miniature").exists()
