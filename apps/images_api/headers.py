"""Select the headers to forward between clients and the upstream server."""

from __future__ import annotations

from collections.abc import Iterable

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
