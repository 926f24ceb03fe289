"""Serve the images API with balanced prompts, as an ASGI app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.middleware import Middleware

from vldebias.errors import InvalidInputError
from vldebias.wording import Balancer

from .endpoints import IMAGE_MODELS
from .limits import ProxyLimits
from .middleware import EveryAnswer
from .service import Service
from .upstream import checked_address


def images_proxy(  # noqa: PLR0913
    upstream: str | None,
    attribute: Any,
    *,
    shares: Mapping[str, float] | None = None,
    seed: int | None = None,
    batch: bool = False,
    limits: ProxyLimits | None = None,
    log_prompts: bool = False,
    follow_seeds: bool = True,
    image_models: Sequence[str] = IMAGE_MODELS,
    edit: str | Path | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> Starlette:
    """Return an ASGI app that balances the prompts in image requests and forwards them.

    Image requests are requests to OpenAI's `/images/generations`, `/chat/completions`, `/responses`
    and `/videos`, OpenRouter's `/images`, Gemini's `:generateContent` and Imagen's `:predict`. A
    request for n images becomes n calls to the upstream server, each with a value in its prompt.
    Requests to other paths are forwarded unchanged. Keys, headers and errors are forwarded, but the
    app does not store keys or cookies. Every response has a header `x-vldebias` that contains the
    values or the reason why nothing was balanced.

    Args:
        upstream: The `base_url` that clients would use without this app, such as
            "https://api.openai.com/v1". If None, there is no upstream server, and only LiteLLM's
            guardrail works.
        attribute: The attributes to balance, as for `vldebias.balance_prompts`, or a
            `vldebias.wording.Balancer`, which has its own shares and seed. If None, prompts are not
            balanced.
        shares: The share of each value; equal by default, over all requests to this app.
        seed: Seed of the assigned values. Default: random.
        batch: Whether to make one call per distinct prompt, which requests several images, instead
            of one call per image.
        limits: Limits on time, memory and the number of requests, see `ProxyLimits`.
        log_prompts: Whether to write prompts to the log "vldebias.images_api".
        follow_seeds: Whether values are derived from the `seed` of a request, so that the same
            request returns the same image. If False, values are even over all requests, regardless
            of their seeds.
        image_models: Name patterns of models that return images. They are used for paths that may
            also return text.
        edit: Folder of an edit (`save_pretrained`) that is applied to query embeddings, which are
            requests to `/embeddings` with `input_type` "query" and all requests to paths below
            `/queries`. Documents are left unchanged. This needs the extra "torch".
        transport: An httpx2 transport, for tests.

    Raises:
        InvalidInputError: If an argument is invalid; the message names it.

    >>> app = images_proxy("https://api.openai.com/v1", "gender")  # doctest: +SKIP
    """
    balancer = attribute
    if isinstance(attribute, Balancer) and not (shares is None and seed is None):
        raise InvalidInputError(
            "attribute: got a Balancer together with shares or seed; remove shares and seed,"
            " because a Balancer has its own"
        )
    if attribute is None and edit is None:
        raise InvalidInputError("got neither attribute nor edit; expected at least one of them")
    if attribute is not None and not isinstance(attribute, Balancer):
        balancer = Balancer(attribute, shares, seed)
    edits = None
    if edit is not None:
        # Imported here, because the module needs numpy and torch, but image requests do not.
        from .embeddings import QueryEdits

        edits = QueryEdits(edit)
    limits = ProxyLimits() if limits is None else limits
    service = Service(
        None if upstream is None else checked_address(upstream),
        balancer,
        edits,
        limits=limits,
        batch=batch,
        log_prompts=log_prompts,
        follow_seeds=follow_seeds,
        image_models=tuple(image_models),
        transport=transport,
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()

    # The lifespan of a mounted app does not run, so connections are opened on demand.
    middleware = [Middleware(EveryAnswer, seconds=limits.seconds)]
    app = Starlette(middleware=middleware, lifespan=lifespan)
    # A route "/{path:path}" would not match paths with an encoded line break.
    app.router.default = service
    return app


__all__ = ["ProxyLimits", "Service", "images_proxy"]
