"""`vldebias demo` and `vldebias label`: their options. The pages themselves, `compare` and `label`, lie in apps/.

The pages are imported as `vldebias.cli.apps.demo` and `vldebias.cli.apps.label`. A wheel has them in this folder; in a
checkout the folder apps/ stands beside the package and is the second place of `__path__`.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from vldebias.cli.common import Device, Dtype, Model, Pretrained, check_there, device_of
from vldebias.cli.flags import with_flags
from vldebias.errors import InvalidInputError, need

__all__ = ["AUTH", "demo_command", "label_command", "page"]

AUTH = "VLDEBIAS_AUTH"  # user:password, where a command line would show it to everyone on the machine
_HERE = Path(__file__).resolve().parent
if not (_HERE / "demo").is_dir():
    __path__.append(str(_HERE.parents[2] / "apps"))
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before Gradio is imported: it asks for its own version
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "200")  # else it remembers the last 10,000 events

_Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Default: the first free one from 7860 on.")]
_Public = Annotated[bool, typer.Option("--public", help="Listen to the network; needs a password.")]
_Auth = Annotated[
    str | None, typer.Option(metavar="USER:PASSWORD", help=f"Ask for them; better kept in the variable {AUTH}.")
]
_Sample = Annotated[
    str,
    typer.Option(
        help="judge: uncertainty sampling with inverse-probability weights; turn: the prompts in turn. "
        "auto: judge where one answered and no answers were given in turn."
    ),
]
_WHERE = [("port", _Port, None), ("public", _Public, False), ("auth", _Auth, None)]


def page(name: str) -> ModuleType:
    """Return the module of a page, which needs Gradio.

    Raises:
        MissingPackageError: Gradio is not installed.
        InvalidInputError: the pages are not.
    """
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        need("gradio")  # whose extra brings all that the pages import
        if error.name == f"{__name__}.{name.partition('.')[0]}":
            raise InvalidInputError(
                f"the page {name} is in neither of {', '.join(__path__)}; install vldebias anew"
            ) from error
        raise


@with_flags(_WHERE)
def demo_command(
    pipeline: Annotated[str, typer.Option(help="diffusers id or folder, or 'miniature'.")] = "miniature",
    model: Model = None,
    pretrained: Pretrained = None,
    device: Device = "auto",
    dtype: Dtype = None,
    embeddings: Annotated[
        Path | None, typer.Option(help="Image embeddings with labels to search in (.npz, .safetensors).")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="Folder of the pictures, their paths below it the ids.")] = None,
    **where: Any,
) -> None:
    """Open a page that compares generated images, a search and a classification before and after.

    Without options it runs offline on the embedded miniature models, for this machine alone.

    [bold]Examples[/bold]

    \b
      vldebias demo
      vldebias demo --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5 --model ViT-B-32 --pretrained openai
      vldebias demo --model ViT-B-32 --pretrained openai --embeddings fairface.npz --images ./fairface
      VLDEBIAS_AUTH=ada:long-password vldebias demo --public --port 8000
    """
    options: dict[str, Any] = {"pipeline": pipeline, "model": model, "pretrained": pretrained, "dtype": dtype}
    options |= {"device": device_of(device), "embeddings": embeddings, "images": images}
    page("demo.page").serve_demo(options, **where)


@with_flags([("sample", _Sample, "auto"), *_WHERE])
def label_command(
    folder: Annotated[
        Path, typer.Argument(help="Folder of images, or one that `vldebias eval generation` wrote.", show_default=False)
    ],
    attribute: Annotated[
        list[str] | None, typer.Option(help="What is asked, such as gender; several by repeating it.")
    ] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option(help="Its values with commas between them, or a prompt set that has them; once per attribute."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--out", help="File of the answers, appended to. Default: FOLDER/answers.jsonl.")
    ] = None,
    annotator: Annotated[
        list[str] | None, typer.Option(help="Who may answer; several by repeating it. Default: any name.")
    ] = None,
    part: Annotated[str, typer.Option(help="Of generated images: unseen, train or both.")] = "unseen",
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many images of each prompt; the thesis labels 25.")
    ] = None,
    questions: Annotated[
        int, typer.Option(min=0, help="At most so many for each annotator; 0: about every image.")
    ] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the orders in which annotators see it.")] = 0,
    **where: Any,
) -> None:
    """Label images by hand: one at a time, blinded, in an order of its own for every annotator.

    Keys 1 to 9 answer, the arrows go back and on. Every answer is appended to the file at once; an annotator who comes
    back continues. The last page names the command that reads the file. Where a judge has read the images, those that
    it is unsure of are asked about more often, with weights that correct for it.

    [bold]Examples[/bold]

    \b
      vldebias label sd15/images/gender --attribute gender
      vldebias label sd15/images/gender --attribute gender --questions 400   # a larger sample, which holds the first
      vldebias label sd15/images/race --attribute race --limit 25 --annotator ada --annotator ben
      vldebias label my-images --attribute glasses --choices with,without --out answers.jsonl
    """
    check_there(folder, "a folder with images to label")
    page("serving").credentials(where.get("auth"), public=where["public"])  # before anything that takes time
    order = {"part": part, "limit": limit, "most": questions or None, "sample": where.pop("sample"), "seed": seed}
    who = {"file": file, "annotators": annotator or []}
    study = page("label").open_study(folder, attribute or [], choices or [], **who, **order)
    page("label.page").serve_study(study, **where)
