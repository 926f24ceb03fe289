"""Validate files and settings strictly."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Self, TypeVar

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
from vldebias.utils.json_values import JSON
from vldebias.utils.registry import Registry

Model = TypeVar("Model", bound=BaseModel)
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9 ._-]*$")]


def _number(value: object) -> object:
    """Accept a Python or numpy number, but not True or "0.5"."""
    # pydantic would convert True to 1 and "0.5" to 0.5.
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise ValueError("expected a number")
    return value.item() if isinstance(value, np.generic) else value


def _several(value: object) -> object:
    """Wrap a single value in a tuple."""
    return value if isinstance(value, (list, tuple)) else (value,)


Number = BeforeValidator(_number)
Lam = Annotated[float, Field(ge=0), Number]
Count = Annotated[int, Field(ge=1), Number]
Share = Annotated[float, Field(ge=0, le=1), Number]
SEVERAL = BeforeValidator(_several)
OneOrMore = Annotated[tuple[str, ...], SEVERAL]


class Strict(BaseModel):
    """Base class for the parts of a suite, which are frozen and reject unknown keys."""

    model_config = {"extra": "forbid", "frozen": True}

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, fields: object) -> object:
        if not isinstance(fields, Mapping):
            return fields  # pydantic raises an error
        known = list(cls.model_fields)
        # pydantic would also raise an error, but without suggesting a key.
        unknown = [key for key in fields if key not in known]
        if unknown:
            raise ValueError(
                f"{unknown[0]}: unknown key; expected one of {', '.join(known)};"
                f" {did_you_mean(unknown[0], known)}"
            )
        return fields

    @classmethod
    def build(cls, fields: Mapping[str, object] | JSON) -> Self:
        """Create an instance from fields.

        Raises:
            InvalidInputError: If a field is missing, unknown or invalid. The message names it.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise InvalidInputError(explain(error)) from None


def one_of(registry: Registry[type[Model]], key: str) -> PlainValidator:
    """Return a validator that looks up a part's model in a registry and builds the part.

    Args:
        registry: the models by name.
        key: the part's field that names its model, such as "task".
    """

    def read(part: object) -> BaseModel:
        if isinstance(part, Strict):
            return part
        kind = part.get(key) if isinstance(part, Mapping) else None
        if not isinstance(kind, str) or kind not in registry:
            raise ValueError(f"expected `{key}:` with one of {', '.join(registry)}; got {kind!r}")
        return registry[kind].model_validate(part)

    return PlainValidator(read)


def named_by(base: type[BaseModel], key: str) -> Callable[[object], str]:
    """Return a function that returns a model class's name, for a registry.

    Args:
        base: the model from which all classes derive.
        key: the field whose default is the name.
    """

    def accept(kind: object) -> str:
        name = None
        if isinstance(kind, type) and issubclass(kind, base):
            name = kind.model_fields[key].default
        expected = (
            f"{key}: expected a subclass of {base.__module__}.{base.__name__} with a field"
            f' {key}: Literal["NAME"] = "NAME"'
        )
        if not isinstance(name, str):
            label = type(kind).__name__
            received = f"{kind!r}; add the field"
            if isinstance(kind, base):
                received = f"an instance of {label}; register {label}"
            elif inspect.isroutine(kind):
                received = f"the function {kind.__name__}; derive a class and register it"
            raise InvalidInputError(f"{expected}, got {received}")
        undefined = sorted(getattr(kind, "__abstractmethods__", ()))
        if undefined:
            label = getattr(kind, "__name__", repr(kind))
            raise InvalidInputError(
                f"{key} {name!r}: {label} does not define {', '.join(undefined)}; define it"
                f" as described in {base.__module__}.{base.__name__}"
            )
        return name

    return accept


def file_slug(text: str) -> str:
    """Convert a string to a file name: "fairface gender: cosines" -> "fairface-gender-cosines"."""
    return re.sub(r"[^a-z0-9@]+", "-", text.lower()).strip("-")
