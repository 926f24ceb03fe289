"""Define the options of `vldebias demo` and `vldebias label`.

The pages are imported as `vldebias.cli.apps.demo` and `vldebias.cli.apps.label`. A wheel contains
them in this folder; in a checkout, they are in apps/ next to the package, which is added to
`__path__`.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Annotated, TypedDict, Unpack

import typer

from vldebias.cli.common import device_of, print_message
from vldebias.cli.flags import HOST, HostFlags, flags_of_options, host_flags, with_flags
from vldebias.errors import need

__all__ = ["AUTH", "demo_command", "label_command", "page"]

AUTH = "VLDEBIAS_AUTH"  # user:password; a flag would be visible to every user of the machine
_HERE = Path(__file__).resolve().parent
if not (_HERE / "demo").is_dir():
    __path__.append(str(_HERE.parents[2] / "apps"))
# Gradio checks for updates when it is imported, so set this before.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# By default, Gradio stores the last 10,000 events.
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


class AddressFlags(TypedDict, total=False):
    """Flags that determine where a page is served."""

    port: int
    public: bool


class DemoFlags(HostFlags, AddressFlags, total=False):
    """`vldebias demo` flags that several commands share."""


def page(name: str) -> ModuleType:
    """Import and return a page's module.

    Raises:
        MissingPackageError: If Gradio is not installed.
    """
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:
        # If Gradio is missing, this raises an error that names the extra;
        # otherwise, an import inside a page failed.
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
            exists=True, file_okay=False, help="Folder of the images, named after their ids."
        ),
    ] = None,
    **flags: Unpack[DemoFlags],
) -> None:
    """Open a page that compares generated images, a search and a classifier before and after.

    Without options, it runs offline on the embedded miniature models and is only accessible from
    this machine.

    Examples:
      vldebias demo
      vldebias demo --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5 \\
          --model ViT-B-32 --pretrained openai
      vldebias demo --model ViT-B-32 --pretrained openai \\
          --embeddings fairface.npz --images ./fairface
      VLDEBIAS_AUTH=ada:long-password vldebias demo --public --port 8000
    """
    # Importing torch takes seconds, so print this first.
    print_message("vldebias demo: starting; the address follows in a few seconds")
    flags["device"] = device_of(flags.get("device"))
    inputs = {**host_flags(flags), "embeddings": embeddings, "images": images}
    page("demo.page").serve_demo(inputs, port=flags.get("port"), public=flags["public"])


@with_flags(_ADDRESS)
def label_command(
    folder: Annotated[
        Path,
        typer.Argument(
            exists=True,
            metavar="FOLDER",
            help="Folder of images, or of a run of `vldebias eval generation`.",
            show_default=False,
        ),
    ],
    attribute: Annotated[
        list[str] | None,
        typer.Option(help="Attribute to ask about, such as gender; repeatable."),
    ] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option(help="Its values, comma-separated, or a prompt set; once per attribute."),
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
        typer.Option(min=0, help="At most N questions per annotator; 0 asks about every image."),
    ] = 200,
    sample: Annotated[
        str,
        typer.Option(
            help=(
                "judge: uncertainty sampling with inverse-probability weights, if a judge has"
                " labelled the images; turn: all prompts in turn."
            )
        ),
    ] = "judge",
    **flags: Unpack[AddressFlags],
) -> None:
    """Label images by hand: one at a time, blinded, in a different order for each annotator.

    Keys 1 to 9 answer, and the arrow keys go back and forth. Every answer is saved at once, and
    annotators can continue later. The last page shows the command that evaluates the answers.

    Examples:
      vldebias label sd15/images/gender --attribute gender
      # a larger sample that includes the first:
      vldebias label sd15/images/gender --attribute gender --questions 400
      vldebias label sd15/images/race --attribute race --annotator ada \\
          --annotator ben
      vldebias label my-images --attribute glasses --choices with,without \\
          --out answers.jsonl
    """
    page("serving").credentials(public=flags["public"])  # fail early
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
