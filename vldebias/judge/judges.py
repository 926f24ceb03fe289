"""Image judges, which return probabilities for the values of each attribute.

The probabilities of an attribute's values may sum to less than 1. The remainder is the probability
that the image shows none of the values. For example, an image without a person has no gender, so
its value is unknown. The share of unknown images is reported separately.
"""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError, need, warn
from vldebias.hosts.clip.images import image_encoder
from vldebias.hosts.host import weights_fingerprint
from vldebias.hosts.loading import Loaded, text_host
from vldebias.judge.plan import hash_of
from vldebias.projection.hub import NO_CODE, offline_reason, reason
from vldebias.utils.options import Options
from vldebias.utils.registry import Registry
from vldebias.utils.schema import Count, OneOrMore, Strict, named_by

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedModel, ProcessorMixin

    from vldebias.prompts import PromptSet

Probabilities = dict[str, np.ndarray]
NONE_OF_THESE = "none of these, or it cannot be told"
BIAS = 0.2  # mean total variation between orders of the options that triggers a warning


class Opener(Protocol):
    """Loads judge models, with the device and precision from the options."""

    options: Options

    def load(self, name: str, pretrained: str | None = None) -> Loaded:
        """Load a model, or return it if it is already loaded.

        Args:
            name: name of the model.
            pretrained: weights of an open_clip model.
        """


class JudgedTask(Protocol):
    """Properties of a `GenerationTask` that judges use."""

    @property
    def attribute(self) -> PromptSet:
        """Return the prompt set of the attribute."""

    @property
    def prompt_set(self) -> PromptSet:
        """Return the prompt set to generate images for."""

    @property
    def attributes(self) -> tuple[str, ...]:
        """Return the attributes to judge; "gender x race" for an intersection."""

    @property
    def noun(self) -> str:
        """Return the noun for concepts, such as "professions"."""


@dataclass(frozen=True)
class Judge:
    """Detects attributes in images. Any object with these members can be used as a judge.

    Attributes:
        name: name of the judge.
        names: attribute -> values, in the order of the columns.
        predict: function that takes n images and returns probabilities (n, values) by attribute.
        fingerprint: key for stored answers, which must change whenever the answers may change.
    """

    name: str
    names: Mapping[str, tuple[str, ...]]
    predict: Callable[[Sequence[Image]], Probabilities]
    fingerprint: str


def predict(judge: Judge, images: Sequence[Image]) -> Probabilities:
    """Return a judge's probabilities (n, values) for images, by attribute and in float64.

    Args:
        judge: the classifier to ask.
        images: n images.

    Raises:
        InvalidInputError: If an attribute is missing, or its array does not contain probabilities
            (n, values).
    """
    predicted = judge.predict(images)
    if not isinstance(predicted, Mapping):
        raise InvalidInputError(
            f"judge {judge.name}: predict returned a {type(predicted).__name__}; expected a"
            " mapping from each attribute to probabilities (n, values)"
        )
    checked = {}
    for attribute, values in judge.names.items():
        rows = np.asarray(predicted.get(attribute, np.empty(0)), dtype=np.float64)
        shape = (len(images), len(values))
        # Allow for rounding in half precision. The comparison also rejects NaN.
        are_probabilities = rows.shape == shape and bool((rows >= 0).all())
        if not are_probabilities or not (rows.sum(1) <= 1.001).all():
            raise InvalidInputError(
                f"judge {judge.name}: {attribute}: got an array of shape {rows.shape} with maximum"
                f" {rows.max(initial=0):.3g}; expected probabilities of shape {shape} whose rows"
                " sum to at most 1. Apply a softmax to convert logits"
            )
        checked[attribute] = rows
    return checked


class JudgeSpec(Strict, ABC):
    """Settings for a judge in a suite. Subclasses declare, for example, `kind: Literal["clip"]`."""

    kind: str

    @abstractmethod
    def ready(self, task: JudgedTask, session: Opener) -> Judge:
        """Load the weights and return the judge.

        Args:
            task: the task whose images are judged.
            session: object that loads models on the user's device.
        """


