"""`vldebias debias`: fit, inspect, save, merge and check edits."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from vldebias.cli.checks import check_file, check_host, check_sets
from vldebias.cli.common import check_out, print_json, print_list, print_message
from vldebias.cli.flags import HOST, Json, flags_of_options, with_flags
from vldebias.errors import AutoDeclinedWarning, InvalidInputError, ReferenceWarning
from vldebias.methods.listing import check_methods
from vldebias.utils.devices import device_of
from vldebias.utils.files import storage_errors
from vldebias.utils.names import kind_of_path

if TYPE_CHECKING:
    from torch import nn

    from vldebias.hosts import Host
    from vldebias.hosts.loading import Loaded
    from vldebias.methods import Reference
    from vldebias.projection.edit import Edit
    from vldebias.prompts import PromptSet
    from vldebias.utils.json_values import JSON


class EditFacts(TypedDict):
    """Facts about an edit, as printed by `vldebias debias --json`.

    Attributes:
        folder: folder in which the edit was saved, or None.
        projection: description of the edit.
        diagnostics: measures by prompt set, as (before, after) pairs or single values.
        provenance: how the edit was fitted.
    """

    folder: str | None
    projection: str
    diagnostics: dict[str, dict[str, tuple[float, float] | float]]
    provenance: dict[str, JSON]


def _refuse_flag(value: str | None) -> None:
    """Reject --attribute, which other commands take, before the missing argument is reported."""
    if value is not None:
        raise InvalidInputError(
            "debias: got --attribute; omit the flag, as in vldebias debias gender"
        )


@with_flags(flags_of_options(*HOST))
def debias_command(  # noqa: PLR0913  (each is an option of the command)
    prompts: Annotated[
        list[str],
        typer.Argument(
            help="Prompt sets (names or YAML files). Several sets are solved jointly.",
            metavar="SET",
        ),
    ],
    method: Annotated[
        str | None, typer.Option(help="Method (see vldebias methods). Default: default.")
    ] = None,
    lam: Annotated[
        float | None,
        typer.Option(min=0, help="Weight of the prompt pairs, for methods that use one."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Image features from this model (.npz), or a folder of images, to fit on."
        ),
    ] = None,
    projection: Annotated[
        Path | None,
        typer.Option(help="Folder of a saved edit to inspect instead of fitting a new one."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--out", help="Folder in which to save the edit.")
    ] = None,
    merge: Annotated[
        Path | None,
        typer.Option(
            help="Empty folder in which to save the model with the edit merged into its weights."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Fit `cali`, and test attaching, removing, saving and merging it."
        ),
    ] = False,
    as_json: Json = False,
    attribute: Annotated[
        str | None,
        typer.Option(hidden=True, is_eager=True, callback=_refuse_flag, help="Not an option here."),
    ] = None,
    **flags: Any,
) -> None:
    """Fit an edit for a model or pipeline, and report its effect on text embeddings.

    --out saves one folder per edited tensor (role): `text` for models, `sequence`, `pooled`, ...
    for pipelines, and the name of the prompt set for `cross-attention`. --merge writes a checkpoint
    that does not need this package to run. Merged weights also affect negative prompts and prompts
    that state the attribute. Exits with code 1 without writing anything if the default method
    declines to edit, for example because re-ranking is better for searches, or if a test of --check
    fails.

    Examples:
      vldebias debias gender --model miniature --method difference --out edit
      vldebias debias gender --model ViT-B-32 --pretrained openai \\
          --reference images.npz --out gender-b32
      vldebias debias professions-gender \\
          --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5 --out sd15
      vldebias debias waterbirds --model ViT-B-32 --pretrained openai \\
          --reference labelled-images --out birds-b32
      vldebias debias gender --pipeline miniature --method cross-attention \\
          --out set-gender
      vldebias debias gender --model openai/clip-vit-base-patch32 --method cali \\
          --merge clip-merged
      vldebias debias gender --model ViT-B-32 --pretrained openai \\
          --projection gender-b32
      vldebias debias gender --model ViT-B-32 --pretrained openai --check
    """
    fitting = {"--method": method, "--lam": lam, "--reference": reference}
    passed = [option for option, value in fitting.items() if value is not None]
    if passed and (check or projection is not None):
        without_fitting = "--check" if check else "--projection"
        raise InvalidInputError(
            f"{passed[0]} only applies if an edit is fitted; remove it or {without_fitting}"
        )
    # Do not mix old and new weights in one folder, since the old ones could be loaded by mistake.
    if merge is not None and merge.exists() and any(merge.iterdir()):
        raise InvalidInputError(f"--merge {merge}: the folder is not empty; choose a different one")
    check_out(save, "edit")
    check_sets(prompts)
    check_methods([method or "default"])
    check_file("--reference", reference)
    check_host(flags)
    from vldebias.api import fit_projections
    from vldebias.hosts import resolve
    from vldebias.hosts.loading import load_host
    from vldebias.methods import load_edit
    from vldebias.prompts import load_prompts

    # Load the prompt sets first, to report an unknown name before a model is loaded.
    sets = [load_prompts(name) for name in prompts]
    saved = None if projection is None else load_edit(projection)
    flags["device"] = device_of(flags.get("device"))
    loaded = load_host(**flags)
    if check:
        _check(loaded, prompts[0], as_json)
        return
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    if saved is None:
        # Pass the labels, too. Methods that do not need labels ignore them.
        fitted_on = None if reference is None else _opened(reference, loaded)
        with warnings.catch_warnings():
            # The default's decision is printed below.
            warnings.simplefilter("ignore", AutoDeclinedWarning)
            warnings.filterwarnings("ignore", ".*: the default attaches", ReferenceWarning)
            saved = fit_projections(host, prompts, method=method, lam=lam, reference=fitted_on)
        for declined in saved.declined:
            print_message(f"{declined.attribute}: no edit. {_with_options(declined.reason)}")
        if not saved:
            for folder in filter(None, (save, merge)):
                print_message(f"nothing was written to {folder}")
            if as_json:
                choices = [choice.model_dump(mode="json") for choice in saved.declined]
                print_json({"host": loaded.name, "roles": {}, "declined": choices})
            raise typer.Exit(1)
    edits, host = _edits_of_roles(saved, host)
    # Check that the edits fit the model before anything is written.
    for role, edit in edits.items():
        if role not in host.roles:
            raise InvalidInputError(
                f"{projection}: the edit is for the role {role!r}, but the model only has"
                f" the roles {', '.join(host.roles)}; pass an edit for one of these"
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


def _opened(reference: Path, loaded: Loaded) -> Reference:
    """Open the features in a file, or embed the images in a folder with the model, with labels."""
    from vldebias.methods import Reference
    from vldebias.study.inputs import Inputs
    from vldebias.utils.options import Options
    from vldebias.utils.progress import Progress

    with Progress() as progress:
        options = Options(out=Path(), reference=reference)
        images = Inputs(options, {"model": loaded}, progress=progress)["reference"]
    return Reference(images.features, labels=images.labels)


def _save_merged(model: nn.Module, folder: Path) -> None:
    """Save a model with merged weights in a new or empty folder, or remove it on failure.

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
            # open_clip models do not have save_pretrained, so save a state dict that can be loaded
            # with `--pretrained FILE`.
            from safetensors.torch import save_file

            # safetensors cannot store non-contiguous tensors.
            state = {key: value.contiguous() for key, value in model.state_dict().items()}
            save_file(state, folder / "open_clip_model.safetensors")
    except BaseException:
        # Remove the folder, since the command would otherwise reject it the next time.
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _edits_of_roles(saved: Edit | dict[str, Edit], host: Host) -> tuple[dict[str, Edit], Host]:
    """Return the edits by role, and the host to which they apply."""
    from vldebias.methods.cross_attention import at_denoiser
    from vldebias.projection.cross_attention_edit import CrossAttentionEdit

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
    """Save an edit if requested, and return its effect on the model's embeddings.

    Args:
        host: the host to which the edit applies.
        role: role of the edited tensor.
        edit: the fitted edit.
        sets: prompt sets to report on.
        save: folder for all edits. If None, the edit is not saved.
    """
    from pydantic import TypeAdapter

    from vldebias.methods import Diagnostics, load_edit
    from vldebias.projection.cross_attention_edit import CrossAttentionEdit
    from vldebias.projection.provenance import Provenance

    if save is not None and kind_of_path(save / role) == "edit":
        earlier: Any = load_edit(save / role)
        name = earlier.provenance.attribute
        if name != edit.provenance.attribute:
            raise InvalidInputError(f"--out {save}: contains an edit for {name}; choose another")
    folder = None if save is None else str(edit.save_pretrained(save / role))
    diagnostics: dict[str, dict[str, tuple[float, float] | float]] = {}
    if isinstance(edit, CrossAttentionEdit):
        # The edit does not change text embeddings, so report how well its gate separates held-out
        # prompts instead.
        for kind, layers in edit.auroc.items():
            measures = diagnostics.setdefault(role, {})
            measures[f"AUROC of the gate, {kind}"] = max(layers.values(), default=0.5)
    elif not hasattr(edit, "wordings"):  # edits with several wordings have no diagnostics
        for prompt_set in sets:
            diagnostics[prompt_set.name] = asdict(
                Diagnostics.from_edit(host, role, edit, prompt_set)
            )
    provenance = TypeAdapter(Provenance).dump_python(
        edit.provenance, mode="json", exclude_defaults=True
    )
    if edit.provenance.choice is not None:
        print_message(edit.provenance.choice)
    # Print this to stderr, since stdout must only contain JSON if --json is set.
    print_message(f"{role}: {edit!r}" + (f" -> {folder}" if folder else ""))
    return EditFacts(
        folder=folder, projection=repr(edit), diagnostics=diagnostics, provenance=provenance
    )


