"""Judge what an image shows: probabilities for the values of each attribute; the rest is "none of them".

A value counts as unknown where no probability is large enough, or where what is left outweighs every value: a picture
without a person has no gender, so report the rate of such pictures with every figure about the others.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch.nn.functional import normalize

from vldebias.data import UNKNOWN, Labels, cross
from vldebias.errors import InvalidInputError, need
from vldebias.evaluation.plan import GeneratedImages, folder_slug
from vldebias.evaluation.session import Session, Texts
from vldebias.evaluation.task import OneOrMore, Strict, named_by
from vldebias.evaluation.variants import hash_of
from vldebias.files import digest, read_json, write_atomically
from vldebias.hosts.base import weights_fingerprint
from vldebias.hosts.images import image_encoder
from vldebias.hub import NO_CODE, asked_once, reason
from vldebias.loading import Loaded
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, fill
from vldebias.registry import Registry

if TYPE_CHECKING:
    from PIL.Image import Image

Probabilities = dict[str, np.ndarray]
NO_VALUE = "unknown"  # the answer of a judge that names no value
SURE = 0.8  # default of the smallest probability with which an answer of a judge counts
NO_PERSON = ("a photo without a person", "a photo of an object", "an empty scene")
"""Texts for what a picture may show instead of a person."""
T = TypeVar("T", bound="JudgeSpec")


@dataclass(frozen=True)
class Judge:
    """Read attributes from images; any object with these attributes is a judge.

    name: for reports. names: attribute -> its values, in the order of the columns. predict: images -> attribute ->
    probabilities (n, values); what a row lacks to one is "none of them". fingerprint: a text that changes whenever the
    answers may; judgements are stored under it.
    """

    name: str
    names: Mapping[str, tuple[str, ...]]
    predict: Callable[[Sequence[Image]], Probabilities]
    fingerprint: str


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
                f"judge {judge.name}: got {attribute} of shape {array.shape}; expected ({len(images)}, {len(values)})"
            )
        if not ((array >= 0).all() and (array.sum(1) <= 1.001).all()):  # half precision rounds; NaN fails as well
            raise InvalidInputError(
                f"judge {judge.name}: got numbers {array.min():.3g} .. {array.max():.3g} for {attribute}; expected "
                "probabilities that sum to at most 1 in each row: apply a softmax"
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


def labels_of(judge: Judge, probabilities: Probabilities, attribute: str, sure: float) -> Labels:
    """Return labels of an attribute or an intersection ("gender x race"), unknown where the judge is unsure."""
    return cross(*(decide(probabilities[one], judge.names[one], sure) for one in attribute.split(" x ")))


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
        f"{prompts.name!r} state; use a judge with values of these names, or stated=False"
    )


# ---- kinds of judges -----------------------------------------------------------------------------------------


class JudgeSpec(Strict, ABC):
    """Describe a judge in a suite, `kind: Literal["clip"] = "clip"`."""

    kind: str

    @abstractmethod
    def ready(self, task: Any, session: Session) -> Judge:
        """Return the judge of a `GenerationTask`, with its weights loaded."""


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

    def ready(self, task: Any = None, session: Session | None = None) -> Judge:
        """Return the judge with the weights that ship with the package."""
        from vldebias.miniature import load_judge, words

        names = {"profession": words.PROFESSIONS, "gender": words.GENDERS, "tone": words.TONES, "age": words.AGES}
        names |= {"species": words.SPECIES, "bird": words.CLASSES}
        names |= {"place": words.PLACES, "background": words.BACKGROUNDS}
        network = load_judge()

        def answers(images: Sequence[Image]) -> Probabilities:
            pixels = np.stack([np.asarray(image.convert("RGB")) for image in images])
            read = network.predict(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)
            said = {}
            for field in ("profession", "gender", "tone", "age", "species", "place"):
                world = words.WORLDS.index("birds" if field in ("species", "place") else "portraits")
                given = read[f"{field}_probabilities"] * read["world_probabilities"][:, world : world + 1]
                said[field] = given.double().cpu().numpy()
            # The first half of the species is land birds, the first half of the places is land.
            halves = {"bird": said["species"], "background": said["place"]}
            return said | {name: array.reshape(len(array), 2, -1).sum(axis=2) for name, array in halves.items()}

        return Judge("miniature judge", names, answers, hash_of([weights_fingerprint(network)]))


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

    def ready(self, task: Any, session: Session) -> Judge:
        """Return the judge with its classifier on the session's device."""
        return self.load(session.options.device)

    def load(self, device: str = "cpu") -> Judge:
        """Return the judge; InvalidInputError: no such model or label, or a label that means two values."""
        model, processor = from_hub("AutoModelForImageClassification", "AutoImageProcessor", self.model, device)
        labels = [model.config.id2label[i] for i in range(model.config.num_labels)]
        values = self.values or {label: (label,) for label in labels}
        used = [label for some in values.values() for label in some]
        if not set(used) <= set(labels) or len(set(used)) < len(used):
            raise InvalidInputError(f"values: got {values}; expected each of the labels {labels} at most once")
        columns = torch.tensor([[label in some for some in values.values()] for label in labels]).float()

        @torch.no_grad()
        def answers(images: Sequence[Image]) -> Probabilities:
            pixels = processor([image.convert("RGB") for image in images], return_tensors="pt")["pixel_values"]
            logits = model(pixels.to(next(model.parameters()))).logits.float().cpu()
            return {self.attribute: (logits.softmax(1) @ columns).double().numpy()}

        mark = hash_of([weights_fingerprint(model), processor.to_dict(), self.attribute, values])
        return Judge(self.model, {self.attribute: tuple(values)}, answers, mark)


