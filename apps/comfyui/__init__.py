"""ComfyUI nodes that spread attribute values evenly over a prompt's images."""

from typing import Any


async def comfy_entrypoint() -> Any:
    """Return the extension. ComfyUI calls this function.

    The nodes are imported only here, so that the other modules can be imported without ComfyUI.
    """
    from .nodes import BalancedPromptsExtension

    return BalancedPromptsExtension()
