"""Serve the images API with balanced prompts, as an ASGI app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware

from vldebias.errors import InvalidInputError
from vldebias.wording import Balancer

from .endpoints import IMAGE_MODELS
from .limits import Limits
from .middleware import EveryAnswer
from .service import Service
from .upstream import checked_address


def images_proxy(  # noqa: PLR0913
    upstream: str | None,
    sets: Any,
    *,
    shares: Mapping[str, float] | None = None,
    seed: int | None = None,
    batch: bool = False,
    limits: Limits | None = None,
    log_prompts: bool = False,
    follow_seeds: bool = True,
    image_models: Sequence[str] = IMAGE_MODELS,
    edit: str | Path | None = None,
    transport: Any = None,
) -> Starlette:
    """Return an ASGI app that balances the prompts of requests for images and passes them on.

    Requests for images are those of OpenAI's `/images/generations`, `/chat/completions`,
    `/responses` and `/videos`, OpenRouter's `/images`, Gemini's `:generateContent` and Imagen's
    `:predict`. n images become n calls of the upstream server, each with a value in its prompt.
    Every other path is passed on unchanged. Keys, headers and errors pass through; the app stores
    no key and no cookie. The header `x-vldebias` of every answer says what was done.

    Args:
        upstream: The `base_url` that a client has without this app, "https://api.openai.com/v1".
            None: there is no server behind it, and only LiteLLM's guardrail is answered.
        sets: What to balance, see `vldebias.balance_prompts`; or a `vldebias.wording.Balancer`
            with its own shares and seed. None: no prompt is balanced, and only `edit` acts.
        shares: See `vldebias.balance_prompts`. Values are even over all requests of this app.
        seed: See `vldebias.balance_prompts`. None: a random one.
        batch: Make one call for each distinct prompt, with its number of images, instead of one
            for each image.
        limits: Limits of time, memory and number; see `Limits`.
        log_prompts: Write prompts into the log "vldebias.serving". Default: only numbers.
        follow_seeds: Let the `seed` of a request decide its values, so that the same request gives
            the same image. False: values are even over all requests, whatever their seeds.
        image_models: Patterns of names of models whose answers are images, for paths that answer
            with texts as well.
        edit: Folder of an edit (`save_pretrained`) for the embeddings of queries: requests to
            `/embeddings` with `input_type` "query", and all requests below `/queries`. Documents
            stay unchanged. It needs the extra "torch".
        transport: A transport of httpx2, for tests.

    Raises:
        InvalidInputError: An address, a set, shares or limits that do not fit.

    >>> app = images_proxy("https://api.openai.com/v1", "gender")  # doctest: +SKIP
    """
    balancer = sets
    if isinstance(sets, Balancer) and not (shares is None and seed is None):
        raise InvalidInputError(
            "sets: got a Balancer and shares or seed; leave these out, it has its own"
        )
    if sets is None and edit is None:
        raise InvalidInputError("got neither sets nor edit; expected what to balance, or to edit")
    if sets is not None and not isinstance(sets, Balancer):
        balancer = Balancer(sets, shares, seed)
    edits = None
    if edit is not None:
        # It needs numpy and torch, which images do not.
        from .embeddings import QueryEdits

        edits = QueryEdits(edit)
    limits = Limits() if limits is None else limits
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

    # An app that is mounted in another has no lifespan of its own: connections open on demand.
    middleware = [Middleware(EveryAnswer, seconds=limits.seconds)]
    app = Starlette(middleware=middleware, lifespan=lifespan)
    # For every path: a route "/{path:path}" matches none with an encoded line break.
    app.router.default = service
    return app


__all__ = ["Limits", "Service", "images_proxy"]
