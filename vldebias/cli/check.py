"""`vldebias check`: what an edit does on one's own model or pipeline, as one table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias.cli import complete
from vldebias.cli.common import HOST_FLAGS, Json, aside, check_out, load, print_grid, print_json
from vldebias.cli.flags import with_flags
from vldebias.errors import VldebiasError

if TYPE_CHECKING:
    from vldebias.evaluation.checking import Finding


@with_flags(HOST_FLAGS)
def check_command(
    prompts: Annotated[
        str, typer.Option(help="Prompt set that is fitted.", autocompletion=complete.complete_prompt_sets)
    ] = "",
    draw: Annotated[bool, typer.Option(help="Of a pipeline: draw too, not only ask for embeddings.")] = True,
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps.")] = 2,
    size: Annotated[int | None, typer.Option(min=8, help="Height and width; default: the pipeline's.")] = None,
    merge: Annotated[
        bool, typer.Option(help="At last merge the edit into the loaded weights (no file changes).")
    ] = True,
    save: Annotated[Path | None, typer.Option("--out", help="Write the result here, as JSON.")] = None,
    as_json: Json = False,
    **named: Any,
) -> None:
    """Check an edit on your own model: attached, at strength 0, disabled, removed, saved and loaded, merged; what it
    costs, and the paper's cosines. Exit code 1 where something is not as it should be.

    [bold]Examples[/bold]

    \b
      vldebias check --model ViT-B-32 --pretrained openai
      vldebias check --pipeline stabilityai/stable-diffusion-xl-base-1.0 --device cuda --dtype float16 --out sdxl.json
      vldebias check --pipeline DIR --no-draw
      vldebias check --model miniature --json
    """
    prompts = prompts or ("professions-gender" if "pipeline" in named else "gender")
    check_out(None if save is None else save.absolute().parent)
    loaded = load(**named, prompts=[prompts])
    from vldebias.evaluation.checking import Finding, check, result_of

    call = {"num_inference_steps": steps} | ({} if size is None else {"height": size, "width": size})
    findings: list[Finding] = []
    started = time.monotonic()
    if hasattr(loaded.host, "set_progress_bar_config"):
        loaded.host.set_progress_bar_config(disable=True)
    try:
        findings += check(loaded, prompts, draw=call if draw else None, merge=merge)
    except VldebiasError:
        raise
    except Exception as error:  # of the library, as out of memory: what was found so far is still told
        findings.append(Finding("to the end", 0.0, f"{type(error).__name__}: {str(error)[:300]}"))
    result = result_of(findings, loaded, prompts, time.monotonic() - started)
    if save is not None:
        result.write(save)
    if as_json:
        print_json(result.to_dict())
    else:
        about = result.provenance[0].settings
        libraries = ", ".join(f"{name} {version}" for name, version in result.versions.items())
        rows = []
        for one in findings:
            passed = "not tried" if one.value is None else "ok" if one.value else "WRONG"
            rows.append((one.name, f"{one.value:.3f}" if one.figure and one.value is not None else passed, one.note))
        aside(f"{loaded.name} ({about['class']}), {about['device']}")
        print_grid(("check", "result", "note"), rows)
        aside(f"{result.platform}; {libraries}; {prompts}")
    if any(one.failed for one in findings):
        raise typer.Exit(1)