def _print(name: str, facts_of_role: Mapping[str, EditFacts], *, as_json: bool) -> None:
    """Print one row per measure and role, or all facts as JSON."""
    rows = []
    for role, facts in facts_of_role.items():
        for prompts, measures in facts["diagnostics"].items():
            for measure, value in measures.items():
                # Values are (before, after) pairs or single values, which already compare the two.
                pair = value if isinstance(value, tuple) else (None, value)
                figures = ["" if figure is None else f"{figure:.3f}" for figure in pair]
                rows.append((measure.replace("_", " "), prompts, role, *figures))
    if rows or as_json:
        head = ("measure", "prompt set", "role", "before", "after")
        print_list(head, rows, {"host": name, "roles": facts_of_role}, as_json=as_json)


def _with_options(advice: str) -> str:
    """Replace Python arguments in advice by options of this command.

    >>> _with_options("Pass reference=, or name a method (method='cali').")
    'Pass --reference, or name a method (--method cali).'
    """
    named = re.sub(r"\bmethod='([\w-]+)'", r"--method \1", advice)
    return named.replace("reference=", "--reference")


def _check(loaded: Loaded, prompts: str, as_json: bool) -> None:
    """Run `vldebias.study.edit_check` and print its findings.

    Exits with code 1 if a check fails.
    """
    from vldebias.study.edit_check import check
    from vldebias.utils.files import versions

    if hasattr(loaded.host, "set_progress_bar_config"):
        loaded.host.set_progress_bar_config(disable=True)
    # Two steps are enough, since the images are only compared with each other.
    findings = list(check(loaded, prompts, num_inference_steps=2))
    packages = versions()
    kind = type(loaded.host).__name__
    print_message(
        f"{loaded.name} ({kind}); {', '.join(map(' '.join, packages.items()))}; {prompts}"
    )
    # None means that a check does not apply. For example, open_clip models have no
    # `save_pretrained`.
    words = {None: "not tried", True: "ok", False: "WRONG"}
    rows = [(name, words[passed], note) for name, passed, note in findings]
    checks = [{"name": name, "right": passed, "note": note} for name, passed, note in findings]
    origin = {"model": loaded.name, "class": kind, "prompts": prompts}
    facts = {**origin, "versions": packages, "checks": checks}
    print_list(("check", "result", "note"), rows, facts, as_json=as_json)
    if any(passed is False for _, passed, _ in findings):
        raise typer.Exit(1)
