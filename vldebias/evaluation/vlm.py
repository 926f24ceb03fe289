"""Judge images with a vision-language model: a multiple-choice question per image, answered by likelihood.

The answer is never parsed from generated text: each option is a letter, and its probability is the likelihood that the
model continues with that letter. Models prefer some letters and places, so every question is asked with the values in
each cyclic order and the likelihoods are averaged in log space; how much the order mattered is kept as `order_bias`.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from pydantic import PrivateAttr
from torch import Tensor

from vldebias.errors import InvalidInputError, warn
from vldebias.evaluation.judges import Judge, JudgeSpec, Probabilities, digest_of, from_hub, register_judge
from vldebias.evaluation.session import Session
from vldebias.evaluation.task import Count
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.prompts import load_prompts

if TYPE_CHECKING:
    from PIL.Image import Image

NONE = "none of these, or it cannot be told"
BIAS = 0.2  # mean total variation between two orders from which a warning is worth it


def question(attribute: str, options: Sequence[str]) -> str:
    """Return the text of a question: its options by letter, in the order given."""
    listed = "\n".join(f"{letter}. {option}" for letter, option in zip(string.ascii_uppercase, options, strict=False))
    return f"Which {attribute} does the main subject of this picture show?\n{listed}\nAnswer with the letter alone."


def cyclic(values: Sequence[str]) -> list[list[str]]:
    """Return the cyclic orders of values: each value is once in each place."""
    return [[*values[i:], *values[:i]] for i in range(len(values))]


@register_judge
class VlmJudge(JudgeSpec):
    """Judge images with any transformers image-text-to-text model (LLaVA, Qwen-VL, SmolVLM and similar ones).

    model: an id of the hub or a folder. questions: attribute -> its values, or the prompt set that has them; by default
    the attribute of the task's own set. Their order does not matter: questions are asked in the cyclic orders of the
    sorted values. batch_size: images that one forward pass reads.
    """

    kind: Literal["vlm"] = "vlm"
    model: str
    questions: dict[str, str | tuple[str, ...]] | None = None
    batch_size: Count = 8
    _parts: Any = None
    _spreads: dict[str, list[float]] = PrivateAttr(default_factory=dict)

    @property
    def order_bias(self) -> dict[str, float]:
        """Return attribute -> mean over images of the largest total variation between answers of two orders."""
        return {attribute: float(np.mean(spreads)) for attribute, spreads in self._spreads.items()}

    def ready(self, task: Any, session: Session) -> Judge:
        """Return the judge with its model loaded."""
        own = self if self.questions else self.model_copy(update={"questions": {task.attribute: task.prompts}})
        dtype = {"dtype": session.options.dtype or "auto"}
        return own.on(
            *from_hub("AutoModelForImageTextToText", "AutoProcessor", self.model, session.options.device, **dtype)
        )

    def on(self, model: Any, processor: Any) -> Self:
        """Return the judge that asks this model; the processor needs a chat template and a tokenizer.

        Raises:
            InvalidInputError: fewer than two values, more than 25, or a processor without a chat template.
        """
        asked = (self.questions or {}).items()
        self._names = {
            a: given if isinstance(given, tuple) else tuple(load_prompts(given).attributes) for a, given in asked
        }
        for attribute, some in self._names.items():
            if not 2 <= len(set(some)) == len(some) < len(string.ascii_uppercase):
                raise InvalidInputError(f"{attribute}: expected 2 to 25 different values, got {list(some)}")
        if not self._names or not getattr(processor, "chat_template", None):
            raise InvalidInputError(
                "expected values of at least one attribute and a processor with a chat template, got "
                f"{self._names} and {type(processor).__name__}; choose a model that was tuned to follow instructions"
            )
        self._name, self._parts, self._spreads = self.model, (model, processor), {}
        texts = {attribute: question(attribute, sorted(some)) for attribute, some in self._names.items()}
        self._fingerprint = digest_of(weights_fingerprint(model), processor.chat_template, texts, self._names)
        return self

    def predict(self, images: Sequence[Image]) -> Probabilities:
        """Return probabilities (n, values) of each attribute; what a row lacks to one went to "cannot be told"."""
        pictures, answers = [image.convert("RGB") for image in images], {}
        for attribute, values in self._names.items():
            each = np.stack([self._asked(pictures, attribute, order) for order in cyclic(sorted(values))])
            spread = 0.5 * np.abs(np.exp(each)[:, None] - np.exp(each)[None]).sum(-1).max(axis=(0, 1))
            before = self.order_bias.get(attribute, 0.0)
            self._spreads.setdefault(attribute, []).extend(spread.tolist())
            if (bias := self.order_bias[attribute]) > BIAS >= before:
                warn(
                    f"{self.name}: answers about {attribute} depend on the order of the options (mean total variation "
                    f"{bias:.2f}); they are averaged over orders, but label some images by hand (vldebias label) and "
                    "correct the judge by them"
                )
            mean = each.mean(axis=0)
            answers[attribute] = np.exp(mean - np.logaddexp.reduce(mean, axis=1, keepdims=True))[:, : len(values)]
        return answers

    def _asked(self, pictures: Sequence[Image], attribute: str, order: Sequence[str]) -> np.ndarray:
        """Return log probabilities (n, values + 1) of one order, columns as the values and then NONE."""
        text, letters = question(attribute, [*order, NONE]), string.ascii_uppercase[: len(order) + 1]
        rows = np.empty((len(pictures), len(letters)))
        for size in {picture.size for picture in pictures}:  # of one size: as many image tokens, so nothing is padded
            of_size = [i for i, picture in enumerate(pictures) if picture.size == size]
            for start in range(0, len(of_size), self.batch_size):
                batch = of_size[start : start + self.batch_size]
                rows[batch] = self.likelihoods([pictures[i] for i in batch], text, letters).log_softmax(dim=1).numpy()
        return rows[:, [*(order.index(value) for value in self._names[attribute]), len(order)]]

    @torch.no_grad()
    def likelihoods(self, pictures: Sequence[Image], text: str, answers: Sequence[str]) -> Tensor:
        """Return float64 log-likelihoods (n, answers) that the model continues the chat with each answer.

        pictures: of one size. answers: texts of which none begins another.
        Answers that differ in their last token alone cost one forward pass; otherwise each costs one.
        """
        _, processor = self._parts
        chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
        prompt = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        prompt += "" if prompt[-1:].isspace() else " "
        images = [[one] for one in pictures]
        batches = [processor(text=[prompt + a] * len(images), images=images, return_tensors="pt") for a in answers]
        ids = [batch["input_ids"][0].tolist() for batch in batches]
        shared = next(i for i, column in enumerate(zip(*ids, strict=False)) if len(set(column)) > 1)
        if all(len(row) == shared + 1 for row in ids):
            logits = self._logits(batches[0])[:, shared - 1]
            return logits.log_softmax(dim=-1)[:, [row[shared] for row in ids]]
        scores = []
        for batch, row in zip(batches, ids, strict=True):
            logits = self._logits(batch)[:, shared - 1 : len(row) - 1].log_softmax(dim=-1)
            wanted = torch.tensor(row[shared:]).expand(len(pictures), -1)[..., None]
            scores.append(logits.gather(2, wanted)[..., 0].sum(dim=1))
        return torch.stack(scores, dim=1)

    def _logits(self, batch: Any) -> Tensor:
        model, _ = self._parts
        weight = next(model.parameters())
        moved = {k: v.to(weight) if v.is_floating_point() else v.to(weight.device) for k, v in batch.items()}
        return model(**moved).logits.double().cpu()
