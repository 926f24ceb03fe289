"""No damaged file is read as something else in silence; a thousand of them where there is time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.robust.damaged import KINDS, Kind, failures, tried, written


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("files", [12, pytest.param(1000, marks=pytest.mark.slow)])
def test_damaged_files_are_refused_or_read_as_they_were(name: str, files: int) -> None:
    ends = tried(KINDS[name], files, files)
    assert ends.total() >= files
    assert not failures(ends)
    assert ends["refused"] > 0


def test_a_format_without_a_digest_would_be_noticed() -> None:
    make = written("numbers", bytes(range(256)))
    assert failures(tried(Kind(make, Path.read_bytes), 12, 0)).total() > 6
    assert failures(tried(Kind(make, lambda path: {bytes(range(256)): 1}[path.read_bytes()]), 12, 0)).total() > 6
