"""A vision-language model as a judge: a multiple-choice question about each image, answered by likelihood.

The answer is never parsed from generated text: each option is a letter, and its probability is the likelihood that the
model continues with that letter. Models prefer some letters and places, so every question is asked with the values in
each cyclic order and the likelihoods are averaged in log space; how much the order mattered is kept as `order_bias`.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from vldebias.errors import InvalidInputError, need, warn
from vldebias.evaluation.judges import Judge, JudgeSpec, Probabilities, digest_of, register_judge
from vldebias.evaluation.task import Session
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.hub import NO_CODE, asked_once, reason
from vldebias.prompts import load_prompts

if TYPE_CHECKING:
    from PIL.Image import Image

NONE = "none of these, or it cannot be told"
BIAS = 0.2  # mean total variation between two orders from which a warning is worth it


def question(attribute: str, options: Sequence[str]) -> str:
    """Return the text of a question: its options by letter, in the order given."""
    listed = "\n".join(f"{letter}. {option}" for letter, option in zip(string.ascii_uppercase, options, strict=False))
    return f"Which {attribute} does the main subject of this picture show?\n{listed}\nAnswer with the letter alone."


class VlmJudge:
    """Any image-text-to-text model of transformers (LLaVA, Qwen-VL, SmolVLM and kin) as a judge.

    Args:
        model, processor: as `AutoModelForImageTextToText` and `AutoProcessor` load them; the processor has a chat
            template and a tokenizer.
        values: attribute -> its values, 2 to 25 of them. Their order does not matter: questions are asked in the
            cyclic orders of the sorted values.
        batch_size: images that one forward pass reads.
        name: for reports; by default where the model came from.

    Attributes:
        order_bias: attribute -> mean over the images read so far of the largest total variation (0 to 1) between the
            answers of two orders. The average over orders is what counts; this says what it averaged out.

    Raises:
        InvalidInputError: fewer than two values, more than 25, or a processor without a chat template.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        values: Mapping[str, Sequence[str]],
        *,
        batch_size: int = 8,
        name: str | None = None,
    ) -> None:
        for attribute, some in values.items():
            if not 2 <= len(set(some)) == len(some) < len(string.ascii_uppercase):
                raise InvalidInputError(f"{attribute}: expected 2 to 25 different values, got {list(some)}")
        if not values or not getattr(processor, "chat_template", None):
            raise InvalidInputError(
                "expected values of at least one attribute and a processor with a chat template, got "
                f"{dict(values)} and {type(processor).__name__}; choose a model that was tuned to follow instructions"
            )
        self.name = name or str(getattr(model, "name_or_path", "") or type(model).__name__)
        self.names = {attribute: tuple(some) for attribute, some in values.items()}
        self.order_bias: dict[str, float] = {}
        self._model, self._processor, self._batch_size, self._read = model.eval(), processor, batch_size, 0
        asked = {attribute: question(attribute, sorted(some)) for attribute, some in values.items()}
        about = [weights_fingerprint(model), processor.chat_template, asked, {a: list(v) for a, v in values.items()}]
        self.fingerprint = digest_of(*about)

    @classmethod
    def load(
        cls, name_or_folder: str, values: Mapping[str, Sequence[str]], *, device: str = "cpu", dtype: str | None = None
    ) -> VlmJudge:
        """Load the model with this id of the hub or in this folder.

        Raises:
            InvalidInputError: it cannot be loaded.
        """
        transformers = need("transformers")
        try:
            with asked_once(name_or_folder):
                kind = transformers.AutoModelForImageTextToText
                model = kind.from_pretrained(name_or_folder, dtype=dtype or "auto", **NO_CODE).to(device)
                processor = transformers.AutoProcessor.from_pretrained(name_or_folder, **NO_CODE)
        except Exception as error:  # on damaged files the library raises whatever it stumbles over
            raise InvalidInputError(
                f"cannot load the vision-language model {name_or_folder!r}: {reason(error)}; expected an id or folder "
                "of a transformers model for image-text-to-text"
            ) from error
        return cls(model, processor, values, name=name_or_folder)

    def predict(self, images: Sequence[Image]) -> Probabilities:
        """Return probabilities (n, values) of each attribute; what a row lacks to one went to "cannot be told"."""
        pictures, answers = [image.convert("RGB") for image in images], {}
        for attribute, values in self.names.items():
            orders = cyclic(sorted(values))
            each = np.stack([self._asked(pictures, attribute, order, values) for order in orders])
            spread = 0.5 * np.abs(np.exp(each)[:, None] - np.exp(each)[None]).sum(-1).max(axis=(0, 1))
            self._note(attribute, spread)
            mean = each.mean(axis=0)
            chances = np.exp(mean - np.logaddexp.reduce(mean, axis=1, keepdims=True))
            answers[attribute] = chances[:, : len(values)]
        self._read += len(images)
        return answers

    def _asked(
        self, pictures: Sequence[Image], attribute: str, order: Sequence[str], values: Sequence[str]
    ) -> np.ndarray:
        """Return log probabilities (n, values + 1) of one order, columns as `values` and then NONE."""
        text, letters = question(attribute, [*order, NONE]), string.ascii_uppercase[: len(order) + 1]
        rows = np.empty((len(pictures), len(letters)))
        for size in {picture.size for picture in pictures}:  # of one size: as many image tokens, so nothing is padded
            of_size = [i for i, picture in enumerate(pictures) if picture.size == size]
            for start in range(0, len(of_size), self._batch_size):
                batch = of_size[start : start + self._batch_size]
                found = self.likelihoods([pictures[i] for i in batch], text, letters)
                rows[batch] = found.log_softmax(dim=1).numpy()
        return rows[:, [*(order.index(value) for value in values), len(order)]]

    @torch.no_grad()
    def likelihoods(self, pictures: Sequence[Image], text: str, answers: Sequence[str]) -> Tensor:
        """Return log-likelihoods (n, answers), float64: that the model continues the chat with each answer.

        pictures: of one size. answers: texts of which none begins another.
        Answers that differ in their last token alone cost one forward pass; otherwise each costs one.
        """
        content = [{"type": "image"}, {"type": "text", "text": text}]
        chat = [{"role": "user", "content": content}]
        prompt = self._processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        gap = "" if prompt[-1:].isspace() else " "
        batches = [self._encoded(pictures, prompt + gap + answer) for answer in answers]
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

    def _encoded(self, pictures: Sequence[Image], text: str) -> Any:
        """Return the inputs of one text about every picture; pictures are of one size."""
        return self._processor(text=[text] * len(pictures), images=[[one] for one in pictures], return_tensors="pt")

    def _logits(self, batch: Any) -> Tensor:
        weight = next(self._model.parameters())
        moved = {k: v.to(weight) if v.is_floating_point() else v.to(weight.device) for k, v in batch.items()}
        return self._model(**moved).logits.double().cpu()

    def _note(self, attribute: str, spread: np.ndarray) -> None:
        """Update the mean of `order_bias`; warn once where the order of the options matters much."""
        before, first = self.order_bias.get(attribute, 0.0), attribute not in self.order_bias
        now = (before * self._read + float(spread.sum())) / (self._read + len(spread))
        self.order_bias[attribute] = now
        if now > BIAS and (first or before <= BIAS):
            warn(
                f"{self.name}: answers about {attribute} depend on the order of the options (mean total variation "
                f"{now:.2f} over {self._read + len(spread)} images); they are averaged over orders, but label some "
                "images by hand (vldebias label) and correct the judge by them"
            )


def cyclic(values: Sequence[str]) -> list[list[str]]:
    """Return the cyclic orders of values: each value stands in each place once."""
    return [[*values[i:], *values[:i]] for i in range(len(values))]


@register_judge
class VlmSpec(JudgeSpec):
    """A vision-language model. questions: attribute -> prompt set whose values are asked for.

    Without `questions` it is asked for the attribute of the task's own prompt set.
    """

    kind: Literal["vlm"] = "vlm"
    model: str
    questions: dict[str, str] | None = None

    def open(self, task: Any, session: Session) -> Judge:
        """Load the model."""
        asked = self.questions or {task.attribute: task.prompts}
        values = {attribute: tuple(load_prompts(name).attributes) for attribute, name in asked.items()}
        options = session.options
        return VlmJudge.load(self.model, values, device=options.device, dtype=options.dtype)
