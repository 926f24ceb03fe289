"""Judge images with a vision-language model: a multiple-choice question per image, answered by likelihood.

The answer is never parsed from generated text: each option is a letter, and its probability is the likelihood that the
model continues with that letter. Models prefer some letters and places, so every question is asked with the values in
each cyclic order and the likelihoods are averaged in log space; a warning says where the order matters much.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from vldebias.errors import InvalidInputError, warn
from vldebias.evaluation.judges import Judge, JudgeSpec, Probabilities, from_hub, register_judge
from vldebias.evaluation.session import Session
from vldebias.evaluation.task import Count
from vldebias.evaluation.variants import hash_of
from vldebias.hosts.base import weights_fingerprint
from vldebias.prompts import load_prompts

if TYPE_CHECKING:
    from PIL.Image import Image

NONE = "none of these, or it cannot be told"
BIAS = 0.2  # mean total variation between two orders from which a warning is worth it


def question(attribute: str, options: Sequence[str]) -> str:
    """Return the text of a question: its options by letter, in the order given."""
    listed = "\n".join(f"{letter}. {option}" for letter, option in zip(string.ascii_uppercase, options, strict=False))
    return f"Which {attribute} does the main subject of this picture show?\n{listed}\nAnswer with the letter alone."


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

    def ready(self, task: Any, session: Session) -> Judge:
        """Return the judge with its model loaded."""
        own = self if self.questions else self.model_copy(update={"questions": {task.attribute: task.prompts}})
        names = "AutoModelForImageTextToText", "AutoProcessor", self.model, session.options.device
        return own.on(*from_hub(*names, dtype=session.options.dtype or "auto"))

    def on(self, model: Any, processor: Any) -> Judge:
        """Return the judge that asks this model; the processor needs a chat template and a tokenizer.

        Raises:
            InvalidInputError: fewer than two values, more than 25, or a processor without a chat template.
        """
        given = (self.questions or {}).items()
        names = {a: of if isinstance(of, tuple) else tuple(load_prompts(of).attributes) for a, of in given}
        for attribute, some in names.items():
            if not 2 <= len(set(some)) == len(some) < len(string.ascii_uppercase):
                raise InvalidInputError(f"{attribute}: got {list(some)}; expected 2 to 25 different values")
        if not names or not getattr(processor, "chat_template", None):
            raise InvalidInputError(
                f"got {names} and {type(processor).__name__}; expected values of at least one attribute and a "
                "processor with a chat template: choose a model that was tuned to follow instructions"
            )
        warned = set[str]()

        def answers(images: Sequence[Image]) -> Probabilities:
            said = {}
            for attribute, values in names.items():
                each = np.stack([asked(images, attribute, order, values) for order in cyclic(values)])
                bias = 0.5 * np.abs(np.exp(each)[:, None] - np.exp(each)[None]).sum(-1).max(axis=(0, 1)).mean()
                if bias > BIAS and attribute not in warned:
                    warned.add(attribute)
                    warn(
                        f"{self.model}: answers about {attribute} depend on the order of the options (mean total "
                        f"variation {bias:.2f}). They are averaged over orders; label some images by hand (vldebias "
                        "label) to correct the judge"
                    )
                mean = each.mean(axis=0)
                chances = np.exp(mean - np.logaddexp.reduce(mean, axis=1, keepdims=True))
                said[attribute] = chances[:, :-1]
            return said

        def asked(images: Sequence[Image], attribute: str, order: list[str], values: Sequence[str]) -> np.ndarray:
            """Return log probabilities (n, values + 1) of one order, columns as the values and then NONE."""
            text, letters = question(attribute, [*order, NONE]), string.ascii_uppercase[: len(order) + 1]
            rows = np.empty((len(images), len(letters)))
            for size in {image.size for image in images}:  # of one size: as many image tokens, so nothing is padded
                same = [i for i, image in enumerate(images) if image.size == size]
                for batch in (same[i : i + self.batch_size] for i in range(0, len(same), self.batch_size)):
                    scores = likelihoods(model, processor, [images[i] for i in batch], text, letters)
                    rows[batch] = scores.log_softmax(dim=1).numpy()
            return rows[:, [*map(order.index, values), len(order)]]

        texts = {attribute: question(attribute, sorted(some)) for attribute, some in names.items()}
        mark = hash_of([weights_fingerprint(model), processor.chat_template, texts, names])
        return Judge(self.model, names, answers, mark)


def cyclic(values: Sequence[str]) -> list[list[str]]:
    """Return the cyclic orders of the sorted values: each value is once in each place."""
    some = sorted(values)
    return [[*some[i:], *some[:i]] for i in range(len(some))]


@torch.no_grad()
def likelihoods(model: Any, processor: Any, images: Sequence[Image], text: str, answers: Sequence[str]) -> Tensor:
    """Return float64 log-likelihoods (n, answers) that the model continues the chat with each answer.

    images: of one size. answers: texts of which none begins another.
    Answers that differ in their last token alone cost one forward pass; otherwise each costs one.
    """
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
    prompt = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    prompt += "" if prompt[-1:].isspace() else " "
    pictures = [[image.convert("RGB")] for image in images]
    batches = [processor(text=[prompt + a] * len(images), images=pictures, return_tensors="pt") for a in answers]
    ids = [batch["input_ids"][0].tolist() for batch in batches]
    shared = next(i for i, column in enumerate(zip(*ids, strict=False)) if len(set(column)) > 1)
    weight = next(model.parameters())

    def chances(batch: Any) -> Tensor:
        moved = {k: v.to(weight) if v.is_floating_point() else v.to(weight.device) for k, v in batch.items()}
        scores: Tensor = model(**moved).logits[:, shared - 1 : -1].double().cpu().log_softmax(dim=-1)
        return scores

    if all(len(row) == shared + 1 for row in ids):
        return chances(batches[0])[:, 0, [row[shared] for row in ids]]
    wanted = [torch.tensor(row[shared:]).expand(len(images), -1)[..., None] for row in ids]
    each = [chances(batch).gather(2, own)[..., 0].sum(dim=1) for batch, own in zip(batches, wanted, strict=True)]
    return torch.stack(each, dim=1)
