"""Register methods, tasks and metrics by name; other packages can add theirs by entry points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from vldebias.errors import InvalidInputError, did_you_mean, warn

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Map names to registered objects; entry points of other packages are loaded at the first lookup.

    Args:
        kind: the noun for one object in messages: "method".
        group: name of the entry points of other packages: "vldebias.methods".
        accept: function from a registered object to its name and what is stored; or a class of objects with a `name`.
        instances: whether an entry point that names a class registers an instance of it instead of the class.
    """

    def __init__(
        self, kind: str, group: str, accept: Callable[[Any], tuple[str, T]] | type[Any], *, instances: bool = True
    ) -> None:
        self.kind, self.group, self._accept, self._instances = kind, group, accept, instances
        self._items: dict[str, T] = {}
        self._searched = False

    def register(self, given: Any) -> T:
        """Register `given` and return what is stored; raise InvalidInputError for a wrong kind or a taken name."""
        accept = self._accept
        if isinstance(accept, type):
            if not (isinstance(given, accept) and hasattr(given, "name")):
                known = f"{accept.__module__.rpartition('.')[0]}.{accept.__name__}"
                raise InvalidInputError(f"{self.kind}: got {given!r}; expected a {known} with a name")
            name, item = given.name, cast(T, given)
        else:
            name, item = accept(given)
        if (there := self._items.setdefault(name, item)) != item:
            raise InvalidInputError(f"{self.kind} {name!r}: this name is taken by {there!r}; choose another name")
        return item

    def named(self, name: Any) -> T:
        """Return the object of this name, or raise InvalidInputError with the known names."""
        items = self._all()
        if not isinstance(name, str) or name not in items:
            hint = did_you_mean(name, items)
            raise InvalidInputError(f"{self.kind}: expected one of {', '.join(items)}, got {name!r}; {hint}")
        return items[name]

    def _all(self) -> dict[str, T]:
        if not self._searched:
            from importlib.metadata import entry_points

            self._searched = True
            for point in entry_points(group=self.group):
                try:
                    loaded = point.load()
                    self.register(loaded() if self._instances and isinstance(loaded, type) else loaded)
                except Exception as error:  # one broken package must not disable the others
                    warn(f"entry point {point.name!r} of {self.group} ({point.value}): {type(error).__name__}: {error}")
        return self._items

    def __getitem__(self, name: str) -> T:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return f"{self.kind}s: {', '.join(self)}"
