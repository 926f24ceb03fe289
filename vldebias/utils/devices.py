"""Choose the device to run on."""

from __future__ import annotations

from vldebias.errors import InvalidInputError


def device_of(name: str | None) -> str:
    """Return the name of the device to run on.

    Args:
        name: name of a device. For None or "auto", use a CUDA device if there is one, and the CPU
            otherwise.

    Raises:
        InvalidInputError: If the device is not available.
    """
    import torch

    if name in (None, "auto"):
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        # Allocate a tensor, since an unavailable device would only fail on first use.
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        # For an unknown device, torch lists all that exist.
        reason = str(error).splitlines()[0].partition("Expected one of")[0].strip(" .")
        raise InvalidInputError(
            f"device {name}: {reason or 'unknown'}. Expected an available device, such as auto,"
            " cpu, cuda, cuda:1 or mps"
        ) from None
    return name