def checked_judge(spec: JudgeSpec, judge: object) -> Judge:
    """Check that `JudgeSpec.ready` returned a judge, and return it.

    Args:
        spec: the judge's settings.
        judge: the object that `ready` returned.

    Raises:
        InvalidInputError: If the object lacks an attribute of `Judge`.
    """
    missing = [name for name in Judge.__dataclass_fields__ if not hasattr(judge, name)]
    if missing:
        received = "None" if judge is None else f"a {type(judge).__name__}"
        raise InvalidInputError(
            f"judge {spec.kind!r}: `ready` returned {received} without {', '.join(missing)}; it"
            " must return a vldebias.judge.judges.Judge, so end it with `return Judge(...)`"
        )
    return judge  # type: ignore[return-value]


JUDGES: Registry[type[JudgeSpec]] = Registry(
    "judge", "vldebias.judges", named_by(JudgeSpec, "kind")
)
register_judge = JUDGES.register  # registers a kind of judge for `judge: {kind: NAME}` in suites


@register_judge
class MiniatureJudge(JudgeSpec):
    """Judge images from the miniature pipeline with a packaged classifier.

    The attributes are profession, gender, tone and age for portraits, and species and place for
    birds. The probabilities of a portrait attribute sum to the probability that the image is a
    portrait, and likewise for birds.
    """

    kind: Literal["miniature"] = "miniature"

    def ready(self, task: JudgedTask | None = None, session: Opener | None = None) -> Judge:
        """Return the judge with the packaged weights.

        Args:
            task: not used.
            session: not used.
        """
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
            outputs = network.predict(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)
            probabilities = dict[str, np.ndarray]()
            for world, fields in (("portraits", portraits), ("birds", birds)):
                # For example, P(profession) is multiplied by P(portrait). The remainder is the
                # probability of none of the values.
                chance = outputs["world_probabilities"][:, words.WORLDS.index(world), None]
                for field in fields:
                    rows = outputs[f"{field}_probabilities"] * chance
                    probabilities[field] = rows.double().cpu().numpy()
            # The first half of the species are landbirds, and the first half of the places are on
            # land.
            for half, field in zip(halves, birds, strict=True):
                rows_of_halves = probabilities[field].reshape(len(images), 2, -1)
                probabilities[half] = rows_of_halves.sum(axis=2)
            return probabilities

        return Judge(
            "miniature judge",
            portraits | birds | halves,
            answers,
            hash_of([weights_fingerprint(network)]),
        )


