"""Decide which headers are passed between clients and the upstream server."""

from __future__ import annotations

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

NOTE = "x-vldebias"  # header of answers: values, reasons, failures
ORIGINAL = "x-vldebias-original"  # header of requests: the user's own words, percent-encoded
INDEX = "x-vldebias-index"  # header of requests: place of the first image in a shared count

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
    # They contain the requested host and alternative addresses for it.
    b"host",
    b"alt-svc",
    # Set anew for the body that is sent.
    b"content-length",
    # Headers defined by this server.
    NOTE.encode(),
    ORIGINAL.encode(),
    INDEX.encode(),
})  # fmt: skip
# They describe the original body, which is encoded again.
OF_BODY = (b"content-encoding", b"accept-encoding", b"content-type")


def forwarded(headers: Iterable[tuple[bytes, bytes]], *left_out: bytes) -> Headers:
    """Return the headers to forward, keeping repeated headers.

    Args:
        headers: Names and values of a request or a response, as bytes.
        left_out: Lower-case names of additional headers to drop.
    """
    pairs = [(name.lower(), value) for name, value in headers]
    dropped = {*NOT_FORWARDED, *left_out}
    for name, value in pairs:
        # This header may list additional hop-by-hop headers.
        if name == b"connection":
            dropped |= {word.strip().lower() for word in value.split(b",")}
    return [(name, value) for name, value in pairs if name not in dropped]


def authenticates_connection(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a request authenticates its entire connection (NTLM, Negotiate)."""
    for name, value in headers:
        scheme = value.partition(b" ")[0].lower()
        if name.lower() == b"authorization" and scheme in (b"ntlm", b"negotiate"):
            return True
    return False
