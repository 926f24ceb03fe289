"""Check a command's arguments before importing libraries, to report mistakes early."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.utils.names import (
    check_architecture,
    check_name_without_weights,
    check_weights,
    is_file_of_set,
    packaged_set,
)

if TYPE_CHECKING:
    from vldebias.cli.flags import HostFlags

WITHOUT_TAG = ("hf-hub:", "local-dir:")
"""Prefixes of names that open_clip resolves without its list of architectures."""


def check_sets(names: Iterable[str | None]) -> None:
    """Raise an error for an unknown prompt set, or a file that is not a prompt set."""
    for name in names:
        if name is None:
            continue
        if is_file_of_set(name):
            from vldebias.prompts import load_prompts

            load_prompts(name)
        else:
            packaged_set(name)


def check_host(flags: HostFlags) -> None:
    """Check the flags that select a model, before it is loaded.

    Raises:
        InvalidInputError: If neither or both of --model and --pipeline were passed, or open_clip
            does not list the architecture or weights.
    """
    model = flags.get("model")
    pretrained = flags.get("pretrained")
    pipeline = flags.get("pipeline")
    if (model is None) == (pipeline is None) or (pretrained is not None and model is None):
        raise InvalidInputError(
            "expected either --model (with --pretrained for open_clip weights) or --pipeline"
        )
    check_model(model, pretrained)


def check_model(model: str | None, pretrained: str | None) -> None:
    """Raise an error for an architecture or weights that open_clip does not list.

    Args:
        model: an architecture, any other model name, or None.
        pretrained: a tag or checkpoint file for the architecture.

    Raises:
        InvalidInputError: If the architecture or the weights are unknown.
    """
    if model is None or model.startswith(WITHOUT_TAG):
        return
    if pretrained is not None:
        check_architecture(model)
        check_weights(model, pretrained)
    elif "/" not in model and not Path(model).exists():
        check_name_without_weights(model)


def check_file(option: str, path: Path | str | None) -> None:
    """Raise an error if a file or folder does not exist.

    Args:
        option: option name, such as "--reference".
        path: its value; None and patterns such as 'shards/*.npy' are accepted.

    Raises:
        InvalidInputError: If the file or folder does not exist.
    """
    if path is None or "*" in str(path) or Path(path).exists():
        return
    raise InvalidInputError(f"{option} {path}: no such file or folder; check the path")


def check_needs_no_data(suite: str) -> None:
    """Raise an error if a suite needs a data set; call `check_suite` first."""
    from vldebias.utils.files import packaged, read_yaml

    # Parse the suite without validation, which would import torch.
    content = read_yaml(packaged("suites").get(suite, Path(suite)))
    needs = str(content.get("needs", ""))
    if "--data-root" in needs:
        raise InvalidInputError(
            f"{suite}: this suite needs {needs}, or --embeddings (features of these images)"
        )


def check_data_of_suite(
    suite: str, data_root: Path | str | None, *, limit: int | None, only: Iterable[str]
) -> None:
    """Check that a folder contains the data of a packaged suite, and enough images for its k.

    Args:
        suite: name of the suite; the tasks of a file are checked when they are read.
        data_root: data folder.
        limit: maximum number of images per split; None: all.
        only: names of the tasks to run; all if empty.

    Raises:
        InvalidInputError: If data is missing, or there are too few images.
    """
    from vldebias.data.catalog import DATA
    from vldebias.data.releases import count_rows, find_tables
    from vldebias.utils.files import packaged, read_yaml

    if suite not in packaged("suites"):
        return
    for task in read_yaml(packaged("suites")[suite])["tasks"]:
        source = task.get("data", {})
        name = source.get("name")
        if name not in DATA or (only and task["name"] not in only):
            continue
        root = DATA[name].find_root(data_root)
        k = task.get("k", 0)
        # Check paths and line counts first, because loading the tables imports numpy and pyarrow.
        tables = [] if root is None else find_tables(name, Path(root), source["split"])
        if tables:
            check_k(suite, k, count_rows(tables), limit)
        from vldebias.data import ImageData, open_data

        images = open_data(name, data_root, source["split"])
        if isinstance(images, ImageData):
            check_k(suite, k, len(images), limit)


def check_k(suite: str, k: int, images: int, limit: int | None) -> None:
    """Reject fewer images than the k that a suite needs.

    Args:
        suite: suite name for the message.
        k: number of top results that are measured.
        images: number of images.
        limit: maximum number of images to measure. None: all.
    """
    count = images if limit is None else min(images, limit)
    if k > count:
        raise InvalidInputError(
            f"{suite}: expected at least k = {k} images, got {count}. Save the suite"
            f" under another name (`vldebias eval show {suite} > mine.yaml`), lower its k, and"
            " run `vldebias eval mine.yaml`"
        )


def check_suite(name: str) -> None:
    """Raise an error if a suite is neither packaged nor a file."""
    from vldebias.utils.files import packaged

    path = Path(name)
    # "miniature" is packaged; "mine.yaml" and "suites/mine" are files.
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        check_file("SUITE", path)
        return
    known = packaged("suites")
    if name not in known:
        raise InvalidInputError(
            f"got the suite {name!r}; expected one of {', '.join(known)}, or a .yaml file;"
            f" {did_you_mean(name, known)}"
        )
