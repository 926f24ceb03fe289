"""Compute numbers with one version of the package on fixed inputs, for comparisons of versions.

`python eval/probe.py OUT TREE --tests OTHER` imports vldebias from TREE and tiny pipelines from the
tests in OTHER. It uses only public calls, so that the same script works with every version.
`eval/against.py` runs this script.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, IMAGES = 64, 600
SETS = [
    "gender",
    "race",
    "age",
    "professions-gender",
    "professions-race",
    "waterbirds",
    "celeba",
    "fairface-race",
]


def closed_form() -> Iterator[tuple[str, Any]]:
    """Compute Lemmas 7.1 and 7.2 on random pairs."""
    from vldebias import CalibratedProjection

    noise = np.random.default_rng(0)
    pairs, spurious = noise.standard_normal((12, 2, WIDTH)), noise.standard_normal((5, WIDTH))
    for lam in (1.0, 500.0, 1000.0):
        for name, reference in (("orth-cali", spurious), ("cali", None)):
            fitted = CalibratedProjection(lam=lam).fit(pairs, reference)
            yield f"{name} lam {lam:g}", fitted.matrix()


def methods() -> Iterator[tuple[str, Any]]:
    """Edit text and images with a small CLIP model and every method."""
    import torch

    import vldebias
    from vldebias import miniature
    from vldebias.methods import METHODS

    model, _, tokenizer = miniature.load_clip()
    noise = torch.Generator().manual_seed(0)
    reference = torch.nn.functional.normalize(torch.randn(IMAGES, 256, generator=noise), dim=1)
    texts = [
        f"A photo of {subject}."
        for subject in ("a doctor", "a nurse", "an old pilot", "a bird", "a person")
    ]
    for name in METHODS:
        for prompt_set in SETS:
            for images in (None, reference):
                key = f"{name} of {prompt_set}{' with images' * (images is not None)}"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        with vldebias.debias(
                            model, prompt_set, method=name, tokenizer=tokenizer, reference=images
                        ):
                            yield key, model.encode_text(tokenizer(texts)).detach().double().numpy()
                    except Exception as error:  # the error is recorded instead of the number
                        yield key, type(error).__name__


def losses() -> Iterator[tuple[str, Any]]:
    """Compute the value and the gradient of every public loss."""
    import torch

    from vldebias import losses as every

    calls: dict[str, dict[str, float]] = {
        "info_nce": {},
        "rince": {"q": 0.5, "lam": 0.01},
        "debiased": {"tau_plus": 0.1},
        "hard_negative": {"tau_plus": 0.1, "beta": 1.0},
    }
    for name, settings in calls.items():
        for temperature in (0.01, 0.07, 0.5):
            noise = torch.Generator().manual_seed(1)
            images, texts = (
                torch.nn.functional.normalize(torch.randn(48, 32, generator=noise), dim=1)
                for _ in "it"
            )
            images.requires_grad_()
            loss = getattr(every, name)(images, texts, temperature=temperature, **settings)
            loss.backward()
            yield (
                f"{name} t {temperature}",
                np.append(images.grad.double().numpy().ravel(), float(loss.detach())),
            )


def metrics() -> Iterator[tuple[str, Any]]:
    """Compute the named metrics on random scores and labels."""
    from vldebias import metrics as every

    noise = np.random.default_rng(2)
    scores, groups = noise.standard_normal(500), noise.integers(0, 3, 500)
    labels, predictions = noise.integers(0, 2, 500), noise.integers(0, 2, 500)
    for name in ("max_skew", "min_skew", "ndkl"):
        yield (
            name,
            np.asarray(
                float(getattr(every, name)(scores, groups, **({} if name == "ndkl" else {"k": 50})))
            ),
        )
    yield (
        "worst_group_accuracy",
        np.asarray(float(every.worst_group_accuracy(predictions, labels, groups))),
    )
    yield "discrepancy", np.asarray(float(every.discrepancy([0, 0, 0, 1, 2], 3)))
    yield (
        "k_variance",
        np.asarray(float(every.k_variance(noise.standard_normal((80, 8)), seed=0).value)),
    )


def evaluations() -> Iterator[tuple[str, Any]]:
    """Compute the results of a search and a classification on embeddings with two label columns."""
    import torch

    import vldebias
    from vldebias import miniature

    model, _, tokenizer = miniature.load_clip()
    noise = np.random.default_rng(3)
    for task, prompts, texts, columns in (
        ("retrieval", "gender", ("A photo of a man.", "A photo of a woman."), ("gender",)),
        (
            *("groups", "waterbirds"),
            ("This is a picture of a landbird.", "This is a picture of a waterbird."),
            ("waterbirds", "background"),
        ),
    ):
        with torch.no_grad():
            centres = model.encode_text(tokenizer(list(texts)), normalize=True).double().numpy()
        first = noise.integers(0, 2, IMAGES)
        second = np.where(noise.random(IMAGES) < 0.8, first, 1 - first)
        features = (
            centres[first]
            + 0.1 * centres[second]
            + 0.05 * noise.standard_normal((IMAGES, centres.shape[1]))
        )
        values = {
            "gender": ("male", "female"),
            "waterbirds": ("landbird", "waterbird"),
            "background": ("land", "water"),
        }
        labels = {
            name: np.array(values[name])[column]
            for name, column in zip(columns, (first, second), strict=False)
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                methods = ["none", "orth-cali", "cali", "difference"]
                options = {"resamples": 200, "tokenizer": tokenizer, "methods": methods}
                columns_of_task = (
                    {} if task == "retrieval" else {"label": columns[0], "spurious": columns[1]}
                )
                result = vldebias.evaluate(
                    model,
                    features,
                    attribute=prompts,
                    labels=labels,
                    task=task,
                    **options,
                    **columns_of_task,
                )
            except Exception as error:  # an option or a name may not exist in an old version
                yield f"{task}: fails", f"{type(error).__name__}: {error}"
                continue
        for row in result.to_pandas().itertuples():
            key = f"{task} {row.metric} {row.method} {row.subset}"
            yield (
                key,
                np.asarray(
                    [row.value, row.low, row.high, row.change, row.change_low, row.change_high],
                    float,
                ),
            )


def pipelines(tests: Path) -> Iterator[tuple[str, Any]]:
    """Fit `cali` on every tiny pipeline in the tests, edit text with it, and generate images."""
    import torch

    import vldebias

    sys.path.insert(0, str(tests / "tests" / "hosts"))
    import diffusers_tiny

    made: dict[str, Callable[[], Any]] = {
        name: make for name, (make, _) in diffusers_tiny.FAMILIES.items()
    }
    made |= {f"text side of {name}": case.make for name, case in diffusers_tiny.CASES.items()}
    for name, make in made.items():
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            try:
                pipe = make()
                with vldebias.debias(
                    pipe, diffusers_tiny.gender(), method="cali", lam=10.0
                ) as attachment:
                    for role, edit in attachment.projections.items():
                        yield (
                            f"{name} {role}",
                            edit(torch.eye(edit.dim, dtype=torch.float64)).numpy(),
                        )
                    if name in diffusers_tiny.FAMILIES:
                        call = diffusers_tiny.FAMILIES[name][1]
                        yield f"{name} image", diffusers_tiny.draw(pipe, **call).double().numpy()
            except Exception as error:
                yield name, type(error).__name__


PARTS = {
    **{
        function.__name__: function
        for function in (closed_form, methods, losses, metrics, evaluations)
    },
    "pipelines": pipelines,
}


def main() -> None:
    """Compute the selected parts and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("tree", type=Path, help="the checkout that contains the package")
    parser.add_argument(
        "--tests", type=Path, required=True, help="the checkout with the tiny pipelines"
    )
    parser.add_argument(
        "--only", default=",".join(PARTS), help="comma-separated parts: %(default)s"
    )
    args = parser.parse_args()
    sys.path.insert(0, str(args.tree))
    logging.disable(logging.WARNING)
    import vldebias

    assert Path(vldebias.__file__).is_relative_to(args.tree), vldebias.__file__
    figures, words = {}, {}
    for part in args.only.split(","):
        print(f"{args.tree.name}: {part}", file=sys.stderr)
        for key, value in PARTS[part](args.tests) if part == "pipelines" else PARTS[part]():
            (words if isinstance(value, str) else figures)[f"{part}: {key}"] = value
    np.savez(args.out, **figures, words=np.array(json.dumps(words)))


if __name__ == "__main__":
    main()
