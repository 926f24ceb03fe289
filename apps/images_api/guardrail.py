"""Implement LiteLLM's Generic Guardrail API, which lets a service change its gateway's requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vldebias.wording import Balancer

from .endpoints import ChatEndpoint, may_return_image
from .order import LONGEST_PROMPT, Order, RefusedError

_CHAT = ChatEndpoint()


def guarded_texts(
    body: Mapping[str, object], balancer: Balancer, image_models: Sequence[str]
) -> list[str] | None:
    """State a value in a request's prompt and return its texts, or None if they are unchanged.

    The gateway calls this once per request, so all images in a request have the same value, and
    values are even over requests. If the model generates images, the last message of a conversation
    is the prompt. Texts outside a conversation are prompts for the images API.

    Args:
        body: The gateway's request, with `texts` and `input_type`, and for conversations also
            `model` and `structured_messages`.
        balancer: The balancer that assigns the values.
        image_models: Name patterns of models that return images.

    Raises:
        RefusedError: If `texts` is not a list of strings.
    """
    texts = body.get("texts")
    if texts is None:
        texts = []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RefusedError(400, "texts: expected a list of strings", param="texts")
    if body.get("input_type") != "request" or not texts:
        return None  # this is a response, which contains no prompt
    messages = body.get("structured_messages")
    prompt = tuple(texts)
    if messages:
        modalities = ["image"] if may_return_image(body, image_models) else []
        order = _CHAT.read({"modalities": modalities, "messages": messages}, 1, image_models)
        if not isinstance(order, Order):
            return None
        prompt = order.texts
    elif body.get("images"):
        return None  # the request is to edit an image, which already shows the person
    if sum(map(len, prompt)) > LONGEST_PROMPT:
        return None
    (written,), _ = balancer.next_texts([prompt])
    # The texts of the last message are at the end.
    changed = texts[: len(texts) - len(prompt)] + list(written)
    return changed if changed != texts else None
