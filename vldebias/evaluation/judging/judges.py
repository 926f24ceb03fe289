"""Judges say what an image shows: probabilities for the values of each attribute, and what is left for "none of them".

A value counts as unknown where no probability is large enough, or where what is left outweighs every value: a picture
without a person has no gender, and a rate of such pictures belongs beside every figure about the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from vldebias.data import UNKNOWN, Labels
from vldebias.errors import InvalidInputError
from vldebias.fingerprint import weights_fingerprint

__all__ = ["ClassifierJudge", "FunctionJudge", "Judge", "JudgePanel", "MiniatureJudge", "decide", "predict"]

Probabilities = dict[str, np.ndarray]
_SLACK = 1e-3  # by which rounding in half precision may take a sum of probabilities over one


class Judge(Protocol):
    """Reads attributes from images.

    name: for reports. fingerprint: changes whenever the answers may. names: attribute -> its values, in the order of
    the columns.
    """

    @property
    def name(self) -> str:
        """For reports and for the name of a folder."""

    @property
    def fingerprint(self) -> str:
        """Judgements are kept under it."""

    @property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """Attribute -> values."""

    def predict(self, images: Sequence[Image.Image]) -> Probabilities:
        """Attribute -> probabilities (n, values); rows may sum to less than one, the rest is "none of them"."""


def predict(judge: Judge, images: Sequence[Image.Image]) -> Probabilities:
    """What `judge` says about `images`, checked: float64 (n, values) for each of its attributes.

    Raises:
        InvalidInputError: an attribute is missing, or its array is not (n, values) of probabilities.
    """
    given = judge.predict(images)
    found = {}
    for attribute, values in judge.names.items():
        if attribute not in given:
            raise InvalidInputError(f"judge {judge.name}: gave no {attribute!r}, only {sorted(given)}")
        array = np.asarray(given[attribute], dtype=np.float64)
        expected = (len(images), len(values))
        if array.shape != expected:
            raise InvalidInputError(f"judge {judge.name}: {attribute} has shape {array.shape}, expected {expected}")
        if not (np.isfinite(array).all() and (array >= 0).all() and (array.sum(1) <= 1 + _SLACK).all()):
            raise InvalidInputError(
                f"judge {judge.name}: {attribute} are no probabilities: expected numbers from 0 on that sum to at most "
                f"1 in each row, got {array.min():.3g} .. {array.max():.3g}; apply a softmax"
            )
        found[attribute] = array
    return found


def decide(probabilities: np.ndarray, names: Sequence[str], sure: float) -> Labels:
    """Probabilities (n, values) -> the most likely value, or unknown.

    Unknown where the largest probability is below `sure`, or below what is left for none of the values.

    Raises:
        InvalidInputError: `sure` outside [0, 1].
    """
    if not 0 <= sure <= 1:
        raise InvalidInputError(f"sure: expected a probability in [0, 1], got {sure}")
    best = probabilities.max(axis=1)
    rest = 1 - probabilities.sum(axis=1)
    told = (best >= sure) & (best >= rest)
    return Labels(np.where(told, probabilities.argmax(axis=1), UNKNOWN), tuple(names))


class FunctionJudge:
    """Your own classifier as a judge.

    Args:
        names: attribute -> values.
        function: images -> attribute -> probabilities (n, values).
        name: for reports.
        version: change it whenever the answers may change; judgements of another version are not used.
    """

    def __init__(
        self,
        names: Mapping[str, Sequence[str]],
        function: Callable[[Sequence[Image.Image]], Probabilities],
        *,
        name: str,
        version: str,
    ) -> None:
        self.name = name
        self.names = {attribute: tuple(values) for attribute, values in names.items()}
        self.fingerprint = digest(name, version, self.names)
        self._function = function

    def predict(self, images: Sequence[Image.Image]) -> Probabilities:
        """What the function says."""
        return self._function(images)


class MiniatureJudge:
    """The classifier of the miniature world: profession, gender, tone and age of a portrait.

    Args:
        folder: a build; by default the weights that ship with the package.
    """

    name = "miniature judge"

    def __init__(self, folder: Path | str | None = None) -> None:
        from vldebias.miniature import load_judge
        from vldebias.miniature.portraits import AGES, GENDERS, PROFESSIONS, TONES

        self.names = {"profession": PROFESSIONS, "gender": GENDERS, "tone": TONES, "age": AGES}
        self._network = load_judge(folder)
        self.fingerprint = digest(weights_fingerprint(self._network))

    def predict(self, images: Sequence[Image.Image]) -> Probabilities:
        """Probabilities of all four; InvalidInputError for images that are not 32 x 32."""
        pixels = np.stack([np.asarray(image.convert("RGB")) for image in images])
        found = self._network.predict(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)
        return {attribute: found[f"{attribute}_probabilities"].double().cpu().numpy() for attribute in self.names}


class ClassifierJudge:
    """An image classifier of transformers for one attribute.

    Args:
        model, processor: as `AutoModelForImageClassification` and `AutoImageProcessor` load them.
        attribute: what it reads.
        values: value -> labels of the classifier that mean it; by default every label is a value. Labels that no
            value names count as none of them.
        name: for reports; by default where the model came from.

    Raises:
        InvalidInputError: a label that the classifier does not have, or one that means two values.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        attribute: str,
        values: Mapping[str, Sequence[str]] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        labels = [model.config.id2label[i] for i in range(model.config.num_labels)]
        values = {label: (label,) for label in labels} if values is None else values
        used = [label for some in values.values() for label in some]
        if not set(used) <= set(labels) or len(set(used)) < len(used):
            raise InvalidInputError(f"values: expected each of the labels {labels} at most once, got {dict(values)}")
        self.name = name or str(getattr(model, "name_or_path", "") or type(model).__name__)
        self.names = {attribute: tuple(values)}
        self._model, self._processor, self._attribute = model.eval(), processor, attribute
        self._columns = torch.tensor([[label in some for some in values.values()] for label in labels]).float()
        about = {value: list(some) for value, some in values.items()}
        self.fingerprint = digest(weights_fingerprint(model), processor.to_dict(), attribute, about)

    @classmethod
    def load(
        cls,
        name_or_folder: str,
        attribute: str,
        values: Mapping[str, Sequence[str]] | None = None,
        *,
        device: str = "cpu",
    ) -> ClassifierJudge:
        """The classifier with this id of the hub or in this folder.

        Raises:
            InvalidInputError: it cannot be loaded.
        """
        from transformers import AutoImageProcessor, AutoModelForImageClassification

        try:
            model = AutoModelForImageClassification.from_pretrained(name_or_folder).to(device)
            processor = AutoImageProcessor.from_pretrained(name_or_folder)
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"cannot load the image classifier {name_or_folder!r}: {str(error).strip().splitlines()[0]}; expected "
                "an id or folder of a transformers model for image classification"
            ) from error
        return cls(model, processor, attribute, values, name=name_or_folder)

    @torch.no_grad()
    def predict(self, images: Sequence[Image.Image]) -> Probabilities:
        """Probabilities of the values: the sums over their labels."""
        weight = next(self._model.parameters())
        pixels = self._processor([image.convert("RGB") for image in images], return_tensors="pt")["pixel_values"]
        logits = self._model(pixels.to(weight)).logits.float().cpu()
        return {self._attribute: (logits.softmax(1) @ self._columns).double().numpy()}


class JudgePanel:
    """Several judges as one, each for attributes of its own.

    Raises:
        InvalidInputError: none, or two that read the same attribute.
    """

    def __init__(self, *judges: Judge) -> None:
        every = [attribute for judge in judges for attribute in judge.names]
        if not judges or len(set(every)) < len(every):
            raise InvalidInputError(f"judges: expected one or more with different attributes, got {every}")
        self.name = " + ".join(judge.name for judge in judges)
        self.names = {attribute: values for judge in judges for attribute, values in judge.names.items()}
        self.fingerprint = digest(*(judge.fingerprint for judge in judges))
        self._judges = judges

    def predict(self, images: Sequence[Image.Image]) -> Probabilities:
        """What they say, together."""
        return {attribute: p for judge in self._judges for attribute, p in predict(judge, images).items()}


def digest(*parts: Any) -> str:
    """A short hash of values that JSON can write; the order of keys counts, for it is that of the columns."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]
