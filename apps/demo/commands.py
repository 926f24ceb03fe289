"""`vldebias demo`: images, a search and a classifier before and after debiasing, on a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.common import print_message
from vldebias.cli.flags import HOST, Pipelines, flags_of_options, host_flags, with_flags
from vldebias.errors import need
from vldebias.utils.devices import device_of
from vldebias.utils.names import check_path

from ..serving import ADDRESS_FLAGS

MODEL = [name for name in HOST if name != "pipeline"]


@with_flags([*flags_of_options(*MODEL), *ADDRESS_FLAGS])
def demo_command(
    embeddings: Annotated[
        Path | None,
        typer.Option(exists=True, help="Labelled image embeddings to search (.npz)."),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            "--image-dir",
            exists=True,
            file_okay=False,
            help="Folder with the images, whose file names are their ids.",
        ),
    ] = None,
    pipeline: Pipelines = None,
    **flags: Any,
) -> None:
    """Open a page that shows images, a search and a classifier before and after debiasing.

    Without options, the page runs offline with the packaged miniature models and is only accessible
    from this machine.

    Examples:
      vldebias demo
      vldebias demo --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5 \\
          --model ViT-B-32 --pretrained openai
      vldebias demo --model ViT-B-32 --pretrained openai \\
          --embeddings fairface.npz --image-dir ./fairface
      VLDEBIAS_AUTH=ada:long-password vldebias demo --public --port 8000
    """
    for name in pipeline or ():
        check_path(name, "pipeline")
    if flags.get("model"):
        check_path(flags["model"], "model")
    # Importing Gradio takes several seconds, so print a message first.
    print_message("vldebias demo: starting; the address will appear in a few seconds")
    flags.setdefault("device", "auto")
    if flags["device"] != "auto":
        device_of(flags["device"])  # report an unavailable device now
    inputs = {**host_flags(flags), "embeddings": embeddings, "images": images}
    if pipeline:
        inputs["pipelines"] = pipeline
    need("gradio")
    from .page import serve_demo

    serve_demo(inputs, port=flags.get("port"), public=flags["public"])
