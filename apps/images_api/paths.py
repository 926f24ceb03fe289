"""Parse request paths without decoding them, so that the upstream server gets the same bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, unquote_to_bytes

from starlette.types import Scope

from .order import RefusedError

# Maximum number of decoding layers. A server behind a proxy may decode a path again, but more
# layers have no legitimate use.
_LAYERS = 4
# Invalid UTF-8 that lenient decoders decode as "." and "/".
_OVERLONG = {
    b"\xc0\xae": b".",
    b"\xe0\x80\xae": b".",
    b"\xf0\x80\x80\xae": b".",
    b"\xc0\xaf": b"/",
    b"\xe0\x80\xaf": b"/",
    b"\xf0\x80\x80\xaf": b"/",
}
_SHOWN = 200  # maximum length of a path in headers and in the log


@dataclass(frozen=True)
class RequestPath:
    """A path below the address at which the app is mounted.

    Attributes:
        raw: The bytes sent by the client, without leading slashes.
    """

    raw: bytes

    @property
    def name(self) -> str:
        """Return the decoded path, such as "v1/images/generations", for looking up the endpoint.

        A segment with an encoded slash stays encoded, because the server treats it as one segment.
        """
        segments = []
        for segment in self.raw.strip(b"/").split(b"/"):
            text = unquote(segment)
            segments.append(segment.decode("latin-1") if "/" in text else text)
        return "/".join(segments)

    @property
    def plain(self) -> str:
        """Return the path as lenient servers read it, such as "v1/images" for "v1//images;x"."""
        segments = _plain_segments(_decoded(self.raw))
        return b"/".join(segment for segment in segments if segment).decode("latin-1")

    @property
    def shown(self) -> str:
        """Return the path for headers and the log, as printable ASCII of limited length."""
        return quote(self.raw.strip(b"/"), safe="/%:")[:_SHOWN]

    def without_first_segment(self) -> RequestPath:
        """Return the path below its first segment."""
        return RequestPath(self.raw.partition(b"/")[2].lstrip(b"/"))


def path_of(scope: Scope) -> RequestPath:
    """Return a request's path.

    Args:
        scope: The request's ASGI scope.

    Raises:
        RefusedError: If the path could escape the base path of the upstream server, contains a null
            character, or is not a path.
    """
    raw = scope.get("raw_path")
    if raw is None:
        # ASGI servers may omit the raw path.
        raw = quote(scope["path"], safe="/:@!$&'()*+,;=~").encode()
    raw = _below(raw.partition(b"?")[0], scope.get("root_path", "").rstrip("/"))
    if raw and not raw.startswith(b"/"):
        raise _refused("it must start with a slash")
    _check(raw)
    return RequestPath(raw.lstrip(b"/"))


def _below(raw: bytes, root: str) -> bytes:
    """Return the part of a path below the (decoded) path at which the app is mounted."""
    if not root:
        return raw
    # Percent-encoding takes at most three characters per byte.
    longest = 3 * len(root.encode())
    for end in range(1, min(len(raw), longest) + 1):
        is_boundary = end == len(raw) or raw[end : end + 1] == b"/"
        if is_boundary and unquote(raw[:end]) == root:
            return raw[end:]
    # A proxy must have removed the prefix already.
    return raw


def _check(raw: bytes) -> None:
    """Reject dot segments and null characters, however they are encoded.

    Raises:
        RefusedError: If the path contains one of them, or too many layers of percent-encoding.
    """
    decoded = _decoded(raw)
    if b"\0" in decoded:
        raise _refused("it contains a null character")
    if any(segment in (b".", b"..") for segment in _plain_segments(decoded)):
        raise _refused('it contains a segment "." or ".."; send the resolved path')


def _decoded(raw: bytes) -> bytes:
    """Return a path without any layer of percent-encoding.

    Raises:
        RefusedError: If there are too many layers.
    """
    decoded = raw
    for _ in range(_LAYERS):
        previous = decoded
        decoded = unquote_to_bytes(decoded)
        if decoded == previous:
            break
    else:
        raise _refused(f"it has more than {_LAYERS - 1} layers of percent-encoding")
    for encoded, character in _OVERLONG.items():
        decoded = decoded.replace(encoded, character)
    return decoded


def _plain_segments(decoded: bytes) -> list[bytes]:
    """Return the segments of a path as lenient servers read them.

    Some servers treat a backslash like a slash, and ignore spaces, dots at the end, text after a
    semicolon, and an encoded query or fragment.
    """
    segments = re.split(rb"[/\\]", re.split(b"[?#]", decoded, maxsplit=1)[0])
    plain = [segment.partition(b";")[0].strip() for segment in segments]
    # Keep the dots of a segment that has nothing else.
    return [segment.rstrip(b". ") or segment for segment in plain]


def _refused(reason: str) -> RefusedError:
    return RefusedError(400, f"the request path is rejected: {reason}", code="invalid_path")
