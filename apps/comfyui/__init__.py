"""ComfyUI nodes that state a person's attribute evenly over a prompt's pictures."""

from typing import Any


async def comfy_entrypoint() -> Any:
    """Return the extension; called by ComfyUI.

    The nodes are imported here, so that other modules can be imported without ComfyUI.
    """
    from .nodes import BalancedPromptsExtension

    return BalancedPromptsExtension()
