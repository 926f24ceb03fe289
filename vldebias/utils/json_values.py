"""Define types of JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

JSON: TypeAlias = "Mapping[str, JSON] | Sequence[JSON] | str | float | bool | None"
"""A value of JSON; int is a float to type checkers."""
