"""Shards with their labels: inside, beside them in a table, in parquet; and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sharded_parts import ASKED, FEATURES, LABELS, TEXTS, N
from typer.testing import CliRunner

from tests.refusals import refused
from vldebias.cli import app
from vldebias.data import Embeddings, Labels, Shards, save_embeddings
from vldebias.data.shard_files import digest_of, open_embeddings
from vldebias.data.unit_rows import Picked, RowNumbers
from vldebias.errors import InvalidInputError
from vldebias.evaluation.run import run_suite
from vldebias.evaluation.suite import Suite
from vldebias.evaluation.task import Options

CUTS = [40, 400, 900]
GENDER = LABELS["retrieval"]["gender"]
RUNNER = CliRunner()


def pieces(given: Any) -> list[Any]:
    return np.split(np.asarray(given), CUTS)


def write_npy(folder: Path) -> str:
    for i, part in enumerate(pieces(FEATURES)):
        np.save(folder / f"{i}.npy", part)
        own = {
            "gender": pieces(GENDER)[i],
            "url": [f"u{i}-{j}" for j in range(len(part))],
            "ids": list(map(str, part[:, 0])),
        }
        pq.write_table(pa.table(own), folder / f"meta_{i}.parquet")
    return f"{folder}/*.npy"


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_files_with_labels_are_one_below_the_other(tmp_path: Path, ending: str) -> None:
    whole = Embeddings.of(FEATURES, {"gender": GENDER}, ids=range(7, N + 7), captions=["a"] * N)
    for i, rows in enumerate(np.split(np.arange(N), CUTS)):
        save_embeddings(tmp_path / f"{i}.{ending}", whole[rows], {"text": TEXTS_OF["text"]} if i == 2 else None)
    found, texts = open_embeddings(f"{tmp_path}/*.{ending}")
    assert isinstance(found.features, Shards)
    assert np.array_equal(found.features[:], FEATURES)
    assert (tuple(found.ids), found.captions) == (whole.ids, whole.captions)
    assert found.column("gender").counts == whole.column("gender").counts
    assert np.array_equal(found.column("gender").known, whole.column("gender").known)
    assert list(texts or {}) == ["text"]
    alone, _ = open_embeddings(tmp_path / f"1.{ending}")
    assert len(alone) == 360


TEXTS_OF = {"text": torch.ones(FEATURES.shape[1])}


def test_a_table_beside_has_the_labels(tmp_path: Path) -> None:
    found, texts = open_embeddings(write_npy(tmp_path), table=tmp_path / "meta_*.parquet")
    expected = Labels.of_array(GENDER)
    assert found.column("gender").counts == expected.counts
    assert np.array_equal(found.column("gender").known, expected.known)
    assert list(found.labels) == ["gender"]  # as many urls as rows are no labels
    assert found.about["ignored"] == ["url"]
    assert found.ids[3] == str(FEATURES[3, 0])
    assert texts is None
    renamed, _ = open_embeddings(f"{tmp_path}/*.npy", table=f"{tmp_path}/meta_*.parquet", keys={"label.sex": "gender"})
    assert list(renamed.labels) == ["sex"]


def test_parquet_has_both(tmp_path: Path) -> None:
    table = pa.table({"emb": list(FEATURES.astype(np.float32)), "label.gender": GENDER, "n": range(N)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500)
    found, _ = open_embeddings(tmp_path / "a.parquet", keys={"features": "emb"})
    assert np.array_equal(found.features[:], FEATURES.astype(np.float32))
    assert found.column("gender").counts == Labels.of_array(GENDER).counts
    assert isinstance(found.ids, RowNumbers)


def test_some_rows_of_shards_are_read_where_they_lie(tmp_path: Path) -> None:
    found, _ = open_embeddings(write_npy(tmp_path))
    rows = np.random.default_rng(0).permutation(N)[:700]
    some = found.picked(rows).picked(np.arange(0, 700, 2))
    assert isinstance(some.features, Picked)
    assert isinstance(some.unit.features, Shards)
    assert len(some.unit.parts()) == 4
    assert np.array_equal(some.unit.whole(), Embeddings.of(FEATURES[rows[::2]]).unit.whole())


def test_labels_that_parts_have_in_other_orders_are_joined() -> None:
    parts = [Labels.of(["b", "a", None]), Labels.of(["c", "b"]), Labels.of([])]
    joined = Labels.joined(parts)
    names = [joined.names[code] if code >= 0 else None for code in joined.codes]
    assert names == ["b", "a", None, "c", "b"]
    assert len(Labels.joined([])) == 0


def test_the_digest_of_one_file_is_its_own_and_of_several_depends_on_each(tmp_path: Path) -> None:
    pattern = write_npy(tmp_path)
    before = digest_of(pattern)
    assert len({before, *(digest_of(path) for path in tmp_path.glob("*.npy"))}) == 5
    np.save(tmp_path / "3.npy", pieces(FEATURES)[3] * 2)
    assert digest_of(pattern) != before


def test_the_command_measures_shards_as_one_file(tmp_path: Path) -> None:
    """Figures of `--embeddings 'shards/*.npy' --table` are those of a .npz of the same."""
    suite = {
        "name": "small", "title": "Small", "description": "Small.", "source": "ours", "needs": "nothing",
        "tasks": ({"task": "retrieval", "name": "skew", "title": "Skew", "data": {"name": "mine"},
                   "prompts": {"gender": "gender"}, "queries": list(ASKED), "k": 20, "resamples": 20,
                   "methods": ["none", "cali"]},),
    }  # fmt: skip
    (tmp_path / "small.yaml").write_text(json.dumps({key: value for key, value in suite.items() if key != "name"}))
    save_embeddings(tmp_path / "whole.npz", Embeddings.of(FEATURES, {"gender": GENDER}))
    np.savez(tmp_path / "texts.npz", text=np.stack(list(TEXTS.values())), prompts=np.array(list(TEXTS)))
    (tmp_path / "shards").mkdir()
    given = ["eval", str(tmp_path / "small.yaml"), "--texts", str(tmp_path / "texts.npz"), "--json", "--limit", "1200"]
    of_shards = ["--embeddings", write_npy(tmp_path / "shards"), "--table", f"{tmp_path}/shards/meta_*.parquet"]
    of_shards += ["--key", "label.gender=gender"]
    found = []
    for which, brought in {"a": of_shards, "b": ["--embeddings", str(tmp_path / "whole.npz")]}.items():
        done = RUNNER.invoke(app, [*given, *brought, "--out", str(tmp_path / which)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.stdout)["figures"])
    assert found[0] == found[1]
    assert len(found[0]) > 10


@refused(
    ({"embeddings": "none/*.npy"}, "expected a file or a pattern such as"),
    ({"embeddings": "*.npy", "table": "meta_0.parquet"}, r"meta_0.parquet: .*expected 1300 rows in every column, got"),
    ({"embeddings": "a.npz", "table": "meta_0.parquet"}, r"a table has the labels of \.npy shards"),
    ({"embeddings": "*.np?"}, r"expected files that all end in one of .*, got \['.npy', '.npz'\]"),
    ({"embeddings": "a.npz", "ray": "local"}, "--ray: passes run over shards, and .*a.npz is one file"),
)
def test_what_does_not_fit_is_told(tmp_path: Path, brought: dict[str, str]) -> None:
    write_npy(tmp_path)
    save_embeddings(tmp_path / "a.npz", Embeddings.of(FEATURES, {"gender": GENDER}))
    paths: dict[str, Any] = {name: tmp_path / one if name != "ray" else one for name, one in brought.items()}
    task = {"task": "groups", "name": "g", "title": "G", "data": {"name": "x"}, "prompts": "waterbirds"}
    fields = {**task, "label": "bird", "spurious": "place"}
    about = {"name": "s", "title": "S", "description": "d", "source": "ours", "needs": "nothing"}
    run_suite(Suite.build({**about, "tasks": (fields,)}), Options(out=tmp_path / "out", **paths))


def test_a_column_that_a_file_lacks_is_told(tmp_path: Path) -> None:
    save_embeddings(tmp_path / "0.npz", Embeddings.of(FEATURES[:5], {"gender": ["a", "b", "a", "b", "a"]}))
    save_embeddings(tmp_path / "1.npz", Embeddings.of(FEATURES[:5]))
    with pytest.raises(InvalidInputError, match=r"column 'gender' is missing in \['1.npz'\]"):
        open_embeddings(f"{tmp_path}/*.npz")
