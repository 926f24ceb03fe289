"""The page of `vldebias demo`: compare generations, classify, retrieve, inspect, export; offline on embedded models.

`build_demo(engine)` lays the page out and computes nothing. The engine (`compare_engine`) has no Gradio in it; models
are loaded when a visitor first needs them. `main` parses options and serves.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before Gradio is imported: it asks for its own version

import gradio as gr

from .compare_api import add_endpoints
from .compare_engine import MINIATURE, Engine
from .compare_form import Stops
from .compare_generate import generate_tab
from .compare_tabs import classify_tab, export_tab, inspect_tab, retrieve_tab
from .serving import AUTH, credentials, serve

__all__ = ["build_demo", "main", "style"]

SWEEP, OLD = 600, 3600  # seconds: how often downloads are looked through, and how old they get
HEAD = """
<div class="vd-head"><h1>What does a model draw when you do not say who?</h1>
<p>Each picture on the left has a twin on the right: the same noise and the same prompt, whose embedding is projected in
closed form. That mitigates bias, and the bars measure by how much; it does not make a model fair.</p></div>
"""
EPILOG = """
Examples:
  vldebias demo
  vldebias demo --pipeline stabilityai/stable-diffusion-2-1 --model ViT-B-32 --pretrained openai --device cuda
  vldebias demo --model ViT-B-32 --pretrained openai --embeddings fairface.npz --images ./fairface
  VLDEBIAS_AUTH=ada:long-password vldebias demo --public --port 8000
"""


def style() -> str:
    """The style sheet of the page's own parts."""
    return Path(__file__).with_name("compare.css").read_text(encoding="utf-8")


def build_demo(engine: Engine) -> gr.Blocks:
    """The page; nothing is loaded, read or written."""
    stops = Stops()
    with gr.Blocks(title="vldebias", analytics_enabled=False, delete_cache=(SWEEP, OLD)) as demo:
        gr.HTML(HEAD)
        with gr.Tabs():
            with gr.Tab("Generate", id="generate"):
                generate_tab(engine, stops)
            with gr.Tab("Classify", id="classify"):
                classify_tab(engine)
            with gr.Tab("Retrieve", id="retrieve"):
                retrieve_tab(engine)
            with gr.Tab("Inspect", id="inspect"):
                inspect_tab(engine)
            with gr.Tab("Export", id="export"):
                export_tab(engine)
        add_endpoints(engine)

        def leave(request: gr.Request) -> None:
            stops.stop(str(request.session_hash))

        demo.unload(leave)
    return demo


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vldebias demo",
        description="Open a page that compares a model with and without a projection. Without options it runs offline "
        "on the embedded miniature models, for this machine alone.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    models = parser.add_argument_group("models")
    models.add_argument("--pipeline", default=MINIATURE, help="diffusers id or folder that draws (default: miniature)")
    models.add_argument("--model", help="open_clip architecture (with --pretrained) or transformers id or folder")
    models.add_argument("--pretrained", help="open_clip tag or checkpoint file")
    models.add_argument("--device", default="cpu", help="cpu, cuda, mps")
    models.add_argument("--dtype", help="float32, float16 or bfloat16")
    data = parser.add_argument_group("retrieval")
    data.add_argument("--embeddings", type=Path, help=".npz or .safetensors file of image embeddings with labels")
    data.add_argument("--images", type=Path, help="folder in which the ids of the embeddings are paths of pictures")
    page = parser.add_argument_group("page")
    page.add_argument("--port", type=int, help="default: the first free one from 7860 on")
    page.add_argument("--public", action="store_true", help="listen on every interface; needs --auth")
    page.add_argument("--auth", metavar="USER:PASSWORD", help=f"ask for it; also from the environment variable {AUTH}")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the options and serve until interrupted.

    Raises:
        InvalidInputError: options that do not go together, a port that is taken, no password for a public page.
    """
    given = _parser().parse_args(argv)
    credentials(given.auth, public=given.public)  # refused before anything is built
    engine = Engine(
        model=given.model,
        pretrained=given.pretrained,
        pipeline=given.pipeline,
        embeddings=given.embeddings,
        images=given.images,
        device=given.device,
        dtype=given.dtype,
    )
    serve(
        build_demo(engine),
        port=given.port,
        public=given.public,
        auth=given.auth,
        css=style(),
        say=lambda address: print(f"vldebias demo: {address} (ctrl-c ends it)", file=sys.stderr, flush=True),
    )


if __name__ == "__main__":
    main()
