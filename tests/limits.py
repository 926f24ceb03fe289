"""Set resource limits that simulate a full disk."""

import contextlib
import sys
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Make writes to files fail beyond `size` bytes, as on a full disk."""
    resource = pytest.importorskip("resource", reason="this system has no limits of processes")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        # Otherwise, Python would keep bytecode truncated at the limit and fail to import it later.
        patch.setattr(sys, "dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
