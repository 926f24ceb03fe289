"""Create a gallery of random features with texts and labels, and its results on two tasks."""

from itertools import chain
from typing import Any

import numpy as np

import vldebias
from vldebias.measure.rows import Measurement
from vldebias.prompts import load_prompts

N = 1300
D = 32
ASKED = load_prompts("professions-gender").classes[:4]


def drawn(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, D)).astype(np.float16)


RNG = np.random.default_rng(0)
FEATURES = drawn(N, 1)
REFERENCE = drawn(700, 2)
REFERENCE[:30] = FEATURES[:30]  # also in the gallery, so excluded from the reference
SETS = [load_prompts(name) for name in ("gender", "race", "waterbirds")]
TEXTS = {
    prompt: RNG.normal(size=D) + 2
    for prompt in chain(*(prompt_set.texts for prompt_set in SETS), ASKED)
}
GENDER = np.array(["female", "male", ""])[RNG.integers(3, size=N)]  # a third is unknown
LABELS = {
    "retrieval": {
        "gender": GENDER,
        "race": np.array(["asian", "black", "white"])[RNG.integers(3, size=N)],
    },
    "groups": {
        "bird": np.array(["landbird", "waterbird"])[RNG.integers(2, size=N)],
        "place": np.array(["land", "water"])[RNG.integers(2, size=N)],
    },
}
SETTINGS: dict[str, dict[str, Any]] = {
    "retrieval": {
        "attribute": {"gender": "gender", "race": "race"},
        "queries": list(ASKED),
        "k": [10, 100],
    },
    "groups": {"attribute": "waterbirds", "label": "bird", "spurious": "place"},
}


def figures(task: str, images: Any, **changes: Any) -> list[Measurement]:
    settings = {
        "methods": ["none", "orth-cali", "cali", "equalise"],
        "resamples": 40,
        "reference": REFERENCE,
    }
    inputs: dict[str, Any] = {**settings, "labels": LABELS[task], **SETTINGS[task], **changes}
    return vldebias.evaluate(TEXTS, images, task=task, **inputs).rows
