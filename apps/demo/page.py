"""Build the `vldebias demo` page, with the tabs "Generate", "Search" and "Classify".

Visitors' input is either shown by components that escape it, or escaped here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from vldebias.cli.common import err

from ..serving import credentials, serve
from . import faces, generate_tab
from .classify_tab import ClassifyTab
from .engine import MINIATURE, Engine
from .events import QUIET
from .generate_tab import GenerateTab
from .search_tab import SearchTab

TOY = """The drawings are by the toy model (<code>miniature</code>) and say nothing about other
models; the photographs are real."""
HEAD = "<h1>vldebias: who appears when you do not say who?</h1><p>{toy}</p>"


def style() -> str:
    """Return the style sheet for the page's own elements."""
    return Path(__file__).with_name("style.css").read_text(encoding="utf-8")


def build_demo(engine: Engine) -> gr.Blocks:
    """Build the page, which opens with saved examples, without loading a model."""
    toy = TOY if engine.pipeline_name == MINIATURE else ""
    # Every ten minutes, delete the files that Gradio created for visitors more than an hour ago.
    with gr.Blocks(title="vldebias", analytics_enabled=False, delete_cache=(600, 3600)) as demo:
        gr.HTML(HEAD.format(toy=toy), elem_classes="head")
        with gr.Tabs():
            with gr.Tab("Generate", id="generate"):
                GenerateTab(engine)
            with gr.Tab("Search", id="search") as search:
                search_tab = SearchTab(engine)
            with gr.Tab("Classify", id="classify"):
                ClassifyTab(engine)
        demo.load(lambda: engine.warm("generate", engine.pipe), queue=False, **QUIET)
        load_search = partial(search_once, engine)
        search.select(lambda: engine.warm("search", load_search), queue=False, **QUIET)
        search_tab.search_on(search.select)
    return demo


def search_once(engine: Engine) -> None:
    """Load everything that the first visitor's search uses, by searching."""
    # Imported here, because torch takes seconds to load and the page opens without it.
    from .search import columns, search

    search(engine, "A photo of a person.", columns(engine, engine.galleries[0])[0])


def serve_demo(options: Mapping[str, Any], **where: Any) -> None:
    """Serve the page for `Engine(**options)` until it is stopped.

    `where` contains `port`, `public` and `site`, which are passed to `serve`.

    Raises:
        InvalidInputError: If options are incompatible, the port is in use, or a public page has no
            password.
    """
    # Fail before anything is built.
    credentials(public=where.get("public", False) and not where.get("site"))
    engine = Engine(**options)

    def announce(address: str) -> None:
        err().print(f"vldebias demo: {address} (press Ctrl-C to stop)", highlight=False)

    serve(
        build_demo(engine),
        css=style(),
        head=faces.SCRIPT + generate_tab.SCRIPT,
        announce=announce,
        **where,
    )
