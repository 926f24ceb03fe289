"""Store each saved image's value in its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vldebias.utils.pictures import add_record


def write_records(
    results: Sequence[Mapping[str, str]],
    values: Sequence[str],
    prompts: Sequence[str],
    seeds: Sequence[int],
) -> None:
    """Store each image's value, prompt and seed in its PNG text chunk "vldebias".

    Args:
        results: file name and subfolder of each saved image, as returned by ComfyUI.
        values: the images' values, "" for unchanged prompts.
        prompts: the images' prompts. Empty if the input is not connected.
        seeds: the images' seeds. Empty if the input is not connected.

    Raises:
        ValueError: If the number of values, prompts or seeds differs from the number of images.
    """
    columns: dict[str, Sequence[str] | Sequence[int]] = {
        "value": values,
        "prompt": prompts,
        "seed": seeds,
    }
    for name, column in columns.items():
        if len(column) != len(results) and (column or name == "value"):
            raise ValueError(
                f"{name}s: got {len(column)} for {len(results)} images; connect the output of the"
                " node that balanced the prompts"
            )
    folder = _output_folder()
    for number, result in enumerate(results):
        facts = {name: column[number] for name, column in columns.items() if column}
        add_record(folder / result["subfolder"] / result["filename"], facts)


def _output_folder() -> Path:
    """Return ComfyUI's output folder."""
    import folder_paths

    return Path(folder_paths.get_output_directory())
