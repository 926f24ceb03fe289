"""The quickstart end to end on the shipped weights, small; and the committed result behind the README."""

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from vldebias.evaluation.quickstart import run
from vldebias.evaluation.result import Result
from vldebias.prompts import load_prompts

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "eval" / "results" / "quickstart.json"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
def test_small_run(tmp_path: Path) -> None:
    progress = StringIO()
    result, page = run(tmp_path, images=1, seeds=range(1), console=Console(file=progress))
    assert Result.model_validate_json((tmp_path / "quickstart.json").read_text()) == result
    assert page.read_text().count("data:image/png;base64,") == 3
    for task, metric, method in (
        ("birds", "worst_group", "orth-cali"),
        ("portraits", "max_skew", "cali"),
        ("generation", "discrepancy", "cali"),
    ):
        figure = result.figure(task, metric, method)
        assert figure.interval[0] <= figure.value <= figure.interval[1]
        assert figure.change is not None
    kept = result.figure("generation", "stated_right", "cali")
    assert kept.change == (0.0, 0.0, 0.0)  # left alone by the gate: the very same images
    assert "generation" in progress.getvalue()


def test_committed_result_names_what_it_measured() -> None:
    result = Result.model_validate_json(COMMITTED.read_text())
    assert {p.task for p in result.protocols} == {"birds", "portraits", "generation"}
    for protocol in result.protocols:
        assert protocol.prompts_hash == load_prompts(protocol.prompts).hash
        assert protocol.fingerprint is not None
    generation = next(p for p in result.protocols if p.task == "generation")
    assert len(generation.seeds) >= 3


def test_committed_result_is_of_the_shipped_weights() -> None:
    from vldebias.fingerprint import fingerprint_matches, weights_fingerprint
    from vldebias.miniature import load_clip, load_pipeline

    result = json.loads(COMMITTED.read_text())
    found = {p["task"]: p["fingerprint"] for p in result["protocols"]}
    assert fingerprint_matches(found["birds"], weights_fingerprint(load_clip()[0]))
    assert fingerprint_matches(found["generation"], weights_fingerprint(load_pipeline().unet))


def test_readme_table_is_the_committed_result() -> None:
    done = subprocess.run([sys.executable, "eval/readme.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run python eval/readme.py"
