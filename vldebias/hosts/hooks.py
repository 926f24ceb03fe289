"""Replace a model's methods while something is attached to it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Never, SupportsIndex, TypeVar

import torch

from vldebias.errors import VldebiasError
from vldebias.hosts.attachment import Attachment
from vldebias.hosts.reading import BARE

Original = Callable[..., Any]
"""The original version of a replaced method."""
F = TypeVar("F", bound=Callable[..., Any])
Around = Callable[[Original, inspect.BoundArguments], object]
"""A function that takes the original method and a call's arguments, and returns the result."""


@dataclass(eq=False, repr=False)
class Hook:
    """Mark a model as hooked by an attachment.

    The model then cannot be copied or pickled, because copies would also be edited.
    """

    attachment: Attachment

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        self.attachment.__reduce_ex__(protocol)


@dataclass(eq=False, repr=False)
class _MethodHook(Hook):
    """Call `around` instead of a method while an attachment exists."""

    original: Original
    around: Around
    signature: inspect.Signature = field(init=False)

    def __post_init__(self) -> None:
        self.signature = inspect.signature(self.original)

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self.attachment.state != "attached" or BARE.get():
            return self.original(*args, **kwargs)
        call = self.signature.bind(*args, **kwargs)
        # Apply defaults, so that every argument can be looked up by name.
        call.apply_defaults()
        return self.around(self.original, call)


def hook_methods(
    attachment: Attachment,
    owner: object,
    around: Mapping[str, Around],
) -> Callable[[], None]:
    """Replace methods of an object so that calls run `around(original, arguments)`.

    Args:
        attachment: the attachment; methods are replaced while it is attached.
        owner: the object whose methods are replaced.
        around: for each method name, a function of the original method and the call's arguments.

    Returns:
        The function that restores the methods.
    """
    # Only instance attributes have to be restored, because other methods belong to the class.
    before = {name: vars(owner).get(name) for name in around}
    hooks: dict[str, _MethodHook] = {}
    for name, change in around.items():
        hooks[name] = _MethodHook(attachment, getattr(owner, name), change)
    for name, hook in hooks.items():
        functools.update_wrapper(hook, hook.original)
        setattr(owner, name, hook)

    def restore() -> None:
        for name, hook in hooks.items():
            # If other code has replaced the method in the meantime, restoring the original would
            # undo that replacement too.
            if vars(owner).get(name) is not hook:
                raise VldebiasError(
                    f"{attachment.host.name}: {name} was replaced again after attaching; undo that"
                    " replacement first"
                )
            delattr(owner, name)
            if before[name] is not None:
                setattr(owner, name, before[name])

    return restore


def outside_compiled_code(reason: str) -> Callable[[F], F]:
    """Return a decorator that excludes a function from torch.compile.

    Unlike `torch.compiler.disable`, it does not import the compiler, which takes seconds and
    200 MB. As long as nothing else imports it, no code can be compiled.

    Args:
        reason: why the function is excluded; recent torch releases display it.
    """

    def decorated(function: F) -> F:
        # Import the compiler only when the function is first called. The attributes are those that
        # `torch.compiler.disable` sets.
        excluded = torch._disable_dynamo(function)
        excluded.__dict__.update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)

        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            if torch.compiler.is_compiling() or "torch._dynamo" in sys.modules:
                return excluded(*args, **kwargs)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorated
