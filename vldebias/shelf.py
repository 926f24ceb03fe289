"""Fitted edits on a shelf: a folder or hub repository with an edit for each role of one model, and a card that says
what it belongs to and what was measured.

    edits = vldebias.fit_projections(pipe, "professions-gender")
    vldebias.push_to_hub(edits, "user/sd35-gender")
    vldebias.debias(pipe, "user/sd35-gender")  # nothing is fitted; another encoder is refused
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vldebias import __version__
from vldebias.edit import Edit
from vldebias.edit_folder import CARD, CONFIG, WEIGHTS, find_folder
from vldebias.errors import InvalidInputError
from vldebias.files import digest, parse_json, readable_json, write_atomically
from vldebias.hosts import Host
from vldebias.hub import reason
from vldebias.methods import load_edit, load_edits
from vldebias.metrics.bootstrap import bootstrap_interval
from vldebias.prompts import PromptSet

SHELF, LICENCE = "shelf.json", "mit"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WANTED = (CONFIG, WEIGHTS, f"*/{CONFIG}", f"*/{WEIGHTS}", SHELF)
Bounded = tuple[float, float, float]
"""Value, low, high: with its 95 % interval."""


@dataclass(frozen=True)
class Evidence:
    """One figure before and after. n: what was resampled, and how many of it."""

    metric: str
    part: str
    before: Bounded
    after: Bounded
    n: Mapping[str, int]


def is_shelved(name: object) -> bool:
    """Is that the folder of a shelved edit, or the name of a hub repository? A path to a YAML file is neither."""
    if not isinstance(name, str | Path) or Path(name).suffix in (".yaml", ".yml"):
        return False
    folder = Path(name)
    try:
        if folder.is_dir():
            return (folder / CONFIG).is_file() or any(folder.glob(f"*/{CONFIG}"))
    except OSError:  # a text that is too long for a name
        return False
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and not folder.exists()


def from_hub(name: str | Path, *, revision: str | None = None, token: str | None = None) -> dict[str, Edit]:
    """Role -> edit, from a repository of `push_to_hub` or a folder of `save_shelf`; no code of it is run.

    Raises:
        InvalidInputError: there is none, or it is damaged.
    """
    folder = find_folder(name, revision=revision, token=token, patterns=_WANTED)
    if not (folder / CONFIG).is_file():
        return dict(load_edits(folder))
    edit = load_edit(folder)  # one alone, as `Edit.push_to_hub` writes it
    return {(edit.space or "").partition(".")[2] or "joint": edit}


def save_shelf(
    edits: Edit | Mapping[str, Edit], folder: str | Path, *, evidence: Sequence[Evidence] = (), licence: str = LICENCE
) -> Path:
    """Write a folder for each role, and the card; returns the folder.

    Args:
        edits: by role, as `vldebias.fit_projections` and `Attachment.projections` give them; one for a single role.
        evidence: what was measured; `text_evidence` measures on texts alone.
        licence: of the edit, as the hub names them.

    Raises:
        InvalidInputError: no edits, or edits of several models.
    """
    by_role, folder = _by_role(edits), Path(folder)
    for role, edit in by_role.items():
        edit.save_pretrained(folder / role)
    about = {"roles": sorted(by_role), "licence": licence, "evidence": [asdict(one) for one in evidence]}
    write_atomically(folder / SHELF, readable_json({"format": 1, "vldebias": __version__, **about}) + "\n")
    write_atomically(folder / CARD, card(by_role, folder, evidence, licence))
    return folder


def push_to_hub(
    edits: Edit | Mapping[str, Edit] | str | Path,
    repo_id: str,
    *,
    evidence: Sequence[Evidence] = (),
    licence: str = LICENCE,
    private: bool | None = None,
    token: str | None = None,
) -> str:
    """Upload fitted edits with their card, or a folder that `save_shelf` wrote; returns the URL of the commit.

    Raises:
        InvalidInputError: as `save_shelf`, no such folder, or a hub that cannot be reached or does not let one write.
    """
    if isinstance(edits, str | Path):
        shelf_of(edits)
    import huggingface_hub

    hub = huggingface_hub.HfApi(token=token)
    with tempfile.TemporaryDirectory() as made:
        folder = edits if isinstance(edits, str | Path) else save_shelf(edits, made, evidence=evidence, licence=licence)
        message = f"Upload an edit (vldebias {__version__})"
        try:
            repo = hub.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
            return str(hub.upload_folder(repo_id=repo, folder_path=str(folder), commit_message=message))
        except (OSError, huggingface_hub.errors.HfHubHTTPError) as error:
            raise InvalidInputError(
                f"{repo_id}: not uploaded: {reason(error)}; expected the hub within reach and a token that may write "
                "there (`hf auth login`, or token=)"
            ) from error


def shelf_of(folder: str | Path) -> dict[str, Any]:
    """What shelf.json of a folder says.

    Raises:
        InvalidInputError: there is none, or it is no such file.
    """
    path = Path(folder) / SHELF
    if not path.is_file():
        raise InvalidInputError(f"{path}: missing; expected a folder that `vldebias shelf build` or save_shelf wrote")
    about = parse_json(path.read_bytes(), str(path))
    if not isinstance(about, dict) or about.get("format") != 1:
        raise InvalidInputError(f"{path}: expected a mapping with format 1, as save_shelf writes it")
    return about


def card(edits: Mapping[str, Edit], folder: Path, evidence: Sequence[Evidence], licence: str) -> str:
    """The model card: what it belongs to, what was measured, how it is attached."""
    first = next(iter(edits.values()))
    model = first.model_id or "a model that says no name"
    base = f"base_model: {model}\n" if _NAME.fullmatch(model) and not Path(model).exists() else ""
    stated = ", ".join(first.stated_words[:12]) or "none"
    lines = [
        f"---\nlicense: {licence}\nlibrary_name: vldebias\n{base}tags:\n- fairness\n- vision-language\n---",
        f"# {first.provenance.prompts or 'An edit'} of {model}\n",
        "An edit of text embeddings that mitigates what its prompt set describes, made with "
        f"[vldebias](https://pypi.org/project/vldebias) {__version__}. It mitigates and does not remove a bias: "
        "measure on your own data. Gender and race are the labels of its prompts.\n",
        '    import vldebias\n    attachment = vldebias.debias(pipe, "this repository or folder")\n',
        "Nothing is fitted then. Other weights than it was fitted on are refused by their fingerprint.\n",
        f"- model: `{model}`\n- prompt set: `{first.provenance.prompts}` (hash `{first.provenance.prompts_hash}`)\n"
        f"- prompts that name one of these are left alone: {stated}\n- licence: {licence}\n",
        "| role | space | width | method | lam | sha256 of its tensors |\n| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {role} | {edit.space} | {edit.dim} | {edit.method} | {edit.lam} | `{digest(folder / role / WEIGHTS)}` |"
        for role, edit in edits.items()
    ]
    if evidence:
        lines += ["\n## Before and after\n", "95 % intervals.\n", "| figure | of | before | after | n |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        lines += [
            f"| {one.metric} | {one.part} | {_told(one.before)} | {_told(one.after)} | "
            f"{', '.join(f'{n} {what}' for what, n in one.n.items())} |"
            for one in evidence
        ]
    else:
        lines += ["\nNothing was measured with it yet.\n"]
    return "\n".join(lines) + "\n"


def text_evidence(host: Host, prompts: PromptSet, edits: Mapping[str, Edit]) -> list[Evidence]:
    """What edits do to the texts of a prompt set, by role: distance within pairs that the fit has not seen (or that it
    has, where the set has no others), and what a class prompt keeps of itself.

    Edits that draw a value or read the prompt are left out: embeddings alone do not show what they do.
    """
    unseen = bool(prompts.held_out_pairs)
    pairs = prompts.held_out_pairs or prompts.pairs
    name = f"distance within {'unseen ' * unseen}pairs"
    rows = []
    for role, edit in edits.items():
        if edit.sampled or edit.reads_text:
            continue
        flat = [text for pair in pairs for text in pair]
        both = [host.under(flat, role, one, keep_stated=False).unflatten(0, (-1, 2)) for one in (None, edit)]
        gaps = [(one[:, 0] - one[:, 1]).norm(dim=-1).numpy() for one in both]
        rows.append(Evidence(name, role, _mean(gaps[0]), _mean(gaps[1]), {"pairs": len(pairs)}))
        if prompts.classes:
            bare, edited = (host.under(prompts.classes, role, one) for one in (None, edit))
            kept = (bare * edited).sum(-1).numpy()
            n = {"class prompts": len(kept)}
            rows.append(Evidence("cosine of a class prompt with itself", role, (1.0, 1.0, 1.0), _mean(kept), n))
    return rows


def _mean(values: Any) -> Bounded:
    mean = float(values.mean())
    if len(values) < 2:
        return mean, mean, mean
    between = bootstrap_interval(values)
    return mean, between.low, between.high


def _told(value: Bounded) -> str:
    return f"{value[0]:.3f}" + ("" if value[1] == value[2] else f" [{value[1]:.3f}, {value[2]:.3f}]")


def _by_role(edits: Edit | Mapping[str, Edit]) -> dict[str, Edit]:
    by_role = dict(edits) if isinstance(edits, Mapping) else {(edits.space or "").partition(".")[2] or "joint": edits}
    if not by_role or not all(isinstance(one, Edit) for one in by_role.values()):
        raise InvalidInputError(
            f"shelf: expected fitted edits by role, as vldebias.fit_projections gives, got {type(edits).__name__}"
        )
    models = {one.model_id for one in by_role.values()}
    if len(models) > 1:
        raise InvalidInputError(f"shelf: edits of several models, {sorted(map(str, models))}; expected those of one")
    return by_role


def evidence_from(rows: Sequence[Any]) -> list[Evidence]:
    """Figures of methods with a change to "none", from the rows of a result (`vldebias.evaluation.result`)."""
    bare = {(r.task, r.metric, r.subset): (r.value, *r.interval) for r in rows if r.method == "none"}
    return [
        Evidence(f"{r.task}: {r.metric}", r.subset or "all", bare[place], (r.value, *r.interval), r.n)
        for r in rows
        if r.method != "none" and (place := (r.task, r.metric, r.subset)) in bare
    ]


def load_evidence(about: Mapping[str, Any]) -> list[Evidence]:
    """That of a shelf.json."""
    plain = json.loads(json.dumps(about.get("evidence", [])))
    return [Evidence(**one | {"before": tuple(one["before"]), "after": tuple(one["after"])}) for one in plain]
