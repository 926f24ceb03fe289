"""Judge what an image shows: probabilities for the values of each attribute; the rest is "none of
them".

A picture without a person has no gender: it is unknown, and the rate of unknown images is a figure
of its own.
"""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch.nn.functional import normalize

from vldebias.data import UNKNOWN, Labels
from vldebias.edits.hub import NO_CODE, offline_reason, reason
from vldebias.errors import InvalidInputError, need, warn
from vldebias.hosts.clip.images import image_encoder
from vldebias.hosts.host import weights_fingerprint
from vldebias.hosts.loading import Loaded, text_host
from vldebias.judge.plan import hash_of
from vldebias.options import Options
from vldebias.registry import Registry
from vldebias.schema import Count, OneOrMore, Strict, named_by

if TYPE_CHECKING:
    from PIL.Image import Image

Probabilities = dict[str, np.ndarray]
NO_VALUE = "unknown"  # the answer of a judge that names no value
SURE = 0.8  # default of the smallest probability with which an answer of a judge counts
NONE_OF_THESE = "none of these, or it cannot be told"
BIAS = 0.2  # mean total variation between two orders of options from which a warning is worth it


class Opener(Protocol):
    """Open the model that a judge asks for, on the device and in the precision of the options."""

    options: Options

    def load(self, name: str, pretrained: str | None = None) -> Loaded:
        """Return the model of a name, each loaded once."""


@dataclass(frozen=True)
class Judge:
    """Read attributes from images; any object with these attributes is a judge.

    names: attribute -> its values, in the order of the columns. predict: images -> attribute ->
    probabilities (n, values). fingerprint: a text that changes whenever the answers may; judgements
    are stored under it.
    """

    name: str
    names: Mapping[str, tuple[str, ...]]
    predict: Callable[[Sequence[Image]], Probabilities]
    fingerprint: str


def predict(judge: Judge, images: Sequence[Image]) -> Probabilities:
    """Return the answers of `judge` about `images`: float64 (n, values) for each of its attributes.

    An attribute that is missing, or an array that is not (n, values) of probabilities, raises
    InvalidInputError.
    """
    given, checked = judge.predict(images), {}
    for attribute, values in judge.names.items():
        rows, shape = (
            np.asarray(given.get(attribute, np.empty(0)), dtype=np.float64),
            (len(images), len(values)),
        )
        # Half precision rounds; NaN is refused as well.
        if rows.shape != shape or not ((rows >= 0).all() and (rows.sum(1) <= 1.001).all()):
            raise InvalidInputError(
                f"judge {judge.name}: {attribute}: got an array {rows.shape}, largest"
                f" {rows.max(initial=0):.3g}; expected probabilities {shape} whose rows sum to at"
                " most 1: apply a softmax"
            )
        checked[attribute] = rows
    return checked


def decide(probabilities: np.ndarray, names: Sequence[str], sure: float) -> Labels:
    """Return the most likely value for probabilities (n, values), or unknown.

    Unknown where the largest probability is below `sure`, or below what is left for none of the
    values.
    """
    best, rest = probabilities.max(axis=1), 1 - probabilities.sum(axis=1)
    known = (best >= sure) & (best >= rest)
    return Labels(np.where(known, probabilities.argmax(axis=1), UNKNOWN), tuple(names))


class JudgeSpec(Strict, ABC):
    """Describe a judge in a suite, `kind: Literal["clip"] = "clip"`."""

    kind: str

    @abstractmethod
    def ready(self, task: Any, session: Opener) -> Judge:
        """Return the judge of a `GenerationTask`, with its weights loaded."""


JUDGES: Registry[type[JudgeSpec]] = Registry(
    "judge", "vldebias.judges", named_by(JudgeSpec, "kind")
)
register_judge = JUDGES.register  # a kind of judge for suites, as `judge: {kind: NAME}`


