"""Judges say what an image shows: probabilities for the values of each attribute, and what is left for "none of them".

A value counts as unknown where no probability is large enough, or where what is left outweighs every value: a picture
without a person has no gender, and a rate of such pictures belongs beside every figure about the others.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import UNKNOWN, Labels, cross
from vldebias.data.parallel import processes
from vldebias.data.tables import as_labels, as_texts, column_of, read_table
from vldebias.edit import Fingerprint
from vldebias.errors import InvalidInputError, need
from vldebias.evaluation.drawing import DrawnImage, DrawnSet, folder_slug
from vldebias.evaluation.task import OneOrMore, Session, Strict, Texts, named_by
from vldebias.files import digest as file_digest
from vldebias.files import read_json, write_atomically
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.hosts.images import image_encoder
from vldebias.hub import NO_CODE, asked_once, reason
from vldebias.loading import Loaded
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, check_slots, fill
from vldebias.registry import Registry

if TYPE_CHECKING:
    from PIL.Image import Image

Probabilities = dict[str, np.ndarray]
JUDGEMENTS, JUDGE = "judgements", "judge.json"
NO_VALUE = "unknown"  # what a judge says where it names no value
SURE = 0.8  # smallest probability with which its answers count, where nobody says another
NO_PERSON = ("a photo without a person", "a photo of an object", "an empty scene")
"""Texts for what a picture may show instead of a person."""
SCENES: dict[str, tuple[str, ...]] = {
    "water": ("ocean", "lake", "river", "pond", "beach"),
    "land": ("forest", "meadow", "field", "desert", "mountain"),
}
"""Words for two backgrounds; a picture of the sky alone, or of a studio, is neither."""
NO_SCENE = ("a photo of the sky", "a photo of a plain backdrop", "a photo of a room")
OTHER_SUBJECTS = ("landscape", "person", "dog", "car", "building")
"""What an image may show instead of the animal that was asked for."""
T = TypeVar("T", bound="JudgeSpec")
_SLACK = 1e-3  # by which rounding in half precision may take a sum of probabilities over one
_DIGITS = 6  # of the probabilities that are kept


class Judge(Protocol):
    """Reads attributes from images."""

    @property
    def name(self) -> str:
        """For reports and for the name of a folder."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the answers may: judgements are kept under it."""

    @property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """Attribute -> its values, in the order of the columns."""

    def predict(self, images: Sequence[Image]) -> Probabilities:
        """Attribute -> probabilities (n, values); rows may sum to less than one, the rest is "none of them"."""


def predict(judge: Judge, images: Sequence[Image]) -> Probabilities:
    """Return what `judge` says about `images`, checked: float64 (n, values) for each of its attributes.

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
    """Probabilities (n, values) -> the most likely value, or unknown.

    Unknown where the largest probability is below `sure`, or below what is left for none of the values.

    Raises:
        InvalidInputError: `sure` outside [0, 1].
    """
    if not 0 <= sure <= 1:
        raise InvalidInputError(f"sure: expected a probability in [0, 1], got {sure}")
    best, rest = probabilities.max(axis=1), 1 - probabilities.sum(axis=1)
    known = (best >= sure) & (best >= rest)
    return Labels(np.where(known, probabilities.argmax(axis=1), UNKNOWN), tuple(names))


def labels_of(
    judge: Judge, probabilities: Mapping[str, np.ndarray], attributes: Sequence[str], sure: float
) -> dict[str, Labels]:
    """Labels of attributes and of intersections such as "gender x race", unknown where the judge is not sure."""
    single = dict.fromkeys(chain.from_iterable(attribute.split(" x ") for attribute in attributes))
    labels = {attribute: decide(probabilities[attribute], judge.names[attribute], sure) for attribute in single}
    return {attribute: cross(*(labels[one] for one in attribute.split(" x "))) for attribute in attributes}


def stated_attribute(prompts: PromptSet, judge: Judge) -> tuple[str, dict[str, int]]:
    """The judge's attribute that a prompt set states, and the judge's code of each of its values.

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
    """A short hash of values that JSON can write; the order of keys counts, for it is that of the columns."""

    def plain(value: Any) -> Any:
        return value.to_dict() if isinstance(value, Fingerprint) else str(value)

    return hashlib.sha256(json.dumps(parts, default=plain).encode()).hexdigest()[:16]