@register_judge
class ClipJudge(JudgeSpec):
    """Judge images zero-shot with any open_clip or transformers image-text model; its texts are never edited.

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

    @classmethod
    def about(cls, prompts: PromptSet) -> Self:
        """Return a judge that asks for the attribute of a prompt set in the set's own words."""
        asked = {
            value: tuple(fill("a photo of a {value} person", value=word) for word in words)
            for value, words in prompts.attributes.items()
        }
        return cls(prompts={prompts.name: asked}, reject=NO_PERSON)

    def ready(self, task: Any, session: Session) -> Judge:
        """Return the judge; it also says which concept an image shows, by the class prompts of the task."""
        prompts = task.prompt_set
        names = (*prompts.class_names, *prompts.held_out_class_names)
        classes = (*prompts.classes, *prompts.held_out_classes)
        own = {task.noun: {name: (text,) for name, text in zip(names, classes, strict=True)}, **self.prompts}
        return self.model_copy(update={"prompts": self.prompts | own}).on(task.judging_model(session))

    def on(self, loaded: Loaded) -> Judge:
        """Return the judge that asks this model.

        Raises:
            InvalidInputError: a model without a logit scale. UnsupportedHostError: a model that is not supported.
        """
        encoder = image_encoder(loaded.host, loaded.preprocess, name=loaded.name)
        texts, scale = Texts(loaded.host, loaded.tokenizer), logit_scale(loaded.host)
        rows = {}
        for attribute, asked in self.prompts.items():
            texts.embed([*chain.from_iterable(asked.values()), *self.reject])  # in one pass of the tower
            values = [normalize(texts.embed(own).mean(0), dim=0) for own in asked.values()]
            rows[attribute] = torch.stack([*values, *(texts.embed(self.reject) if self.reject else ())])

        def answers(images: Sequence[Image]) -> Probabilities:
            features = normalize(encoder.encode([image.convert("RGB") for image in images]).double(), dim=-1)
            chances = {attribute: (scale * features @ own.T).softmax(dim=-1) for attribute, own in rows.items()}
            return {one: of[:, : len(self.prompts[one])].numpy() for one, of in chances.items()}

        towers = [encoder.fingerprint, texts.fingerprint]
        mark = hash_of([towers, encoder.preprocessing, round(scale, 3), self.prompts, self.reject])
        names = {attribute: tuple(asked) for attribute, asked in self.prompts.items()}
        return Judge(f"zero-shot {encoder.name}", names, answers, mark)


def logit_scale(model: Any) -> float:
    """Return exp(logit_scale) of CLIP and similar models, or one over the temperature of ALIGN."""
    with torch.no_grad():
        if getattr(model, "logit_scale", None) is not None:
            return float(model.logit_scale.float().exp())
        if getattr(model, "temperature", None) is not None:
            return float(1 / model.temperature.float())
    raise InvalidInputError(f"{type(model).__name__} has no logit_scale, which turns cosines into probabilities")


