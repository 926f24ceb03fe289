"""A zero-shot judge: an image-text model asked which of several texts an image shows (section 7.6 of the thesis)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError
from vldebias.evaluation.judging.judges import digest
from vldebias.evaluation.texts import Texts
from vldebias.hosts.images import image_encoder
from vldebias.prompts import PromptSet
from vldebias.templates import check_slots, fill

__all__ = ["NO_PERSON", "ClipJudge", "Question", "logit_scale"]

NO_PERSON = ("a photo without a person", "a photo of an object", "an empty scene")
"""Texts for what a picture may show instead of a person."""


@dataclass(frozen=True)
class Question:
    """What is asked about one attribute.

    prompts: value -> texts for it, of which the mean embedding is compared; reject: texts for "none of them", each of
    which competes with the values.

    Raises:
        InvalidInputError: fewer than two values, or one without a text.
    """

    prompts: Mapping[str, tuple[str, ...]]
    reject: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.prompts) < 2 or not all(self.prompts.values()) or isinstance(self.reject, str):
            raise InvalidInputError(
                "question: expected two or more values with texts for each, and a tuple of texts to reject by, "
                f"got {dict(self.prompts)} and {self.reject!r}"
            )

    @classmethod
    def of(
        cls,
        values: Mapping[str, Sequence[str]] | Sequence[str],
        templates: Sequence[str] = ("a photo of a {value}",),
        *,
        reject: Iterable[str] = (),
    ) -> Question:
        """Every word of a value in every template; "a" before {value} is made to fit.

        Args:
            values: value -> words for it, or values that are their own words.
            templates: texts with {value}.
            reject: see the class.
        """
        for template in templates:
            check_slots("templates", template, ["value"])
        words = values if isinstance(values, Mapping) else {value: (value,) for value in values}
        return cls(
            {v: tuple(fill(t, value=w) for w in some for t in templates) for v, some in words.items()}, tuple(reject)
        )

    @classmethod
    def about(
        cls,
        prompts: PromptSet,
        templates: Sequence[str] = ("a photo of a {value} person",),
        *,
        reject: Iterable[str] = NO_PERSON,
    ) -> Question:
        """Asks for the attribute of a prompt set, in its own words."""
        return cls.of(prompts.attributes, templates, reject=reject)


class ClipJudge:
    """Any open_clip or transformers image-text model as a judge; its texts are never projected.

    The probabilities are the softmax over values and rejects of cosine x the model's own logit scale. Such a judge has
    the biases of its model, and may share them with the pipeline that it judges: the paper's judge and the text tower
    of its pipeline are both CLIPs. Compare it with people (`vldebias.evaluation.human.annotations`).

    Args:
        model, preprocess: as open_clip or transformers give them.
        tokenizer: where it cannot be found from the model.
        questions: attribute -> what is asked.
        scale: what cosines are multiplied with; default: the model's logit scale.
        name: for reports.

    Raises:
        InvalidInputError: no questions, or a model without a logit scale.
        UnsupportedHostError: a model that is not supported.
    """

    def __init__(
        self,
        model: Any,
        preprocess: Any,
        tokenizer: Any = None,
        *,
        questions: Mapping[str, Question],
        scale: float | None = None,
        name: str | None = None,
    ) -> None:
        if not questions:
            raise InvalidInputError("questions: expected at least one attribute to ask for")
        self._encoder = image_encoder(model, preprocess, name=name)
        self.name = f"zero-shot {self._encoder.name}"
        self.names = {attribute: tuple(question.prompts) for attribute, question in questions.items()}
        self._scale = logit_scale(model) if scale is None else scale
        texts = Texts(model, tokenizer)
        self._rows = {attribute: _rows(texts, question) for attribute, question in questions.items()}
        asked = {a: [{v: list(p) for v, p in q.prompts.items()}, list(q.reject)] for a, q in questions.items()}
        towers = [self._encoder.fingerprint, texts.host.fingerprint()]
        self.fingerprint = digest(towers, self._encoder.preprocessing, round(self._scale, 3), asked)

    def predict(self, images: Sequence[Image.Image]) -> dict[str, np.ndarray]:
        """Probabilities (n, values) of each attribute; what a row lacks to one went to the rejects."""
        features = normalize(self._encoder.encode([image.convert("RGB") for image in images]).double(), dim=-1)
        found = {}
        for attribute, rows in self._rows.items():
            chances = (self._scale * features @ rows.T).softmax(dim=-1)
            found[attribute] = chances[:, : len(self.names[attribute])].numpy()
        return found


def _rows(texts: Texts, question: Question) -> Tensor:
    """(values + rejects, d) normalised: the mean embedding of the texts of each value, then the rejects."""
    texts.embed([*chain.from_iterable(question.prompts.values()), *question.reject])  # in one pass of the tower
    values = [normalize(texts.embed(prompts).mean(0), dim=0) for prompts in question.prompts.values()]
    return torch.stack([*values, *(texts.embed(question.reject) if question.reject else ())])


def logit_scale(model: Any) -> float:
    """exp(logit_scale) of CLIP and its kin, one over the temperature of ALIGN."""
    with torch.no_grad():
        if getattr(model, "logit_scale", None) is not None:
            return float(model.logit_scale.float().exp())
        if getattr(model, "temperature", None) is not None:
            return float(1 / model.temperature.float())
    raise InvalidInputError(f"{type(model).__name__} has no logit_scale; give scale= (100 for CLIP)")
