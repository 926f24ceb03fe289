"""Skip what an installed release of transformers or diffusers lacks, and print the reason."""

from importlib import import_module
from importlib.metadata import version

import pytest

LOST_IN_TRANSFORMERS_4 = ("ChineseCLIPModel",)


def before_transformers_5() -> bool:
    return version("transformers").startswith("4.")


def why_absent(library: str, name: str) -> str:
    """Why a library has no class of this name, or cannot import it; "" where it can."""
    try:
        getattr(import_module(library), name)
    except (AttributeError, ImportError, RuntimeError) as error:
        return f"{library} {version(library)} has no {name}: {' '.join(str(error).split())[:200]}"
    return ""


def skip_without(library: str, name: str) -> None:
    """Skip a test of a class that the installed release lacks."""
    reason = why_absent(library, name)
    if reason:
        pytest.skip(reason)


def skip_lost(name: str) -> None:
    """Skip a test of a class that the installed transformers has and cannot embed texts with."""
    if name in LOST_IN_TRANSFORMERS_4 and before_transformers_5():
        pytest.skip(f"transformers {version('transformers')} cannot embed texts with {name}")
