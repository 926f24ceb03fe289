"""Hold the limits of the images API, so that no request takes more than its share."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vldebias.errors import InvalidInputError

_LEAST = {"retries": 0.0, "seconds": 0.01}  # of the others 1


@dataclass(frozen=True)
class Limits:
    """Hold what a request and all of them together may take.

    Attributes:
        seconds: for a request, with everything that is asked again.
        images: of one request.
        body: bytes of a request for images.
        answer: bytes of one answer of the upstream server.
        parallel: calls of the upstream server at once, over all requests.
        requests: requests for images at once; more are told to come again.
        retries: how often a call that failed is asked again.
    """

    seconds: float = 300.0
    images: int = 16
    body: int = 1_000_000
    answer: int = 256_000_000
    parallel: int = 16
    requests: int = 256
    retries: int = 2

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            least = _LEAST.get(field.name, 1)
            # NaN compares false with everything, so it is refused by the line below.
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if not is_number or not number >= least:
                raise InvalidInputError(
                    f"{field.name}: got {number!r}; expected a number from {least:g} on"
                )
