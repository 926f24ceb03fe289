"""Suites by name or from a YAML file; a mistake in one is answered with where it is and what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from vldebias.errors import InvalidInputError
from vldebias.evaluation.suites.schema import Suite, Task
from vldebias.resources import likely, suite_file, suite_names

__all__ = ["list_suites", "load_suite", "suite_path"]

ENDINGS = (".yaml", ".yml")


def list_suites() -> list[str]:
    """Names of the suites that come with the package."""
    return suite_names()


def load_suite(name_or_path: str | Path) -> Suite:
    """A suite by name, or from a YAML file.

    Raises:
        InvalidInputError: an unknown name, or a file that cannot be read or does not follow the schema; the message
            names the key, what came and what was expected.
    """
    path = suite_path(name_or_path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInputError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InvalidInputError(f"{path}: expected a mapping with title, tasks, ...; got {type(content).__name__}")
    try:
        return Suite.model_validate({"name": path.stem.lower(), **content})
    except ValidationError as error:
        raise InvalidInputError(f"{path}: {_explain(error)}") from error


def suite_path(name_or_path: str | Path) -> Path:
    """The file of a suite: a Path, or a text with a folder or .yaml in it, is one; a name is looked up."""
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix in ENDINGS or len(path.parts) > 1:
        return path.expanduser()
    return suite_file(str(name_or_path))


def _explain(error: ValidationError) -> str:
    """The first problem, in words: where, what came, what was expected."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
    if first["type"] == "extra_forbidden":
        known = _keys(first["loc"][:-1])
        key = str(first["loc"][-1])
        return f"{where}: unknown key; expected one of {', '.join(known)}; {likely(key, known)}"
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        kinds = ", ".join(model.model_fields["task"].annotation.__args__[0] for model in get_args(Task))
        return f"{where}: expected `task:` with one of {kinds}; got {_short(first['input'])}"
    if first["type"] == "missing":
        return f"{where}: missing; add it"
    return f"{where or 'file'}: {first['msg'].removeprefix('Value error, ')}; got {_short(first['input'])}"


def _keys(location: tuple[int | str, ...]) -> list[str]:
    """The keys that a place in a suite may have."""
    model: Any = Suite
    kinds = {get_args(kind.model_fields["task"].annotation)[0]: kind for kind in get_args(Task)}
    for part in location:
        if part in kinds:
            model = kinds[part]
        elif isinstance(part, str):
            models = _models(model.model_fields[part].annotation) if part in model.model_fields else []
            named = [m for m in models if m.__name__ == part]
            model = (named or models or [model])[0]
    return list(model.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Every model in a type: Data of `Data | None`, VariantSpec of `dict[str, VariantSpec]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
