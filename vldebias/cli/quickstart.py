"""`vldebias quickstart`: the main job on the embedded models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vldebias.cli.common import Json, aside, check_out, err, print_json, print_result

KEY = (
    "default: what `debias` attaches; cali+equalise: the same where it is given unlabelled images (reference=); paper: "
    "the settings of Chuang et al.; balanced-prompts: a value stated in the prompt of each image; chance: "
    "random rankings.\n"
)
NEXT = "\nNext, on a model of your own: vldebias debias gender --model ViT-B-32 --pretrained openai --check"


def quickstart(
    as_json: Json = False,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the page, the pictures and the JSON.")] = Path(
        "vldebias-quickstart"
    ),
    images: Annotated[
        int | None, typer.Option(min=1, max=100, help="Generated images per profession and seed. Default: 8.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds. Default: 3.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Denoising steps of an image. Default: 8.")] = None,
) -> None:
    """Bias and utility before and after, on the embedded miniature world; offline, under two minutes on two cores.

    Measures what `debias` attaches by default, the same with unlabelled images, the paper's settings, and on the
    pipeline `balanced-prompts`: worst-group accuracy (birds), MaxSkew of retrieval (ten concepts in portraits) and
    discrepancy of generated images, with intervals; writes a page with side-by-side pictures of the same seeds. It is
    the suite `quickstart` of `vldebias eval`: a run that was stopped goes on where it was.

    [bold]Examples[/bold]

    \b
      vldebias quickstart
      vldebias quickstart --json --out /tmp/page > figures.json
    """
    check_out(folder)
    err.print(f"Birds, portraits and drawn portraits, before and after; everything goes to {folder}", soft_wrap=True)
    from vldebias.evaluation.report import opening, told
    from vldebias.evaluation.run import PAGE, run_suite
    from vldebias.evaluation.task import Options, load_suite

    # The cache of features lies in the folder: a first try leaves nothing elsewhere.
    numbers = tuple(range(seeds)) if seeds else None
    options = Options(out=folder, cache=folder / "cache", images=images, seeds=numbers, steps=steps)
    suite = load_suite("quickstart")
    result = run_suite(suite, options, console=err)
    if as_json:
        print_json(result.to_dict())
    else:
        print_result(result, suite.headline)
        aside("\n".join([f"\npage: {folder / PAGE}\n", KEY, *opening(told(result), suite.headline), NEXT]))
