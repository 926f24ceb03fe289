"""`vldebias demo` and `vldebias label`: their options. The pages themselves, `demo` and `label`,
lie in apps/.

The pages are imported as `vldebias.cli.apps.demo` and `vldebias.cli.apps.label`. A wheel has them
in this folder; in a checkout the folder apps/ stands beside the package and is the second place of
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

AUTH = "VLDEBIAS_AUTH"  # user:password; a flag would show it to everyone on the machine
_HERE = Path(__file__).resolve().parent
if not (_HERE / "demo").is_dir():
    __path__.append(str(_HERE.parents[2] / "apps"))
os.environ.setdefault(
    "GRADIO_ANALYTICS_ENABLED", "False"
)  # before Gradio is imported: it asks for its own version
os.environ.setdefault(
    "GRADIO_ANALYTICS_MAX_EVENTS", "200"
)  # else it remembers the last 10,000 events

_Port = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Port. Default: the first free one from 7860 on."),
]
_Public = Annotated[
    bool,
    typer.Option(
        "--public", help=f"Listen to the network; needs {AUTH}=user:password in the environment."
    ),
]
_WHERE = [("port", _Port, None), ("public", _Public, False)]


def page(name: str) -> ModuleType:
    """Return the module of a page.

    Raises:
        MissingPackageError: Gradio is not installed.
    """
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:
        # Without Gradio this raises, and says what to
        # install; else something inside of a page failed.
        need("gradio")  # whose extra brings all that the pages import
        raise


@with_flags([*flags_of_options(*HOST), *_WHERE])
def demo_command(
    embeddings: Annotated[
        Path | None,
        typer.Option(exists=True, help="Image embeddings with labels to search in (.npz)."),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Folder of the pictures, named by their ids."
        ),
    ] = None,
    **named: Any,
) -> None:
    """Open a page that compares generated images, a search and a classification before and after.

    Without options it runs offline on the embedded miniature models, for this machine alone.

    Examples:
      vldebias demo
      vldebias demo --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5 \\
          --model ViT-B-32 --pretrained openai
      vldebias demo --model ViT-B-32 --pretrained openai \\
          --embeddings fairface.npz --images ./fairface
      VLDEBIAS_AUTH=ada:long-password vldebias demo --public --port 8000
    """
    say("vldebias demo: starting; the address follows in a few seconds")  # torch is not there yet
    # The server's own; what stays names models, as `load_host` takes them.
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
            help="Images, or what `vldebias eval generation` wrote.",
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
            help="Its values, comma-separated, or a prompt set that has them; once per attribute."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File of the answers, appended to. Default: FOLDER/answers.jsonl."
        ),
    ] = None,
    annotator: Annotated[
        list[str] | None,
        typer.Option(help="Name that may answer; repeatable. Default: any name."),
    ] = None,
    questions: Annotated[
        int,
        typer.Option(
            min=0, help="At most N questions for each annotator; 0 asks about every image."
        ),
    ] = 200,
    sample: Annotated[
        str,
        typer.Option(
            help=(
                "judge: uncertainty sampling with inverse-probability weights, where a judge has"
                " read the images; "
                "turn: the prompts in turn."
            )
        ),
    ] = "judge",
    **where: Any,
) -> None:
    """Label images by hand: one at a time, blinded, in a different order for each annotator.

    Keys 1 to 9 answer, the arrows go back and forth. Every answer is appended to the file at once;
    an annotator who comes back continues. The last page names the command that reads the file.

    Examples:
      vldebias label sd15/images/gender --attribute gender
      # a larger sample, which holds the first:
      vldebias label sd15/images/gender --attribute gender --questions 400
      vldebias label sd15/images/race --attribute race --annotator ada \\
          --annotator ben
      vldebias label my-images --attribute glasses --choices with,without \\
          --out answers.jsonl
    """
    page("serving").credentials(public=where["public"])  # before anything that takes time
    how = {"file": file, "annotators": annotator or [], "most": questions or None, "sample": sample}
    study = page("label").open_study(folder, attribute or [], choices or [], **how)
    page("label.page").serve_study(study, **where)
