"""Replace methods of a model while an attachment is on it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Never, SupportsIndex, cast

from vldebias.errors import VldebiasError
from vldebias.hosts.attachment import Attachment
from vldebias.hosts.host import BARE

Original = Callable[..., Any]
"""A method as it was before it was replaced."""
Around = Callable[[Original, inspect.BoundArguments], object]
"""A function of a method and the arguments of a call, whose result the call returns."""


@dataclass(eq=False, repr=False)
class Hook:
    """Hook a model for one attachment; refuse copies and pickles of the model, which would be
    edited as well."""

    attachment: Attachment

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        self.attachment.__reduce_ex__(protocol)


@dataclass(eq=False, repr=False)
class _MethodHook(Hook):
    """Stand in for a method while something is attached."""

    original: Original
    around: Around
    signature: inspect.Signature = field(init=False)

    def __post_init__(self) -> None:
        self.signature = inspect.signature(self.original)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if self.attachment.state != "attached" or BARE.get():
            return self.original(*args, **kwargs)
        call = self.signature.bind(*args, **kwargs)
        # With defaults, so that every argument is found by its name.
        call.apply_defaults()
        return self.around(self.original, call)


def hook_methods(
    attachment: Attachment,
    owner: object,
    around: Mapping[str, Around],
) -> Callable[[], None]:
    """Replace methods of one object, as attributes of the instance; return the function that
    restores them.

    around: name of a method -> function of the original and the arguments of a call, called while
    it is attached.
    """
    # Only attributes of the instance have to be restored: without one, the method of the class is
    # found again.
    before = {name: vars(owner).get(name) for name in around}
    hooks: dict[str, _MethodHook] = {}
    for name, change in around.items():
        hooks[name] = _MethodHook(attachment, getattr(owner, name), change)
    for name, hook in hooks.items():
        setattr(owner, name, functools.update_wrapper(cast("Any", hook), hook.original))

    def take_off() -> None:
        for name, hook in hooks.items():
            # Deleting what another library has put on top would take that off as well.
            if vars(owner).get(name) is not hook:
                raise VldebiasError(
                    f"{attachment.host.name}: {name} was replaced again after attaching; undo that"
                    " first"
                )
            delattr(owner, name)
            if before[name] is not None:
                setattr(owner, name, before[name])

    return take_off
