"""`vldebias debias`: fit an edit, report what it does, save it, merge it into the weights, check
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias.cli.checks import check_file, check_host, check_sets
from vldebias.cli.common import check_out, device_of, print_list, say
from vldebias.cli.flags import HOST, Json, flags_of_options, with_flags
from vldebias.errors import InvalidInputError
from vldebias.names import check_methods

if TYPE_CHECKING:
    from vldebias.edits.edit import Edit
    from vldebias.hosts.loading import Loaded


@with_flags(flags_of_options(*HOST))
def debias_command(
    prompts: Annotated[
        list[str],
        typer.Argument(
            help="Prompt sets by name or YAML path; several are solved jointly.", metavar="SET"
        ),
    ],
    method: Annotated[
        str | None, typer.Option(help="Default: default; see `vldebias methods`.")
    ] = None,
    lam: Annotated[
        float | None, typer.Option(min=0, help="Weight of the prompt pairs, if --method has one.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Image features of this model (.npz) to fit on.")
    ] = None,
    projection: Annotated[
        Path | None, typer.Option(help="Inspect the edit saved in this folder; fit none.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--out", help="Save the edit in this folder.")
    ] = None,
    merge: Annotated[
        Path | None, typer.Option(help="Merge it into plain weights, saved in this empty folder.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Fit `cali` and test attaching, removing, saving and merging."
        ),
    ] = False,
    as_json: Json = False,
    **named: Any,
) -> None:
    """Fit an edit for a model or pipeline and report what it does to the model's own texts.

    --out saves one folder per edited tensor (role): `joint` for models, `sequence`, `pooled`, ...
    for pipelines. --merge writes a checkpoint that runs without this package; weights cannot leave
    prompts alone that state the attribute, nor the negative prompt. --check ends with exit code 1
    if a test fails.

    Examples:
      vldebias debias gender --model ViT-B-32 --pretrained openai --out gender-b32
      vldebias debias gender --model ViT-B-32 --pretrained openai --reference images.npz \\
          --out gender-b32
      vldebias debias professions-gender --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5 \\
          --out sd15
      vldebias debias gender --model openai/clip-vit-base-patch32 --method cali --merge clip-merged
      vldebias debias gender --model ViT-B-32 --pretrained openai --projection gender-b32
      vldebias debias gender --model ViT-B-32 --pretrained openai --check
    """
    fitting = {"--method": method, "--lam": lam, "--reference": reference}
    given = next((name for name, value in fitting.items() if value is not None), None)
    if given is not None and (projection is not None or check):
        raise InvalidInputError(
            f"{given} is for fitting; leave it out with {'--check' if check else '--projection'}"
        )
    check_out(save)
    if merge is not None and merge.exists() and any(merge.iterdir()):
        raise InvalidInputError(f"--merge {merge}: the folder is not empty; name another")
    check_sets(prompts)
    check_methods([method or "default"])
    check_file("--reference", reference)
    check_host(named)
    from pydantic import TypeAdapter

    from vldebias.api import fit_projections
    from vldebias.data import load_embeddings
    from vldebias.edits.edit import Provenance
    from vldebias.hosts import resolve
    from vldebias.hosts.loading import load_host
    from vldebias.methods import Diagnostics, Reference, get_method, load_edit
    from vldebias.prompts import load_prompts

    sets = [
        load_prompts(name) for name in prompts
    ]  # a wrong name is refused before a model is loaded
    get_method(method or "default")
    images = None if reference is None else load_embeddings(reference)[0]
    saved = None if projection is None else load_edit(projection)
    loaded = load_host(**named | {"device": device_of(named.get("device"))})
    if check:
        _check(loaded, prompts[0], as_json)
        return
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    fitted_on = None if images is None else Reference(images.features, labels=images.labels)
    if saved is None:
        saved = fit_projections(host, prompts, method=method, lam=lam, reference=fitted_on)
    edits = saved if isinstance(saved, dict) else dict.fromkeys(host.roles, saved)
    roles: dict[str, dict[str, Any]] = {}
    rows = []
    for role, edit in edits.items():
        if role not in host.roles:
            raise InvalidInputError(
                f"{projection}: got the role {role!r}, expected one of {', '.join(host.roles)}"
            )
        host.check(role, edit)
        folder = None if save is None else str(edit.save_pretrained(save / role))
        shown = (
            () if hasattr(edit, "wordings") else sets
        )  # several wordings of a prompt have no diagnostics
        said = {s.name: asdict(Diagnostics.of(host, role, edit, s)) for s in shown}
        origin = TypeAdapter(Provenance).dump_python(
            edit.provenance, mode="json", exclude_defaults=True
        )
        roles[role] = {
            "folder": folder,
            "projection": repr(edit),
            "diagnostics": said,
            "provenance": origin,
        }
        if edit.provenance.choice is not None:
            say(edit.provenance.choice)
        say(f"{role}: {edit!r}" + (f" -> {folder}" if folder else ""))
        for name, measures in said.items():
            for key, value in measures.items():
                pair = (
                    value if isinstance(value, tuple) else (None, value)
                )  # one figure compares before and after
                told = ("" if part is None else f"{part:.3f}" for part in pair)
                rows.append((key.replace("_", " "), name, role, *told))
    if rows or as_json:
        head = ("measure", "prompt set", "role", "before", "after")
        print_list(head, rows, {"host": loaded.name, "roles": roles}, as_json=as_json)
    if merge is not None:
        _merge(loaded, edits, merge)


def _merge(loaded: Loaded, edits: Mapping[str, Edit], folder: Path) -> None:
    from vldebias.api import debias

    attachment = debias(loaded.host, dict(edits), tokenizer=loaded.tokenizer)
    attachment.merge()
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(loaded.host, "save_pretrained"):
        loaded.host.save_pretrained(folder)
    else:  # open_clip: the state dict that `--pretrained FILE` reads
        from safetensors.torch import save_file

        state = {key: value.contiguous() for key, value in loaded.host.state_dict().items()}
        save_file(state, folder / "open_clip_model.safetensors")
    say(f"{attachment!r}\nsaved to {folder}")


def _check(loaded: Loaded, prompts: str, as_json: bool) -> None:
    """Print what `vldebias.study.variants` finds; exit code 1 if something is wrong."""
    from vldebias.files import versions
    from vldebias.study.variants import check

    if hasattr(loaded.host, "set_progress_bar_config"):
        loaded.host.set_progress_bar_config(disable=True)
    findings = list(check(loaded, prompts, num_inference_steps=2))
    ran = versions()
    say(
        f"{loaded.name} ({type(loaded.host).__name__}); {', '.join(map(' '.join, ran.items()))};"
        f" {prompts}"
    )
    about = {
        "model": loaded.name,
        "class": type(loaded.host).__name__,
        "prompts": prompts,
        "versions": ran,
    }
    said = {None: "not tried", True: "ok", False: "WRONG"}
    rows = [(one.name, said[one.right], one.note) for one in findings]
    facts = about | {"checks": [one._asdict() for one in findings]}
    print_list(("check", "result", "note"), rows, facts, as_json=as_json)
    if any(one.right is False for one in findings):
        raise typer.Exit(1)
