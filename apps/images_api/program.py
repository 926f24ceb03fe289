"""Declare the command, the names and the extra of the proxy."""

from vldebias.programs import Entry, Program

PROGRAM = Program(
    commands={
        "serve": Entry(
            "commands",
            "serve",
            "Run a proxy that splits each request for images into requests with balanced prompts.",
        ),
    },
    names={"images_proxy": "app", "ProxyLimits": "limits"},
    extras={"serve": "httpx2 python_multipart starlette uvicorn"},
)
