"""Limits of the images API, so that no request takes more than its share."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vldebias.errors import InvalidInputError

_MINIMUM = {"retries": 0.0, "seconds": 0.01}  # every other limit is at least 1


@dataclass(frozen=True)
class Limits:
    """Bound the time, memory and number of requests.

    Attributes:
        seconds: Time for one request, counted from its headers to the start of its answer. It
            covers reading the body and every retry. Sending an answer back may take as long again.
        images: Images of one request.
        body: Bytes of one request for images.
        bodies: Bytes of all bodies that have not arrived completely. If they are exceeded, the
            body that has been incomplete for longest is dropped.
        answer: Bytes of the upstream server's answers to one request. All requests together hold
            at most twice as much; further answers are read once there is room.
        connections: Open connections of `vldebias serve`. If they are exceeded, the connection
            that has been without a complete request for longest is closed.
        parallel: Concurrent calls of the upstream server, over all requests.
        requests: Concurrent requests for images, counted once their bodies have arrived. Further
            ones get status 503.
        retries: How often a failed call is repeated.
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
            # NaN compares false with everything, so `not >=` refuses it.
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if not is_number or not number >= minimum:
                raise InvalidInputError(
                    f"{field.name}: got {number!r}; expected a number of at least {minimum:g}"
                )