@register_judge
class MiniatureJudge(JudgeSpec):
    """Classify images of the miniature: profession, gender, tone and age of a portrait; species and
    place of a bird.

    A picture of the other kind has none of them: the chance that it is one is left over.
    """

    kind: Literal["miniature"] = "miniature"

    def ready(self, task: Any = None, session: Opener | None = None) -> Judge:
        """Return the judge with the weights that ship with the package."""
        from vldebias.miniature import load_judge, words

        portraits = {
            "profession": words.PROFESSIONS,
            "gender": words.GENDERS,
            "tone": words.TONES,
            "age": words.AGES,
        }
        birds = {"species": words.SPECIES, "place": words.PLACES}
        halves = {"bird": words.CLASSES, "background": words.BACKGROUNDS}
        network = load_judge()

        def answers(images: Sequence[Image]) -> Probabilities:
            pixels = np.stack([np.asarray(image.convert("RGB")) for image in images])
            read = network.predict(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)
            said = dict[str, np.ndarray]()
            for world, fields in (("portraits", portraits), ("birds", birds)):
                chance = read["world_probabilities"][:, words.WORLDS.index(world), None]
                said |= {
                    one: (read[f"{one}_probabilities"] * chance).double().cpu().numpy()
                    for one in fields
                }
            # The first half of the species is land birds, the first half of the places is land.
            for half, of in zip(halves, birds, strict=True):
                said[half] = said[of].reshape(len(images), 2, -1).sum(axis=2)
            return said

        return Judge(
            "miniature judge",
            portraits | birds | halves,
            answers,
            hash_of([weights_fingerprint(network)]),
        )


def _from_hub(name: str, session: Opener, kind: str, processor: str, **how: Any) -> tuple[Any, Any]:
    """Load a model of transformers and its processor, by the names of their classes."""
    transformers = need("transformers")
    try:
        with offline_reason(name):
            model = getattr(transformers, kind).from_pretrained(name, **NO_CODE, **how)
            model = model.to(session.options.device).eval()
            return model, getattr(transformers, processor).from_pretrained(name, **NO_CODE)
    except Exception as error:  # on damaged files the library raises whatever it stumbles over
        expected = f"expected an id or folder that {kind} of transformers reads"
        raise InvalidInputError(
            f"cannot load the judge {name!r}: {reason(error)}; {expected}"
        ) from error


@register_judge
class ClassifierJudge(JudgeSpec):
    """Judge one attribute with a transformers image classifier.

    values: value -> labels of the classifier that mean it; by default every label is a value.
    Labels that no value names count as none of them.
    """

    kind: Literal["classifier"] = "classifier"
    model: str
    attribute: str
    values: dict[str, OneOrMore] | None = None

    def ready(self, task: Any, session: Opener) -> Judge:
        """Return the judge; InvalidInputError: no such model or label, or a label that means two
        values."""
        model, processor = _from_hub(
            self.model, session, "AutoModelForImageClassification", "AutoImageProcessor"
        )
        labels = [model.config.id2label[i] for i in range(model.config.num_labels)]
        values = self.values or {label: (label,) for label in labels}
        used = [label for some in values.values() for label in some]
        if not set(used) <= set(labels) or len(set(used)) < len(used):
            raise InvalidInputError(
                f"values: got {values}; expected each of the labels {labels} at most once"
            )
        columns = torch.tensor(
            [[label in some for some in values.values()] for label in labels]
        ).float()

        @torch.no_grad()
        def answers(images: Sequence[Image]) -> Probabilities:
            pixels = processor([image.convert("RGB") for image in images], return_tensors="pt")[
                "pixel_values"
            ]
            logits = model(pixels.to(next(model.parameters()))).logits.float().cpu()
            return {self.attribute: (logits.softmax(1) @ columns).double().numpy()}

        mark = hash_of([weights_fingerprint(model), processor.to_dict(), self.attribute, values])
        return Judge(self.model, {self.attribute: tuple(values)}, answers, mark)


