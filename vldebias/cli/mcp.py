"""`vldebias mcp`: balanced prompts and audits as tools of the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

import typer

from vldebias.cli.common import print_message
from vldebias.errors import InvalidInputError, need
from vldebias.prompts import load_prompts

LOCALHOST = "127.0.0.1"


def mcp(
    attribute: Annotated[
        str, typer.Option(help="Default attribute of a call: gender, age, race, skin-tone.")
    ] = "gender",
    model: Annotated[
        str | None, typer.Option(help="Model whose text embeddings audits use, such as ViT-B-32.")
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(help="Pipeline whose text embeddings audits use, instead of a model."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Local port to listen on. Default: use stdin and stdout."
        ),
    ] = None,
) -> None:
    """Offer balance_prompts and audit_prompts to assistants over the Model Context Protocol.

    An assistant starts the command and talks to it over stdin and stdout. With --port, it listens
    on this machine only, at http://127.0.0.1:PORT/mcp. Needs `pip install '.[mcp]'` in a
    checkout of vldebias.

    Examples:
      vldebias mcp
      vldebias mcp --attribute age --model miniature
      vldebias mcp --port 8791
    """
    if model is not None and pipeline is not None:
        raise InvalidInputError("got both --model and --pipeline; expected at most one of them")
    load_prompts(attribute)  # report an unknown name before anything is started
    need("mcp")
    from vldebias.serving.tools import Tools, serve_stdio, tools_server

    server = tools_server(Tools(attribute, model=model, pipeline=pipeline))
    if port is None:
        serve_stdio(server)
        return
    print_message(f"tools at http://{LOCALHOST}:{port}/mcp")
    server.run("streamable-http", host=LOCALHOST, port=port)