# ---- kinds of judges -----------------------------------------------------------------------------------------


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
        function: Callable[[Sequence[Image]], Probabilities],
        *,
        name: str,
        version: str,
    ) -> None:
        self.name = name
        self.names = {attribute: tuple(values) for attribute, values in names.items()}
        self.fingerprint = digest_of(name, version, self.names)
        self._function = function

    def predict(self, images: Sequence[Image]) -> Probabilities:
        """What the function says."""
        return self._function(images)


class MiniatureJudge:
    """The classifier of the miniature world: what a portrait or a bird in its place shows.

    It reads profession, gender, tone and age of a portrait, and species, place and background (land, water) of a
    bird. A picture of the other kind has none of them: the chance that it is one is left over.

    Args:
        folder: a build; by default the weights that ship with the package.
    """

    name = "miniature judge"

    def __init__(self, folder: Path | str | None = None) -> None:
        from vldebias.miniature import load_judge
        from vldebias.miniature.words import AGES, BACKGROUNDS, CLASSES, GENDERS, PLACES, PROFESSIONS, SPECIES, TONES

        self.names = {"profession": PROFESSIONS, "gender": GENDERS, "tone": TONES, "age": AGES}
        self.names |= {"species": SPECIES, "bird": CLASSES, "place": PLACES, "background": BACKGROUNDS}
        self._network = load_judge(folder)
        self.fingerprint = digest_of(weights_fingerprint(self._network))

    def predict(self, images: Sequence[Image]) -> Probabilities:
        """Probabilities of all of them; InvalidInputError for images that are not 64 x 64."""
        from vldebias.miniature.architectures import PEOPLE_FIELDS
        from vldebias.miniature.words import WORLDS

        pixels = np.stack([np.asarray(image.convert("RGB")) for image in images])
        read = self._network.predict(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)

        def chances(field: str, world: str) -> np.ndarray:
            column = WORLDS.index(world)
            given = read[f"{field}_probabilities"] * read["world_probabilities"][:, column : column + 1]
            return given.double().cpu().numpy()

        per_field = {field: chances(field, "portraits") for field in PEOPLE_FIELDS}
        per_field |= {field: chances(field, "birds") for field in ("species", "place")}
        # The first half of the species is land birds, the first half of the places is land.
        halves = {"bird": per_field["species"], "background": per_field["place"]}
        return per_field | {name: array.reshape(len(array), 2, -1).sum(axis=2) for name, array in halves.items()}


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
        self.fingerprint = digest_of(weights_fingerprint(model), processor.to_dict(), attribute, about)

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
        transformers = need("transformers")

        try:
            with asked_once(name_or_folder):
                kind = transformers.AutoModelForImageClassification
                model = kind.from_pretrained(name_or_folder, **NO_CODE).to(device)
                processor = transformers.AutoImageProcessor.from_pretrained(name_or_folder, **NO_CODE)
        except Exception as error:  # on damaged files the library raises whatever it stumbles over
            raise InvalidInputError(
                f"cannot load the image classifier {name_or_folder!r}: {reason(error)}; expected "
                "an id or folder of a transformers model for image classification"
            ) from error
        return cls(model, processor, attribute, values, name=name_or_folder)

    @torch.no_grad()
    def predict(self, images: Sequence[Image]) -> Probabilities:
        """Probabilities of the values: the sums over their labels."""
        weight = next(self._model.parameters())
        pixels = self._processor([image.convert("RGB") for image in images], return_tensors="pt")["pixel_values"]
        logits = self._model(pixels.to(weight)).logits.float().cpu()
        return {self._attribute: (logits.softmax(1) @ self._columns).double().numpy()}


