"""Check the arguments of commands before importing libraries, to report mistakes early."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.prompts import load_prompts
from vldebias.utils.files import packaged, read_yaml
from vldebias.utils.names import check_model, check_one_host, suite_path


def check_sets(names: Iterable[str | None]) -> None:
    """Check that each name is a packaged prompt set or a file with a valid prompt set."""
    for name in names:
        if name is not None:
            load_prompts(name)


def check_host(flags: Mapping[str, Any]) -> None:
    """Check the flags that select a model or pipeline, before it is loaded.

    Raises:
        InvalidInputError: If neither or both of --model and --pipeline were passed, or if open_clip
            does not list the architecture or weights.
    """
    check_one_host(flags)
    check_model(flags.get("model"), flags.get("pretrained"))


def check_file(option: str, path: Path | str | None) -> None:
    """Check that a file or folder passed as an option exists.

    Args:
        option: name of the option, such as "--reference".
        path: value of the option. None and patterns such as 'shards/*.npy' are not checked.

    Raises:
        InvalidInputError: If the file or folder does not exist.
    """
    if path is None or "*" in str(path) or Path(path).exists():
        return
    raise InvalidInputError(f"{option} {path}: no such file or folder; check the path")


def check_data_of_suite(
    suite: str, data_root: Path | str | None, *, limit: int | None, only: Iterable[str]
) -> None:
    """Check that a folder contains the data for a suite, with at least k images to rank.

    Args:
        suite: name of the suite. The data of suites in files are checked when they are loaded.
        data_root: folder with the data.
        limit: maximum number of images per split. If None, use all images.
        only: names of the tasks to run. If empty, all are run.

    Raises:
        InvalidInputError: If data is missing, or if there are too few images.
    """
    # Parse the suite without validation, which would import torch.
    content = read_yaml(suite_path(suite))
    needs = str(content.get("needs", ""))
    if data_root is None and "--data-root" in needs:
        raise InvalidInputError(
            f"{suite}: this suite needs {needs}, or --embeddings with features of these images"
        )
    if suite not in packaged("suites"):
        return
    from vldebias.data import ImageData, open_data
    from vldebias.data.catalog import DATA

    for task in content["tasks"]:
        name = task.get("data", {}).get("name")
        if name not in DATA or (only and task["name"] not in only):
            continue
        images = open_data(name, data_root, task["data"]["split"])
        if not isinstance(images, ImageData):
            continue
        k = task.get("k", 0)
        count = len(images) if limit is None else min(len(images), limit)
        if k > count:
            raise InvalidInputError(
                f"{suite}: expected at least k = {k} images, got {count}. Save the suite"
                f" under a new name (`vldebias eval show {suite} > mine.yaml`), lower its k,"
                " and run `vldebias eval mine.yaml`"
            )
