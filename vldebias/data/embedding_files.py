"""Embeddings of your own: read from and written to .npz and .safetensors files, so that no model is needed.

Keys of a file, for n images, k names and p prompts:

    features         (n, d) floats; `image` is read as well
    ids              (n,) strings; default: "0", "1", ...
    captions         (n,) strings
    label.<column>   (n,) strings ("" is unknown), or integers (-1 is unknown)
    names.<column>   (k,) strings: what the integers 0 .. k - 1 of that column mean
    attributes       (n, a) numbers, above 0 where an attribute holds: a column "no" / "yes" for each
    attribute_names  (a,) strings
    text, prompts    (p, d) floats and (p,) strings: text embeddings of the same space, for evaluation without a model
    about            a JSON object

Strings are numpy strings, or UTF-8 JSON as uint8: `np.frombuffer(json.dumps(ids).encode(), dtype=np.uint8)`.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vldebias.data.embeddings import Embeddings
from vldebias.data.labels import UNKNOWN, Labels
from vldebias.data.store import write_atomically
from vldebias.errors import InvalidInputError

__all__ = ["load_embeddings", "save_embeddings"]

Array = NDArray[Any]
Keys = Mapping[str, str | Sequence[str]]
KEYS = ("features", "ids", "captions", "attributes", "attribute_names", "text", "prompts", "about")
COLUMNS = ("label.", "names.")
SEVERAL = ("text", "prompts")
SAME = 1e-3  # two embeddings of one prompt, relative to their length


def load_embeddings(path: str | Path, *, keys: Keys | None = None) -> tuple[Embeddings, dict[str, Tensor] | None]:
    """Image embeddings of a file, and its text embeddings, prompt -> (d,), if it has some.

    Args:
        path: a .npz or .safetensors file with the keys of `vldebias.data.embedding_files`. Features of a .safetensors
            file are mapped into memory; bfloat16 is read as float32.
        keys: where the file has other names, ours -> theirs: {"features": "image_emb", "label.gender": "male"}. Those
            of `text` and `prompts` may be lists, which are joined in their order.

    Raises:
        InvalidInputError: no such file, another format, pickled objects, keys that are missing or of other types,
            lengths or widths that differ, a prompt with two embeddings.
    """
    path = Path(path)
    try:
        fields, ignored = _fields(path, keys or {})
        features = fields["features"]
        n = len(features) if features.ndim else 0
        about = _about(fields) | {"file": str(path)} | ({"ignored": ignored} if ignored else {})
        ids = _strings(fields, "ids") if "ids" in fields else tuple(map(str, range(n)))
        embeddings = Embeddings(features, ids, _labels(fields), _strings(fields, "captions"), about)
        return embeddings, _texts(fields, embeddings.dim)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def save_embeddings(path: str | Path, embeddings: Embeddings, texts: Mapping[str, Tensor] | None = None) -> Path:
    """Write `embeddings`, and `texts` (prompt -> (d,)) with them, as `load_embeddings` reads them; atomically.

    Raises:
        InvalidInputError: neither .npz nor .safetensors, or a column whose name such a file cannot hold.
    """
    path = Path(path)
    _check_suffix(path)
    unnamable = [column for column in embeddings.labels if "\0" in column]
    if unnamable:  # a zip archive ends a name there
        raise InvalidInputError(f"{path}: expected column names without a NUL character, got {unnamable}; rename them")
    fields = {
        "features": np.ascontiguousarray(embeddings.features),
        "ids": _json(list(embeddings.ids)),
        "about": _json(dict(embeddings.about)),
    }
    if embeddings.captions:
        fields["captions"] = _json(list(embeddings.captions))
    for column, labels in embeddings.labels.items():
        fields |= {f"label.{column}": labels.codes, f"names.{column}": _json(list(labels.names))}
    if texts:
        rows = torch.stack([row.detach().cpu().float() for row in texts.values()])
        fields |= {"text": rows.numpy(), "prompts": _json(list(texts))}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _packed(fields, path))
    return path


def _packed(fields: Mapping[str, Array], path: Path) -> bytes:
    if path.suffix == ".safetensors":
        return save({name: torch.from_numpy(np.array(array)) for name, array in fields.items()})
    file = io.BytesIO()
    np.savez(file, **fields)  # type: ignore[arg-type]
    return file.getvalue()


def _check_suffix(path: Path) -> None:
    if path.suffix not in (".npz", ".safetensors"):
        raise InvalidInputError(f"{path}: expected a file that ends in .npz or .safetensors")


def _fields(path: Path, keys: Keys) -> tuple[dict[str, Array], list[str]]:
    """The arrays under our names, and the names of those that stand for nothing."""
    strangers = [ours for ours in keys if ours not in KEYS and not ours.startswith(COLUMNS)]
    if strangers:
        raise InvalidInputError(f"keys: expected {', '.join(KEYS)}, label.* or names.*, got {strangers}")
    names, read = _open(path)
    wanted: dict[str, str | Sequence[str]] = {name: name for name in names if name in KEYS or name.startswith(COLUMNS)}
    if "features" not in names and "image" in names:
        wanted["features"] = "image"
    wanted |= keys
    theirs = {ours: [name] if isinstance(name, str) else list(name) for ours, name in wanted.items()}
    missing = sorted({name for found in theirs.values() for name in found} - set(names))
    if missing or "features" not in wanted:
        raise InvalidInputError(
            f"expected an array {missing[0] if missing else 'features'!r}, found {sorted(names)}; "
            "say what is what with keys={'features': ...}"
        )
    fields = {ours: _joined(ours, [read(name) for name in found]) for ours, found in theirs.items()}
    return fields, sorted(set(names) - {name for found in theirs.values() for name in found})


def _joined(key: str, arrays: Sequence[Array]) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    if key not in SEVERAL:
        raise InvalidInputError(f"keys: expected one name for {key!r}, got {len(arrays)}; only {SEVERAL} are joined")
    if key == "prompts":
        return np.array([text for array in arrays for text in _strings({key: array}, key)])
    return np.concatenate(arrays)


def _open(path: Path) -> tuple[list[str], Callable[[str], Array]]:
    """Names of the arrays in a file, and a function that reads one."""
    _check_suffix(path)
    if not path.is_file():
        raise InvalidInputError("no such file")
    try:
        return _open_safetensors(path) if path.suffix == ".safetensors" else _open_npz(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, SafetensorError) as error:
        raise InvalidInputError(f"cannot be read ({error}); expected a {path.suffix} file of arrays") from None


def _open_npz(path: Path) -> tuple[list[str], Callable[[str], Array]]:
    def load(name: str | None) -> Any:
        with path.open("rb") as file:  # numpy leaves a file of its own open where it is no archive
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise ValueError("it holds one array without a name, as np.save writes it")
            return list(found.files) if name is None else found[name]

    def read(name: str) -> Array:
        try:
            return load(name)
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidInputError(
                f"{name!r} cannot be read ({error}); expected numbers or strings. Python objects are never unpickled: "
                "store strings with np.array(list_of_str)"
            ) from None

    return load(None), read


def _open_safetensors(path: Path) -> tuple[list[str], Callable[[str], Array]]:
    file = safe_open(path, framework="pt").__enter__()  # what it gives stays mapped for as long as it is used

    def read(name: str) -> Array:
        tensor = file.get_tensor(name)
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()

    return list(file.keys()), read


def _json(value: Any) -> Array:
    return np.frombuffer(json.dumps(value, ensure_ascii=False, default=str).encode(), dtype=np.uint8)


def _parsed(array: Array, key: str) -> Any:
    try:
        return json.loads(array.tobytes())
    except ValueError as error:
        raise InvalidInputError(f"{key!r}: expected UTF-8 JSON in an array of uint8 ({error})") from None


def _strings(fields: Mapping[str, Array], key: str) -> tuple[str, ...]:
    """A column of strings; none where the file has none."""
    if key not in fields:
        return ()
    array = fields[key]
    if array.ndim == 1 and array.dtype.kind == "U":
        return tuple(array.tolist())
    if array.ndim == 1 and array.dtype.kind == "S":
        return tuple(text.decode("utf-8") for text in array.tolist())
    found = _parsed(array, key) if array.ndim == 1 and array.dtype == np.uint8 else None
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise InvalidInputError(f"{key!r}: expected strings (n,), got {array.shape} of {array.dtype}")
    return tuple(found)


def _about(fields: Mapping[str, Array]) -> dict[str, Any]:
    if "about" not in fields:
        return {}
    array = fields["about"]
    found = _parsed(np.frombuffer(str(array).encode(), np.uint8) if array.dtype.kind == "U" else array, "about")
    if not isinstance(found, dict):
        raise InvalidInputError(f"'about': expected a JSON object, got {type(found).__name__}")
    return found


def _labels(fields: Mapping[str, Array]) -> dict[str, Labels]:
    columns = _attributes(fields)
    for key in fields:
        if key.startswith("label."):
            column = key.removeprefix("label.")
            names = _strings(fields, f"names.{column}") if f"names.{column}" in fields else None
            columns[column] = _column(fields[key], names, key)
    return columns


def _column(values: Array, names: tuple[str, ...] | None, key: str) -> Labels:
    """Strings, integers that index `names`, or integers that stand for themselves."""
    try:
        if values.dtype.kind in "US":
            return Labels.of(_strings({key: values}, key), names)
        if values.dtype.kind not in "iub":
            raise InvalidInputError(f"expected strings or integers, got {values.dtype}")
        if names is not None:
            return Labels(values.astype(np.int64), names)
        if values.dtype.kind == "b":
            return Labels(values.astype(np.int64), ("no", "yes"))
        known = np.unique(values[values != UNKNOWN])
        codes = np.where(values == UNKNOWN, UNKNOWN, np.searchsorted(known, values))
        return Labels(codes, tuple(map(str, known.tolist())))
    except InvalidInputError as error:
        raise InvalidInputError(f"{key!r}: {error}") from None


def _attributes(fields: Mapping[str, Array]) -> dict[str, Labels]:
    """One column "no" / "yes" for each column of the table of attributes."""
    if "attributes" not in fields:
        return {}
    table, names = fields["attributes"], _strings(fields, "attribute_names")
    if table.ndim != 2 or table.dtype.kind not in "iufb" or table.shape[1] != len(names):
        raise InvalidInputError(
            f"'attributes': expected numbers (n, {len(names)}), one column for each of 'attribute_names', "
            f"got {table.shape} of {table.dtype}"
        )
    codes = (table > 0).astype(np.int64).T
    return {name: Labels(row, ("no", "yes")) for name, row in zip(names, codes, strict=True)}


def _texts(fields: Mapping[str, Array], dim: int) -> dict[str, Tensor] | None:
    if "text" not in fields and "prompts" not in fields:
        return None
    prompts = _strings(fields, "prompts")
    rows = fields.get("text", np.empty(0))
    if rows.shape != (len(prompts), dim) or rows.dtype.kind != "f" or not prompts:
        raise InvalidInputError(
            f"'text': expected floats ({len(prompts)}, {dim}), one row for each of 'prompts' and as wide as the "
            f"features, got {rows.shape} of {rows.dtype}"
        )
    texts: dict[str, Tensor] = {}
    for prompt, row in zip(prompts, torch.from_numpy(np.array(rows, dtype=np.float32)), strict=True):
        if prompt in texts and float((texts[prompt] - row).norm()) > SAME * float(row.norm()):
            raise InvalidInputError(f"'prompts': {prompt!r} is there twice with different embeddings")
        texts.setdefault(prompt, row)
    return texts
