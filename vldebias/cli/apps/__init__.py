"""Define the options of `vldebias demo` and `vldebias label`.

The pages are imported as `vldebias.cli.apps.demo` and `vldebias.cli.apps.label`. In a wheel, they
are in this folder. In a checkout, they are in the folder apps/ next to the package, which is
therefore added to `__path__`.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from vldebias.cli.common import device_of, print_message
from vldebias.cli.flags import HOST, flags_of_options, host_flags, with_flags
from vldebias.errors import need

__all__ = ["AUTH", "demo_command", "label_command", "page"]

# Environment variable that contains user:password. All users of the machine could see a flag.
AUTH = "VLDEBIAS_AUTH"
_HERE = Path(__file__).resolve().parent
if not (_HERE / "demo").is_dir():
    __path__.append(str(_HERE.parents[2] / "apps"))
# Gradio checks for updates when it is imported, so disable this before importing it.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# By default, Gradio keeps the last 10,000 events in memory.
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "200")

_Port = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Port. Default: the first free port from 7860."),
]
_Public = Annotated[
    bool,
    typer.Option(
        "--public", help=f"Allow network access; needs {AUTH}=user:password in the environment."
    ),
]
_ADDRESS = [("port", _Port, None), ("public", _Public, False)]


def page(name: str) -> ModuleType:
    """Import and return a page's module.

    Raises:
        MissingPackageError: If Gradio is not installed.
    """
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:
        # If Gradio is missing, `need` raises an error that names the extra. Otherwise, an import
        # within the page failed, so raise the original error.
        need("gradio")
        raise


@with_flags([*flags_of_options(*HOST), *_ADDRESS])
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
    # Importing Gradio takes several seconds, so print a message first.
    print_message("vldebias demo: starting; the address will appear in a few seconds")
    flags.setdefault("device", "auto")
    if flags["device"] != "auto":
        device_of(flags["device"])  # report an unavailable device now
    inputs = {**host_flags(flags), "embeddings": embeddings, "images": images}
    page("demo.page").serve_demo(inputs, port=flags.get("port"), public=flags["public"])


@with_flags(_ADDRESS)
def label_command(
    folder: Annotated[
        Path,
        typer.Argument(
            exists=True,
            metavar="FOLDER",
            help="Folder of images, or output folder of `vldebias eval generation`.",
            show_default=False,
        ),
    ],
    attribute: Annotated[
        list[str] | None,
        typer.Option(help="Attribute to ask about, such as gender; repeatable."),
    ] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option(
            help="Comma-separated values of the attribute, or a prompt set; once per attribute."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--out", help="File to append answers to. Default: FOLDER/answers.jsonl."),
    ] = None,
    annotator: Annotated[
        list[str] | None,
        typer.Option(help="Allowed annotator; repeatable. Default: anyone."),
    ] = None,
    questions: Annotated[
        int,
        typer.Option(min=0, help="Maximum questions per annotator; 0 asks about every image."),
    ] = 200,
    sample: Annotated[
        str,
        typer.Option(
            help=(
                "judge: uncertainty sampling with inverse-probability weights, if a judge has"
                " labelled the images; turn: cycle through the prompts."
            )
        ),
    ] = "judge",
    **flags: Any,
) -> None:
    """Label images by hand, one at a time, blinded, in a different order for each annotator.

    Use the keys 1 to 9 to answer and the arrow keys to move between images. Every answer is saved
    immediately, so annotators can take a break and continue later. The last page shows the command
    that evaluates the answers.

    Examples:
      vldebias label sd15/images/gender --attribute gender
      # a larger sample that includes the first:
      vldebias label sd15/images/gender --attribute gender --questions 400
      vldebias label sd15/images/race --attribute race --annotator ada \\
          --annotator ben
      vldebias label my-images --attribute glasses --choices with,without \\
          --out answers.jsonl
    """
    page("serving").credentials(public=flags["public"])  # report missing credentials early
    study = page("label").open_study(
        folder,
        attribute or [],
        choices or [],
        file=file,
        annotators=annotator or [],
        most=questions or None,
        sample=sample,
    )
    page("label.page").serve_study(study, port=flags.get("port"), public=flags["public"])
