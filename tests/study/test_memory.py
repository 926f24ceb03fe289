"""Test that evaluating millions of images only needs one block in addition to the features."""

import subprocess
import sys
from pathlib import Path

import pytest

MOST = 160  # MB in addition to the features of 200,000 rows
PEAK = Path("/proc/self/clear_refs")  # writing 5 there resets the peak

MEASURE = f"""
import warnings
from pathlib import Path
import numpy as np
import vldebias
from vldebias.prompts import load_prompts

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
queries = load_prompts("professions-gender").classes[:10]
sets = [load_prompts(name) for name in ("gender", "race", "waterbirds")]
prompts = [*(text for prompt_set in sets for text in prompt_set.texts), *queries]
texts = {{prompt: rng.normal(size=512) for prompt in prompts}}
columns = {{
    "retrieval": {{"gender": ["female", "male"], "race": ["asian", "black", "white"]}},
    "groups": {{"bird": ["landbird", "waterbird"], "place": ["land", "water"]}},
}}


def features(n, seed):
    rows, draw = np.empty((n, 512), np.float16), np.random.default_rng(seed)
    for start in range(0, n, 4096):
        size = (min(4096, n - start), 512)
        rows[start : start + 4096] = draw.standard_normal(size, dtype=np.float32)
    return rows


def measured(task, n, images, reference):
    labels = {{
        name: np.array(values)[rng.integers(len(values), size=n)]
        for name, values in columns[task].items()
    }}
    if "race" in labels:
        labels["race"] = np.where(rng.random(n) < 0.1, "", labels["race"])
    else:
        labels["race"] = labels["bird"]
    fields = {{"methods": ["none", "orth-cali", "cali", "equalise"], "resamples": 50}}
    fields["reference"] = reference
    if task == "retrieval":
        fields |= {{"queries": queries, "k": n // 200}}
    else:
        fields |= {{"label": "bird", "spurious": "place"}}
    prompts = {{"gender": "gender", "race": "race"}} if task == "retrieval" else "waterbirds"
    vldebias.evaluate(texts, images, task=task, attribute=prompts, labels=labels, **fields)


def memory(kind):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))


for task in columns:
    measured(task, 2000, features(2000, 1), features(2000, 2))  # what is imported when it is used
n = 200_000
images, reference = features(n, 3), features(n, 4)
reference[:1000] = images[:1000]  # which are left out
for task in columns:
    Path("{PEAK}").write_text("5")
    before = memory("VmRSS")
    measured(task, n, images, reference)
    print(memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not PEAK.exists(), reason="the peak of a process is read from /proc")
def test_an_evaluation_needs_one_block_in_addition_to_its_features() -> None:
    """Measure the memory used by retrieval and by groups in a single process."""
    command = [sys.executable, "-c", MEASURE]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    peaks = [float(line) for line in done.stdout.split()]
    assert len(peaks) == 2
    assert max(peaks) < MOST
