"""Check the arguments of commands before importing libraries, to report mistakes early."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.utils.names import check_model, is_file_of_set, packaged_set

if TYPE_CHECKING:
    from vldebias.cli.flags import HostFlags


def check_sets(names: Iterable[str | None]) -> None:
    """Check that each name is a packaged prompt set or a file with a valid prompt set."""
    for name in names:
        if name is None:
            continue
        if is_file_of_set(name):
            from vldebias.prompts import load_prompts

            load_prompts(name)
        else:
            packaged_set(name)


def check_host(flags: HostFlags) -> None:
    """Check the flags that select a model or pipeline, before it is loaded.

    Raises:
        InvalidInputError: If neither or both of --model and --pipeline were passed, or if open_clip
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


def check_needs_no_data(suite: str) -> None:
    """Raise an error if a suite needs a data set. Call `check_suite` first."""
    from vldebias.utils.files import packaged, read_yaml

    # Parse the suite without validation, which would import torch.
    content = read_yaml(packaged("suites").get(suite, Path(suite)))
    needs = str(content.get("needs", ""))
    if "--data-root" in needs:
        raise InvalidInputError(
            f"{suite}: this suite needs {needs}, or --embeddings with features of these images"
        )


def check_data_of_suite(
    suite: str, data_root: Path | str | None, *, limit: int | None, only: Iterable[str]
) -> None:
    """Check that a folder contains the data for a packaged suite, and enough images for its k.

    Args:
        suite: name of the suite. Suites in files are not checked here, but when they are loaded.
        data_root: folder with the data.
        limit: maximum number of images per split. If None, use all images.
        only: names of the tasks to run. If empty, all are run.

    Raises:
        InvalidInputError: If data is missing, or if there are too few images.
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
        # First check paths and line counts, because loading the tables imports numpy and pyarrow.
        tables = [] if root is None else find_tables(name, Path(root), source["split"])
        if tables:
            check_k(suite, k, count_rows(tables), limit)
        from vldebias.data import ImageData, open_data

        images = open_data(name, data_root, source["split"])
        if isinstance(images, ImageData):
            check_k(suite, k, len(images), limit)


def check_k(suite: str, k: int, images: int, limit: int | None) -> None:
    """Raise an error if there are fewer images than the k that a suite needs.

    Args:
        suite: suite name, used in the message.
        k: number of top results to measure.
        images: number of available images.
        limit: maximum number of images to use. If None, use all images.
    """
    count = images if limit is None else min(images, limit)
    if k > count:
        raise InvalidInputError(
            f"{suite}: expected at least k = {k} images, got {count}. Save the suite"
            f" under a new name (`vldebias eval show {suite} > mine.yaml`), lower its k, and"
            " run `vldebias eval mine.yaml`"
        )


def check_suite(name: str) -> None:
    """Check that a suite is packaged or that its file exists."""
    from vldebias.utils.files import packaged

    path = Path(name)
    # Names such as "miniature" are packaged suites. "mine.yaml" and "suites/mine" are files.
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        check_file("SUITE", path)
        return
    known = packaged("suites")
    if name not in known:
        raise InvalidInputError(
            f"got the suite {name!r}; expected one of {', '.join(known)}, or a .yaml file;"
            f" {did_you_mean(name, known)}"
        )
