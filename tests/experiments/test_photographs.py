"""Test the measurement on real photographs: what it samples, counts and skips, and the test of
labels on the photographs themselves if they are available."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from eval import photographs
from eval.photographs import Photographs, searches
from vldebias.measure.rows import TaskProvenance, TaskResult
from vldebias.projection.provenance import Provenance
from vldebias.reranking.index import IndexGroups


def test_a_gallery_is_even_and_shares_no_photograph_with_the_reference() -> None:
    labels = np.array(["a"] * 50 + ["b"] * 20 + [""] * 30)
    features = np.arange(100, dtype=np.float32)[:, None]
    photos = Photographs("made", features, {"column": labels})
    for draw in range(3):
        gallery, reference = photographs.split(photos, "column", draw)
        values, counts = np.unique(gallery.labels["column"], return_counts=True)
        assert values.tolist() == ["a", "b"]
        assert counts[0] == counts[1]
        assert len(reference) == 33
        assert not set(gallery.features.ravel()) & set(reference.features.ravel())


def test_missing_photographs_are_skipped_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("VLDEBIAS_REAL", str(tmp_path))
    assert not photographs.is_present("photos")
    assert f"SKIPPED: {tmp_path / 'photos'} is missing" in capsys.readouterr().err


def test_moving_to_zero_is_a_projection_and_moving_to_a_centre_sets_the_coordinate() -> None:
    texts = normalize(torch.tensor([[0.8, 0.6, 0.0, 0.0], [0.1, 0.9, 0.3, 0.0]]).double(), dim=1)
    directions = torch.eye(4, dtype=torch.float64)[:1]
    for centre in (0.0, 0.3):
        point = torch.tensor([centre], dtype=torch.float64)
        moved = searches.Recentred(directions, point, Provenance("x"))(texts)
        assert torch.allclose(moved[:, 0], point.expand(2))
        assert torch.equal(moved[:, 1:], texts[:, 1:])


def made_part(draw: int, changes: dict[str, tuple[float, float, float]]) -> TaskResult:
    """Return a part with one kind of query, whose result for `RERANK` has the given change."""
    settings = {"attribute": "gender"}
    part = TaskResult(
        TaskProvenance(task=f"made, draw {draw}", description="made", settings=settings)
    )
    n = {"images": 100}
    for kind, change in changes.items():
        part.add(searches.SKEW, "none", 0.5, (0.4, 0.6), n=n, subset=kind)
        part.add(searches.SKEW, "random", 0.1, (0.0, 0.2), n=n, subset=kind)
        for method in searches.METHODS:
            used = change if method == searches.RERANK else (0.0, 0.0, 0.0)
            part.add(searches.SKEW, method, 0.5, (0.4, 0.6), n=n, change=used, subset=kind)
    for method in searches.METHODS:
        for metric in (searches.WORSE, searches.BETTER):
            part.add(metric, method, 0.25, (0.0, 1.0), n={"searches": 8})
    return part


def test_kinds_that_get_worse_are_counted_in_each_sample() -> None:
    worse = (0.2, 0.1, 0.3)
    better = (-0.2, -0.3, -0.1)
    unclear = (0.1, -0.1, 0.3)
    unclear_better = (-0.1, -0.3, 0.1)
    parts = [
        made_part(0, {"a": worse, "b": worse, "c": better, "d": unclear_better}),
        made_part(1, {"a": worse, "b": unclear, "c": better, "d": unclear_better}),
    ]
    tallies = {part.provenance.task: part for part in searches.tallies(parts)}
    rows = {
        row.metric: row
        for row in tallies["cells: photographs"].rows
        if row.method == searches.RERANK
    }
    assert rows["worse"].value == pytest.approx(3 / 8)
    assert rows["better"].value == pytest.approx(2 / 8)
    # -0.2 - 0.2 + 0.2 + 0.1 - 0.2 - 0.1 + 0.2 + 0.1, over eight times 0.4 above chance.
    assert rows["removed"].value == pytest.approx(-0.1 / 3.2)
    (single,) = [row for row in tallies["single searches: photographs"].rows if row.value][:1]
    assert (single.value, single.n) == (0.25, {"searches": 16})


@pytest.mark.slow
@pytest.mark.skipif(not photographs.is_present("photos"), reason="no photographs in $VLDEBIAS_REAL")
def test_photographs_are_predicted_by_gender_alone_until_20_are_labelled() -> None:
    scenes = photographs.photographs("flickr_train").features
    table = photographs.texts()
    for number in (700, len(scenes)):
        assert IndexGroups.fit(table, "gender", scenes[:number]).doubt == ""
    faces = photographs.galleries()["faces"].features
    assert "--attribute race --questions 20" in IndexGroups.fit(table, "race", faces).doubt
