"""Select the headers to forward between clients and the upstream server."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

Headers = list[tuple[bytes, bytes]]

NOTE = "x-vldebias"  # response header with values, reasons and failures
INDEX = "x-vldebias-index"  # request header with the position of the first image in a shared count

# Headers that are not forwarded in either direction.
NOT_FORWARDED = frozenset({
    # Hop-by-hop headers (RFC 9110, section 7.6.1).
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"http2-settings",
    # Headers handled by this server itself.
    b"expect",
    # Headers with the requested host and its alternative addresses.
    b"host",
    b"alt-svc",
    # Set again for the forwarded body.
    b"content-length",
    # Headers defined by this server.
    NOTE.encode(),
    INDEX.encode(),
})  # fmt: skip
# Parts of the names of headers and query fields that contain credentials. Names that only resemble
# one, such as "design", cost a connection; a missing name could give a client another's response.
CREDENTIAL = re.compile(
    rb"auth|cookie|key|token|secret|sig|pass|credential|session|sid|jwt|code|account|user(?!-agent)"
)
# Headers that describe the original body, which is encoded again.
OF_BODY = (b"content-encoding", b"accept-encoding", b"content-type")


def forwarded(headers: Iterable[tuple[bytes, bytes]], *left_out: bytes) -> Headers:
    """Return the headers to forward. Repeated headers are kept.

    Args:
        headers: Header names and values of a request or response, as bytes.
        left_out: Lower-case names of additional headers to drop.
    """
    pairs = [(name.lower(), value) for name, value in headers]
    dropped = {*NOT_FORWARDED, *left_out}
    for name, value in pairs:
        # This header may list additional hop-by-hop headers.
        if name == b"connection":
            dropped |= {word.strip().lower() for word in value.split(b",")}
    return [(name, value) for name, value in pairs if name not in dropped]


def credentials_of(
    headers: Iterable[tuple[bytes, bytes]], query: bytes = b""
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers and query fields that identify a client to the upstream server, sorted.

    These are Authorization, Cookie, names that are specific to a service, such as "x-api-key" and
    "x-goog-iam-authorization-token", and keys in the query, such as Gemini's "key" and the "sig" of
    a signed address.

    Args:
        headers: Header names and values of a request.
        query: The query of its target, as it was sent.
    """
    pairs = [(name.lower(), value) for name, value in headers]
    for field in re.split(b"[&;]", query):
        name, _, value = field.partition(b"=")
        pairs.append((b"?" + unquote_to_bytes(name).lower(), value))
    return tuple(sorted(pair for pair in pairs if CREDENTIAL.search(pair[0])))


def authenticates_connection(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a request authenticates its entire connection (NTLM, Negotiate)."""
    for name, value in headers:
        scheme = value.partition(b" ")[0].lower()
        if name.lower() == b"authorization" and scheme in (b"ntlm", b"negotiate"):
            return True
    return False
