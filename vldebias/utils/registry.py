"""Register losses, methods, data sets and other objects, including those from entry points."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from vldebias.errors import InvalidInputError, expected_one_of, shortened, warn

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


def imported(path: object, where: str, kind: str) -> object:
    """Return the object at an import path "package.module:name"; return other objects unchanged.

    Args:
        path: the import path, or the object itself.
        where: the declaration and its field, for messages.
        kind: what the object should be, such as "function".

    Raises:
        InvalidInputError: If there is no such object.
    """
    if not isinstance(path, str):
        return path
    home, _, attribute = path.partition(":")
    try:
        found = getattr(import_module(home), attribute, None)
    except ValueError:  # the name is empty
        found = None
    except ModuleNotFoundError as error:
        # If the module exists but one of its dependencies is missing, raise that error.
        if not error.name or not f"{home}.".startswith(f"{error.name}."):
            raise
        found = None
    if found is None:
        raise InvalidInputError(
            f"{where}: got {path!r}; expected the import path of an existing {kind},"
            " 'package.module:Name'"
        )
    return found


def check_choice(where: str, value: object, choices: Sequence[object]) -> None:
    """Raise InvalidInputError unless a declaration's field has one of the allowed values.

    Args:
        where: the declaration and its field, for messages.
        value: the value of the field.
        choices: the allowed values.
    """
    if value not in choices:
        raise InvalidInputError(f"{where}: got {value!r}; expected one of {tuple(choices)}")


def check_callable(
    where: str, function: object, arguments: Sequence[str], keywords: Sequence[str] = ()
) -> None:
    """Raise InvalidInputError unless a declared function can be called with these arguments.

    Args:
        where: the declaration and its field, for messages.
        function: the function.
        arguments: names of the positional arguments.
        keywords: names of the keyword arguments.
    """
    call = ", ".join((*arguments, *(f"{name}=..." for name in keywords)))
    expected = f"{where}: expected a function of ({call})"
    if not callable(function) or isinstance(function, type):
        raise InvalidInputError(f"{expected}, got {function!r}")
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        raise InvalidInputError(
            f"{expected}, got one with the signature {signature}: {error}"
        ) from None


class Registry(Mapping[str, T]):
    """Map names to losses, methods, metrics, data sets or other registered objects.

    Other packages' entry points are loaded when an unknown name is looked up or when all names are
    listed.

    Args:
        kind: what messages call an object, such as "method".
        group: the entry point group, such as "vldebias.methods".
        base: the class of the objects, which must have a `name`. An entry point may name a
            subclass, which is then instantiated. To register classes instead, pass a function that
            returns a class's name.
        modules: a mapping from object names to the modules of this package that register them,
            which are imported on first use.
        reserved: additional names that cannot be registered.

    >>> from vldebias.losses import LOSSES
    >>> LOSSES["rince"].title, "supcon" in LOSSES
    ('RINCE', True)
    """

    def __init__(
        self,
        kind: str,
        group: str,
        base: type[object] | Callable[[object], str],
        modules: Mapping[str, str] | None = None,
        reserved: Iterable[str] = (),
    ) -> None:
        self.kind = kind
        self._modules = dict(modules or {})
        self._reserved = frozenset(reserved)
        self.group = group
        self._base = base
        self._searched = False
        self.data: dict[str, T] = {}

    def register(self, new: T) -> T:
        """Register an object or a class and return it.

        Raises:
            InvalidInputError: If the object is of the wrong kind, or its name is taken.
        """
        name = self._name_of(new)
        if name in self._modules:
            # Import the built-in object first, so that it keeps its name.
            import_module(self._modules[name])
        if name in self._reserved:
            raise InvalidInputError(
                f"{self.kind} {name!r}: this name is taken by vldebias; choose another name"
            )
        # Allow registering an object again, because notebook cells may be run repeatedly.
        registered = self.data.setdefault(name, new)
        if registered != new:
            raise InvalidInputError(
                f"{self.kind} {name!r}: this name is taken by {shortened(repr(registered), 100)};"
                " choose another name"
            )
        return registered

    def _name_of(self, new: object) -> str:
        """Return an object's or class's name, or raise an error if it is of the wrong kind."""
        base = self._base
        if isinstance(base, type):
            if not isinstance(new, base):
                raise InvalidInputError(self._wrong_kind(new, base))
            name = getattr(new, "name", None)
        else:
            name = base(new)
        # Commands accept several names, separated by commas.
        if not isinstance(name, str) or not re.fullmatch(r"[^\s,]+", name):
            raise InvalidInputError(
                f"{self.kind}: {new!r} has the name {name!r}; expected a string without spaces"
                " or commas"
            )
        return name

    def _wrong_kind(self, new: object, base: type[object]) -> str:
        """Return the message for an object that is not an instance of the base class."""
        label = getattr(new, "__name__", None)
        if isinstance(new, type) and issubclass(new, base):
            return (
                f"{self.kind}: got the class {label}; expected an instance, so register"
                f" {label}(); only entry points may name the class itself"
            )
        received = f"the function {label}" if inspect.isroutine(new) else repr(new)
        expected = f"{base.__module__}.{base.__name__}"
        if is_dataclass(base):
            made = f"{base.__name__}(...)"
            return f"{self.kind}: expected a {expected}, got {received}; register {made}"
        return (
            f"{self.kind}: expected an instance of a class that derives from {expected}, got"
            f" {received}; derive a class and register an instance"
        )

    def __getitem__(self, name: str) -> T:
        # Unhashable values such as lists cannot be looked up.
        if isinstance(name, str) and name in self._modules:
            import_module(self._modules[name])
        if name in self:
            return self.data[name]
        raise InvalidInputError(f"{self.kind}: got {name!r}; {expected_one_of(name, self)}")

    def __contains__(self, name: object) -> bool:
        # Unhashable values such as lists cannot be looked up.
        is_text = isinstance(name, str)
        return is_text and (name in self.data or name in self._modules or name in self._all())

    def __iter__(self) -> Iterator[str]:
        registered = self._all()
        # List this package's names first, in the order of `modules` rather than of imports.
        ordered = [name for name in self._modules if name in registered]
        return iter(dict.fromkeys([*ordered, *registered]))

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, T]:
        for module in self._modules.values():
            import_module(module)
        if not self._searched:
            from importlib.metadata import entry_points

            # Set the flag before the loop, because an entry point may look up names while it is
            # imported.
            self._searched = True
            for point in entry_points(group=self.group):
                try:
                    self._register_loaded(point)
                except Exception as error:  # a broken package must not affect the others
                    warn(
                        f"entry point {point.name!r} of {self.group} ({point.value}):"
                        f" {type(error).__name__}: {error}"
                    )
        return self.data

    def _register_loaded(self, point: EntryPoint) -> None:
        """Register an entry point's object, or an instance if the object is a class."""
        loaded = point.load()
        registers_instances = isinstance(self._base, type)
        if registers_instances and isinstance(loaded, type):
            new = loaded()
            # The package may also have registered an instance of the class when it was imported.
            registered = self.data.get(self._name_of(new))
            if type(registered) is loaded:
                return
            loaded = new
        self.register(loaded)
