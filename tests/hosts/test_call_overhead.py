"""Test how much of the package runs in the first calls of a new process."""

import json

import pytest

from tests.processes import run_python

# Code objects are counted, so a comprehension, generator expression, lambda or module body counts
# as a function of its own. Python 3.12 inlines comprehensions, and counts fewer.
SCRIPT = """
import json, sys, warnings
from pathlib import Path
import vldebias
from vldebias.miniature import load_pipeline

warnings.simplefilter("ignore", vldebias.errors.WideEditWarning)
root = str(Path(vldebias.__file__).parent)

def counts_of(call):
    codes = []
    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(root):
            codes.append(frame.f_code)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    names = sorted({code.co_qualname for code in codes})
    return {"calls": len(codes), "functions": len(set(codes)), "names": names}

counts = {}
for name, options in (("default", {}), ("cali", {"method": "cali"})):
    pipe = load_pipeline()
    counts[f"debias, {name}"] = counts_of(lambda: vldebias.debias(pipe, "gender", **options))
    counts[f"encode_prompt, {name}"] = counts_of(
        lambda: pipe.encode_prompt("A photo of a doctor.", "cpu", 1, False)
    )
host = vldebias.load_host("miniature")
vldebias.fit_projections(host, "gender", method="cali")
counts["fit_projections"] = counts_of(
    lambda: vldebias.fit_projections(host, "gender", method="cali")
)
print(json.dumps(counts))
"""


@pytest.fixture(scope="module")
def counts() -> dict[str, dict]:
    return json.loads(run_python(SCRIPT).stdout)


def test_the_first_debias_makes_few_calls(counts: dict[str, dict]) -> None:
    assert counts["debias, default"]["calls"] <= 6000


# Balanced prompts parse the prompt, which accounts for most of the second number.
@pytest.mark.parametrize(
    ("call", "most"),
    [("encode_prompt, cali", 45), ("encode_prompt, default", 240), ("fit_projections", 120)],
)
def test_a_call_only_runs_a_few_functions(counts: dict[str, dict], call: str, most: int) -> None:
    assert counts[call]["functions"] <= most, counts[call]["names"]


@pytest.mark.parametrize("method", ["default", "cali"])
def test_the_counted_call_uses_the_attachment(counts: dict[str, dict], method: str) -> None:
    names = {name.rpartition(".")[2] for name in counts[f"encode_prompt, {method}"]["names"]}
    assert {"__call__", "_watch"} <= names
