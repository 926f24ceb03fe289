"""Balance prompts on their way to any server with the OpenAI images API.

`vldebias serve` starts the proxy, and `vldebias.serving.images_proxy` returns it as an ASGI app.
"""

from .app import images_proxy

__all__ = ["images_proxy"]
