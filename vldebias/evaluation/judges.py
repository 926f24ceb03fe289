"""Judge what an image shows: probabilities for the values of each attribute; the rest is "none of them".

A value counts as unknown where no probability is large enough, or where what is left outweighs every value: a picture
without a person has no gender, so report the rate of such pictures with every figure about the others.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
import torch
from pydantic import Field, PrivateAttr
from torch.nn.functional import normalize

from vldebias.data import UNKNOWN, Labels, cross
from vldebias.edit import Fingerprint
from vldebias.errors import InvalidInputError, need
from vldebias.evaluation.drawing import DrawnSet, folder_slug
from vldebias.evaluation.session import Session, Texts
from vldebias.evaluation.task import OneOrMore, Strict, named_by
from vldebias.files import digest as file_digest
from vldebias.files import read_json, write_atomically
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.hosts.images import image_encoder
from vldebias.hub import NO_CODE, asked_once, reason
from vldebias.loading import Loaded
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, fill
from vldebias.registry import Registry

if TYPE_CHECKING:
    from PIL.Image import Image

Probabilities = dict[str, np.ndarray]
NO_VALUE = "unknown"  # what a judge says where it names no value
SURE = 0.8  # smallest probability with which its answers count, where nobody says another
NO_PERSON = ("a photo without a person", "a photo of an object", "an empty scene")
"""Texts for what a picture may show instead of a person."""
T = TypeVar("T", bound="JudgeSpec")
_SLACK = 1e-3  # by which rounding in half precision may take a sum of probabilities over one
_DIGITS = 6  # of the probabilities that are kept


class Judge(Protocol):
    """Read attributes from images."""

    @property
    def name(self) -> str:
        """Return the name for reports and for the folder of answers."""

    @property
    def fingerprint(self) -> str:
        """Return a text that changes whenever the answers may; answers are stored under it."""

    @property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """Return attribute -> its values, in the order of the columns."""

    def predict(self, images: Sequence[Image]) -> Probabilities:
        """Return attribute -> probabilities (n, values); what a row lacks to one is "none of them"."""


def predict(judge: Judge, images: Sequence[Image]) -> Probabilities:
    """Return the checked answers of `judge` about `images`: float64 (n, values) for each of its attributes.

    Raises:
        InvalidInputError: an attribute is missing, or its array is not (n, values) of probabilities.
    """
    given, checked = judge.predict(images), {}
    for attribute, values in judge.names.items():
        array = np.asarray(given.get(attribute, np.empty(0)), dtype=np.float64)
        if array.shape != (len(images), len(values)):
            raise InvalidInputError(
                f"judge {judge.name}: expected {attribute} ({len(images)}, {len(values)}), got {array.shape} and "
                f"{sorted(given)}"
            )
        if not (np.isfinite(array).all() and (array >= 0).all() and (array.sum(1) <= 1 + _SLACK).all()):
            raise InvalidInputError(
                f"judge {judge.name}: {attribute} are no probabilities: expected numbers from 0 on that sum to at most "
                f"1 in each row, got {array.min():.3g} .. {array.max():.3g}; apply a softmax"
            )
        checked[attribute] = array
    return checked


def decide(probabilities: np.ndarray, names: Sequence[str], sure: float) -> Labels:
    """Return the most likely value for probabilities (n, values), or unknown.

    Unknown where the largest probability is below `sure`, or below what is left for none of the values.
    """
    best, rest = probabilities.max(axis=1), 1 - probabilities.sum(axis=1)
    known = (best >= sure) & (best >= rest)
    return Labels(np.where(known, probabilities.argmax(axis=1), UNKNOWN), tuple(names))


def labels_of(
    judge: Judge, probabilities: Mapping[str, np.ndarray], attributes: Sequence[str], sure: float
) -> dict[str, Labels]:
    """Return labels of attributes and of intersections such as "gender x race", unknown where the judge is unsure."""
    single = dict.fromkeys(chain.from_iterable(attribute.split(" x ") for attribute in attributes))
    labels = {attribute: decide(probabilities[attribute], judge.names[attribute], sure) for attribute in single}
    return {attribute: cross(*(labels[one] for one in attribute.split(" x "))) for attribute in attributes}


def stated_attribute(prompts: PromptSet, judge: Judge) -> tuple[str, dict[str, int]]:
    """Return the judge's attribute that a prompt set states, and the judge's code of each of its values.

    Raises:
        InvalidInputError: no attribute of the judge has those values.
    """
    for attribute, names in judge.names.items():
        codes = {name.casefold(): i for i, name in enumerate(names)}
        code_of = {
            value: next((codes[w.casefold()] for w in (value, *words) if w.casefold() in codes), -1)
            for value, words in prompts.attributes.items()
        }
        if -1 not in code_of.values() and len(set(code_of.values())) == len(code_of):
            return attribute, code_of
    raise InvalidInputError(
        f"judge {judge.name}: none of its attributes has the values {list(prompts.attributes)} that prompts of "
        f"{prompts.name!r} state; expected values of these names, or stated=False"
    )


def digest_of(*parts: Any) -> str:
    """Return a short hash of JSON values; the order of keys counts, since it is the order of the columns."""

    def plain(value: Any) -> Any:
        return value.to_dict() if isinstance(value, Fingerprint) else str(value)

    return hashlib.sha256(json.dumps(parts, default=plain).encode()).hexdigest()[:16]


# ---- kinds of judges -----------------------------------------------------------------------------------------


class JudgeSpec(Strict, ABC):
    """Describe a judge in a suite, `kind: Literal["clip"] = "clip"`; after `ready` it answers as a `Judge`."""

    kind: str
    _name: str = ""
    _names: dict[str, tuple[str, ...]] = PrivateAttr(default_factory=dict)
    _fingerprint: str = ""

    @abstractmethod
    def ready(self, task: Any, session: Session) -> Judge:
        """Return the judge of a `GenerationTask` with its weights loaded, usually the object itself."""

    @property
    def name(self) -> str:
        """Return the name for reports."""
        return self._name

    @property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """Return attribute -> its values."""
        return self._names

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of weights and questions."""
        return self._fingerprint


