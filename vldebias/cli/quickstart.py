"""`vldebias quickstart`: measure bias before and after debiasing, with the packaged models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vldebias.cli.common import check_out, err, print_message, print_result
from vldebias.cli.flags import Json
from vldebias.errors import need_extras

SHOWN = (
    "rerank",
    "default",
    "difference",
    "paper",
    "balanced-prompts",
    "chance",
)
NEXT = (
    "\nNext, on your own model: vldebias debias gender --model ViT-B-32 --pretrained openai --check"
)


def quickstart(
    folder: Annotated[
        Path, typer.Option("--out", help="Folder for the page, the images and the JSON.")
    ] = Path("vldebias-quickstart"),
    as_json: Json = False,
) -> None:
    """Measure bias and utility before and after debiasing, offline and in a few minutes.

    The images are packaged photographs and the cartoons of the miniature world. Compares what we
    recommend with the paper's settings: `rerank` for searches, the edit that `debias` attaches by
    default for classifiers, and `balanced-prompts` for pipelines. Measures the MaxSkew of searches
    (occupations in real photographs, ten concepts in portraits), worst-group accuracy (birds) and
    the discrepancy of generated images, with intervals, and writes a page that shows images for
    the same seeds side by side. Run it again to continue after an interruption. To change the
    number of images or seeds, use `vldebias eval quickstart`, which runs the same suite.

    Examples:
      vldebias quickstart
      vldebias quickstart --json --out /tmp/page > figures.json
    """
    check_out(folder)
    # Report all missing extras at once.
    need_extras("clip", "diffusers", "eval")
    print_message(
        "measuring bias in photographs, birds, portraits and generated portraits before and after"
        f" debiasing; results are written to {folder}"
    )
    from vldebias.report.table import METHODS
    from vldebias.study.run_files import PAGE
    from vldebias.study.running import run_suite
    from vldebias.study.suite import load_suite
    from vldebias.utils.options import Options

    # Keep the feature cache in the folder, so that nothing is written elsewhere.
    suite = load_suite("quickstart")
    result = run_suite(suite, Options(out=folder, cache=folder / "cache"), console=err())
    print_result(result, suite.headline, as_json=as_json, page=folder / PAGE)
    if not as_json:
        key = "; ".join(f"{method}: {METHODS[method]}" for method in SHOWN)
        print_message(f"\n{key}.\n{NEXT}")
