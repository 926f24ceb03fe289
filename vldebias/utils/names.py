"""Check names of methods, prompt sets, architectures and weights without importing the libraries
that hold them.

The command line looks at its arguments before it imports torch, which takes seconds.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.utils.files import packaged


class Listing(NamedTuple):
    """Describe a method as `vldebias methods` lists it: see the attributes of `Method`."""

    title: str
    source: str
    needs: tuple[str, ...] = ()
    has_lam: bool = False
    models: bool = True
    pipelines: bool = True
    side: str = "text"


_MEANS = "mean-difference projection: Bolukbasi et al., 2016; Haghighatkhah et al., 2022"
LISTINGS = {
    "none": Listing("none", ""),
    "orth": Listing(
        "orthogonal projection", "Chuang et al., 2023, section 7.3.2", needs=("spurious prompts",)
    ),
    "orth-cali": Listing(
        "calibrated orthogonal projection",
        "Chuang et al., 2023, Lemma 7.1",
        needs=("prompt pairs", "spurious prompts"),
        has_lam=True,
    ),
    "cali": Listing(
        "calibration", "Chuang et al., 2023, Lemma 7.2", needs=("prompt pairs",), has_lam=True
    ),
    "difference": Listing(
        "difference of the values",
        _MEANS,
        needs=("words for each value",),
    ),
    "equalise": Listing(
        "equalised image means",
        "this package",
        needs=("unlabelled images",),
        has_lam=True,
        pipelines=False,
    ),
    "cali+equalise": Listing(
        "calibration and equalised image means",
        "Chuang et al., 2023, Lemma 7.2; this package",
        needs=("prompt pairs", "unlabelled images"),
        has_lam=True,
        pipelines=False,
    ),
    "difference+equalise": Listing(
        "difference of the values and equalised image means",
        f"{_MEANS}; this package",
        needs=("unlabelled images", "words for each value"),
        has_lam=True,
        pipelines=False,
    ),
    "leace": Listing(
        "LEACE of images",
        "Belrose et al., 2023, Theorem 4.3",
        needs=("labelled images", "words for each value"),
        pipelines=False,
        side="image",
    ),
    "sfid": Listing(
        "selective feature imputation",
        "Jung et al., 2024",
        needs=("labelled images", "prompt pairs", "words for each value"),
        pipelines=False,
        side="both",
    ),
    "spd": Listing(
        "subspace projection and neutral mean",
        "Zhao et al., 2026",
        needs=("labelled images", "prompt pairs", "words for each value"),
        pipelines=False,
        side="both",
    ),
    "roboshot": Listing(
        "RoboShot",
        "Adila et al., 2024, Algorithm 1",
        needs=("words for each value",),
        pipelines=False,
        side="image",
    ),
    "fair-pca": Listing(
        "fair PCA, without FairImagen's sampling",
        "Fu et al., 2025 (FairImagen)",
        needs=("prompt pairs", "words for each value"),
        models=False,
    ),
    "bend-vlm": Listing(
        "BendVLM",
        "Gerych et al., 2024, steps 1 and 2",
        needs=("labelled images", "prompt pairs", "words for each value"),
        pipelines=False,
    ),
    "lian": Listing(
        "half-way to the other groups",
        "Lian et al., 2026",
        needs=("words for each value",),
        side="both",
    ),
    "each-value": Listing(
        "mean over a wording for each value",
        "Berg et al., 2022, prompt ensembles; this package",
        needs=("words for each value",),
    ),
    "suffix": Listing(
        "suffix that names the attribute", "users' habit", needs=("words for each value",)
    ),
    "tie": Listing(
        "TIE*, translated images",
        "Lu et al., 2025 (TIE), Theorem 1",
        needs=("unlabelled images", "words for each value"),
        pipelines=False,
        side="image",
    ),
    "sage": Listing(
        "SAGE, the best template",
        "Ye et al., 2026 (SAGE), K = 1",
        pipelines=False,
        side="image",
    ),
    "dat": Listing(
        "DAT, scores over local density",
        "Hasanebrahimi et al., 2026 (DAT)",
        needs=("labelled images", "words for each value"),
        pipelines=False,
        side="image",
    ),
    "cross-attention": Listing(
        "values set in cross-attention",
        "this package, after Gaintseva et al., 2026 (EquiSteer)",
        needs=("words for each value",),
        models=False,
        side="denoiser",
    ),
    "balanced-prompts": Listing(
        "values stated in the prompts",
        "prompt augmentation; this package",
        needs=("words for each value",),
        models=False,
    ),
    "paper": Listing("the paper's settings", "Chuang et al., 2023, Table 7.3 and section 7.5"),
    "default": Listing("what is attached where no method is named", "this package"),
    "default+equalise": Listing(
        "what is attached with reference images where no method is named",
        "this package",
        needs=("unlabelled images",),
        pipelines=False,
    ),
    "rerank": Listing(
        "re-ranked results",
        "this package; vldebias.rerank",
        needs=("words for each value",),
        pipelines=False,
    ),
    "rerank-fair": Listing(
        "results re-ranked by FA*IR",
        "Zehlike et al., 2017; vldebias.rerank",
        needs=("words for each value",),
        pipelines=False,
    ),
    "default+rerank": Listing(
        "default, then re-ranked results",
        "this package; vldebias.rerank",
        needs=("words for each value",),
        pipelines=False,
    ),
    "target-shares": Listing(
        "target shares of a ranking",
        "this package",
        needs=("unlabelled images", "words for each value"),
        has_lam=True,
        pipelines=False,
    ),
}
"""The methods of this package, in the order of `vldebias methods`. A test holds them equal to the
registry, which takes torch to import."""

METHOD_GROUP = "vldebias.methods"
"""The group of entry points by which other packages add methods."""


def listings() -> dict[str, Listing]:
    """Return what to list of each method by its name.

    The registry is imported only where it has more than this package's methods: another package
    adds some, or this process has registered one.
    """
    found = dict(LISTINGS)
    if "vldebias.methods" in sys.modules or entry_points(group=METHOD_GROUP):
        registry = import_module("vldebias.methods").METHODS
        for name, method in registry.items():
            fields = {field: getattr(method, field) for field in Listing._fields}
            found[name] = Listing(**fields)
    return found


def check_methods(names: Iterable[str]) -> None:
    """Refuse a method that is not known.

    Where another package adds methods, a name that is not of this package passes: only importing
    that package shows what it adds.

    Args:
        names: names of methods, as --method takes them.

    Raises:
        InvalidInputError: no method of such a name.
    """
    imported = sys.modules.get("vldebias.methods")
    if imported is not None:  # their registry answers, and has what was added
        for name in names:
            imported.METHODS[name]
        return
    unknown = [name for name in names if name not in LISTINGS]
    # An entry point has a name of its own, which need not be the method's.
    if not unknown or entry_points(group=METHOD_GROUP):
        return
    known = ", ".join(LISTINGS)
    hint = did_you_mean(unknown[0], LISTINGS)
    raise InvalidInputError(f"method: expected one of {known}, got {unknown[0]!r}; {hint}")


def is_file_of_set(name: str | Path) -> bool:
    """Tell whether a prompt set is named by its path: "gender.yaml" and "sets/gender" are paths,
    "gender" is none."""
    path = Path(name)
    return isinstance(name, Path) or path.suffix == ".yaml" or len(path.parts) > 1


def packaged_set(name: str) -> Path:
    """Return the file of the packaged prompt set of a name.

    Raises:
        InvalidInputError: no set of such a name.
    """
    files = packaged("prompts")
    if name in files:
        return files[name]
    known = ", ".join(files)
    hint = did_you_mean(name, files)
    raise InvalidInputError(
        f"got the prompt set {name!r}; expected one of {known}, or a .yaml file; {hint}"
    )


def architectures() -> list[str]:
    """Return the names of open_clip's architectures, [] where it is absent.

    They are read from its files; once it is imported from the package itself, since a program may
    have added some.
    """
    imported = sys.modules.get("open_clip")
    if imported is not None:
        return list(imported.list_models())
    folder = _open_clip_folder()
    if folder is None:
        return []
    # open_clip reads the same folder; importing it would take torch and seconds.
    return sorted(path.stem for path in (folder / "model_configs").glob("*.json"))


def _open_clip_folder() -> Path | None:
    """Return the folder of the installed package open_clip, without importing it."""
    package = find_spec("open_clip")
    if package is None or package.submodule_search_locations is None:
        return None
    return Path(next(iter(package.submodule_search_locations)))


def check_architecture(name: str) -> None:
    """Refuse a name that is no architecture of open_clip.

    Args:
        name: what stands before a tag of open_clip, such as "ViT-B-32".

    Raises:
        InvalidInputError: no architecture of such a name. Where open_clip is not installed, every
            name passes.
    """
    known = architectures()
    if not known or name in known:
        return
    raise InvalidInputError(
        f"{name!r} is not an open_clip architecture; see open_clip.list_models();"
        f" {did_you_mean(name, known)}"
    )


def check_name_without_weights(name: str) -> None:
    """Refuse an open_clip architecture without weights, also if it is misspelt.

    Raises:
        InvalidInputError: A name such as "ViT-B-32", or "ViT-B32". Other names pass: they may be
            ids of transformers, which only the hub knows.
    """
    tags = _tags_of(name)
    if tags:
        raise InvalidInputError(
            f"{name!r} is an architecture of open_clip, without weights; expected --model {name}"
            f" --pretrained TAG (in `eval paper` --model {name}:TAG), with one of {', '.join(tags)}"
        )
    lower_names = {known.lower(): known for known in architectures()}
    (closest,) = difflib.get_close_matches(name.lower(), lower_names, n=1, cutoff=0.85) or ("",)
    if closest and lower_names[closest] != name:
        raise InvalidInputError(
            f"{name!r} is neither an open_clip architecture nor a folder; did you mean"
            f" '--model {lower_names[closest]} --pretrained TAG'?"
        )


def check_weights(architecture: str, weights: str) -> None:
    """Refuse weights that are neither a tag of the architecture nor a file.

    Args:
        architecture: a name that `check_architecture` passes. weights: a tag, or a checkpoint file.

    Raises:
        InvalidInputError: no such weights. Where open_clip keeps its tags otherwise than expected,
            all pass: it refuses them itself once it is imported.
    """
    tags = _tags_of(architecture)
    is_tag = weights.lower().replace("-", "_") in tags
    if not tags or is_tag or Path(weights).exists():
        return
    raise InvalidInputError(
        f"{architecture}: got the weights {weights!r}; expected a checkpoint file or one of"
        f" {', '.join(tags)}"
    )


def _tags_of(architecture: str) -> list[str]:
    """Return the tags of an architecture, [] where they cannot be read.

    The file that lists them is read, not run: `_PRETRAINED = {"RN50": _RN50, ...}`, and for each
    `_RN50 = dict(openai=..., ...)`, or the latter inside the former.
    """
    imported = sys.modules.get("open_clip")
    if imported is not None:
        return list(imported.list_pretrained_tags_by_model(architecture))
    folder = _open_clip_folder()
    if folder is None or not (folder / "pretrained.py").is_file():
        return []
    source = (folder / "pretrained.py").read_text(encoding="utf-8")
    value_of_name = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            value_of_name[statement.targets[0].id] = statement.value
    listed = value_of_name.get("_PRETRAINED")
    tags: ast.expr | None = None
    if isinstance(listed, ast.Dict):
        keys = [getattr(key, "value", None) for key in listed.keys]
        tags = dict(zip(keys, listed.values, strict=True)).get(architecture)
    if isinstance(tags, ast.Name):
        tags = value_of_name.get(tags.id)
    if not isinstance(tags, ast.Call):  # `dict(openai=..., ...)`
        return []
    return [keyword.arg for keyword in tags.keywords if keyword.arg is not None]
