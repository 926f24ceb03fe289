"""Test how many of the package's functions run in one call of an attached pipeline."""

import sys
import warnings
from pathlib import Path
from types import CodeType, FrameType

import pytest

import vldebias
from vldebias.miniature import load_pipeline

ROOT = str(Path(vldebias.__file__).parent)
# Number of functions that run on the first encode_prompt after attaching. Comprehensions, generator
# expressions and lambdas count as part of their function. Balanced prompts parse the prompt, which
# accounts for most of the second number. It is the number with empty caches, as if the test
# ran alone; after other tests, fewer functions run.
MOST = {"cali": 30, "balanced-prompts": 155}


def functions_of_first_call(method: str) -> set[CodeType]:
    pipe = load_pipeline()
    functions: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and code.co_name[0] != "<":
            functions.add(code)

    with vldebias.debias(pipe, "gender", method=method):
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            pipe.encode_prompt("A photo of a doctor.", "cpu", 1, False)
        finally:
            sys.setprofile(before)
    return functions


@pytest.mark.parametrize("method", MOST)
def test_the_first_call_only_runs_a_few_functions(method: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vldebias.errors.WideEditWarning)
        functions = functions_of_first_call(method)
    names = {function.co_name for function in functions}
    # The hook and the text encoder's check ran, so the call used the attachment.
    assert {"__call__", "_watch"} <= names
    assert len(functions) <= MOST[method], sorted(names)
