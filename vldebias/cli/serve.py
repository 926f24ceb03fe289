"""`vldebias serve`: balanced prompts before a server of the OpenAI images API."""

from __future__ import annotations

import logging
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.balance import shares_of
from vldebias.cli.common import say
from vldebias.cli.flags import Groups, Shares, with_flags
from vldebias.errors import InvalidInputError
from vldebias.wording import Balancer

LIMITS = "Limits"
WHERE = "Where it listens"
_FLAGS: tuple[tuple[str, Any, Any], ...] = (
    (
        "follow_seeds",
        Annotated[
            bool,
            typer.Option(
                "--follow-seeds/--no-follow-seeds",
                help="A request's seed decides its values: the same request, the same image.",
            ),
        ],
        True,
    ),
    (
        "image_models",
        Annotated[
            list[str] | None,
            typer.Option(
                "--image-model",
                metavar="PATTERN",
                help="Model that answers with images; repeatable. Default: *image*, dall-e*, ...",
            ),
        ],
        None,
    ),
    (
        "edit",
        Annotated[
            Path | None,
            typer.Option(
                exists=True,
                file_okay=False,
                help="Folder of an edit to apply to embeddings of queries.",
            ),
        ],
        None,
    ),
    (
        "host",
        Annotated[
            str,
            typer.Option(
                help="Address to listen on; any other opens the server to a network.",
                rich_help_panel=WHERE,
            ),
        ],
        "127.0.0.1",
    ),
    (
        "port",
        Annotated[
            int,
            typer.Option(min=0, max=65535, help="Port; 0 picks a free one.", rich_help_panel=WHERE),
        ],
        8790,
    ),
    (
        "seconds",
        Annotated[
            float,
            typer.Option(
                help="Seconds for one request, reading its body included.", rich_help_panel=LIMITS
            ),
        ],
        300.0,
    ),
    (
        "images",
        Annotated[int, typer.Option(min=1, help="Images of one request.", rich_help_panel=LIMITS)],
        16,
    ),
    (
        "parallel",
        Annotated[
            int, typer.Option(min=1, help="Calls to the upstream at once.", rich_help_panel=LIMITS)
        ],
        16,
    ),
    (
        "retries",
        Annotated[
            int,
            typer.Option(
                min=0, help="How often a failed call is repeated.", rich_help_panel=LIMITS
            ),
        ],
        2,
    ),
)


@with_flags(_FLAGS)
def serve(
    attribute: Annotated[
        list[str] | None,
        typer.Option(help="gender, age, race, skin-tone or a YAML file; repeatable."),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="base_url of the service that generates. Default: LiteLLM's guardrail alone.",
        ),
    ] = None,
    shares: Shares = None,
    groups: Groups = "mixed",
    batch: Annotated[
        bool,
        typer.Option("--batch", help="One call for each distinct prompt, not for each image."),
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the values. Default: random.")] = None,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Write prompts to stderr.")
    ] = False,
    **named: Any,
) -> None:
    """Serve image APIs with balanced prompts: a request for n images becomes n requests to the
    server that you name, each with a value in its prompt.

    Clients change their base_url and nothing else. OpenAI's images, chat, responses and videos,
    OpenRouter's images and Gemini's generateContent are balanced; other paths, keys and errors go
    through as they are, and the header x-vldebias says what was done. The server listens to this
    machine alone, and writes no prompt into a log.

    Examples:
      vldebias serve --upstream https://api.openai.com/v1 --attribute gender
      vldebias serve --upstream https://generativelanguage.googleapis.com \\
          --attribute gender
      vldebias serve --attribute gender   # LiteLLM's guardrail
      vldebias serve --upstream http://127.0.0.1:8000/v1 \\
          --edit gender-edit/   # embeddings
      vldebias serve --upstream http://127.0.0.1:8000/v1 --batch \\
          --attribute gender --attribute age
      vldebias serve --upstream https://api.openai.com/v1 --attribute gender \\
          --shares female=0.7,male=0.3 --port 9000
    """
    # By name: in a checkout the app lies outside of the package, where type checkers do not look.
    serving: Any = import_module("vldebias.serving")
    host = named.pop("host")
    port = named.pop("port")
    edit = named.pop("edit", None)
    settings: dict[str, Any] = {"follow_seeds": named.pop("follow_seeds"), "edit": edit}
    image_models = named.pop("image_models", None)
    if image_models:
        settings["image_models"] = image_models
    if not attribute and edit is None:
        raise InvalidInputError(
            "expected --attribute to balance prompts, --edit to edit embeddings, or both"
        )
    if edit is not None and upstream is None:
        raise InvalidInputError("--edit: expected --upstream, the service that embeds")
    balancer = None
    if attribute:
        sets: Any = attribute if len(attribute) > 1 else attribute[0]
        balancer = Balancer(sets, shares_of(shares), seed, groups=groups)
    limits = serving.Limits(**named)
    app = serving.images_proxy(
        upstream,
        balancer,
        batch=batch,
        limits=limits,
        log_prompts=log_prompts,
        **settings,
    )
    server: Any = import_module("vldebias.serving.images_api.server")
    if log_prompts:
        # Other libraries stay at warnings; httpx2 would write every address at "info".
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
        logging.getLogger("vldebias.serving").setLevel(logging.INFO)
    task = f"balancing {' and '.join(attribute)}" if attribute else "editing queries"
    place = "for LiteLLM's guardrail" if upstream is None else f"before {upstream}"
    server.serve(
        app,
        host=host,
        port=port,
        limits=limits,
        say=lambda address: say(f"{task} {place}; base_url={address}"),
    )
