"""Test that every public function rejects arguments of a wrong kind in a sentence."""

import inspect
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import vldebias
from vldebias.errors import InvalidInputError, VldebiasError, check_arguments
from vldebias.miniature import load_pipeline

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")


class Own:
    """A class that a user passes instead of an instance."""


RNG = np.random.default_rng(0)
WRONG = {
    "a string": "a nurse",
    "a number": 7,
    "None": None,
    "a list": [1, object()],
    "a dict": {"a": 1},
    "a DataFrame": pd.DataFrame({"x": [1, 2]}),
    "a missing path": Path("missing/all.csv"),
    "a class": Own,
    "a tensor of a wrong rank": torch.zeros(2, 3, 4, 5),
    "bytes": b"abc",
}
SET = {
    "name": "x",
    "attributes": {"a": ("a",), "b": ("b",)},
    "variants": (("an a cat", "a b cat"),),
}
GROUPS = ["female", "male"] * 15


def calls() -> dict[str, Callable[..., object]]:
    """Return, for each public name, a call that works and accepts other arguments."""
    loaded = vldebias.load_host("miniature")
    pipe = load_pipeline()
    features = RNG.normal(size=(30, 256)).astype(np.float32)
    edits = vldebias.fit_projections(loaded, "gender", method="cali")
    measured = {
        "images": features,
        "attribute": "gender",
        "labels": {"gender": GROUPS},
        "resamples": 2,
        "methods": ["none"],
    }
    result = vldebias.evaluate(loaded, **measured)
    captions = pd.DataFrame(
        {
            "image": [f"{n}.png" for n in range(8)],
            "caption": ["a man walks", "a woman walks"] * 4,
            "gender": ["male", "female"] * 4,
        }
    )

    def attached(**arguments: Any) -> None:
        vldebias.debias(**({"host": pipe, "attribute": "gender"} | arguments)).remove()

    def projection(**arguments: Any) -> None:
        vldebias.CalibratedProjection(**arguments).fit(RNG.normal(size=(4, 2, 8)))

    defaults: dict[str, dict[str, Any]] = {
        "ChatFinder": {"client": Own(), "model": "m"},
        "PromptSet": SET,
        "attachment_of": {"host": pipe},
        "audit": {"prompts": ["a nurse"], "attribute": "gender"},
        "balance_prompts": {"prompts": ["a nurse"], "attribute": "gender"},
        "compare": {"a": result, "b": result},
        "debias_queries": {"embed": loaded, "attribute": "gender", "method": "cali"},
        "diagnose": {"features": features, "labels": GROUPS},
        "evaluate": {"model": loaded, **measured},
        "fit_projections": {"host": loaded, "attribute": "gender", "method": "cali"},
        "grid": {
            "pipe": pipe,
            "attribute": "gender",
            "seeds": [0],
            "steps": 1,
            "prompts": ["a nurse"],
            "methods": ["none"],
        },
        "load_edit": {"directory_or_repo": "missing"},
        "load_host": {"model": "miniature"},
        "load_prompts": {"name_or_path": "gender"},
        "make_prompt_set": {
            "name": "x",
            "attribute": {"a": ["a"], "b": ["b"]},
            "concepts": ["cat", "dog"],
        },
        "neutral_texts": {"texts": ["a nurse"], "attribute": "gender"},
        "push_to_hub": {"edits": edits, "repo_id": "nobody/x"},
        "rerank": {"scores": RNG.normal(size=30), "labels": GROUPS, "k": 5},
        "text_diagnostics": {"host": loaded, "attribute": "gender", "method": "cali"},
    }
    found: dict[str, Callable[..., object]] = {
        "CalibratedProjection": projection,
        "debias": attached,
        "evaluate_captions": lambda **arguments: vldebias.evaluate_captions(captions, **arguments),
    }
    for name, arguments in defaults.items():
        found[name] = partial(getattr(vldebias, name), **arguments)
    return found


def test_arguments_of_a_wrong_kind_get_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    python_errors = []
    covered = set()
    for name, call in calls().items():
        covered.add(name)
        for folder in ("a nurse", "missing"):  # written by `evaluate_captions(out=...)`
            shutil.rmtree(folder, ignore_errors=True)
        for parameter in inspect.signature(getattr(vldebias, name)).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            for kind, value in WRONG.items():
                where = f"{name}({parameter.name}={kind})"
                try:
                    call(**{parameter.name: value})
                except VldebiasError:
                    continue
                except Exception as error:
                    python_errors.append(f"{where}: {type(error).__name__}: {error}")
    with_arguments = {name for name in vldebias.__all__ if callable(getattr(vldebias, name))}
    assert covered == with_arguments - {"list_prompts"}
    assert not python_errors


@check_arguments("own")
def public(
    n: int = 1,
    to: str | Path | None = None,
    names: Sequence[str] = (),
    weights: Mapping[str, float] | None = None,
    own: str = "",
    features: Tensor | None = None,
) -> None:
    """Stand for a public function. It checks `own` itself, as all functions check `features`."""


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n", "1", "n: got '1'; expected a whole number"),
        ("n", 1.5, "n: got 1.5; expected a whole number"),
        ("n", None, "n: got None; expected a whole number"),
        ("to", 7, "to: got 7; expected a string or a path or None"),
        ("to", Own, "to: got the class Own; expected a string or a path or None"),
        ("names", "a nurse", "names: got 'a nurse'; expected a list of strings"),
        ("names", [1], "names: got [1]; expected a list of strings"),
        ("names", pd.DataFrame({"x": [1]}), "names: got DataFrame; expected a list of strings"),
        ("weights", [0.5], "weights: got [0.5]; expected a mapping or None"),
    ],
)
def test_a_plain_argument_is_checked_before_the_function_runs(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"^{re.escape(message)}$"):
        public(**{name: value})


def test_arguments_that_match_their_annotations_are_accepted() -> None:
    public(np.int64(3), Path("x"), np.array(["a"]), {"a": 1}, own=7, features="anything")
    public(torch.tensor(3), names=(name for name in ("a", "b")))


def test_a_hint_does_not_name_an_argument_that_was_passed() -> None:
    with pytest.raises(TypeError) as error:
        vldebias.debias_queries({}, attribute="gender", attributes="age")
    assert "did you mean" not in str(error.value)
