"""Carry edits over to the pipelines that are made around the encoders of an attached one, as they are made.

`from_pipe`, `Pipeline(**pipe.components)` and `AutoPipelineForImage2Image.from_pipe` all end in `register_modules` of
the new pipeline. While an attachment is followed, that method tells of it; with the last one it is as it was before.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any, Protocol
from weakref import WeakSet

from vldebias.errors import InvalidInputError, UnsupportedHostError, need, warn


class _Followed(Protocol):
    """What is asked of an attachment."""

    @property
    def root(self) -> object: ...

    def shares_with(self, other: Any) -> bool: ...

    def carry_to(self, other: Any) -> Any: ...


_FOLLOWED: WeakSet[Any] = WeakSet()
_LOCK = threading.Lock()


def check_followed(root: object) -> None:
    """Refuse what no other pipeline is made from.

    Raises:
        InvalidInputError: it is no diffusers pipeline.
    """
    if "diffusers" in sys.modules and isinstance(root, need("diffusers").DiffusionPipeline):
        return
    raise InvalidInputError(
        f"follow=True: got a {type(root).__name__}; expected a diffusers pipeline, whose encoders others share; "
        "attachment.carry_to(other) attaches the same to another model"
    )


def follow(attachment: _Followed) -> None:
    """Carry this attachment to every pipeline that is made with its encoders from here on.

    Raises:
        InvalidInputError: it is on no diffusers pipeline.
    """
    check_followed(attachment.root)
    pipeline = need("diffusers").DiffusionPipeline
    with _LOCK:
        _FOLLOWED.add(attachment)
        if not hasattr(pipeline.register_modules, "_vldebias"):
            pipeline.register_modules = _telling(pipeline.register_modules)


def unfollow(attachment: _Followed) -> None:
    """Stop; with the last one the method of the library is put back."""
    with _LOCK:
        _FOLLOWED.discard(attachment)
        pipeline = need("diffusers").DiffusionPipeline if not _FOLLOWED else None
        original = getattr(getattr(pipeline, "register_modules", None), "_vldebias", None)
        if pipeline is not None and original is not None:
            pipeline.register_modules = original


def is_followed(attachment: _Followed) -> bool:
    """Was it attached with follow=True?"""
    return attachment in _FOLLOWED


def _telling(original: Any) -> Any:
    @functools.wraps(original)
    def register_modules(self: Any, **modules: Any) -> None:
        original(self, **modules)
        for attachment in [one for one in _FOLLOWED if one.root is not self and one.shares_with(self)][:1]:
            try:
                attachment.carry_to(self)
            except UnsupportedHostError as error:
                warn(f"follow=True: the edit cannot be carried over to this pipeline, which draws without it: {error}")

    vars(register_modules)["_vldebias"] = original
    return register_modules
