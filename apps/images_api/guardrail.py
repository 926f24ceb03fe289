"""Implement LiteLLM's Generic Guardrail API, through which its gateway changes requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vldebias.wording import Balancer

from .endpoints import ChatEndpoint, is_image_model
from .order import LONGEST_PROMPT, Order, RefusedError

_CHAT = ChatEndpoint()


def guarded_texts(
    body: Mapping[str, object], balancer: Balancer, image_models: Sequence[str]
) -> list[str] | None:
    """State a value in a request's prompt and return its texts, or None if unchanged.

    The gateway calls this once per request, so all images of a request have the same value; values
    are even over requests. The prompt of a conversation is its last message, if its model generates
    images. Texts without a conversation are prompts of the images API.

    Args:
        body: The gateway's request: `texts`, `input_type`, and for conversations `model` and
            `structured_messages`.
        balancer: Assigns the values.
        image_models: Patterns of names of models whose responses are images.

    Raises:
        RefusedError: If `texts` is not a list of strings.
    """
    texts = body.get("texts")
    if texts is None:
        texts = []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RefusedError(400, "texts: expected a list of strings", param="texts")
    if body.get("input_type") != "request" or not texts:
        return None  # responses contain no prompt
    messages = body.get("structured_messages")
    prompt = tuple(texts)
    if messages:
        modalities = _modalities(body, image_models)
        order = _CHAT.read({"modalities": modalities, "messages": messages}, 1, image_models)
        if not isinstance(order, Order):
            return None
        prompt = order.texts
    elif body.get("images"):
        return None  # the image to edit shows the person
    if sum(map(len, prompt)) > LONGEST_PROMPT:
        return None
    (written,), _ = balancer.next_texts([prompt])
    # The texts of the last message come last.
    changed = texts[: len(texts) - len(prompt)] + list(written)
    return changed if changed != texts else None


def _modalities(body: Mapping[str, object], image_models: Sequence[str]) -> list[str]:
    """Return the modalities of the answer: an image if the model or a tool generates one."""
    tools = body.get("tools")
    has_tool = isinstance(tools, list) and any(
        isinstance(tool, Mapping) and tool.get("type") == "image_generation" for tool in tools
    )
    return ["image"] if has_tool or is_image_model(body.get("model"), image_models) else []
