"""Read a request for images, and write the calls that its balanced prompts become."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vldebias.prompts import BalancedPrompts, Balancer


class RefusedError(Exception):
    """Report a request that is not passed on, in the form of the images API.

    status: of HTTP. message: a sentence. param: the field that is wrong. code: for programs.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str = "invalid_value"
    ) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "upstream_error"
        self.content = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True)
class Order:
    """Hold a request for images.

    Attributes:
        body: its fields. prompt, n: what is asked for, n times.
        streams: whether the answer comes in events.
    """

    body: Mapping[str, Any]
    prompt: str
    n: int
    streams: bool

    @classmethod
    def read(cls, content: bytes, max_images: int) -> Order:
        """Read the body of a request.

        Args:
            content: JSON as the images API has it.
            max_images: of one request.

        Raises:
            RefusedError: no JSON, no prompt, or a number of images that is none or too large.
        """
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            raise RefusedError(400, "the body is not JSON", code="invalid_json") from None
        if not isinstance(body, dict):
            raise RefusedError(400, "the body is no JSON object", code="invalid_json")
        prompt = body.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            raise RefusedError(400, "prompt: expected a text that is not empty", param="prompt")
        n = body.get("n")
        # As the API: a missing n and null are 1.
        n = 1 if n is None else n
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= max_images:
            raise RefusedError(400, f"n: expected a whole number from 1 to {max_images}", param="n")
        streams = body.get("stream") is True
        # Events of several calls, mixed, would say nothing about which image they are of.
        if streams and n > 1:
            message = "stream: several images cannot be streamed; ask for one, or without stream"
            raise RefusedError(400, message, param="stream", code="unsupported_value")
        return cls(body, prompt, n, streams)


@dataclass(frozen=True)
class Call:
    """Hold one call of the upstream server.

    Attributes:
        body: the fields that are sent. prompt: with its value.
        rows: the images of the request that the call is for.
    """

    body: Mapping[str, Any]
    prompt: str
    rows: tuple[int, ...]


def balanced(balancer: Balancer, order: Order, index: int | None) -> BalancedPrompts:
    """Return a prompt for each image of a request.

    index: place of its first image in a count that all processes share, for servers without a
    memory; None takes the counts of the balancer.
    """
    if index is None:
        return balancer.next([order.prompt] * order.n)
    # By their numbers alone, whichever server of several gets the request.
    images = [balancer.at(order.prompt, index + row) for row in range(order.n)]
    return BalancedPrompts(
        [image.prompts[0] for image in images],
        [image.values[0] for image in images],
        [image.reasons[0] for image in images],
        images[0].seed,
    )


def calls_of(order: Order, prompts: Sequence[str], *, batch: bool) -> list[Call]:
    """Return the calls for the prompts of a request: one for each image, or for each distinct
    prompt.

    Where the request has a seed, the images have seeds in a row: else images of one prompt would
    be equal.
    """
    if not batch:
        return [_call(order, prompt, (row,)) for row, prompt in enumerate(prompts)]
    rows_of_prompt: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows_of_prompt.setdefault(prompt, []).append(row)
    return [_call(order, prompt, tuple(rows)) for prompt, rows in rows_of_prompt.items()]


def _call(order: Order, prompt: str, rows: tuple[int, ...]) -> Call:
    body = {**order.body, "prompt": prompt}
    # Some servers refuse fields that they do not know, so that none is added.
    if "n" in body:
        body["n"] = len(rows)
    seed = body.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool):
        # True is an int of Python, and no seed.
        body["seed"] = seed + rows[0]
    return Call(body, prompt, rows)
