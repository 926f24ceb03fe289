"""Every committed result: one shape, rows that hold together, a protocol, and evidence that leads to its sources."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eval import evidence, readme, tables
from eval.experiments.experiment import Experiment, _key, names
from vldebias.errors import InvalidInputError
from vldebias.evaluation.result import Measurement, Result, TaskProvenance, TaskResult
from vldebias.evaluation.sources import ROOT, Sources, imported, refuse_uncommitted

RESULTS = ROOT / "eval" / "results"
COMMITTED = sorted(RESULTS.glob("*.json"))
TRAINED = [name for name in names() if (RESULTS / f"{name}.json").is_file()]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {path.stem: Result.read(path) for path in COMMITTED}


def test_every_one_opens_under_its_name(results: dict[str, Result]) -> None:
    assert len(results) > 30
    assert [(stem, one.name) for stem, one in results.items() if one.name.replace(" ", "_") != stem] == []
    assert [stem for stem, one in results.items() if not one.rows] == []


def problems(result: Result) -> list[str]:
    """What is wrong with rows and protocol."""
    found, tasks = [], {one.task for one in result.provenance}
    for row in result.rows:
        where = f"{row.task}, {row.metric}, {row.method}, {row.subset}"
        for interval, value in ((row.interval, row.value), *([(row.change[1:], row.change[0])] if row.change else [])):
            if not interval[0] - 1e-9 <= value <= interval[1] + 1e-9:
                found.append(f"{where}: {value} is not in {interval}")
        if min(row.n.values(), default=0) < 0 or (row.interval[0] < row.interval[1] and not any(row.n.values())):
            found.append(f"{where}: n is {row.n}")
        if row.task not in tasks and len(result.provenance) != 1:
            found.append(f"{where}: no protocol of its task")
    keys = Counter((r.task, r.metric, r.method, r.subset, r.lam, r.strength) for r in result.rows)
    found += [f"{key} stands {count} times" for key, count in keys.items() if count > 1]
    found += [f"{one.task}: a protocol without words" for one in result.provenance if not one.description]
    if re.search(r'"(/|[A-Za-z]:\\\\|~)|/(home|tmp|root|Users|mnt|work)/', json.dumps(result.to_dict())):
        found.append("a path of a machine")
    return found


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_rows_and_protocol_hold_together(path: Path) -> None:
    assert problems(Result.read(path)) == []


def row(**changed: Any) -> Measurement:
    given = {"task": "t", "metric": "m", "method": "none", "value": 1.0, "interval": (0.0, 2.0), "better": "lower"}
    return Measurement(**{**given, "n": {"images": 3}, **changed})


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([row(interval=(2.0, 3.0))], "is not in"),
        ([row(change=(0.0, 0.1, 0.2))], "is not in"),
        ([row(n={})], "n is"),
        ([row(n={"images": 0})], "n is"),
        ([row(), row(value=1.5)], "stands 2 times"),
        ([row(task="u")], "no protocol"),
        ([row(method="/home/me/model")], "a path of a machine"),
    ],
)
def test_what_does_not_hold_together_is_found(rows: list[Measurement], told: str) -> None:
    provenance = [TaskProvenance(task=name, description="words") for name in ("t", "s")]
    result = Result(name="made", rows=rows, provenance=provenance, versions={}, commit=None, seconds=None)
    assert any(told in problem for problem in problems(result)), problems(result)


@pytest.mark.parametrize("name", TRAINED)
def test_an_experiment_s_cells_are_those_of_its_yaml_and_its_rows_those_of_the_cells(
    name: str, results: dict[str, Result]
) -> None:
    experiment, result = Experiment.read(name), results[name]
    (about,) = result.provenance
    tuning, done = about.settings.get("tuning", []), about.settings["cells"]
    assert about.methods == experiment.arms
    assert sorted(map(_key, tuning)) == sorted(map(_key, experiment.tried(experiment.steps)))
    plan = experiment.plan(experiment.chosen(tuning), len(about.seeds), experiment.steps)
    assert sorted(map(_key, done)) == sorted({_key(one.done_as) for one in plan})
    assert len(about.seeds) >= 2
    again = {(one.task, one.metric, one.method, one.subset): one for one in experiment.rows(plan, done)}
    # Intervals over images too have read rows that are not kept.
    of_seeds = not re.search(r"over (the|held-out) images", about.settings.get("intervals", ""))
    assert len(again) == len(result.rows)
    for one in result.rows:
        expected = again[one.task, one.metric, one.method, one.subset]
        flat, told = ([row.value, *row.interval, *(row.change or ())] for row in (one, expected))
        if not of_seeds:
            flat, told = ([values[0], *values[3:4]] for values in (flat, told))
        assert flat == pytest.approx(told, abs=1e-12)
        assert (one.n, one.better) == (expected.n, expected.better)


class TestPages:
    """Whoever measures says which blocks of which pages that fills; nothing else lists them."""

    def test_tables_are_those_of_the_committed_results(self) -> None:
        for path in readme.blocks():
            assert readme.render(path) == path.read_text(encoding="utf-8"), "run python -m eval.readme"

    def test_every_marker_of_a_page_is_filled(self) -> None:
        pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "eval").rglob("*.md")]
        begun = {p: set(re.findall(r"<!-- ([a-z]\w*):begin -->", p.read_text(encoding="utf-8"))) for p in pages}
        declared = {path: set(own) for path, own in readme.blocks().items()}
        assert {path: names for path, names in begun.items() if names} == declared

    def test_an_experiment_that_joins_is_one_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        page = tmp_path / "page.md"
        page.write_text(
            "Before\n<!-- joined:begin -->\nold\n<!-- joined:end -->\n<!-- later:begin -->\n<!-- later:end -->"
        )
        (tmp_path / "joining").mkdir()
        (tmp_path / "joining" / "joined.py").write_text(
            "from eval.tables import fills, shows\n"
            f"fills({str(page)!r}, 'joined')(lambda: 'new\\n')\n"
            f"@shows({str(page)!r}, 'later')\ndef cells(result): return [['a'], [str(len(result.rows))]]\n"
        )
        (tmp_path / "joining" / "silent.py").write_text("raise AssertionError('it fills nothing')\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(readme, "PLACES", ("joining",))
        monkeypatch.setattr(readme, "PAGES", tables.PAGES | {})
        monkeypatch.setattr(tables, "PAGES", readme.PAGES)
        monkeypatch.setattr(tables, "RESULTS", tmp_path)
        begin = "Before\n<!-- joined:begin -->\nnew\n<!-- joined:end -->\n<!-- later:begin -->\n"
        assert (
            readme.render(page)
            == f"{begin}Not measured yet: `python -m joining.joined` makes this.\n<!-- later:end -->"
        )
        provenance = [TaskProvenance(task="t", description="words")]
        Result.of("later", [TaskResult(provenance[0], [row()])], seconds=None).write(tmp_path / "later.json")
        assert f"{begin}\n| a |\n| --- |\n| 1 |\n" in readme.render(page)


class TestEvidence:
    def test_the_list_of_stale_results_is_exact(self) -> None:
        told = evidence.LIST.read_text(encoding="utf-8")
        assert told == evidence.listed(), "run python -m eval.evidence"

    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        for path in ("vldebias/a.py", "eval/b.yaml", "vldebias/other.py"):
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(path)
        (tmp_path / "eval" / "results").mkdir()
        self.git(tmp_path, "init", "-q")
        self.committed(tmp_path)
        return tmp_path

    @staticmethod
    def git(root: Path, *words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def committed(self, root: Path) -> str:
        self.git(root, "add", "-A")
        self.git(root, "commit", "-qm", "more", "--allow-empty")
        return self.git(root, "rev-parse", "HEAD")

    def result(self, root: Path, commit: str | None = None) -> Result:
        files = {path: evidence.hashlib.sha256((root / path).read_bytes()).hexdigest() for path in self.files}
        given = {"name": "made", "rows": [row()], "provenance": [], "versions": {}, "seconds": 1.0}
        return Result(**given, commit=commit, sources=Sources.of(files))

    files = ("vldebias/a.py", "eval/b.yaml")

    def test_a_result_is_stale_once_a_source_changes_and_no_longer_when_it_changes_back(self, checkout: Path) -> None:
        result = self.result(checkout, self.git(checkout, "rev-parse", "HEAD"))
        assert evidence.status(result, checkout) == ""
        (checkout / "vldebias" / "other.py").write_text("nothing that it read")
        assert evidence.status(result, checkout) == ""
        (checkout / "eval" / "b.yaml").write_text("changed")
        assert evidence.status(result, checkout) == evidence.STALE
        self.committed(checkout)
        assert evidence.since(result, checkout).endswith(" more")
        (checkout / "eval" / "b.yaml").write_text("eval/b.yaml")
        assert evidence.status(result, checkout) == ""
        (checkout / "vldebias" / "a.py").unlink()
        assert evidence.status(result, checkout) == evidence.STALE

    def test_a_result_whose_commit_has_other_sources_says_so(self, checkout: Path) -> None:
        before = self.git(checkout, "rev-parse", "HEAD")
        (checkout / "vldebias" / "a.py").write_text("not committed yet")
        assert evidence.status(self.result(checkout, before), checkout) == evidence.DIRTY
        assert evidence.status(self.result(checkout, f"{before}-dirty"), checkout) == evidence.DIRTY
        assert evidence.status(self.result(checkout, "0" * 12), checkout) == ""  # a commit that is not here

    def test_one_that_is_older_than_digests_says_so(self, checkout: Path) -> None:
        result = self.result(checkout)
        (checkout / "eval" / "results" / "old.json").write_text(
            json.dumps({name: value for name, value in result.to_dict().items() if name != "sources"})
        )
        result.write(checkout / "eval" / "results" / "made.json")
        folder = checkout / "eval" / "results"
        assert evidence.listed(folder, checkout) == f"old: {evidence.UNKNOWN}\n"

    def test_nothing_is_written_among_the_results_from_sources_that_are_not_committed(self, checkout: Path) -> None:
        path = checkout / "eval" / "results" / "made.json"
        refuse_uncommitted(path, self.files, checkout)
        (checkout / "vldebias" / "other.py").write_text("not a source")
        refuse_uncommitted(path, self.files, checkout)
        (checkout / "vldebias" / "new.py").write_text("never committed")
        (checkout / "vldebias" / "a.py").write_text("changed")
        with pytest.raises(InvalidInputError, match=r"differ from the last commit: vldebias/a\.py, vldebias/new\.py;"):
            refuse_uncommitted(path, [*self.files, "vldebias/new.py"], checkout)
        refuse_uncommitted(checkout / "try" / "made.json", self.files, checkout)

    def test_what_is_imported_is_a_source_and_what_is_named_beside(self) -> None:
        page = ROOT / "eval" / "README.md"
        found = imported([page])
        assert {"vldebias/files.py", "eval/evidence.py", "eval/README.md"} <= found.keys()
        assert found["eval/README.md"] == evidence.hashlib.sha256(page.read_bytes()).hexdigest()
        assert not any(path.startswith((".venv", "/")) for path in found)
