"""Define types for JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

JSON: TypeAlias = "Mapping[str, JSON] | Sequence[JSON] | str | float | bool | None"
"""A JSON value. Type checkers accept int as float."""
