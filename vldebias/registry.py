"""Register methods, tasks and metrics by name; other packages can add theirs by entry points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from vldebias.errors import InvalidInputError, did_you_mean, warn

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Map names to registered objects. Entry points of other packages are loaded for a new name,
    and to list all.

    Args:
        kind: the noun for one object in messages: "method".
        group: name of the entry points of other packages: "vldebias.methods".
        base: class of the objects, which have a `name`; of an entry point that names a class, an
            instance is registered. Or a function from a class to its name: then classes are
            registered.
    """

    def __init__(self, kind: str, group: str, base: type[Any] | Callable[[Any], str]) -> None:
        self.kind = kind
        self.group = group
        self._base = base
        self._searched = False
        self.data: dict[str, T] = {}

    def register(self, given: Any) -> T:
        """Register `given` and return it; raise InvalidInputError for a wrong kind or a taken
        name."""
        base = self._base
        if isinstance(base, type) and not (isinstance(given, base) and hasattr(given, "name")):
            known = f"{base.__module__}.{base.__name__}"
            raise InvalidInputError(f"{self.kind}: expected a {known} with a name, got {given!r}")
        name = given.name if isinstance(base, type) else base(given)
        if (there := self.data.setdefault(name, given)) != given:
            raise InvalidInputError(
                f"{self.kind} {name!r}: this name is taken by {there!r}; choose another name"
            )
        return there

    def __getitem__(self, name: str) -> T:
        if name in self:
            return self.data[name]
        hint = did_you_mean(name, self.data)
        raise InvalidInputError(
            f"{self.kind}: expected one of {', '.join(self.data)}, got {name!r}; {hint}"
        )

    def __contains__(self, name: object) -> bool:
        return name in self.data or name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, T]:
        if not self._searched:
            from importlib.metadata import entry_points

            self._searched = True
            for point in entry_points(group=self.group):
                try:
                    loaded = point.load()
                    self.register(
                        loaded()
                        if isinstance(loaded, type) and isinstance(self._base, type)
                        else loaded
                    )
                except Exception as error:  # one broken package must not disable the others
                    warn(
                        f"entry point {point.name!r} of {self.group} ({point.value}):"
                        f" {type(error).__name__}: {error}"
                    )
        return self.data