@register_judge
class ClipJudge(JudgeSpec):
    """Judge images zero-shot with any open_clip or transformers image-text model; its texts are
    never edited.

    The probabilities are the softmax over values and rejects of cosine x the model's own logit
    scale (section 7.6 of the thesis). It has the biases of its model, which the pipeline may share:
    compare it with people.

    prompts: attribute -> value -> its texts, of which the mean embedding is compared. reject: texts
    for images that show none of them, each of which competes with the values. model, pretrained:
    --judge replaces them.
    """

    kind: Literal["clip"] = "clip"
    model: str | None = None
    pretrained: str | None = None
    prompts: dict[
        str, Annotated[dict[str, Annotated[OneOrMore, Field(min_length=1)]], Field(min_length=2)]
    ]
    reject: tuple[str, ...] = ()

    def loaded(self, session: Opener) -> Loaded:
        """Return the image-text model: the user's, else the suite's; InvalidInputError: neither is
        named."""
        model = session.options.judge or self.model
        if model is None:
            raise InvalidInputError(
                "judge: got no image-text model; add `model:` to it, or give --judge"
            )
        return session.load(model, self.pretrained if model == self.model else None)

    def ready(self, task: Any, session: Opener) -> Judge:
        """Return the judge; it also says which concept an image shows, by the class prompts of the
        task."""
        prompts = task.prompt_set
        names = (*prompts.class_names, *prompts.held_out_class_names)
        texts = ((text,) for text in (*prompts.classes, *prompts.held_out_classes))
        asked = {
            **self.prompts,
            task.noun: self.prompts.get(task.noun) or dict(zip(names, texts, strict=True)),
        }
        return self.model_copy(update={"prompts": asked}).on(self.loaded(session))

    def on(self, loaded: Loaded) -> Judge:
        """Return the judge that asks this model; InvalidInputError: a model without a logit
        scale."""
        encoder = image_encoder(loaded.host, loaded.preprocess, name=loaded.name)
        texts, scale = text_host(loaded.host, loaded.tokenizer), logit_scale(loaded.host)
        rows = {}
        for attribute, asked in self.prompts.items():
            texts.embed(
                [*chain.from_iterable(asked.values()), *self.reject]
            )  # in one pass of the tower
            values = [normalize(texts.embed(own).mean(0), dim=0) for own in asked.values()]
            rows[attribute] = torch.stack(
                [*values, *(texts.embed(self.reject) if self.reject else ())]
            )

        def answers(images: Sequence[Image]) -> Probabilities:
            features = normalize(
                encoder.encode([image.convert("RGB") for image in images]).double(), dim=-1
            )
            chances = {
                attribute: (scale * features @ own.T).softmax(dim=-1)
                for attribute, own in rows.items()
            }
            return {one: of[:, : len(self.prompts[one])].numpy() for one, of in chances.items()}

        towers = [encoder.fingerprint, texts.weights]
        mark = hash_of([towers, encoder.preprocessing, round(scale, 3), self.prompts, self.reject])
        names = {attribute: tuple(asked) for attribute, asked in self.prompts.items()}
        return Judge(f"zero-shot {encoder.name}", names, answers, mark)


def logit_scale(model: Any) -> float:
    """Return exp(logit_scale) of CLIP and similar models, or one over the temperature of ALIGN."""
    for name, scale in (("logit_scale", torch.exp), ("temperature", torch.reciprocal)):
        if (own := getattr(model, name, None)) is not None:
            return float(scale(own.detach().float()))
    raise InvalidInputError(
        f"{type(model).__name__} has no logit_scale, which turns cosines into probabilities"
    )


