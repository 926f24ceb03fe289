"""What wrong pseudo-labels cost, for eval/beyond.py: what the model's own probabilities say beside what labels say."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
from beyond_methods import exact
from torch import Tensor

from vldebias.data import Embeddings, Labels
from vldebias.equalise import Reference, group_means
from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.part import Part
from vldebias.evaluation.result import Figure, Protocol
from vldebias.evaluation.texts import Texts
from vldebias.prompts import PromptSet
from vldebias.values import value_prompts

__all__ = ["TASK", "pseudo_labels"]

TASK = "pseudo-labels"


def pseudo_labels(name: str, texts: Texts, prompts: PromptSet, images: Embeddings, column: str) -> Part:
    """Share of wrong pseudo-labels, and what they do to the length and the direction of the difference of means.

    `column` has the values of the prompt set in the same order. "labels": measured; "expected": predicted without them
    (`vldebias.equalise.MeansReport`). For several pairs of values the smallest number counts.
    """
    values = {value: texts.embed(found) for value, found in value_prompts(prompts).items()}
    reference = Reference(images.features.astype(np.float32))
    report = group_means(values, None, reference).report()
    truth = images.column(column)
    rows = torch.cat(list(reference.batches()))
    classifier = torch.stack([torch.nn.functional.normalize(found.mean(0), dim=0) for found in values.values()])
    said = Labels((rows @ classifier.T).argmax(1).numpy(), truth.names)
    wrong = (said.codes != truth.codes).astype(float)
    n = {"images": len(images), "values": len(values)}
    counts = [said.counts[value] for value in truth.names]
    expected = float(np.average(list(report.expected_error.values()), weights=counts))
    length, cosine = _kept(rows, said, truth)
    found = [
        *figures(Measured(TASK, "label_error", "lower", n, {"labels": wrong}, subset=name)),
        exact(TASK, "label_error", "expected", expected, "lower", n, name),
        exact(TASK, "difference_left", "labels", length, "neither", n, name),
        exact(TASK, "difference_left", "expected", report.shrinkage, "neither", n, name),
        exact(TASK, "direction", "labels", cosine, "higher", n, name),
    ]
    return Part(found, _protocol(name, texts, prompts, n))


def _kept(rows: Tensor, said: Labels, truth: Labels) -> tuple[float, float]:
    """Smallest <D', D> / <D, D> and cosine over pairs of values: D between true groups, D' between pseudo-labelled."""
    means, found = (
        torch.stack([rows[torch.from_numpy(labels.codes == v)].mean(0) for v in range(len(labels.names))])
        for labels in (truth, said)
    )
    lengths, cosines = [], []
    for i, j in combinations(range(len(means)), 2):
        true, other = means[i] - means[j], found[i] - found[j]
        lengths.append(float(other @ true / (true @ true)))
        cosines.append(float(torch.cosine_similarity(other, true, dim=0)))
    return min(lengths), min(cosines)


def joined(parts: list[Part]) -> Part:
    """One part of all data sets."""
    first = parts[0].protocol
    found: list[Figure] = [figure for part in parts for figure in part.figures]
    prompts = ", ".join(dict.fromkeys(part.protocol.prompts for part in parts))
    hashes = "+".join(dict.fromkeys(part.protocol.prompts_hash for part in parts))
    splits = ", ".join(part.protocol.split for part in parts)
    return Part(found, first.model_copy(update={"prompts": prompts, "prompts_hash": hashes, "split": splits}))


def _protocol(name: str, texts: Texts, prompts: PromptSet, n: dict[str, int]) -> Protocol:
    return Protocol(
        task=TASK,
        title="What wrong pseudo-labels cost",
        description=(
            "Share of reference images whose zero-shot value is wrong; the difference of the pseudo-labelled means "
            "along the true one, as a share of it (above 1: stretched), and the cosine between the two. By labels, and "
            "as the model's own probabilities predict it without labels."
        ),
        model=texts.host.model_id or "unnamed model",
        fingerprint=None,
        prompts=prompts.name,
        prompts_hash=prompts.hash,
        split=f"{name}: {n['images']} images",
        methods={"labels": {}, "expected": {"logit_scale": 100.0}},
        seeds=[],
        n={},
        settings={"intervals": "bootstrap over images; of 'expected' none", "resamples": 2000},
    )
