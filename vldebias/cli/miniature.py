"""`vldebias miniature`: describe and render the embedded world."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.common import Json, aside, err, make_app, print_grid, print_json, say
from vldebias.errors import InvalidInputError, need
from vldebias.files import write_atomically

app = make_app("The embedded world of small, real, biased models.")


@app.command("build", hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def build_world() -> None:
    """Say where the world is built: what trains it is not installed.

    [bold]Examples[/bold]

    \b
      vldebias miniature build  # now python -m eval.miniature --out my-world
    """
    from vldebias.miniature.world import BUILD

    raise InvalidInputError(f"miniature build: not in an installed package; use {BUILD.format('FOLDER')}")


@app.command("info")
def info(as_json: Json = False) -> None:
    """Where the weights are, how large, and the bias that was measured in them.

    [bold]Examples[/bold]

    \b
      vldebias miniature info --json
    """
    from vldebias.miniature import weights_dir

    folder = weights_dir()
    files = {p.name: p.stat().st_size for p in sorted(folder.iterdir()) if p.is_file()}
    metrics = folder / "metrics.json"
    measured = json.loads(metrics.read_text(encoding="utf-8")) if metrics.is_file() else {}
    if as_json:
        print_json({"folder": str(folder), "bytes": files, "metrics": measured})
        return
    aside(folder)
    print_grid(("file", "kB"), [(name, f"{size / 1000:.0f}") for name, size in files.items()])
    aside(json.dumps(measured, indent=1))


@app.command("render")
def render_world(
    world: Annotated[str, typer.Argument(help="portraits or birds.")],
    path: Annotated[Path, typer.Option("--out", help="PNG to write; captions and ground truth go beside it as JSON.")],
    n: Annotated[int, typer.Option("-n", min=1, max=4096, help="How many images.")] = 64,
    seed: Annotated[int, typer.Option(help="Names the stream: image i of a seed is always the same.")] = 0,
    balanced: Annotated[bool, typer.Option("--balanced", help="Without the bias.")] = False,
) -> None:
    """Render images of the world with their ground truth.

    [bold]Examples[/bold]

    \b
      vldebias miniature render portraits -n 100 --seed 7 --out portraits.png
    """
    to_pil_image = need("torchvision.transforms.functional").to_pil_image
    make_grid = need("torchvision.utils").make_grid

    from vldebias.miniature import birds, portraits

    worlds: dict[str, Any] = {"portraits": portraits, "birds": birds}
    if world not in worlds:
        raise InvalidInputError(f"world: expected one of {', '.join(worlds)}, got {world!r}")
    made = worlds[world].sample(n, seed=seed, balanced=balanced)
    grid = to_pil_image(make_grid(made.images, nrow=max(1, round(n**0.5)), padding=0))
    write_atomically(path, lambda partial: grid.save(partial, format="PNG"))
    fields = {k: v.tolist() for k, v in vars(made).items() if k not in ("images", "captions")}
    write_atomically(path.with_suffix(".json"), json.dumps({"captions": made.captions, **fields}))
    say(f"{path} and {path.with_suffix('.json')}", err)
