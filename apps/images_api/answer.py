"""Join the responses to several calls into the response to one request."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import count
from operator import itemgetter

from .bodies import check_parts
from .endpoints import Endpoint
from .order import Call, Json

_MOST_PARTS = 1_000_000  # maximum number of lists, objects and items in one response
_MOST_DIGITS = 4300  # maximum number of digits in an integer that Python parses


def read_answer(content: bytes | bytearray) -> Json | None:
    """Parse a JSON object, or return None for anything else.

    Numbers that JSON cannot represent (NaN, infinity) become null, so that the images are not lost
    because of an invalid number.
    """
    try:
        check_parts(content, _MOST_PARTS)
        answer = json.loads(
            content, parse_constant=_null, parse_float=_finite_number, parse_int=_whole_number
        )
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _null(_: str) -> None:
    return None


def _finite_number(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _whole_number(text: str) -> int | None:
    return int(text) if len(text) < _MOST_DIGITS else None


def has_images(answer: Json | None, items: str, *, may_be_empty: bool) -> bool:
    """Return whether a response contains a list of images.

    Args:
        answer: A response from `read_answer`.
        items: The field that contains the list.
        may_be_empty: Whether the list may be empty.
    """
    images = answer.get(items) if answer else None
    are_objects = isinstance(images, list) and all(isinstance(image, dict) for image in images)
    return are_objects and (may_be_empty or bool(images))


def joined(
    endpoint: Endpoint, calls: Sequence[Call], answers: Sequence[Json | None]
) -> tuple[Json, list[int]]:
    """Join responses, with images in the requested order.

    Args:
        endpoint: The endpoint, which defines the fields of a response.
        calls: The calls made for one request.
        answers: The response to each call, or None if the call failed.

    Returns:
        The joined response, and the row of each image that it contains. If a server returns more
        images than requested, the additional ones have the last row of their call.
    """
    items = endpoint.items
    images: list[tuple[int, Json]] = []
    additional = count(sum(len(call.rows) for call in calls))
    for call, answer in zip(calls, answers, strict=True):
        for place, image in enumerate(answer[items] if answer else []):
            row = call.rows[min(place, len(call.rows) - 1)]
            position = row if place < len(call.rows) else next(additional)
            images.append((row, endpoint.label(image, position, call.prompt)))
    images.sort(key=itemgetter(0))
    received = [answer for answer in answers if answer is not None]
    # Take the time, size and quality from the first response, since all calls used the same
    # settings.
    complete = {**received[0], items: [image for _, image in images]}
    counts = [answer.get(endpoint.usage) for answer in received]
    usages = [usage for usage in counts if isinstance(usage, dict)]
    if usages:
        complete[endpoint.usage] = added(usages)
    return complete, [row for row, _ in images]


def added(usages: Sequence[Mapping[str, object]]) -> Json:
    """Add up token counts, including nested ones, and take other values from the first item."""
    total: Json = {}
    for usage in usages:
        for name, value in usage.items():
            before = total.get(name)
            if isinstance(value, Mapping):
                total[name] = added([before, value] if isinstance(before, Mapping) else [value])
            elif isinstance(value, int | float) and not isinstance(value, bool):
                total[name] = _sum(before, value)
            else:
                # Strings, such as the name of a price tier, cannot be added up.
                total.setdefault(name, value)
    return total


def _sum(before: object, value: float) -> float | None:
    """Return the sum of two counts, or None if it is too large for JSON."""
    try:
        number = value + (before if isinstance(before, int | float) else 0)
        return number if math.isfinite(number) else None
    except OverflowError:
        return None


def encoded(answer: Json, items: str) -> list[bytes]:
    """Encode a response as JSON in pieces, so that large images are not copied repeatedly.

    Args:
        answer: A response from `joined`. Its images are removed as they are encoded.
        items: The field that contains the list of images.
    """
    images = answer.pop(items)
    images.reverse()
    # The list comes last, so that it can be completed image by image.
    pieces = [_json({**answer, items: []}).removesuffix(b"]}")]
    while images:
        pieces.append(_json(images.pop()))
        pieces.append(b"," if images else b"")
    pieces.append(b"]}")
    return pieces


def _json(value: object) -> bytes:
    # Use ASCII, so that a lone surrogate remains an escape sequence, as the server sent it.
    return json.dumps(value, separators=(",", ":")).encode()
