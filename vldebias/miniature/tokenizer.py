"""Read and write a byte-level BPE vocabulary in CLIP's scheme, for open_clip and transformers.

open_clip pads with id 0, which is the byte "!" in this scheme; the transformers tokenizer is set to
do the same (as in Stable Diffusion 2), so both give the same ids, padding included.
"""

import gzip
import inspect
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from vldebias.errors import InvalidInputError, need
from vldebias.utils.files import storage_errors, write_atomically

if TYPE_CHECKING:
    from open_clip import SimpleTokenizer
    from transformers import CLIPTokenizer

CONTEXT_LENGTH = 24
MERGES_FILE = "merges.txt.gz"
# for messages about missing weights
BUILD = "`python -m eval.miniature --out {}` in a checkout of vldebias"

Pair = tuple[str, str]


def byte_characters() -> dict[int, str]:
    """Return a printable character for each of the 256 bytes, in the order of CLIP's ids (0 is
    "!")."""
    plain = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    # Blanks and control bytes get characters from 256 on, as in GPT-2's encoder.
    spare = [byte for byte in range(256) if byte not in plain]
    characters = {byte: chr(byte) for byte in plain}
    for number, byte in enumerate(spare):
        characters[byte] = chr(256 + number)
    return characters


def save_tokenizer(merges: list[Pair], folder: Path) -> None:
    """Write the merges in the format of open_clip: a header, one pair per line, no newline at the
    end."""
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    # A zero time stamp keeps the file the same from build to build.
    write_atomically(folder / MERGES_FILE, gzip.compress("\n".join(lines).encode(), mtime=0))


def load_merges(folder: Path) -> list[Pair]:
    """Read the merges in a folder of weights; raise InvalidInputError if it has none."""
    path = folder / MERGES_FILE
    if not path.is_file():
        raise InvalidInputError(f"no tokenizer at {path}; build one with {BUILD.format(folder)}")
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    merges = list[Pair]()
    for line in lines[1:]:
        first, second = line.split()
        merges.append((first, second))
    return merges


def vocabulary(merges: list[Pair]) -> dict[str, int]:
    """Return token -> id: bytes, bytes that end a word, merges, start, end."""
    alphabet = byte_characters().values()
    tokens = list(alphabet)
    tokens += [character + "</w>" for character in alphabet]
    tokens += ["".join(pair) for pair in merges]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return {token: number for number, token in enumerate(tokens)}


def open_clip_tokenizer(folder: Path) -> "SimpleTokenizer":
    """Load open_clip's tokenizer with the vocabulary of a folder: texts -> ids (n, 24), padded with
    0."""
    load_merges(folder)  # raises where there are none
    return need("open_clip").SimpleTokenizer(
        bpe_path=str(folder / MERGES_FILE), context_length=CONTEXT_LENGTH
    )


def transformers_tokenizer(folder: Path) -> "CLIPTokenizer":
    """Load the transformers tokenizer with the vocabulary of a folder; it pads with "!" (id 0) and
    still reads "!"."""
    merges = load_merges(folder)
    return make_clip_tokenizer(
        vocabulary(merges),
        merges,
        pad_token="!",
        model_max_length=CONTEXT_LENGTH,
        split_special_tokens=True,
    )


def make_clip_tokenizer(
    ids: dict[str, int], merges: list[Pair], **settings: Any
) -> "CLIPTokenizer":
    """Make a CLIPTokenizer of transformers from a vocabulary in memory.

    transformers 5 takes the vocabulary itself. transformers 4 reads it from two files, which are
    written for the moment.

    Args:
        ids: token -> id.
        merges: pairs of tokens, the most frequent first.
        settings: further arguments of the tokenizer, such as `model_max_length`.
    """
    tokenizer_class = need("transformers").CLIPTokenizer
    if "vocab_file" not in inspect.signature(tokenizer_class.__init__).parameters:
        return tokenizer_class(vocab=ids, merges=merges, **settings)
    with TemporaryDirectory() as folder, storage_errors(folder):
        vocabulary_file = Path(folder, "vocab.json")
        vocabulary_file.write_text(json.dumps(ids), encoding="utf-8")
        merges_file = Path(folder, "merges.txt")
        lines = ["#version: 0.2", *(" ".join(pair) for pair in merges), ""]
        merges_file.write_text("\n".join(lines), encoding="utf-8")
        return tokenizer_class(str(vocabulary_file), str(merges_file), **settings)
