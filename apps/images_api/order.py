"""Describe image requests and the upstream calls for their balanced prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vldebias.wording import BalancedPrompts, Balancer
from vldebias.wording.persons import NEXT_TEXT

Json = dict[str, Any]  # a JSON object from a client or a server

# Maximum length of a balanced prompt, as in OpenAI's images API. Analysing a prompt takes time, and
# each image needs its own copy.
LONGEST_PROMPT = 32_000
TOO_LONG = f"longer than {LONGEST_PROMPT:,} characters"


class RefusedError(Exception):
    """Raised if a request is rejected. The response has the format of the images API.

    Args:
        status: The HTTP status.
        message: The message for the client.
        param: The invalid field.
        code: A machine-readable identifier of the error.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str = "invalid_value"
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        kind = "invalid_request_error" if status < 500 else "upstream_error"
        self.content = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True)
class Order:
    """An image request, as the server received it.

    Attributes:
        body: The fields in the request.
        texts: The texts that make up the prompt.
        n: The number of images.
        streams: Whether the response is a stream of events.
        seed: An integer of at least 0, or None if the request has no seed or asks for a random one
            with -1.
    """

    body: Json
    texts: tuple[str, ...]
    n: int
    streams: bool
    seed: int | None = None

    def __post_init__(self) -> None:
        # In Python, True is an int, but it is not a valid seed.
        is_whole = isinstance(self.seed, int) and not isinstance(self.seed, bool)
        if self.seed is not None and (not is_whole or self.seed < 0):
            object.__setattr__(self, "seed", None)

    @property
    def prompt(self) -> str:
        """Return all texts joined into one prompt, because they are balanced together."""
        return NEXT_TEXT.join(self.texts)

    @property
    def is_sequence(self) -> bool:
        """Return whether a call may return several images with one prompt, as for Seedream."""
        more = self.body.get("extra_body")
        fields = {**self.body, **(more if isinstance(more, dict) else {})}
        return fields.get("sequential_image_generation") not in (None, "", "disabled")


@dataclass(frozen=True)
class Call:
    """Describe one call to the upstream server.

    Attributes:
        body: The fields to send.
        prompt: The balanced prompt.
        rows: Positions of the images in the request.
    """

    body: Json
    prompt: str
    rows: tuple[int, ...]


def balanced_at(balancer: Balancer, order: Order, index: int | None) -> BalancedPrompts:
    """Return a prompt for each image in a request with a seed or an index.

    Args:
        balancer: A balancer with the same seed in every process.
        order: The request.
        index: Position of the request's first image in a count shared by all processes. If None,
            use the request's seed.
    """
    if index is None:
        assert order.seed is not None
        # Balance all images together, so that values are even for any seed.
        seeds = [order.seed + row for row in range(order.n)]
        return balancer.at([order.prompt] * order.n, seeds)
    # Derive values only from the positions, so that it does not matter which of several servers
    # receives the request.
    positions = balancer.indices_of_run(order.prompt, range(index, index + order.n))
    images = [balancer.at(order.prompt, position) for position in positions]
    return BalancedPrompts(
        [image.prompts[0] for image in images],
        [image.values[0] for image in images],
        [image.reasons[0] for image in images],
        images[0].seed,
        [image.people[0] for image in images],
    )
