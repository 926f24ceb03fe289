"""Limit the resources that requests to the images API may use."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vldebias.errors import InvalidInputError

_MINIMUM = {"retries": 0.0, "seconds": 0.01}  # every other limit is at least 1


@dataclass(frozen=True)
class Limits:
    """Store limits on the time, memory and number of requests.

    Attributes:
        seconds: Maximum time from the headers of a request to the start of its response, including
            reading the body and retries. Sending the response may take the same time again.
        images: Maximum number of images per request.
        body: Maximum size of a request for images, in bytes.
        bodies: Maximum total size of incomplete bodies, in bytes. If it is exceeded, the body that
            has been incomplete for the longest time is dropped.
        answer: Maximum size of the upstream server's responses to one request, in bytes. All
            requests together may use twice as much; further responses wait until there is space.
        connections: Maximum number of open connections of `vldebias serve`. If it is exceeded, the
            connection that has been without a complete request for the longest time is closed.
        parallel: Maximum number of concurrent calls to the upstream server, over all requests.
        requests: Maximum number of concurrent requests for images whose bodies have arrived.
            Further requests receive status 503.
        retries: Number of retries of a failed call.
    """

    seconds: float = 300.0
    images: int = 16
    body: int = 1_000_000
    bodies: int = 64_000_000
    answer: int = 128_000_000
    connections: int = 400
    parallel: int = 16
    requests: int = 256
    retries: int = 2

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            minimum = _MINIMUM.get(field.name, 1)
            # `not >=` also rejects NaN, for which every comparison is false.
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if not is_number or not number >= minimum:
                raise InvalidInputError(
                    f"{field.name}: got {number!r}; expected a number of at least {minimum:g}"
                )
