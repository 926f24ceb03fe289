"""Join the answers of several calls to the answer of one request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .endpoints import Endpoint
from .order import Call

Json = dict[str, Any]


def read_answer(content: bytes, items: str) -> Json | None:
    """Return an answer with a list of images; None where it has another form.

    items: the field of the list.
    """
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return None
    images = answer.get(items) if isinstance(answer, dict) else None
    has_images = isinstance(images, list) and all(isinstance(image, dict) for image in images)
    return answer if has_images else None


def joined(
    endpoint: Endpoint, calls: Sequence[Call], answers: Sequence[Json | None]
) -> tuple[Json, list[int]]:
    """Join the answers in the order of the images.

    Args:
        endpoint: where an answer has its images.
        calls: of one request. answers: of each, None where it failed.

    Returns:
        The answer, and the rows of the images that are in it.
    """
    items = endpoint.items
    image_of_row: dict[int, Json] = {}
    for call, answer in zip(calls, answers, strict=True):
        images = answer[items] if answer else []
        # A server may make fewer images than it was asked for.
        for row, image in zip(call.rows, images, strict=False):
            image_of_row[row] = endpoint.label(image, row, call.prompt)
    rows = sorted(image_of_row)
    received = [answer for answer in answers if answer is not None]
    # Time, size and quality are those of the first; they were asked for alike.
    complete = {**received[0], items: [image_of_row[row] for row in rows]}
    counts = [answer.get(endpoint.usage) for answer in received]
    usages = [usage for usage in counts if isinstance(usage, dict)]
    if usages:
        complete[endpoint.usage] = added(usages)
    return complete, rows


def added(usages: Sequence[Mapping[str, Any]]) -> Json:
    """Return counts of tokens summed, nested ones too; what is no number is that of the first."""
    total: Json = {}
    for usage in usages:
        for name, value in usage.items():
            if isinstance(value, Mapping):
                before = total.get(name)
                total[name] = added([before, value] if isinstance(before, Mapping) else [value])
            elif isinstance(value, int | float) and not isinstance(value, bool):
                before = total.get(name)
                total[name] = value + (before if isinstance(before, int | float) else 0)
            else:
                # Words, such as the name of a price, are not added up.
                total.setdefault(name, value)
    return total
