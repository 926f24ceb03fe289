"""Check the names of prompt sets, suites, architectures and weights without importing torch.

The command line runs these checks first, because importing torch takes seconds.
"""

from __future__ import annotations

import ast
import difflib
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from vldebias.errors import InvalidInputError, did_you_mean, expected_one_of
from vldebias.utils.files import packaged

NAMES_WITH_SCHEMA = ("hf-hub:", "local-dir:")
"""Prefixes of model names that open_clip does not look up in its list of architectures."""


def is_file_of_set(name: str | Path) -> bool:
    """Return whether a prompt set is a path ("gender.yaml", "sets/gender") rather than a name."""
    path = Path(name)
    return isinstance(name, Path) or path.suffix == ".yaml" or len(path.parts) > 1


def packaged_set(name: str) -> Path:
    """Return a packaged prompt set's file.

    Raises:
        InvalidInputError: If the name is unknown.
    """
    files = packaged("prompts")
    if name in files:
        return files[name]
    raise InvalidInputError(
        f"got the prompt set {name!r}; {expected_one_of(name, files, 'a .yaml file')}"
    )


PACKAGED = ("miniature", "photographs")
"""Names of packaged models. A folder of the same name is not opened."""
# The file that shows what a folder contains. Pipelines also have models in subfolders.
_KIND_OF_FILE = {
    "model_index.json": "pipeline",
    "modular_model_index.json": "pipeline",
    "projection.safetensors": "edit",
    "config.json": "model",
    "open_clip_config.json": "model",
    "clip.safetensors": "model",
    "result.json": "result",
}
_KIND_OF_SUFFIX = {
    **dict.fromkeys((".safetensors", ".pt", ".pth", ".bin", ".ckpt"), "weights"),
    **dict.fromkeys((".npy", ".npz"), "features"),
    **dict.fromkeys((".csv", ".tsv", ".jsonl", ".parquet", ".json"), "table"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp"), "image"),
}
# What each kind is called, and what takes it if that is clear.
_USE_OF_KIND = {
    "pipeline": "a diffusers pipeline; use load_host(pipeline={path!r}), or --pipeline {path}",
    "model": "an image-text model; use load_host({path!r}), or --model {path} where there is one",
    "edit": "a saved edit; use vldebias.load_edit({path!r})",
    "result": "the folder of a result; use vldebias eval show {path}",
    "weights": (
        "a file of weights; use load_host(ARCHITECTURE, pretrained={path!r}), or --model"
        " ARCHITECTURE --pretrained {path}"
    ),
    "features": "a file of features",
    "table": "a table",
    "image": "an image",
}
_EXPECTED_OF_KIND = {
    "pipeline": "the folder of a diffusers pipeline",
    "model": "the folder of an image-text model",
    "edit": "the folder of a saved edit",
    "features": "a file of features, as numpy.savez writes it",
}


def kind_of_path(path: str | Path) -> str:
    """Return what a file or folder contains, such as "model" or "pipeline", or "" if unknown."""
    path = Path(path).expanduser()
    if os.path.isfile(path):
        return _KIND_OF_SUFFIX.get(path.suffix.lower(), "")
    return next((kind for name, kind in _KIND_OF_FILE.items() if os.path.isfile(path / name)), "")


def check_path(name: str, *kinds: str) -> None:
    """Raise an error for a path that is of another kind, or a misspelt name of a folder.

    Args:
        name: a path, or a name that is not looked up here, such as an id on the hub.
        kinds: the accepted kinds (see `kind_of_path`). Paths of unknown kinds are accepted.

    Raises:
        InvalidInputError: If the path contains something else, or does not exist while its parent
            folder does and has an entry with a similar name, or the name can only be a path.
    """
    if name in PACKAGED or is_function(name):
        return
    path = Path(name).expanduser()
    kind = kind_of_path(path)
    if kind and kind not in kinds:
        use = _USE_OF_KIND[kind].format(path=name)
        # The weights of a saved model are loaded from its folder.
        if kind == "weights" and kind_of_path(path.parent) in kinds:
            use = f"a file of weights; pass its folder, {str(path.parent)!r}"
        expected = " or ".join(_EXPECTED_OF_KIND[kind] for kind in kinds)
        raise InvalidInputError(f"{name}: {expected and f'expected {expected}, but '}this is {use}")
    if os.path.isdir(path) and not kind and "edit" not in kinds:  # edits may be in subfolders
        expected = " or ".join(_EXPECTED_OF_KIND[kind] for kind in kinds)
        files = ", ".join(name for name, kind in _KIND_OF_FILE.items() if kind in kinds)
        raise InvalidInputError(f"{name}: expected {expected}, but it contains none of {files}")
    if os.path.exists(path):
        return
    names = os.listdir(path.parent) if os.path.isdir(path.parent) else []
    hint = did_you_mean(path.name, names, "", cutoff=0.8)
    # Other names with a slash may be ids on the hub, if there is no such folder.
    is_path = name.startswith(("/", "./", "../", "~")) or (len(path.parts) > 1 and names)
    if hint or is_path:
        raise InvalidInputError(f"{name}: no such folder; {hint or 'check the path'}")


def suite_path(name_or_path: str | Path) -> Path:
    """Return a suite's file, given its name or path.

    "waterbirds" is a name; "waterbirds.yaml", "suites/waterbirds" and Path("waterbirds") are paths.

    Raises:
        InvalidInputError: If no suite has this name.
    """
    path = Path(name_or_path)
    is_path = isinstance(name_or_path, Path) or path.suffix in (".yaml", ".yml")
    if is_path or len(path.parts) > 1:
        return path.expanduser()
    file_of_suite = packaged("suites")
    if name_or_path not in file_of_suite:
        expected = expected_one_of(name_or_path, file_of_suite, "a .yaml file")
        raise InvalidInputError(f"got the suite {name_or_path!r}; {expected}")
    return file_of_suite[name_or_path]


def architectures() -> list[str]:
    """Return open_clip's architecture names, or an empty list if it is not installed.

    If open_clip has already been imported, architectures registered by the program are included.
    Otherwise, its files are read without importing it.
    """
    imported = sys.modules.get("open_clip")
    if imported is not None:
        return list(imported.list_models())
    folder = _open_clip_folder()
    if folder is None:
        return []
    # Read the same folder as open_clip, because importing open_clip would import torch.
    return sorted(path.stem for path in (folder / "model_configs").glob("*.json"))


def _open_clip_folder() -> Path | None:
    """Return the folder of the installed open_clip package, without importing it."""
    package = find_spec("open_clip")
    if package is None or package.submodule_search_locations is None:
        return None
    return Path(next(iter(package.submodule_search_locations)))


def is_function(model: str) -> bool:
    """Return whether a model's name has the form module:function, such as "my_models:load"."""
    module, colon, function = model.partition(":")
    return bool(colon) and function.isidentifier() and module.replace(".", "_").isidentifier()


def check_one_host(options: Mapping[str, object]) -> None:
    """Check that options select one model, or one pipeline.

    Args:
        options: values of "model", "pretrained" and "pipeline", or None for each that is not set.

    Raises:
        InvalidInputError: If they select both or neither, or weights without a model.
    """
    names = ("model", "pretrained", "pipeline")
    passed = [f"--{name}" for name in names if options.get(name) is not None]
    if passed not in (["--model"], ["--model", "--pretrained"], ["--pipeline"]):
        raise InvalidInputError(
            "expected either --model (with --pretrained for open_clip weights) or --pipeline, got"
            f" {' and '.join(passed) or 'neither'}"
        )


def check_model(model: str | None, pretrained: str | None = None) -> None:
    """Raise an error unless open_clip lists a model's architecture and weights.

    Args:
        model: an open_clip architecture, another name that `vldebias.load_host` accepts, or None.
            For module:function, only the module is checked, since importing it would run its code.
        pretrained: a tag or a checkpoint file for the architecture.

    Raises:
        InvalidInputError: If the architecture or the weights are unknown, or an architecture has no
            weights.
    """
    if model is None or model.startswith(NAMES_WITH_SCHEMA):
        return
    if is_function(model):
        check_function(model, pretrained)
    elif pretrained is not None:
        check_architecture(model)
        check_weights(model, pretrained)
    elif "/" not in model and not Path(model).exists():
        check_name_without_weights(model)


def check_function(name: str, pretrained: str | None) -> None:
    """Raise an error if the module of module:function does not exist, without importing it.

    Args:
        name: the module and function, such as "my_models:load".
        pretrained: weights, which such models must not have.

    Raises:
        InvalidInputError: If there is no such module in the working directory or among the
            installed packages, or weights were passed.
    """
    module, _, tag = name.partition(":")
    if pretrained is not None:
        raise InvalidInputError(
            f"{name!r} names a function, which returns a model with weights; remove --pretrained"
        )
    # The rest of the name is checked by importing it, which runs the package.
    first = module.partition(".")[0]
    if (
        find_spec(first) is None
        and not list(Path().glob(f"{first}.py"))
        and not Path(first).is_dir()
    ):
        raise InvalidInputError(
            f"{name!r}: there is no module {first!r} in this folder or among the installed"
            " packages. Expected MODULE:FUNCTION, or, for an architecture of open_clip, --model"
            f" {module} --pretrained {tag}"
        )


def check_architecture(name: str) -> None:
    """Raise an error for an unknown open_clip architecture.

    Args:
        name: the architecture name, such as "ViT-B-32".

    Raises:
        InvalidInputError: If the name is unknown. If open_clip is not installed, all names are
            accepted.
    """
    known = architectures()
    if not known or name in known:
        return
    raise InvalidInputError(
        f"{name!r} is not an open_clip architecture; see open_clip.list_models();"
        f" {did_you_mean(name, known)}"
    )


def check_name_without_weights(name: str) -> None:
    """Raise an error if a name without weights is an open_clip architecture, even if misspelt.

    Raises:
        InvalidInputError: If the name resembles "ViT-B-32" or "ViT-B32". Other names are accepted,
            because they may be ids of transformers models on the hub.
    """
    tags = _tags_of(name)
    if tags:
        raise InvalidInputError(
            f"{name!r} is an open_clip architecture without weights; expected"
            f" load_host({name!r}, pretrained=TAG), or --model {name} --pretrained TAG (in `eval"
            f" paper`, --model {name}:TAG), where TAG is one of {', '.join(tags)}"
        )
    lower_names = {known.lower(): known for known in architectures()}
    (closest,) = difflib.get_close_matches(name.lower(), lower_names, n=1, cutoff=0.85) or ("",)
    if closest and lower_names[closest] != name:
        raise InvalidInputError(
            f"{name!r} is neither an open_clip architecture nor a folder; did you mean"
            f" '--model {lower_names[closest]} --pretrained TAG'?"
        )


def check_weights(architecture: str, weights: str) -> None:
    """Raise an error for weights that are neither a tag for the architecture nor a file.

    Args:
        architecture: a known architecture (see `check_architecture`).
        weights: a tag or a checkpoint file.

    Raises:
        InvalidInputError: If the weights are unknown. If the installed open_clip's tags cannot be
            read, all weights are accepted, and open_clip checks them itself.
    """
    tags = _tags_of(architecture)
    is_tag = weights.lower().replace("-", "_") in tags
    if not tags or is_tag or Path(weights).exists():
        return
    raise InvalidInputError(
        f"{architecture}: got the weights {weights!r};"
        f" {expected_one_of(weights, tags, 'a checkpoint file')}"
    )


def _tags_of(architecture: str) -> list[str]:
    """Return an architecture's tags, or an empty list if they cannot be read.

    open_clip's source file is parsed, but not executed. It contains `_PRETRAINED = {"RN50": _RN50,
    ...}`, with `_RN50 = dict(openai=..., ...)` separate or inline.
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
