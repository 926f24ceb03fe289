"""`vldebias mcp`: offer balanced prompts and audits as Model Context Protocol tools."""

from __future__ import annotations

from typing import Annotated

import typer

from vldebias.cli.common import print_message
from vldebias.errors import need
from vldebias.prompts import load_prompts

LOCALHOST = "127.0.0.1"


def mcp(
    attribute: Annotated[
        str, typer.Option(help="Default attribute for calls: gender, age, race or skin-tone.")
    ] = "gender",
    pipeline: Annotated[
        str | None,
        typer.Option(help="Pipeline whose published counts audits show. Default: all."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Local port to listen on. Default: use stdin and stdout."
        ),
    ] = None,
) -> None:
    """Offer balance_prompts and audit_prompts to assistants over the Model Context Protocol.

    Assistants start the command and communicate with it over stdin and stdout. With --port, it
    listens at http://127.0.0.1:PORT/mcp instead, which is only accessible from this machine. To
    install the requirements, run `pip install '.[mcp]'` in a checkout of vldebias.

    Examples:
      vldebias mcp
      vldebias mcp --attribute age
      vldebias mcp --port 8791
    """
    load_prompts(attribute)  # report an unknown name before starting the server
    need("mcp")
    from ..serving import listen
    from .tools import Tools, serve_stdio, tools_server

    server = tools_server(Tools(attribute, pipeline=pipeline))
    if port is None:
        serve_stdio(server)
        return
    listen(LOCALHOST, port).close()  # report a port that is in use
    print_message(f"serving tools at http://{LOCALHOST}:{port}/mcp")
    server.run("streamable-http", host=LOCALHOST, port=port)
