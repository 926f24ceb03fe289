"""ComfyUI nodes that state an attribute of a person evenly over the pictures of a prompt."""

from typing import Any


async def comfy_entrypoint() -> Any:
    """Return the extension; called by ComfyUI.

    The nodes are imported here, so that other modules can be imported without ComfyUI.
    """
    from .nodes import BalancedPromptsExtension

    return BalancedPromptsExtension()