JUDGES: Registry[type[JudgeSpec]] = Registry("judge", "vldebias.judges", named_by(JudgeSpec, "kind"), instances=False)


def register_judge(spec: type[T]) -> type[T]:
    """Register a kind of judge for suites, as `judge: {kind: NAME}`, and return it.

    Raises:
        InvalidInputError: no judge with a kind, or another one has the kind.
    """
    JUDGES.register(spec)
    return spec


@register_judge
class MiniatureJudge(JudgeSpec):
    """Classify images of the miniature worlds: what a portrait, or a bird in its place, shows.

    It reads profession, gender, tone and age of a portrait, and species, place and background (land, water) of a
    bird. A picture of the other kind has none of them: the chance that it is one is left over.
    """

    kind: Literal["miniature"] = "miniature"
    name: ClassVar[str] = "miniature judge"

    def ready(self, task: Any, session: Session) -> Judge:
        """Return the judge with the weights that ship with the package."""
        return self

    @cached_property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """Return attribute -> its values."""
        from vldebias.miniature.words import AGES, BACKGROUNDS, CLASSES, GENDERS, PLACES, PROFESSIONS, SPECIES, TONES

        people = {"profession": PROFESSIONS, "gender": GENDERS, "tone": TONES, "age": AGES}
        return people | {"species": SPECIES, "bird": CLASSES, "place": PLACES, "background": BACKGROUNDS}

    @cached_property
    def network(self) -> Any:
        """Return the network."""
        from vldebias.miniature import load_judge

        return load_judge()

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the weights."""
        return digest_of(weights_fingerprint(self.network))

    def predict(self, images: Sequence[Image]) -> Probabilities:
        """Return probabilities for all attributes; InvalidInputError for images that are not 64 x 64."""
        from vldebias.miniature.architectures import PEOPLE_FIELDS
        from vldebias.miniature.words import WORLDS

        pixels = np.stack([np.asarray(image.convert("RGB")) for image in images])
        read = self.network.predict(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)

        def chances(field: str, world: str) -> np.ndarray:
            column = WORLDS.index(world)
            given = read[f"{field}_probabilities"] * read["world_probabilities"][:, column : column + 1]
            return given.double().cpu().numpy()

        per_field = {field: chances(field, "portraits") for field in PEOPLE_FIELDS}
        per_field |= {field: chances(field, "birds") for field in ("species", "place")}
        # The first half of the species is land birds, the first half of the places is land.
        halves = {"bird": per_field["species"], "background": per_field["place"]}
        return per_field | {name: array.reshape(len(array), 2, -1).sum(axis=2) for name, array in halves.items()}


def from_hub(kind: str, processor: str, name: str, device: str, **how: Any) -> tuple[Any, Any]:
    """Load a model of transformers and its processor, by the names of their classes.

    Raises:
        InvalidInputError: they cannot be loaded.
    """
    transformers = need("transformers")
    try:
        with asked_once(name):
            model = getattr(transformers, kind).from_pretrained(name, **NO_CODE, **how).to(device).eval()
            return model, getattr(transformers, processor).from_pretrained(name, **NO_CODE)
    except Exception as error:  # on damaged files the library raises whatever it stumbles over
        raise InvalidInputError(
            f"cannot load the judge {name!r}: {reason(error)}; expected an id or folder that {kind} of transformers "
            "reads"
        ) from error


@register_judge
class ClassifierJudge(JudgeSpec):
    """Judge one attribute with a transformers image classifier.

    values: value -> labels of the classifier that mean it; by default every label is a value. Labels that no value
    names count as none of them.
    """

    kind: Literal["classifier"] = "classifier"
    model: str
    attribute: str
    values: dict[str, OneOrMore] | None = None
    _parts: Any = None

    def ready(self, task: Any, session: Session) -> Judge:
        """Return the judge with its classifier loaded."""
        return self.load(session.options.device)

    def load(self, device: str = "cpu") -> Self:
        """Load the weights.

        Raises:
            InvalidInputError: they cannot be loaded; a label that the classifier does not have, or one that means two
                values.
        """
        model, processor = from_hub("AutoModelForImageClassification", "AutoImageProcessor", self.model, device)
        labels = [model.config.id2label[i] for i in range(model.config.num_labels)]
        values = {label: (label,) for label in labels} if self.values is None else self.values
        used = [label for some in values.values() for label in some]
        if not set(used) <= set(labels) or len(set(used)) < len(used):
            raise InvalidInputError(f"values: expected each of the labels {labels} at most once, got {values}")
        columns = torch.tensor([[label in some for some in values.values()] for label in labels]).float()
        self._parts, self._name, self._names = (model, processor, columns), self.model, {self.attribute: tuple(values)}
        self._fingerprint = digest_of(weights_fingerprint(model), processor.to_dict(), self.attribute, values)
        return self

    @torch.no_grad()
    def predict(self, images: Sequence[Image]) -> Probabilities:
        """Return the probabilities of the values, each the sum over its labels."""
        model, processor, columns = self._parts
        pixels = processor([image.convert("RGB") for image in images], return_tensors="pt")["pixel_values"]
        logits = model(pixels.to(next(model.parameters()))).logits.float().cpu()
        return {self.attribute: (logits.softmax(1) @ columns).double().numpy()}


@register_judge
class ClipJudge(JudgeSpec):
    """Judge images zero-shot with any open_clip or transformers image-text model; its texts are never projected.

    The probabilities are the softmax over values and rejects of cosine x the model's own logit scale (section 7.6 of
    the thesis). Such a judge has the biases of its model, and may share them with the pipeline that it judges: the
    paper's judge and the text tower of its pipeline are both CLIPs. Compare it with people.

    prompts: attribute -> value -> its texts, of which the mean embedding is compared. reject: texts for images that
    show none of them, each of which competes with the values. model, pretrained: --judge replaces them.
    """

    kind: Literal["clip"] = "clip"
    model: str | None = None
    pretrained: str | None = None
    prompts: Annotated[
        dict[str, Annotated[dict[str, Annotated[OneOrMore, Field(min_length=1)]], Field(min_length=2)]],
        Field(min_length=1),
    ]
    reject: tuple[str, ...] = ()
    _encoder: Any = None
    _rows: dict[str, torch.Tensor] = PrivateAttr(default_factory=dict)
    _scale: float = 0.0

    @classmethod
    def about(cls, prompts: PromptSet) -> Self:
        """Return a judge that asks for the attribute of a prompt set in the set's own words."""
        asked = {
            value: tuple(fill("a photo of a {value} person", value=word) for word in words)
            for value, words in prompts.attributes.items()
        }
        return cls(prompts={prompts.name: asked}, reject=NO_PERSON)

    def ready(self, task: Any, session: Session) -> Judge:
        """Return the judge, which also tells by the class prompts which concept an image shows."""
        prompts = task.drawn_set
        names = (*prompts.class_names, *prompts.held_out_class_names)
        classes = (*prompts.classes, *prompts.held_out_classes)
        own = {task.noun: {name: (text,) for name, text in zip(names, classes, strict=True)}, **self.prompts}
        asked = self.prompts | own  # the attributes first
        return self.model_copy(update={"prompts": asked}).on(task.judging_model(session))

    def on(self, loaded: Loaded) -> Self:
        """Return the judge that asks this model.

        Raises:
            InvalidInputError: a model without a logit scale. UnsupportedHostError: a model that is not supported.
        """
        encoder = image_encoder(loaded.host, loaded.preprocess, name=loaded.name)
        texts = Texts(loaded.host, loaded.tokenizer)
        self._encoder, self._name, self._scale = encoder, f"zero-shot {encoder.name}", logit_scale(loaded.host)
        self._names = {attribute: tuple(asked) for attribute, asked in self.prompts.items()}
        self._rows = {}
        for attribute, asked in self.prompts.items():
            texts.embed([*chain.from_iterable(asked.values()), *self.reject])  # in one pass of the tower
            values = [normalize(texts.embed(own).mean(0), dim=0) for own in asked.values()]
            self._rows[attribute] = torch.stack([*values, *(texts.embed(self.reject) if self.reject else ())])
        towers = [encoder.fingerprint, texts.host.fingerprint()]
        self._fingerprint = digest_of(towers, encoder.preprocessing, round(self._scale, 3), self.prompts, self.reject)
        return self

    def predict(self, images: Sequence[Image]) -> Probabilities:
        """Return probabilities (n, values) of each attribute; what a row lacks to one went to the rejects."""
        features = normalize(self._encoder.encode([image.convert("RGB") for image in images]).double(), dim=-1)
        answers = {}
        for attribute, rows in self._rows.items():
            chances = (self._scale * features @ rows.T).softmax(dim=-1)
            answers[attribute] = chances[:, : len(self._names[attribute])].numpy()
        return answers


