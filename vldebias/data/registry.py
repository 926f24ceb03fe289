"""Every data set by name: what its folder should look like, where one gets it, how it is opened."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from vldebias.data import celeba, fairface, huggingface, manifest, utkface, waterbirds
from vldebias.data.images import ImageData, ImageStream
from vldebias.errors import InvalidInputError

__all__ = ["DataSource", "data_source", "list_data", "open_data", "register_data"]

_WORLD = "the worlds 'birds' and 'portraits' are opened with vldebias.miniature.data.open_world"


@dataclass(frozen=True)
class DataSource:
    """A data set that can be opened by name.

    Attributes:
        open: (root, split, **options) -> data; options are keyword-only parameters.
        split: the one that figures are reported on.
        layout: what should be in the root folder.
        source: where one gets it. Nothing is downloaded here: licences are accepted at the source, and there is no
            official checksum to verify a copy by. (`datasets` downloads and verifies its own.)
        local: the root is a folder or file on this machine.
        finds_split: where nobody names a split and `split` is not there, the only one that is there is taken.
    """

    open: Callable[..., ImageData | ImageStream]
    split: str
    layout: str
    source: str
    local: bool = True
    finds_split: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options."""
        parameters = inspect.signature(self.open).parameters.values()
        return tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)


_SOURCES = {
    "waterbirds": DataSource(waterbirds.open_waterbirds, "test", waterbirds.LAYOUT, waterbirds.SOURCE),
    "celeba": DataSource(celeba.open_celeba, "test", celeba.LAYOUT, celeba.SOURCE),
    "fairface": DataSource(fairface.open_fairface, "val", fairface.LAYOUT, fairface.SOURCE),
    "utkface": DataSource(utkface.open_utkface, "all", utkface.LAYOUT, utkface.SOURCE),
    "manifest": DataSource(manifest.open_manifest, "all", manifest.LAYOUT, manifest.SOURCE),
    "huggingface": DataSource(
        huggingface.open_huggingface, "test", huggingface.LAYOUT, huggingface.SOURCE, local=False, finds_split=True
    ),
}


def list_data() -> list[str]:
    """Names that `open_data` knows, sorted."""
    return sorted(_SOURCES)


def data_source(name: str) -> DataSource:
    """What is known about a data set before it is opened.

    Raises:
        InvalidInputError: an unknown name; the message lists those there are.
    """
    if name not in _SOURCES:
        close = get_close_matches(name, _SOURCES, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else "."
        raise InvalidInputError(
            f"unknown data set {name!r}{meant} There are: {', '.join(list_data())}; {_WORLD}. "
            "A folder of your own is a 'manifest'"
        )
    return _SOURCES[name]


def register_data(name: str, source: DataSource) -> None:
    """Adds a data set of your own, so that `open_data` and the suites find it by name.

    Raises:
        InvalidInputError: the name is taken.
    """
    if name in _SOURCES:
        raise InvalidInputError(f"data set {name!r} is there already; choose another name")
    _SOURCES[name] = source


def open_data(
    name: str, root: str | Path | None = None, split: str | None = None, **options: Any
) -> ImageData | ImageStream:
    """A data set by name; reads labels, not images.

    Args:
        name: see `list_data`.
        root: its folder (a file for "manifest", also an id for "huggingface").
        split: train, val, test or all, as far as the data set has them; by default the one figures are reported on.
        options: of the reader: see `data_source(name).options` and e.g. `vldebias.data.manifest.open_manifest`.

    Raises:
        InvalidInputError: unknown name, option or split, or no data there; the message says what the folder should
            look like and where one gets it.
    """
    source = data_source(name)
    unknown = sorted(set(options) - set(source.options))
    if unknown:
        raise InvalidInputError(
            f"{name}: unknown options {unknown}; expected {', '.join(source.options) or 'none for this data set'}"
        )
    if root is None:
        raise InvalidInputError(f"{name}: expected its root: {source.layout}. Get it from {source.source}")
    place: str | Path = Path(root).expanduser() if source.local else root
    if isinstance(place, Path) and not place.exists():
        raise InvalidInputError(
            f"{name}: {place} does not exist; expected {source.layout}. Get it from {source.source}"
        )
    return source.open(place, split or (None if source.finds_split else source.split), **options)