# ---- judgements, stored next to the images ---------------------------------------------------------------------


@dataclass(frozen=True)
class Judgements:
    """Hold what a judge said of generated images: JSON lines next to them, by path and hash of the judged file.

    home: the folder of one judge, by its name and fingerprint. names: attribute -> values.
    """

    images: GeneratedImages
    home: Path
    name: str
    names: Mapping[str, Sequence[str]]

    @classmethod
    def last(cls, images: GeneratedImages, attribute: str, values: Sequence[str]) -> Self | None:
        """Return the judgements of the newest judge in a folder that knows an attribute with these values."""
        files = images.folder.glob("judgements/*/judge.json")
        for path in sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True):
            about = read_json(path)
            if set(values) <= set(about["names"].get(attribute, ())):
                return cls(images, path.parent, about["name"], about["names"])
        return None

    def keys(self) -> list[str]:
        """Return the keys of the images, path and hash; a missing file has the hash "-"."""
        files = [(image.path, self.images.path(image)) for image in self.images]
        return [f"{path} {digest(file)[:24] if file.is_file() else '-'}" for path, file in files]

    def read(self) -> dict[str, dict[str, list[float]]]:
        """Return key -> attribute -> probabilities."""
        found, path = {}, self.home / "answers.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                found.update(json.loads(line))
            except ValueError:
                continue  # half a line of a run that was killed: the image is judged again
        return found

    def said(self, attribute: str, values: Sequence[str], sure: float) -> tuple[list[str], np.ndarray]:
        """Return the judge's answer for every image, one of `values` or NO_VALUE, and its probability (n,).

        Images that changed since, or were never judged, have the probability 0.
        """
        known, names = self.read(), self.names[attribute]
        chances = np.array([known.get(key, {}).get(attribute, [0.0] * len(names)) for key in self.keys()])
        codes = decide(chances, names, sure).codes
        seen = [names[code] if code >= 0 and names[code] in values else NO_VALUE for code in codes]
        return seen, chances.max(axis=1)


def judge_images(
    judge: Judge, images: GeneratedImages, *, batch_size: int = 64, progress: Progress = SILENT
) -> Probabilities:
    """Return attribute -> probabilities (n, values) for n images, in their order.

    Answers are stored in the folder (`Judgements`): a new or changed image is judged, all other answers are read.

    Raises:
        InvalidInputError: images are missing, or the judge answers in a wrong shape.
    """
    if missing := images.missing:
        raise InvalidInputError(
            f"{images.folder}: {len(missing)} of {len(images)} images are missing, such as {missing[0].path}; "
            "generate again, which goes on where it stopped"
        )
    home = images.folder / "judgements" / f"{folder_slug(judge.name)}-{folder_slug(judge.fingerprint)[:16]}"
    stored = Judgements(images, home, judge.name, judge.names)
    path, known, keys = home / "answers.jsonl", stored.read(), stored.keys()
    todo = [(image, key) for image, key in zip(images, keys, strict=True) if key not in known]
    if not path.exists():
        names = {attribute: list(values) for attribute, values in judge.names.items()}
        write_atomically(home / "judge.json", json.dumps({"name": judge.name, "names": names}, indent=1) + "\n")
    torn = path.exists() and path.stat().st_size and path.read_bytes()[-1:] != b"\n"  # by a process that was killed
    with (
        progress.bar("judging", len(todo), there=len(keys) - len(todo)) as bar,
        path.open("a", encoding="utf-8") as file,
    ):
        file.write("\n" * bool(torn))
        for start in range(0, len(todo), batch_size):
            batch = todo[start : start + batch_size]
            said = predict(judge, [images.read(image) for image, _ in batch])
            for i, (_, key) in enumerate(batch):
                known[key] = {attribute: np.round(rows[i], 6).tolist() for attribute, rows in said.items()}
                file.write(json.dumps({key: known[key]}) + "\n")
            file.flush()
            bar.advance(len(batch))
    return {attribute: np.array([known[key][attribute] for key in keys]) for attribute in judge.names}