def logit_scale(model: Any) -> float:
    """Return exp(logit_scale) of CLIP and similar models, or one over the temperature of ALIGN."""
    with torch.no_grad():
        if getattr(model, "logit_scale", None) is not None:
            return float(model.logit_scale.float().exp())
        if getattr(model, "temperature", None) is not None:
            return float(1 / model.temperature.float())
    raise InvalidInputError(f"{type(model).__name__} has no logit_scale, which turns cosines into probabilities")


# ---- answers, kept beside the images -------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """Store answers about generated images as JSON lines next to them, with the hash of the file that was judged.

    home: the folder of one judge, by its name and fingerprint. names: attribute -> values.
    """

    drawn: DrawnSet
    home: Path
    name: str
    names: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, judge: Judge, drawn: DrawnSet) -> Self:
        """Return the stored answers of a judge; there may be none yet."""
        folder = f"{folder_slug(judge.name)}-{folder_slug(judge.fingerprint)[:16]}"
        return cls(drawn, drawn.folder / "judgements" / folder, judge.name, judge.names)

    @classmethod
    def all(cls, drawn: DrawnSet, attribute: str = "", values: Sequence[str] = ()) -> list[Self]:
        """Return the answers of every judge in a folder that knows an attribute with these values, the newest last."""
        found = []
        for path in sorted(drawn.folder.glob("judgements/*/judge.json"), key=lambda path: path.stat().st_mtime_ns):
            about = read_json(path)
            names = {attribute: tuple(own) for attribute, own in about["names"].items()}
            if set(values) <= set(names.get(attribute, ())):
                found.append(cls(drawn, path.parent, str(about["name"]), names))
        return found

    def key(self, path: str) -> tuple[str, str]:
        """Return the path and hash of an image, the key of its answers; a missing file has the hash "-"."""
        file = self.drawn.folder / path
        return path, file_digest(file)[:24] if file.is_file() else "-"

    def read(self) -> dict[tuple[str, str], dict[str, list[float]]]:
        """Return key -> attribute -> probabilities."""
        found, path = {}, self.home / "answers.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                read = json.loads(line)
            except ValueError:
                continue  # half a line of a run that was killed: the image is asked about again
            if isinstance(read, dict) and {"image", "sha", "answer"} <= read.keys():
                found[read["image"], read["sha"]] = read["answer"]
        return found

    def add(self, keys: Sequence[tuple[str, str]], said: Probabilities) -> None:
        """Append a line per answer; half a line that a killed process left is not continued."""
        path, lines = self.home / "answers.jsonl", []
        if not path.exists():
            about = {"name": self.name, "names": {attribute: list(values) for attribute, values in self.names.items()}}
            write_atomically(self.home / "judge.json", json.dumps(about, indent=1) + "\n")
        for i, (image, sha) in enumerate(keys):
            answer = {attribute: np.round(rows[i], _DIGITS).tolist() for attribute, rows in said.items()}
            lines.append(json.dumps({"image": image, "sha": sha, "answer": answer}) + "\n")
        torn = path.exists() and path.stat().st_size and path.read_bytes()[-1:] != b"\n"
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" * bool(torn) + "".join(lines))

    def said(self, attribute: str, values: Sequence[str], sure: float) -> tuple[list[str], np.ndarray]:
        """Return the judge's answer for every image, one of `values` or NO_VALUE, and its probability (n,).

        Images that changed since, or were never judged, have the probability 0.
        """
        known, none = self.read(), [0.0] * len(self.names[attribute])
        chances = np.array([known.get(self.key(image.path), {}).get(attribute, none) for image in self.drawn])
        labels = decide(chances, self.names[attribute], sure)
        seen = [labels.names[code] if code >= 0 and labels.names[code] in values else NO_VALUE for code in labels.codes]
        return seen, chances.max(axis=1)


def judge_images(judge: Judge, drawn: DrawnSet, *, batch_size: int = 64, progress: Progress = SILENT) -> Probabilities:
    """Return attribute -> probabilities (n, values) for the n images of `drawn`, in their order.

    Answers are `Kept` in the folder: a new or changed image is judged, all other answers are read.

    Raises:
        InvalidInputError: images are missing, or the judge answers in a wrong shape.
    """
    if drawn.missing:
        raise InvalidInputError(
            f"{drawn.folder}: {len(drawn.missing)} of {len(drawn)} images are missing, such as "
            f"{drawn.missing[0].path}; draw again, which goes on where it stopped"
        )
    kept = Kept.of(judge, drawn)
    keys, known = {image: kept.key(image.path) for image in drawn}, kept.read()
    todo = [image for image in drawn if keys[image] not in known]
    with progress.bar("judging", len(todo), there=len(drawn) - len(todo)) as bar:
        for start in range(0, len(todo), batch_size):
            batch = todo[start : start + batch_size]
            kept.add([keys[image] for image in batch], predict(judge, [drawn.read(image) for image in batch]))
            bar.advance(len(batch))
    known = kept.read()
    for image, key in keys.items():
        if key not in known:
            raise InvalidInputError(f"{drawn.path(image)}: changed while it was judged; run again")
    return {attribute: np.array([known[key][attribute] for key in keys.values()]) for attribute in judge.names}