@register_judge
class VlmJudge(JudgeSpec):
    """Judge images with any transformers image-text-to-text model (LLaVA, Qwen-VL, SmolVLM and
    similar ones).

    Each option is a letter, and its probability is the likelihood that the model continues with
    that letter. Models prefer some letters and places, so every question is asked with the values
    in each cyclic order and the likelihoods are averaged in log space; a warning says where the
    order matters much.

    model: an id of the hub or a folder. questions: attribute -> its values, by default those of the
    task's own set.
    batch_size: images of one size that one forward pass reads.
    """

    kind: Literal["vlm"] = "vlm"
    model: str
    questions: dict[str, Annotated[tuple[str, ...], Field(min_length=2, max_length=25)]] = Field(
        default_factory=dict
    )
    batch_size: Count = 8

    @staticmethod
    def question(attribute: str, options: Sequence[str]) -> str:
        """Return the text of a question: its options by letter, in the order given."""
        listed = "\n".join(map("{}. {}".format, string.ascii_uppercase, options))
        return (
            f"Which {attribute} does the main subject of this picture show?\n{listed}\nAnswer with"
            " the letter alone."
        )

    def ready(self, task: Any, session: Opener) -> Judge:
        """Return the judge with its model loaded."""
        asked = self.questions or {
            task.attributes[0].split(" x ")[0]: tuple(task.prompts.attributes)
        }
        how = {"dtype": session.options.dtype or "auto"}
        loaded = _from_hub(
            self.model, session, "AutoModelForImageTextToText", "AutoProcessor", **how
        )
        return self.model_copy(update={"questions": asked}).on(*loaded)

    def on(self, model: Any, processor: Any) -> Judge:
        """Return the judge that asks this model; InvalidInputError: its processor has no chat
        template."""
        names, warned = self.questions, set[str]()
        if not getattr(processor, "chat_template", None):
            raise InvalidInputError(
                f"judge {self.model}: got no chat template; give a model that follows instructions"
            )

        def answers(images: Sequence[Image]) -> Probabilities:
            said = Probabilities()
            for attribute, values in names.items():
                some, each = sorted(values), []
                for first in range(len(some)):  # each value is once in each place
                    order = [*some[first:], *some[:first], NONE_OF_THESE]
                    rows = self._asked(
                        model, processor, images, self.question(attribute, order), len(order)
                    )
                    each.append(rows[:, [*map(order.index, values), -1]])
                chances = np.exp(each)
                bias = (
                    0.5 * np.abs(chances[:, None] - chances[None]).sum(-1).max(axis=(0, 1)).mean()
                )
                if bias > BIAS and attribute not in warned:
                    warned.add(attribute)
                    found = (
                        f"depend on the order of the options (mean total variation {bias:.2f}),"
                        " averaged here"
                    )
                    warn(
                        f"{self.model}: answers about {attribute} {found}; label some images to"
                        " correct the judge"
                    )
                mean = np.mean(each, axis=0)
                said[attribute] = np.exp(mean - np.logaddexp.reduce(mean, axis=1, keepdims=True))[
                    :, :-1
                ]
            return said

        texts = {
            attribute: self.question(attribute, sorted(some)) for attribute, some in names.items()
        }
        mark = hash_of([weights_fingerprint(model), processor.chat_template, texts, names])
        return Judge(self.model, names, answers, mark)

    @torch.no_grad()
    def _asked(
        self, model: Any, processor: Any, images: Sequence[Image], text: str, count: int
    ) -> np.ndarray:
        """Return log probabilities (n, count) that the model answers with each of the first
        letters."""
        chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
        prompt = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        prompt += "" if prompt[-1:].isspace() else " "
        pictures, weight, found = (
            [[image.convert("RGB")] for image in images],
            next(model.parameters()),
            [],
        )
        texts = [prompt + letter for letter in string.ascii_uppercase[:count]]
        ids = [processor(text=[one], images=pictures[:1])["input_ids"][0] for one in texts]
        place = next(i for i, column in enumerate(zip(*ids, strict=True)) if len(set(column)) > 1)
        for batch in (
            pictures[i : i + self.batch_size] for i in range(0, len(pictures), self.batch_size)
        ):
            read = processor(text=texts[:1] * len(batch), images=batch, return_tensors="pt")
            moved = {
                k: v.to(weight) if v.is_floating_point() else v.to(weight.device)
                for k, v in read.items()
            }
            scores = (
                model(**moved).logits[:, place - 1].double().cpu()[:, [row[place] for row in ids]]
            )
            found.append(scores.log_softmax(dim=1).numpy())
        return np.concatenate(found)
