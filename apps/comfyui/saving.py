"""Write the value of each saved picture into its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vldebias.utils.pictures import add_record


def write_records(
    results: Sequence[Mapping[str, Any]],
    values: Sequence[str],
    prompts: Sequence[str],
    seeds: Sequence[int],
) -> None:
    """Write value, prompt and seed of each picture into the text chunk "vldebias" of its PNG.

    Args:
        results: what ComfyUI says of each saved picture: filename and subfolder.
        values: of the pictures, "" for prompts that were left unchanged.
        prompts: of the pictures; empty: not connected.
        seeds: of the pictures; empty: not connected.

    Raises:
        ValueError: not as many values, prompts or seeds as pictures.
    """
    columns: dict[str, Sequence[Any]] = {"value": values, "prompt": prompts, "seed": seeds}
    for name, column in columns.items():
        if len(column) != len(results) and (column or name == "value"):
            raise ValueError(
                f"{name}s: got {len(column)} for {len(results)} pictures; connect the output of the"
                " node that balanced their prompts"
            )
    folder = _output_folder()
    for number, result in enumerate(results):
        facts = {name: column[number] for name, column in columns.items() if column}
        add_record(folder / result["subfolder"] / result["filename"], facts)


def _output_folder() -> Path:
    """Return ComfyUI's folder for pictures."""
    import folder_paths

    return Path(folder_paths.get_output_directory())
