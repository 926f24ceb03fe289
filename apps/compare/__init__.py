"""`vldebias demo`: compare generations, classify, retrieve, inspect, export; offline on the embedded models.

`engine` and the actions (`drawing`, `classify`, `retrieve`, `inspect`, `export`) know nothing of Gradio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gradio as gr

    from .engine import Engine

__all__ = ["build_demo"]


def build_demo(engine: Engine) -> gr.Blocks:
    """The page; no model is loaded before a visitor asks for something."""
    from .page import build_demo as build

    return build(engine)
