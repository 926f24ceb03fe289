"""Options of `vldebias demo` and `vldebias label`.

The pages are imported as `vldebias.cli.apps.demo` and `vldebias.cli.apps.label`. A wheel contains
them in this folder; in a checkout, they are in apps/ next to the package, which is added to
`__path__`.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from vldebias.cli.common import device_of, say
from vldebias.cli.flags import HOST, flags_of_options, with_flags
from vldebias.errors import need

__all__ = ["AUTH", "demo_command", "label_command", "page"]

AUTH = "VLDEBIAS_AUTH"  # user:password; a flag would be visible to every user of the machine
_HERE = Path(__file__).resolve().parent
if not (_HERE / "demo").is_dir():
    __path__.append(str(_HERE.parents[2] / "apps"))
os.environ.setdefault(
    "GRADIO_ANALYTICS_ENABLED", "False"
)  # set before Gradio is imported, or it checks for updates
os.environ.setdefault(
    "GRADIO_ANALYTICS_MAX_EVENTS", "200"
)  # the default keeps the last 10,000 events

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
_WHERE = [("port", _Port, None), ("public", _Public, False)]


def page(name: str) -> ModuleType:
    """Import and return the module of a page.

    Raises:
        MissingPackageError: Gradio is not installed.
    """
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:
        # Raises an error that names the extra if Gradio is missing;
        # otherwise, an import inside a page failed.
        need("gradio")
        raise


@with_flags([*flags_of_options(*HOST), *_WHERE])
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
    **named: Any,
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
    say(
        "vldebias demo: starting; the address follows in a few seconds"
    )  # torch is not imported yet
    # Options of the server; the others are passed to `load_host`.
    where = {name: named.pop(name) for name in ("port", "public") if name in named}
    named |= {"device": device_of(named.get("device")), "embeddings": embeddings, "images": images}
    page("demo.page").serve_demo(named, **where)


@with_flags(_WHERE)
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
    **where: Any,
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
    page("serving").credentials(public=where["public"])  # fail early
    how = {"file": file, "annotators": annotator or [], "most": questions or None, "sample": sample}
    study = page("label").open_study(folder, attribute or [], choices or [], **how)
    page("label.page").serve_study(study, **where)
