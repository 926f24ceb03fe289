"""`vldebias debias`: fit, inspect, save, merge and check an edit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

import typer

from vldebias.cli.checks import check_file, check_host, check_sets
from vldebias.cli.common import check_out, device_of, print_list, print_message
from vldebias.cli.flags import HOST, HostFlags, Json, flags_of_options, with_flags
from vldebias.errors import InvalidInputError
from vldebias.methods.declared import check_methods
from vldebias.utils.files import storage_errors

if TYPE_CHECKING:
    from torch import nn

    from vldebias.hosts import Host
    from vldebias.hosts.loading import Loaded
    from vldebias.projection.edit import Edit
    from vldebias.prompts import PromptSet
    from vldebias.utils.json_values import JSON


class EditFacts(TypedDict):
    """Store facts about an edit for `vldebias debias --json`.

    Attributes:
        folder: where it was saved, or None.
        projection: its description.
        diagnostics: measures by prompt set, as pairs (before, after) or single values.
        provenance: how it was fitted.
    """

    folder: str | None
    projection: str
    diagnostics: dict[str, dict[str, tuple[float, float] | float]]
    provenance: dict[str, JSON]


@with_flags(flags_of_options(*HOST))
def debias_command(  # noqa: PLR0913  (each is an option of the command)
    prompts: Annotated[
        list[str],
        typer.Argument(
            help="Prompt sets (names or YAML files); several are solved jointly.", metavar="SET"
        ),
    ],
    method: Annotated[
        str | None, typer.Option(help="Method (vldebias methods). Default: default.")
    ] = None,
    lam: Annotated[
        float | None,
        typer.Option(min=0, help="Weight of the prompt pairs, for methods that take one."),
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Image features of this model (.npz) to fit on.")
    ] = None,
    projection: Annotated[
        Path | None,
        typer.Option(help="Inspect the edit saved in this folder instead of fitting one."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--out", help="Save the edit in this folder.")
    ] = None,
    merge: Annotated[
        Path | None,
        typer.Option(help="Merge the edit into the weights and save them in this empty folder."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Fit `cali` and test attaching, removing, saving and merging."
        ),
    ] = False,
    as_json: Json = False,
    **flags: Unpack[HostFlags],
) -> None:
    """Fit an edit for a model or pipeline and report what it does to the model's own texts.

    --out saves one folder per edited tensor (role): `joint` for models, `sequence`, `pooled`, ...
    for pipelines, the name of the set for `cross-attention`. --merge writes a checkpoint that runs
    without this package; merged weights also change negative prompts and prompts that state the
    attribute. --check exits with code 1 if a test fails.

    Examples:
      vldebias debias gender --model ViT-B-32 --pretrained openai --out gender-b32
      vldebias debias gender --model ViT-B-32 --pretrained openai \\
          --reference images.npz --out gender-b32
      vldebias debias professions-gender \\
          --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5 --out sd15
      vldebias debias gender --pipeline miniature --method cross-attention \\
          --out set-gender
      vldebias debias gender --model openai/clip-vit-base-patch32 --method cali \\
          --merge clip-merged
      vldebias debias gender --model ViT-B-32 --pretrained openai \\
          --projection gender-b32
      vldebias debias gender --model ViT-B-32 --pretrained openai --check
    """
    _check_arguments(method, lam, reference, projection, merge, is_check=check)
    check_out(save)
    check_sets(prompts)
    check_methods([method or "default"])
    check_file("--reference", reference)
    check_host(flags)
    from vldebias.api import fit_projections
    from vldebias.data import load_embeddings
    from vldebias.hosts import resolve
    from vldebias.hosts.loading import load_host
    from vldebias.methods import Reference, load_edit
    from vldebias.prompts import load_prompts

    # Report an unknown set before a model is loaded.
    sets = [load_prompts(name) for name in prompts]
    images = None if reference is None else load_embeddings(reference)[0]
    saved = None if projection is None else load_edit(projection)
    flags["device"] = device_of(flags.get("device"))
    loaded = load_host(**flags)
    if check:
        _check(loaded, prompts[0], as_json)
        return
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    if saved is None:
        # Only methods that need labels use the labels.
        fitted_on = None if images is None else Reference(images.features, labels=images.labels)
        saved = fit_projections(host, prompts, method=method, lam=lam, reference=fitted_on)
    edits, host = _edits_of_roles(saved, host)
    # Check that the edits fit the model before anything is written.
    for role, edit in edits.items():
        if role not in host.roles:
            raise InvalidInputError(
                f"{projection}: got the role {role!r}, expected one of {', '.join(host.roles)}"
            )
        host.check(role, edit)
    facts_of_role = {role: _report(host, role, edit, sets, save) for role, edit in edits.items()}
    _print(loaded.name, facts_of_role, as_json=as_json)
    if merge is not None:
        from vldebias.api import debias

        attachment = debias(loaded.host, dict(edits), tokenizer=loaded.tokenizer)
        attachment.merge()
        _save_merged(loaded.host, merge)
        print_message(f"{attachment!r}\nsaved to {merge}")


def _save_merged(model: nn.Module, folder: Path) -> None:
    """Save a model with merged weights into a new or empty folder; remove it if that fails.

    Raises:
        StorageError: If there is not enough space for the weights.
    """
    try:
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            save_pretrained: Callable[[Path], object] | None = getattr(
                model, "save_pretrained", None
            )
            if save_pretrained is not None:
                save_pretrained(folder)
                return
            # For open_clip, save a state dict, which `--pretrained FILE` loads.
            from safetensors.torch import save_file

            # safetensors cannot store tensor views.
            state = {key: value.contiguous() for key, value in model.state_dict().items()}
            save_file(state, folder / "open_clip_model.safetensors")
    except BaseException:
        # Otherwise, the same command would fail because the folder is not empty.
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _check_arguments(
    method: str | None,
    lam: float | None,
    reference: Path | None,
    projection: Path | None,
    merge: Path | None,
    *,
    is_check: bool,
) -> None:
    """Check that the options can be combined.

    Raises:
        InvalidInputError: If there is an option for fitting but nothing is fitted, or the folder
            for merged weights is not empty.
    """
    without_fitting = ""
    if is_check:
        without_fitting = "--check"
    elif projection is not None:
        without_fitting = "--projection"
    fitting = {"--method": method, "--lam": lam, "--reference": reference}
    for option, value in fitting.items():
        if without_fitting and value is not None:
            raise InvalidInputError(
                f"{option} only applies to fitting; remove it or {without_fitting}"
            )
    # Old weights next to new ones could be loaded by mistake.
    if merge is not None and merge.exists() and any(merge.iterdir()):
        raise InvalidInputError(f"--merge {merge}: the folder is not empty; choose another one")


def _edits_of_roles(saved: Edit | dict[str, Edit], host: Host) -> tuple[dict[str, Edit], Host]:
    """Return the edits by role, and the host for the side on which they act."""
    from vldebias.methods.cross_attention import at_denoiser
    from vldebias.projection.cross_attention import CrossAttentionEdit

    listed = list(saved.values()) if isinstance(saved, dict) else [saved]
    of_denoiser = [edit for edit in listed if isinstance(edit, CrossAttentionEdit)]
    if len(of_denoiser) == len(listed):
        edits: dict[str, Edit] = {edit.attribute: edit for edit in of_denoiser}
        return edits, at_denoiser(host, edits)
    # An edit saved without roles applies to every role of the host.
    edits = saved if isinstance(saved, dict) else dict.fromkeys(host.roles, saved)
    return edits, host


def _report(
    host: Host, role: str, edit: Edit, sets: Sequence[PromptSet], save: Path | None
) -> EditFacts:
    """Save an edit if requested, and return its effect on the model's own embeddings.

    Args:
        host: the host of the edit.
        role: the edited tensor.
        edit: the fitted edit.
        sets: prompt sets to report on.
        save: folder for all edits. If None, edits are not saved.
    """
    from pydantic import TypeAdapter

    from vldebias.methods import Diagnostics
    from vldebias.projection.cross_attention import CrossAttentionEdit
    from vldebias.projection.edit import Provenance

    folder = None if save is None else str(edit.save_pretrained(save / role))
    diagnostics: dict[str, dict[str, tuple[float, float] | float]] = {}
    if isinstance(edit, CrossAttentionEdit):
        # Text embeddings do not change, so report how well the gate separates held-out texts.
        for kind, layers in edit.auroc.items():
            measures = diagnostics.setdefault(role, {})
            measures[f"AUROC of the gate, {kind}"] = max(layers.values(), default=0.5)
    elif not hasattr(edit, "wordings"):  # edits with several wordings have no diagnostics
        for prompts in sets:
            diagnostics[prompts.name] = asdict(Diagnostics.from_edit(host, role, edit, prompts))
    provenance = TypeAdapter(Provenance).dump_python(
        edit.provenance, mode="json", exclude_defaults=True
    )
    if edit.provenance.choice is not None:
        print_message(edit.provenance.choice)
    # Print this on stderr, since stdout only contains JSON with --json.
    print_message(f"{role}: {edit!r}" + (f" -> {folder}" if folder else ""))
    return {
        "folder": folder,
        "projection": repr(edit),
        "diagnostics": diagnostics,
        "provenance": provenance,
    }


def _print(name: str, facts_of_role: Mapping[str, EditFacts], *, as_json: bool) -> None:
    """Print one row per measure and role, or all facts as JSON."""
    rows = []
    for role, facts in facts_of_role.items():
        for prompts, measures in facts["diagnostics"].items():
            for measure, value in measures.items():
                # A pair is (before, after); a single value compares the two.
                pair = value if isinstance(value, tuple) else (None, value)
                figures = ["" if figure is None else f"{figure:.3f}" for figure in pair]
                rows.append((measure.replace("_", " "), prompts, role, *figures))
    if rows or as_json:
        head = ("measure", "prompt set", "role", "before", "after")
        print_list(head, rows, {"host": name, "roles": facts_of_role}, as_json=as_json)


def _check(loaded: Loaded, prompts: str, as_json: bool) -> None:
    """Run `vldebias.study.edit_check` and print its findings; exit with code 1 if a check fails."""
    from vldebias.study.edit_check import check
    from vldebias.utils.files import versions

    if hasattr(loaded.host, "set_progress_bar_config"):
        loaded.host.set_progress_bar_config(disable=True)
    # Two steps are sufficient, since images are only compared with each other.
    findings = list(check(loaded, prompts, num_inference_steps=2))
    packages = versions()
    kind = type(loaded.host).__name__
    print_message(
        f"{loaded.name} ({kind}); {', '.join(map(' '.join, packages.items()))}; {prompts}"
    )
    # Some checks do not apply: open_clip models have no `save_pretrained`.
    words = {None: "not tried", True: "ok", False: "WRONG"}
    rows = [(name, words[passed], note) for name, passed, note in findings]
    facts = {
        "model": loaded.name,
        "class": kind,
        "prompts": prompts,
        "versions": packages,
        "checks": [
            {"name": name, "right": passed, "note": note} for name, passed, note in findings
        ],
    }
    print_list(("check", "result", "note"), rows, facts, as_json=as_json)
    if any(passed is False for _, passed, _ in findings):
        raise typer.Exit(1)
