"""Name the kinds of values that files and settings hold, and read them strictly."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.utils.files import explain
from vldebias.utils.registry import Registry

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9 ._-]*$")]


def _number(value: Any) -> Any:
    """Read a number of Python or numpy; True and "0.5" are none, though they could be read as
    one."""
    # pydantic would read True as 1 and "0.5" as a half.
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise ValueError("expected a number")
    if isinstance(value, np.generic):
        return value.item()
    return value


def _several(value: Any) -> Any:
    """Read a value alone as a list of it."""
    if isinstance(value, (list, tuple)):
        return value
    return (value,)


Number = BeforeValidator(_number)
Lam = Annotated[float, Field(ge=0), Number]
Count = Annotated[int, Field(ge=1), Number]
Share = Annotated[float, Field(ge=0, le=1), Number]
SEVERAL = BeforeValidator(_several)
OneOrMore = Annotated[tuple[str, ...], SEVERAL]


class Strict(BaseModel):
    """Parse a part of a suite: frozen, and an unknown key is an error."""

    model_config = {"extra": "forbid", "frozen": True}

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping):
            return fields  # pydantic refuses it
        known = list(cls.model_fields)
        # pydantic would refuse it as well, but without a proposal.
        unknown = [key for key in fields if key not in known]
        if unknown:
            raise ValueError(
                f"{unknown[0]}: unknown key; expected one of {', '.join(known)};"
                f" {did_you_mean(unknown[0], known)}"
            )
        return fields

    @classmethod
    def build(cls, fields: Mapping[str, Any]) -> Self:
        """Return an instance made from fields in Python; InvalidInputError names a field that is
        wrong."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise InvalidInputError(explain(error)) from None


def one_of(registry: Registry[type[Any]], key: str) -> PlainValidator:
    """Return the reader of a part of a file whose `key` names its kind: one of a registry of
    models."""

    def read(part: Any) -> Any:
        if isinstance(part, Strict):
            return part
        kind = None
        if isinstance(part, Mapping):
            kind = part.get(key)
        if not isinstance(kind, str) or kind not in registry:
            raise ValueError(f"expected `{key}:` with one of {', '.join(registry)}; got {kind!r}")
        return registry[kind].model_validate(part)

    return PlainValidator(read)


def named_by(base: type[BaseModel], key: str) -> Callable[[Any], str]:
    """Return a check for a registry that takes subclasses of a model and names them by their field
    `key`."""

    def accept(kind: Any) -> str:
        name = None
        if isinstance(kind, type) and issubclass(kind, base):
            name = kind.model_fields[key].default
        if not isinstance(name, str):
            raise InvalidInputError(
                f"{key}: expected a subclass of {base.__module__}.{base.__name__} with a field"
                f' {key}: Literal["NAME"] = "NAME", got {kind!r}'
            )
        return name

    return accept


def file_slug(text: str) -> str:
    """Return a name for a file or folder: "fairface gender: cosines" ->
    "fairface-gender-cosines"."""
    return re.sub(r"[^a-z0-9@]+", "-", text.lower()).strip("-")