class TableJudge:
    """Labels that were made elsewhere, from a table with a row per image.

    Args:
        table: .csv, .tsv, .parquet or .jsonl: `image`, the path below the folder of drawn images, and a column for each
            attribute; empty cells and "unknown" name no value, and so does an image that is not there.
        attributes: its columns. values: attribute -> its values; by default those that occur.

    Raises:
        InvalidInputError: a column that is not there, a value that is not among those given, an image twice.
    """

    def __init__(
        self, table: Path, attributes: Sequence[str], values: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        read, given = read_table(table), values or {}
        paths = as_texts(column_of(read, "image", table), f"{table}: image")
        if len(set(paths)) < len(paths):
            raise InvalidInputError(
                f"{table}: {len(paths) - len(set(paths))} images are there twice; leave one row each"
            )
        labels = {
            one: as_labels(column_of(read, one, table), given.get(one), f"{table}: {one}", "unknown")
            for one in attributes
        }
        self.name, self.fingerprint = table.name, digest_of(file_digest(table), {k: list(v) for k, v in given.items()})
        self.names = {attribute: one.names for attribute, one in labels.items()}
        self._row = {path: i for i, path in enumerate(paths)}
        self._known = {  # the last row is that of an image that is not there
            attribute: np.vstack([one.codes[:, None] == np.arange(len(one.names)), np.zeros(len(one.names))])
            for attribute, one in labels.items()
        }

    def look_up(self, paths: Sequence[str]) -> Probabilities:
        """1 for the value of each image, 0 throughout where there is none."""
        rows = [self._row.get(path, -1) for path in paths]
        return {attribute: known[rows].astype(np.float64) for attribute, known in self._known.items()}

    def predict(self, images: Sequence[Image]) -> Probabilities:
        """It knows drawn images by their paths alone.

        Raises:
            InvalidInputError: always.
        """
        raise InvalidInputError(f"{self.name}: is a table, which reads no pixels; it judges images that are drawn")


@dataclass(frozen=True)
class Question:
    """What is asked about one attribute, of a `ClipJudge`.

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

    The probabilities are the softmax over values and rejects of cosine x the model's own logit scale (section 7.6 of
    the thesis). Such a judge has the biases of its model, and may share them with the pipeline that it judges: the
    paper's judge and the text tower of its pipeline are both CLIPs. Compare it with people.

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
        self.fingerprint = digest_of(towers, self._encoder.preprocessing, round(self._scale, 3), asked)

    def predict(self, images: Sequence[Image]) -> Probabilities:
        """Probabilities (n, values) of each attribute; what a row lacks to one went to the rejects."""
        features = normalize(self._encoder.encode([image.convert("RGB") for image in images]).double(), dim=-1)
        answers = {}
        for attribute, rows in self._rows.items():
            chances = (self._scale * features @ rows.T).softmax(dim=-1)
            answers[attribute] = chances[:, : len(self.names[attribute])].numpy()
        return answers


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


# ---- answers, kept beside the images -------------------------------------------------------------------------


def judge_images(judge: Judge, drawn: DrawnSet, *, batch_size: int = 64, progress: Progress = SILENT) -> Probabilities:
    """Attribute -> probabilities (n, values) for the n images of `drawn`, in their order.

    Answers lie in the folder as lines of JSON under the fingerprint of the judge, with the hash of the file that was
    judged: an image that was drawn anew is judged anew, all others are read. Each process judges its share.

    Raises:
        InvalidInputError: images are missing, or the judge answers in a wrong shape.
    """
    if drawn.missing:
        raise InvalidInputError(
            f"{drawn.folder}: {len(drawn.missing)} of {len(drawn)} images are missing, such as "
            f"{drawn.missing[0].path}; draw again, which goes on where it stopped"
        )
    here = processes()
    home = drawn.folder / JUDGEMENTS / f"{folder_slug(judge.name)}-{folder_slug(judge.fingerprint)[:16]}"
    keys = {image: _key(drawn, image) for image in drawn}
    if here.rank == 0:
        about = {"name": judge.name, "names": {attribute: list(values) for attribute, values in judge.names.items()}}
        write_atomically(home / JUDGE, json.dumps(about, indent=1) + "\n")
    known, share = dict(_kept(home)), list(drawn)[here.rank :: here.world]
    todo = [image for image in share if keys[image] not in known]
    shown = progress if here.rank == 0 else SILENT
    with shown.bar("judging", len(todo), there=len(share) - len(todo)) as bar:
        for start in range(0, len(todo), batch_size):
            batch = todo[start : start + batch_size]
            if isinstance(judge, TableJudge):
                read = judge.look_up([image.path for image in batch])
            else:
                read = predict(judge, [drawn.read(image) for image in batch])
            rounded = [{a: np.round(rows[i], _DIGITS).tolist() for a, rows in read.items()} for i in range(len(batch))]
            _keep(home / f"{here.rank}.jsonl", [keys[image] for image in batch], rounded)
            bar.advance(len(batch))
    here.wait()
    known = dict(_kept(home))
    for image, key in keys.items():
        if key not in known:
            raise InvalidInputError(f"{drawn.path(image)}: changed while it was judged; run again")
    return {attribute: np.array([known[key][attribute] for key in keys.values()]) for attribute in judge.names}


@dataclass(frozen=True)
class KeptJudge:
    """A judge whose answers lie beside generated images: name, attribute -> values, and where."""

    name: str
    names: Mapping[str, tuple[str, ...]]
    drawn: DrawnSet
    home: Path

    def said(self, attribute: str, values: Sequence[str], sure: float) -> tuple[list[str], np.ndarray]:
        """Return what it says of every image, one of `values` or NO_VALUE, and its probability of that (n,).

        Images that changed since, or were never judged, have the probability 0.
        """
        known, none = dict(_kept(self.home)), [0.0] * len(self.names[attribute])
        chances = np.array([known.get(_key(self.drawn, image), {}).get(attribute, none) for image in self.drawn])
        labels = decide(chances, self.names[attribute], sure)
        seen = [labels.names[code] if code >= 0 and labels.names[code] in values else NO_VALUE for code in labels.codes]
        return seen, chances.max(axis=1)


def kept_judges(drawn: DrawnSet, attribute: str = "", values: Sequence[str] = ()) -> list[KeptJudge]:
    """Return the judges that answered about the images of a folder, the last one at the end.

    attribute, values: only those that know the attribute with these values.
    """
    judges = []
    for path in sorted((drawn.folder / JUDGEMENTS).glob(f"*/{JUDGE}"), key=lambda path: path.stat().st_mtime_ns):
        about = read_json(path)
        names = {attribute: tuple(values) for attribute, values in about["names"].items()}
        if set(values) <= set(names.get(attribute, ())):
            judges.append(KeptJudge(str(about["name"]), names, drawn, path.parent))
    return judges


def _key(drawn: DrawnSet, image: DrawnImage) -> str:
    """Path and hash of an image as answers are kept under it; of a file that is missing no hash."""
    path = drawn.path(image)
    return f"{image.path} {file_digest(path)[:24] if path.is_file() else '-'}"


def _keep(path: Path, keys: Sequence[str], answers: Sequence[Mapping[str, list[float]]]) -> None:
    """Append a line for each answer; a kill can leave half a line, and the next must not grow out of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.exists() and path.stat().st_size and path.read_bytes()[-1:] != b"\n"
    lines = []
    for key, answer in zip(keys, answers, strict=True):
        image, sha = key.rsplit(" ", 1)
        lines.append(json.dumps({"image": image, "sha": sha, "answer": answer}))
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * bool(torn) + "\n".join(lines) + "\n")


