"""`vldebias serve`: run a proxy that balances prompts in front of an image API."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from vldebias.cli.balance import shares_of
from vldebias.cli.common import print_message
from vldebias.cli.flags import Groups, Shares
from vldebias.errors import InvalidInputError
from vldebias.wording import Balancer

ADDRESS = "Address"


def serve(  # noqa: PLR0913  (each is an option of the command)
    attribute: Annotated[
        list[str] | None,
        typer.Option(help="gender, age, race, skin-tone or a YAML file; repeatable."),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="base_url of the image service. Default: only serve LiteLLM's guardrail.",
        ),
    ] = None,
    shares: Shares = None,
    groups: Groups = "mixed",
    batch: Annotated[
        bool,
        typer.Option(
            "--batch", help="Make one upstream call per distinct prompt instead of per image."
        ),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed for drawing values. Default: random.")
    ] = None,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Log prompts to stderr.")
    ] = False,
    image_models: Annotated[
        list[str] | None,
        typer.Option(
            "--image-model",
            metavar="PATTERN",
            help="Models that return images; repeatable. Default: *image*, dall-e*, ...",
        ),
    ] = None,
    edit: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Folder of an edit to apply to query embeddings."
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. Addresses other than the default expose the server to"
            " the network.",
            rich_help_panel=ADDRESS,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port; 0 selects a free one.", rich_help_panel=ADDRESS),
    ] = 8790,
    seconds: Annotated[
        float, typer.Option(help="Timeout per request in seconds, including its body.")
    ] = 300.0,
) -> None:
    """Run a proxy that splits each request for images into requests with balanced prompts.

    A request for n images becomes n upstream requests, each with an attribute value in its prompt.
    Clients only have to change their base_url. The proxy supports OpenAI's images, chat, responses
    and videos APIs, OpenRouter's images API and Gemini's generateContent. Other paths, keys and
    errors are passed through unchanged. The response header x-vldebias reports what was done. By
    default, the server is only accessible from this machine and logs no prompts.

    Examples:
      vldebias serve --upstream https://api.openai.com/v1 --attribute gender
      vldebias serve --upstream https://generativelanguage.googleapis.com \\
          --attribute gender
      vldebias serve --attribute gender   # only LiteLLM's guardrail
      vldebias serve --upstream http://127.0.0.1:8000/v1 \\
          --edit gender-edit/   # edit embeddings
      vldebias serve --upstream http://127.0.0.1:8000/v1 --batch \\
          --attribute gender --attribute age
      vldebias serve --upstream https://api.openai.com/v1 --attribute gender \\
          --shares female=0.7,male=0.3 --port 9000
    """
    from .app import images_proxy
    from .endpoints import IMAGE_MODELS
    from .limits import ProxyLimits
    from .server import serve as serve_app

    if not attribute and edit is None:
        raise InvalidInputError(
            "expected --attribute to balance prompts, --edit to edit embeddings, or both"
        )
    if edit is not None and upstream is None:
        raise InvalidInputError(
            "--edit needs --upstream URL, the service that computes the embeddings"
        )
    balancer = None
    if attribute:
        sets = attribute if len(attribute) > 1 else attribute[0]
        balancer = Balancer(sets, shares_of(shares), seed, people=groups)
    limits = ProxyLimits(seconds=seconds)
    app = images_proxy(
        upstream,
        balancer,
        batch=batch,
        limits=limits,
        log_prompts=log_prompts,
        image_models=image_models or IMAGE_MODELS,
        edit=edit,
    )
    if log_prompts:
        # Only show warnings from other libraries, because httpx2 logs every URL at level INFO.
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
        logging.getLogger("vldebias.images_api").setLevel(logging.INFO)
    task = f"balancing {' and '.join(attribute)}" if attribute else "editing queries"
    place = "for LiteLLM's guardrail" if upstream is None else f"in front of {upstream}"
    serve_app(
        app,
        host=host,
        port=port,
        limits=limits,
        announce=lambda address: print_message(f"{task} {place}; base_url={address}"),
    )
