"""Two blocks of the table in beyond.py: what wrong pseudo-labels cost, and generated portraits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

import vldebias
from eval.experiments.drawing import GUIDANCE, STEPS, SURE, Easel, codes_of
from eval.experiments.embeddings import Gallery, World, facts, protocol
from eval.metrics import DIFFERENCE_LEFT, DIRECTION, LABEL_ERROR
from vldebias.data import Embeddings, Labels
from vldebias.evaluation.result import TaskProvenance, TaskResult
from vldebias.evaluation.texts import Texts
from vldebias.methods import Bound, Problem
from vldebias.methods.equalise import group_means
from vldebias.metrics.discrepancy import discrepancies
from vldebias.prompts import PromptSet, load_prompts

DRAWN = "professions-gender"


def pseudo_labels(real: Gallery | None, worlds: Mapping[str, World]) -> Iterator[TaskResult]:
    """Share of wrong pseudo-labels, and what they do to the length and the direction of the difference of means.

    "labels": measured; "expected": predicted without them (`vldebias.methods.equalise.MeansReport`). For several pairs
    of values the smallest number counts.
    """
    birds, portraits = worlds["birds"], worlds["portraits"]
    data: list[tuple[str, Texts, PromptSet, Embeddings, str]] = []
    if real is not None:
        data.append(("CelebA gender", real.texts, real.prompts, real.images, "gender"))
    data.append(("birds place", birds.texts, load_prompts("waterbirds"), birds.fitted, "place"))
    for column, name in {"gender": "professions-gender", "tone": "skin-tone", "age": "fairface-age"}.items():
        data.append((f"portraits {column}", portraits.texts, load_prompts(name), portraits.fitted, column))
    done = TaskResult(_of_labels(data))
    for name, texts, prompts, images, column in data:
        _pseudo_labels(done, name, texts, prompts, images.features.astype(np.float32), images.column(column))
    yield done


def _pseudo_labels(
    done: TaskResult, name: str, texts: Texts, prompts: PromptSet, features: np.ndarray, truth: Labels
) -> None:
    """`truth` has the values of the prompt set in the same order."""
    problem = Problem.of(texts.host, prompts, reference=features)
    assert problem.reference is not None
    report = group_means(problem, prompts, texts.host.roles[0], None).report()
    rows = torch.cat(list(problem.reference.batches()))
    classifier = torch.stack([normalize(texts.embed(of).mean(0), dim=0) for of in prompts.by_value().values()])
    read = Labels((rows @ classifier.T).argmax(1).numpy(), truth.names)
    n = {"images": len(rows), "values": len(truth.names)}
    wrong = (read.codes != truth.codes).astype(float)
    done.add_resampled(LABEL_ERROR, {"labels": wrong}, n=n, subset=name)
    counts = [read.counts[value] for value in truth.names]
    expected = float(np.average(list(report.expected_error.values()), weights=counts))
    done.add(LABEL_ERROR, "expected", expected, n=n, subset=name)
    length, cosine = _kept(rows, read, truth)
    done.add(DIFFERENCE_LEFT, "labels", length, n=n, subset=name)
    done.add(DIFFERENCE_LEFT, "expected", report.shrinkage, n=n, subset=name)
    done.add(DIRECTION, "labels", cosine, n=n, subset=name)


def _kept(rows: Tensor, read: Labels, truth: Labels) -> tuple[float, float]:
    """Smallest <D', D> / <D, D> and cosine over pairs of values: D between true groups, D' between pseudo-labelled."""
    means, others = (
        torch.stack([rows[torch.from_numpy(labels.codes == v)].mean(0) for v in range(len(labels.names))])
        for labels in (truth, read)
    )
    pairs = [(means[i] - means[j], others[i] - others[j]) for i, j in combinations(range(len(means)), 2)]
    lengths = [float(other @ true / (true @ true)) for true, other in pairs]
    return min(lengths), min(float(torch.cosine_similarity(other, true, dim=0)) for true, other in pairs)


def _of_labels(data: list[tuple[str, Texts, PromptSet, Embeddings, str]]) -> TaskProvenance:
    prompts = {one.name: one.hash for _, _, one, _, _ in data}
    about = protocol(
        "pseudo-labels",
        "What wrong pseudo-labels cost",
        "Share of reference images whose zero-shot value is wrong; the difference of the pseudo-labelled means along "
        "the true one, as a share of it (above 1: stretched), and the cosine between the two. By labels, and as the "
        "model's own probabilities predict it without labels.",
        {},
        {"labels": {}, "expected": {"logit_scale": 100.0}},
        split=", ".join(f"{name}: {len(images)} images" for name, _, _, images, _ in data),
        seeds=(),
        **{"intervals": "bootstrap over images; of 'expected' none", "resamples": 2000},
    )
    return about.model_copy(update={"prompts": ", ".join(prompts), "prompts_hash": "+".join(prompts.values())})


def generation(images: int, loss: float) -> Iterator[TaskResult]:
    """Discrepancy and recognised subjects of unseen professions, so many images each; the methods that need prompts
    alone, since equalising needs a space that texts share with images. Intervals over professions.
    """
    easel, prompts = Easel(batch=64), load_prompts(DRAWN)
    fits: dict[str, Any] = {
        "cali": lambda: vldebias.debias(easel.pipe, DRAWN, method="cali"),
        "difference": lambda: vldebias.debias(easel.pipe, DRAWN, method="difference"),
        "auto": lambda: vldebias.debias(easel.pipe, DRAWN, method="auto"),
        "bounded": lambda: vldebias.debias(easel.pipe, DRAWN, method="cali", max_loss=Bound(loss)),
        "target, uniform": lambda: vldebias.steer(easel.pipe, DRAWN),
    }
    wanted = codes_of(prompts.held_out_class_names)
    seeds = 100 * np.arange(len(wanted))[:, None] + np.arange(images)
    discrepancy, recognised, chosen = {}, {}, {}
    for name, fit in {"none": nullcontext, **fits}.items():
        method = fit()
        chosen[name] = {role: facts(edit) for role, edit in getattr(method, "projections", {}).items()}
        drawn = easel(prompts.held_out_classes, seeds, seeds, method)
        counts = np.stack([(drawn.gender == value).sum(axis=1) for value in (0, 1)], axis=1)
        discrepancy[name], recognised[name] = discrepancies(counts), (drawn.profession == wanted).mean(1)
    n = {"professions": len(wanted), "images each": images}
    about = protocol(
        "generation gender",
        "Generated portraits of unseen professions",
        "Discrepancy of the genders of generated images, and how many show the profession asked for; read by the "
        "miniature's judge. 'target, uniform' draws each image's gender by its seed: it samples the attribute.",
        n,
        chosen,
        split="unseen professions",
        **{"steps": STEPS, "guidance": GUIDANCE, "sure": SURE, "resamples": 2000},
    )
    own = {"model": "miniature diffusion", "fingerprint": easel.fingerprint, "prompts": DRAWN}
    done = TaskResult(about.model_copy(update=own | {"prompts_hash": prompts.hash}))
    done.add_resampled("discrepancy", discrepancy, n=n)
    done.add_resampled("recognised", recognised, n=n)
    yield done