def _kept(home: Path) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """ "path hash" -> attribute -> probabilities, from the files of all processes."""
    for path in sorted(home.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                read = json.loads(line)
            except ValueError:
                continue  # half a line of a run that was killed: the image is asked about again
            if isinstance(read, dict) and {"image", "sha", "answer"} <= read.keys():
                yield f"{read['image']} {read['sha']}", read["answer"]


# ---- what a suite says of judges -----------------------------------------------------------------------------


class JudgeSpec(Strict, ABC):
    """Who reads attributes from drawn images. Subclasses name their kind, `kind: Literal["clip"] = "clip"`."""

    kind: str

    @abstractmethod
    def open(self, task: Any, session: Session) -> Judge:
        """Return the judge for a `GenerationTask`, with what the user of a session chose."""


JUDGES: Registry[type[JudgeSpec]] = Registry("judge", "vldebias.judges", named_by(JudgeSpec, "kind"), instances=False)


def register_judge(spec: type[T]) -> type[T]:
    """Make a kind of judge known to suites, as `judge: {kind: NAME}`; returns it.

    Raises:
        InvalidInputError: no judge with a kind, or another one has the kind.
    """
    JUDGES.register(spec)
    return spec


@register_judge
class MiniatureSpec(JudgeSpec):
    """The classifier of the embedded world: profession, gender, tone and age of people; species, bird, place and
    background of birds."""

    kind: Literal["miniature"] = "miniature"

    def open(self, task: Any, session: Session) -> Judge:
        """The weights that ship with the package."""
        return MiniatureJudge()


@register_judge
class ClassifierSpec(JudgeSpec):
    """An image classifier of transformers for one attribute; values: value -> the labels of it that mean that."""

    kind: Literal["classifier"] = "classifier"
    model: str
    attribute: str
    values: dict[str, OneOrMore] | None = None

    def open(self, task: Any, session: Session) -> Judge:
        """The classifier with this name."""
        return ClassifierJudge.load(self.model, self.attribute, self.values, device=session.options.device)


@register_judge
class TableSpec(JudgeSpec):
    """Labels that were made elsewhere: a table with a row per image, see `TableJudge`."""

    kind: Literal["table"] = "table"
    table: Path
    attributes: Annotated[tuple[str, ...], Field(min_length=1)]
    values: dict[str, tuple[str, ...]] | None = None

    def open(self, task: Any, session: Session) -> Judge:
        """The table."""
        return TableJudge(self.table, self.attributes, self.values)


class ZeroShotSpec(JudgeSpec, ABC):
    """An image-text model that is asked about images. model, pretrained: --judge stands for the first judge's."""

    model: str | None = None
    pretrained: str | None = None

    def of_model(self, loaded: Loaded) -> dict[str, Any]:
        """What every zero-shot judge is given of its model."""
        parts = {"model": loaded.host, "preprocess": loaded.preprocess, "tokenizer": loaded.tokenizer}
        return parts | {"name": loaded.name}


@register_judge
class ClipSpec(ZeroShotSpec):
    """Zero-shot, by prompts: attribute -> value -> its prompts; reject: prompts for images that show none of them."""

    kind: Literal["clip"] = "clip"
    prompts: Annotated[dict[str, dict[str, OneOrMore]], Field(min_length=1)]
    reject: tuple[str, ...] = ()

    def open(self, task: Any, session: Session) -> Judge:
        """It is also asked which concept an image shows, by the class prompts: whether the subject is kept."""
        questions, prompts = {a: Question(values, self.reject) for a, values in self.prompts.items()}, task.drawn_set
        names = [*prompts.class_names, *prompts.held_out_class_names]
        classes = [*prompts.classes, *prompts.held_out_classes]
        questions.setdefault(task.noun, Question({n: (text,) for n, text in zip(names, classes, strict=True)}))
        return ClipJudge(**self.of_model(task.judging_model(session)), questions=questions)


@register_judge
class BackgroundsSpec(ZeroShotSpec):
    """Zero-shot, for land and water behind an animal, and whether the animal is still to be seen (section 7.6.4).

    The questions are about scenes and name no animal, for a CLIP that is asked about a waterbird answers "water"
    whatever is behind it: the very correlation that is measured. It may still read the bird instead of the background,
    so compare with labels of people.
    """

    kind: Literal["backgrounds"] = "backgrounds"

    def open(self, task: Any, session: Session) -> Judge:
        """It knows the animals that are generated."""
        animals = (*task.drawn_set.held_out_class_names, *OTHER_SUBJECTS)
        questions = {"background": Question.of(SCENES, reject=NO_SCENE), "animal": Question.of(animals)}
        return ClipJudge(**self.of_model(task.judging_model(session)), questions=questions)
