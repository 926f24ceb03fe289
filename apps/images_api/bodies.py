"""Parse the fields in a request body, which may be JSON or a multipart form."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping

from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from .order import Json, RefusedError

# Maximum number of lists, objects and their items. Each takes only two or three bytes as JSON, but
# up to a hundred bytes once it is parsed.
_MOST_PARTS = 100_000


async def read_fields(request: Request, content: bytes | bytearray) -> Json:
    """Parse the fields in a request body, ignoring files in a form.

    Args:
        request: The request, for its content type.
        content: The complete body of the request.

    Raises:
        RefusedError: If the body is compressed, or neither a JSON object nor a form.
    """
    # A few compressed bytes can expand to gigabytes.
    if is_compressed(request):
        message = "the body is compressed; send plain JSON"
        raise RefusedError(415, message, code="unsupported_value")
    if is_form(request):
        return await _form_fields(request, content)
    try:
        check_parts(content)
    except ValueError as error:
        raise RefusedError(400, f"the body has {error}", code="too_large") from None
    try:
        # Decode it first, since `json.loads` would accept UTF-16 and encoded surrogates.
        body = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body is not JSON", code="invalid_json") from None
    if not isinstance(body, dict):
        raise RefusedError(400, "the body is not a JSON object", code="invalid_json")
    return body


async def _form_fields(request: Request, content: bytes | bytearray) -> Json:
    """Return the fields in a form, combining fields with the same name in a list."""

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield bytes(content)

    try:
        form = await MultiPartParser(request.headers, pieces()).parse()
    except (MultiPartException, ValueError, LookupError) as error:
        raise RefusedError(400, f"the form cannot be read: {error}") from None
    fields: Json = {}
    for name in form:
        values = form.getlist(name)
        fields[name] = values if len(values) > 1 else values[0]
    return fields


def is_form(request: Request) -> bool:
    """Return whether a request body is a multipart form, which is common for videos."""
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


def is_compressed(request: Request) -> bool:
    """Return whether a request body is compressed."""
    return request.headers.get("content-encoding", "identity").lower() != "identity"


def check_parts(content: bytes | bytearray, most: int = _MOST_PARTS) -> None:
    """Reject JSON that would need many times its size in memory.

    Args:
        content: The JSON.
        most: Maximum number of lists, objects and commas.

    Raises:
        ValueError: If there are more than `most` of them.
    """
    parts = content.count(b"[") + content.count(b"{") + content.count(b",")
    if parts > most:
        raise ValueError(f"more than {most:,} lists, objects and commas")


def check_json(body: Mapping[str, object]) -> None:
    """Reject values that Python accepts in JSON but other servers do not.

    Raises:
        RefusedError: If the body contains NaN, infinity, or half of a surrogate pair.
    """
    try:
        encoded_json(body)
    except (TypeError, ValueError, RecursionError):
        message = "the body is not JSON: it contains NaN, infinity or half of a surrogate pair"
        raise RefusedError(400, message, code="invalid_json") from None


def encoded_json(body: Mapping[str, object]) -> bytes:
    """Encode fields as JSON in UTF-8.

    Raises:
        ValueError: If the body contains NaN, infinity, or half of a surrogate pair.
    """
    text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()
