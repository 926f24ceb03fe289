"""Replace methods of a model while an attachment is on it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Never, SupportsIndex

from vldebias.errors import VldebiasError
from vldebias.hosts.attachment import Attachment
from vldebias.hosts.host import BARE

Original = Callable[..., Any]
"""The original of a replaced method."""
Around = Callable[[Original, inspect.BoundArguments], object]
"""A function of the original method and the arguments of a call, which returns the result."""


@dataclass(eq=False, repr=False)
class Hook:
    """Hook a model for one attachment.

    Copies and pickles of the model are refused, because they would be edited too.
    """

    attachment: Attachment

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        self.attachment.__reduce_ex__(protocol)


@dataclass(eq=False, repr=False)
class _MethodHook(Hook):
    """Call `around` instead of a method while something is attached."""

    original: Original
    around: Around
    signature: inspect.Signature = field(init=False)

    def __post_init__(self) -> None:
        self.signature = inspect.signature(self.original)

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self.attachment.state != "attached" or BARE.get():
            return self.original(*args, **kwargs)
        call = self.signature.bind(*args, **kwargs)
        # With defaults, so that every argument can be looked up by name.
        call.apply_defaults()
        return self.around(self.original, call)


def hook_methods(
    attachment: Attachment,
    owner: object,
    around: Mapping[str, Around],
) -> Callable[[], None]:
    """Make calls of methods of one object run `around(original, arguments)` instead.

    Args:
        attachment: the methods are replaced while it is attached.
        owner: the object.
        around: name of a method -> function of the original and the arguments of a call.

    Returns:
        The function that restores the methods.
    """
    # Only attributes of the instance have to be restored; otherwise the class has the method.
    before = {name: vars(owner).get(name) for name in around}
    hooks: dict[str, _MethodHook] = {}
    for name, change in around.items():
        hooks[name] = _MethodHook(attachment, getattr(owner, name), change)
    for name, hook in hooks.items():
        functools.update_wrapper(hook, hook.original)
        setattr(owner, name, hook)

    def restore() -> None:
        for name, hook in hooks.items():
            # Another library may have replaced the method again, which would be undone too.
            if vars(owner).get(name) is not hook:
                raise VldebiasError(
                    f"{attachment.host.name}: {name} was replaced again after attaching; undo that"
                    " first"
                )
            delattr(owner, name)
            if before[name] is not None:
                setattr(owner, name, before[name])

    return restore
