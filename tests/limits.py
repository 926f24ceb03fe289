"""Resource limits that simulate a full disk."""

import contextlib
import sys
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Fail to write files of more than `size` bytes, as on a full disk."""
    resource = pytest.importorskip("resource", reason="this system has no limits of processes")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        # Python would keep bytecode that is cut off at the limit, and fail to import it later.
        patch.setattr(sys, "dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
