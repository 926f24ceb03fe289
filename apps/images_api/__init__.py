"""Balance prompts on their way to any server with the OpenAI images API.

`vldebias serve` starts the proxy, and `vldebias.images_proxy` returns it as an ASGI app.
"""