def _from_hub(
    name: str, session: Opener, kind: str, processor: str, **options: str
) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Load a transformers model and its processor by class name."""
    transformers = need("transformers")
    try:
        with offline_reason(name):
            model = getattr(transformers, kind).from_pretrained(name, **NO_CODE, **options)
            model = model.to(session.options.device).eval()
            return model, getattr(transformers, processor).from_pretrained(name, **NO_CODE)
    except Exception as error:  # the library may raise any error for damaged files
        expected = f"expected a hub id or folder that transformers' {kind} can load"
        raise InvalidInputError(
            f"cannot load the judge {name!r}: {reason(error)}; {expected}"
        ) from error


@register_judge
class ClassifierJudge(JudgeSpec):
    """Judge one attribute with a transformers image classifier.

    `values` maps each value to classifier labels. By default, every label is a value. Labels that
    do not belong to any value count as none of the values.
    """

    kind: Literal["classifier"] = "classifier"
    model: str
    attribute: str
    values: dict[str, OneOrMore] | None = None

    def ready(self, task: JudgedTask, session: Opener) -> Judge:
        """Load the classifier and return the judge.

        Args:
            task: not used.
            session: object that loads models on the user's device.

        Raises:
            InvalidInputError: If the model or a label does not exist, or a label belongs to two
                values.
        """
        model, processor = _from_hub(
            self.model, session, "AutoModelForImageClassification", "AutoImageProcessor"
        )
        labels = [model.config.id2label[i] for i in range(model.config.num_labels)]
        values = self.values or {label: (label,) for label in labels}
        used = list(chain.from_iterable(values.values()))
        if not set(used) <= set(labels) or len(set(used)) < len(used):
            raise InvalidInputError(
                f"values: got {values}; expected each of the labels {labels} at most once"
            )
        # (labels, values): 1 if a label belongs to a value. Multiplying by this matrix adds up the
        # labels of each value, such as "man" and "boy" for male.
        columns = torch.zeros(len(labels), len(values))
        for column, labels_of_value in enumerate(values.values()):
            for label in labels_of_value:
                columns[labels.index(label), column] = 1

        @torch.no_grad()
        def answers(images: Sequence[Image]) -> Probabilities:
            pictures = [image.convert("RGB") for image in images]
            pixels = processor(pictures, return_tensors="pt")["pixel_values"]
            logits = model(pixels.to(next(model.parameters()))).logits.float().cpu()
            return {self.attribute: (logits.softmax(1) @ columns).double().numpy()}

        mark = hash_of([weights_fingerprint(model), processor.to_dict(), self.attribute, values])
        return Judge(self.model, {self.attribute: tuple(values)}, answers, mark)


@register_judge
class ClipJudge(JudgeSpec):
    """Judge images zero-shot with an unedited open_clip or transformers image-text model.

    Section 7.6 of the thesis judges generated images with CLIP.

    The probabilities are a softmax over the values and the `reject` prompts, with cosines
    multiplied by the model's logit scale. The judge inherits its model's biases, which the pipeline
    may share, so compare it with human labels.

    Attributes:
        model: model name; --judge overrides it.
        pretrained: open_clip tag; --judge overrides it.
        prompts: attribute -> value -> prompts, whose mean embedding is compared with images.
        reject: prompts for images that show none of the values. Each prompt competes with the
            values.
    """

    kind: Literal["clip"] = "clip"
    model: str | None = None
    pretrained: str | None = None
    prompts: dict[
        str, Annotated[dict[str, Annotated[OneOrMore, Field(min_length=1)]], Field(min_length=2)]
    ]
    reject: tuple[str, ...] = ()

    def loaded(self, session: Opener) -> Loaded:
        """Load the image-text model chosen by the user or the suite.

        Raises:
            InvalidInputError: If neither the user nor the suite names a model.
        """
        model = session.options.judge or self.model
        if model is None:
            raise InvalidInputError(
                "judge: got no image-text model; add `model:` to the suite, or pass --judge"
            )
        return session.load(model, self.pretrained if model == self.model else None)

    def ready(self, task: JudgedTask, session: Opener) -> Judge:
        """Return the judge, which also recognises concepts using the task's class prompts.

        Args:
            task: the task whose images are judged.
            session: object that loads models on the user's device.
        """
        prompt_set = task.prompt_set
        names = (*prompt_set.class_names, *prompt_set.held_out_class_names)
        texts = (*prompt_set.classes, *prompt_set.held_out_classes)
        texts_of_attribute = dict(self.prompts)
        # Also judge which concept an image shows, for the metric `recognised`, unless the suite
        # already has prompts for it.
        if not texts_of_attribute.get(task.noun):
            texts_of_attribute[task.noun] = {
                name: (text,) for name, text in zip(names, texts, strict=True)
            }
        judge = self.model_copy(update={"prompts": texts_of_attribute})
        return judge.on(self.loaded(session))

    def on(self, loaded: Loaded) -> Judge:
        """Return a judge that uses the loaded model.

        Raises:
            InvalidInputError: If the model has no logit scale.
        """
        encoder = image_encoder(loaded.host, loaded.preprocess, name=loaded.name)
        texts = text_host(loaded.host, loaded.tokenizer)
        scale = logit_scale(loaded.host)
        rows_of_attribute = {}
        for attribute, texts_of_value in self.prompts.items():
            # Embed all prompts in one pass. The host caches the embeddings.
            texts.embed([*chain.from_iterable(texts_of_value.values()), *self.reject])
            rows = []
            for value_texts in texts_of_value.values():
                # Use the normalised mean embedding of a value's prompts, which is the prompt
                # ensembling of Radford et al. (2021).
                rows.append(normalize(texts.embed(value_texts).mean(0), dim=0))
            if self.reject:
                # Keep one row per prompt, because "a landscape" and "a blur" have no meaningful
                # mean.
                rows.extend(texts.embed(self.reject))
            rows_of_attribute[attribute] = torch.stack(rows)

        def answers(images: Sequence[Image]) -> Probabilities:
            pictures = [image.convert("RGB") for image in images]
            features = normalize(encoder.encode(pictures).double(), dim=-1)
            probabilities = {}
            for attribute, rows in rows_of_attribute.items():
                chances = (scale * features @ rows.T).softmax(dim=-1)
                values = len(self.prompts[attribute])  # further columns are for `reject`
                probabilities[attribute] = chances[:, :values].numpy()
            return probabilities

        towers = [encoder.fingerprint, texts.weights]
        mark = hash_of([towers, encoder.preprocessing, round(scale, 3), self.prompts, self.reject])
        names = {attribute: tuple(values) for attribute, values in self.prompts.items()}
        return Judge(f"zero-shot {encoder.name}", names, answers, mark)


def logit_scale(model: nn.Module) -> float:
    """Return exp(logit_scale) for CLIP-like models, or 1 / temperature for ALIGN."""
    for name, scale in (("logit_scale", torch.exp), ("temperature", torch.reciprocal)):
        parameter = getattr(model, name, None)
        if parameter is not None:
            return float(scale(parameter.detach().float()))
    raise InvalidInputError(
        f"{type(model).__name__} has no logit_scale to convert cosines to probabilities; use a"
        " model such as CLIP, SigLIP or ALIGN"
    )


@register_judge
class VlmJudge(JudgeSpec):
    """Judge images with a transformers image-text-to-text model (LLaVA, Qwen-VL, SmolVLM, ...).

    Each answer option has a letter, and its probability is the likelihood that the model continues
    with this letter. Since models prefer some letters and positions, every question is asked with
    the values in each cyclic order, and log likelihoods are averaged. A warning is issued if the
    order has a large effect.

    Attributes:
        model: hub id or folder.
        questions: attribute -> values. By default, the values in the task's prompt set.
        batch_size: number of images per forward pass.
    """

    kind: Literal["vlm"] = "vlm"
    model: str
    questions: dict[str, Annotated[tuple[str, ...], Field(min_length=2, max_length=25)]] = Field(
        default_factory=dict
    )
    batch_size: Count = 8

    @staticmethod
    def question(attribute: str, options: Sequence[str]) -> str:
        """Return a question about an attribute, with its answer options.

        Args:
            attribute: what is asked about, such as "gender".
            options: the answer options, in order.
        """
        listed = "\n".join(map("{}. {}".format, string.ascii_uppercase, options))
        return (
            f"Which {attribute} does the main subject of this picture show?\n{listed}\nAnswer with"
            " the letter alone."
        )

    def ready(self, task: JudgedTask | None, session: Opener) -> Judge:
        """Load the model and return the judge.

        Args:
            task: the task whose prompt set contains the values, if there are no questions.
            session: object that loads models on the user's device.
        """
        questions = self.questions
        if not questions and task is not None:
            attribute = task.attributes[0].split(" x ")[0]
            questions = {attribute: tuple(task.attribute.attributes)}
        dtype = session.options.dtype or "auto"
        model, processor = _from_hub(
            self.model, session, "AutoModelForImageTextToText", "AutoProcessor", dtype=dtype
        )
        return self.model_copy(update={"questions": questions}).on(model, processor)

    def on(self, model: PreTrainedModel, processor: ProcessorMixin) -> Judge:
        """Return a judge that uses the given model.

        Args:
            model: an image-text-to-text model.
            processor: the model's processor.

        Raises:
            InvalidInputError: If the processor has no chat template.
        """
        names = self.questions
        warned = set[str]()
        if not getattr(processor, "chat_template", None):
            raise InvalidInputError(
                f"judge {self.model}: the model has no chat template; use an instruction-tuned"
                " model"
            )

        def answers(images: Sequence[Image]) -> Probabilities:
            probabilities = Probabilities()
            for attribute, values in names.items():
                rows = self._in_every_order(model, processor, images, attribute, values)
                # Compute the largest total variation between two orders, averaged over images.
                chances = np.exp(rows)  # (orders, n, options)
                distances = 0.5 * np.abs(chances[:, None] - chances[None]).sum(-1)
                bias = float(distances.max(axis=(0, 1)).mean())  # from (orders, orders, n)
                if bias > BIAS and attribute not in warned:
                    warned.add(attribute)
                    warn(
                        f"{self.model}: answers about {attribute} depend on the order of the"
                        f" options (mean total variation {bias:.2f}). They are averaged over all"
                        " orders; label some images to correct the judge"
                    )
                # Use the normalised geometric mean of the likelihoods, so that a value that is
                # nearly impossible in one order gets a low probability.
                mean = np.mean(rows, axis=0)
                total = np.logaddexp.reduce(mean, axis=1, keepdims=True)
                probabilities[attribute] = np.exp(mean - total)[:, :-1]
            return probabilities

        texts = {
            attribute: self.question(attribute, sorted(values))
            for attribute, values in names.items()
        }
        mark = hash_of([weights_fingerprint(model), processor.chat_template, texts, names])
        return Judge(self.model, names, answers, mark)

    def _in_every_order(
        self,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        images: Sequence[Image],
        attribute: str,
        values: Sequence[str],
    ) -> np.ndarray:
        """Return log probabilities (orders, n, values + 1) for each cyclic order of the values."""
        options = sorted(values)
        rows_of_order = []
        for first in range(len(options)):  # each value appears once in each position
            order = [*options[first:], *options[:first], NONE_OF_THESE]
            question = self.question(attribute, order)
            rows = self._log_probabilities(model, processor, images, question, len(order))
            columns = [order.index(value) for value in values]
            rows_of_order.append(rows[:, [*columns, -1]])
        return np.stack(rows_of_order)

    @torch.no_grad()
    def _log_probabilities(
        self,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        images: Sequence[Image],
        text: str,
        count: int,
    ) -> np.ndarray:
        """Return the log probability (n, count) that the answer is A, B, ... for each image."""
        chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
        prompt = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        # " A" and "A" are usually different tokens, so make sure that the letter follows a space.
        if not prompt[-1:].isspace():
            prompt += " "
        pictures = [[image.convert("RGB")] for image in images]
        texts = [prompt + letter for letter in string.ascii_uppercase[:count]]
        ids = [processor(text=[answer], images=pictures[:1])["input_ids"][0] for answer in texts]
        # The letter is at the first position where the token sequences of the answers differ.
        differing = [len(set(column)) > 1 for column in zip(*ids, strict=True)]
        if True not in differing:
            raise InvalidInputError(
                f"judge {self.model}: the answers A, B, ... have the same tokens {list(ids[0])};"
                " use a model whose tokenizer distinguishes letters"
            )
        place = differing.index(True)
        letter_ids = [row[place] for row in ids]
        weight = next(model.parameters())
        parts = []
        for start in range(0, len(pictures), self.batch_size):
            batch = pictures[start : start + self.batch_size]
            inputs = processor(text=texts[:1] * len(batch), images=batch, return_tensors="pt")
            inputs_on_device = {}
            for name, tensor in inputs.items():
                # Token ids keep their dtype, whereas pixels are converted to the dtype of the
                # weights.
                like = weight if tensor.is_floating_point() else weight.device
                inputs_on_device[name] = tensor.to(like)
            # The logits at a position predict the next token.
            logits = model(**inputs_on_device).logits[:, place - 1].double().cpu()
            # Normalise over the letters only, ignoring other continuations, such as a sentence.
            parts.append(logits[:, letter_ids].log_softmax(dim=1).numpy())
        return np.concatenate(parts)
