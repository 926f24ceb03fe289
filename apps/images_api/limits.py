"""Limit the resources that requests to the images API may use."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vldebias.errors import InvalidInputError

_MINIMUM = {"retries": 0.0, "seconds": 0.01}  # the minimum of all other limits is 1


@dataclass(frozen=True)
class ProxyLimits:
    """Store limits on the time, memory and number of requests.

    Attributes:
        seconds: Maximum time from the headers of a request to the start of its response, including
            the time for reading the body and for retries. Sending the response may take the same
            time again.
        images: Maximum number of images per request.
        body: Maximum size of an image request, in bytes.
        bodies: Maximum total size of incomplete bodies, in bytes. If it is exceeded, the body that
            has been incomplete for the longest time is dropped.
        answer: Maximum size of the upstream responses for one request, in bytes. All requests
            together may use twice as much; beyond that, responses wait for memory. While a response
            is parsed and joined, the peak of the process's memory is about four times its size.
        connections: Maximum number of open connections to `vldebias serve`. If it is exceeded, the
            connection that has gone without a complete request for the longest time is closed.
        parallel: Maximum number of concurrent calls to the upstream server, over all requests.
        requests: Maximum number of concurrent image requests whose bodies have arrived. Additional
            requests receive status 503.
        retries: Maximum number of retries of a failed call.
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
