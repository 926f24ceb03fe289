"""Find a prompt set's words in rows of token ids, by comparing numbers on the ids' device.

A token contributes letters to a word; it may begin a word, and it may end one. Each token has a
number that encodes its letters, and a word with letters c_0 c_1 ... has the number

    H(word) = sum_i code(c_i) p^i  modulo 2^64.

This number does not depend on how the word is split into tokens: a token whose first letter is c_o
adds p^o times its own number. A phrase of several words has the number sum_k q_k H(word_k). A row
contains one of the set's words or phrases if a word or phrase in the row has the same number. Two
different words have the same number with a probability of about 2^-60.

None of these computations waits for a GPU, and all of them can be compiled. The text is decoded
only if individual tokens are ambiguous (`WordTable.unsure`): letters that a tokenizer splits into
bytes, marks that combine with the previous letter, or tokens of several words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from vldebias.hosts.hooks import outside_compiled_code
from vldebias.prompts import StatedWords

_MASK = (1 << 64) - 1
_BASE = 0x9E3779B97F4A7C15  # the base p, which is odd
_LONGEST = 1024  # in longer words, the order of the letters after these is ignored
# Number of random token rows on which a table is compared with the tokenizer's decoding.
_CHECKED = 128
_KEPT = 1 << 16  # maximum number of cached decisions

# Flag bits in WordTable.tokens[:, 1]. The higher bits contain the token's number of letters.
_HAS_LETTERS, _BEGINS, _STAYS_OPEN, _UNSURE = 1, 2, 4, 8
_LENGTH = 16

_END_OF_WORD = "</w>"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


# ---- word numbers


def _mixed(value: int) -> int:
    """Return 64 pseudo-random bits that are unique to the argument (splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class _Codes(dict[str, int]):
    """Compute and cache the code of each character."""

    def __missing__(self, character: str) -> int:
        self[character] = code = _mixed(ord(character))
        return code


_CODES = _Codes()


def _number(letters: str) -> int:
    """Return H(letters) in [0, 2^64)."""
    total = 0
    for character in reversed(letters):
        total = (total * _BASE + _CODES[character]) & _MASK
    return total


def _signed(number: int) -> int:
    """Return a 64-bit number as a signed integer, as torch.int64 stores it."""
    return number - (1 << 64) if number >> 63 else number


def _place(k: int) -> int:
    """Return q_k, the odd factor for the word at index k in a phrase; q_0 is 1."""
    # An odd factor makes multiplication modulo 2^64 invertible.
    return 1 if k == 0 else _mixed(k) | 1


# ---- tokens


@dataclass(frozen=True)
class _Token:
    """Describe what a token contributes to a text.

    Attributes:
        letters: the letters that the token contributes to a word.
        begins: whether a separator precedes the letters.
        ends: whether a separator follows the letters.
        unsure: whether the token's text depends on its neighbours.
    """

    letters: str = ""
    begins: bool = True
    ends: bool = True
    unsure: bool = False

    def row(self) -> tuple[int, int]:
        """Return the token's row of `WordTable.tokens`."""
        if not self.letters:
            return 0, _UNSURE if self.unsure else 0
        bits = _HAS_LETTERS
        if self.begins:
            bits |= _BEGINS
        if not self.ends:
            bits |= _STAYS_OPEN
        if self.unsure:
            bits |= _UNSURE
        return _signed(_number(self.letters)), bits + _LENGTH * len(self.letters)


_SEPARATOR = _Token()
_UNKNOWN = _Token(unsure=True)


def _token(text: str) -> _Token:
    """Return the token for a piece of text, split as `StatedWords` splits text.

    >>> _token(" Woman"), _token("'s ")
    (_Token(letters='woman', begins=True, ends=False, unsure=False), \
_Token(letters='s', begins=True, ends=True, unsure=False))
    """
    plain, words = StatedWords.spans(text)
    combines = bool(plain) and _combines(plain[0])
    if not words:
        return _Token(unsure=combines)
    start = words[0][0]
    end = words[-1][1]
    letters = " ".join(plain[slice(*span)] for span in words)
    # In scripts without spaces, each character is a word.
    begins = start > 0 or StatedWords.stands_alone(plain[start])
    ends = end < len(plain) or StatedWords.stands_alone(plain[end - 1])
    unsure = combines or len(words) > 1
    return _Token(letters, begins, ends, unsure)


def _combines(character: str) -> bool:
    """Return whether a character may combine with the previous one.

    Accents and parts of Korean syllables may combine.
    """
    if "\ufe00" <= character <= "\ufe0f":  # emoji variation selectors do not combine
        return False
    return unicodedata.category(character) in ("Mn", "Mc") or "\u1160" <= character <= "\u11ff"


# The characters that represent bytes in byte-level tokenizers. Printable bytes represent
# themselves, and the others are numbered from U+0100.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {chr(byte): byte for byte in _PRINTABLE}
_BYTES.update({chr(256 + place): byte for place, byte in enumerate(_UNPRINTABLE)})


def _in_bytes(token: str) -> _Token:
    """Parse a byte-level tokenizer's token, including CLIP's, which mark the end of a word.

    For bytes that end inside a character, the result is a guess: emoji and punctuation separate
    words, and other characters are letters.
    """
    letters = token.removesuffix(_END_OF_WORD)
    if not all(letter in _BYTES for letter in letters):
        return _UNKNOWN
    content = bytes(_BYTES[letter] for letter in letters)
    if letters != token:
        content += b" "
    try:
        return _token(content.decode("utf-8"))
    except UnicodeDecodeError:
        pass
    # The highest byte of a UTF-8 sequence is its lead byte. The three lead bytes below start
    # punctuation, East Asian width forms, and emoji.
    lead = max(content)
    if lead in (0xE2, 0xEF, 0xF0) or lead < 0xC0:
        return _UNKNOWN
    ends = content.endswith(b" ")
    return _Token("\ufffd", begins=content.startswith(b" "), ends=ends, unsure=True)


def _in_word_pieces(token: str) -> _Token:
    """Parse a WordPiece token; the token "n" is unsure, because it may be part of "n't"."""
    if token == "n":
        return _Token("n", unsure=True)
    inside = token.removeprefix("##")
    read = _token(inside)
    begins = read.begins or inside == token
    return _Token(read.letters, begins, read.ends, read.unsure)


def _in_sentence_pieces(token: str) -> _Token:
    """Parse a SentencePiece token, which marks spaces."""
    if _BYTE_TOKEN.fullmatch(token):
        return _UNKNOWN
    return _token(token.replace("\u2581", " "))


def _reader_of(vocabulary: Iterable[str]) -> Callable[[str], _Token]:
    """Return a vocabulary's token parser, chosen by its most frequent subword marker."""
    marks = {"word_end": 0, "##": 0, "\u2581": 0, "\u0120": 0}
    for token in vocabulary:
        if token.endswith(_END_OF_WORD):
            marks["word_end"] += 1
        elif token.startswith("##"):
            marks["##"] += 1
        elif token[:1] in marks:
            marks[token[0]] += 1
    commonest = max(marks, key=lambda mark: marks[mark])
    if not marks[commonest] or commonest == "##":
        return _in_word_pieces
    return _in_sentence_pieces if commonest == "\u2581" else _in_bytes


# ---- tables and decisions


class WordTable:
    """Store the text of each token in a vocabulary.

    Attributes:
        tokens: (vocabulary, 2) int64: the number that encodes each token's letters, and its flag
            bits combined with its length.
        powers: (longest word,) int64: p^0, p^1, ...
    """

    def __init__(self, tokens: Mapping[int, _Token]) -> None:
        rows = [(0, _UNSURE)] * (max(tokens) + 1)
        for token_id, token in tokens.items():
            rows[token_id] = token.row()
        self.tokens = torch.tensor(rows, device="cpu")
        powers = []
        power = 1
        for _ in range(_LONGEST):
            powers.append(_signed(power))
            power = power * _BASE & _MASK
        self.powers = torch.tensor(powers, device="cpu")

    def to(self, device: torch.device) -> WordTable:
        """Return a copy of the table on a device, or the table itself if it is already there."""
        if self.tokens.device == device:
            return self
        # Skip __init__, which would parse the tokens again.
        moved = object.__new__(WordTable)
        moved.tokens = self.tokens.to(device)
        moved.powers = self.powers.to(device)
        return moved

    def facts(self, ids: Tensor) -> Tensor:
        """Return the rows of `tokens` (b, length, 2) for ids (b, length)."""
        return self.tokens[ids]

    @staticmethod
    def unsure(facts: Tensor) -> Tensor:
        """Return, for each row, whether it has a token whose text depends on its neighbours."""
        return (facts[..., 1] & _UNSURE).ne(0).any(1)

    def words(self, facts: Tensor) -> Tensor:
        """Return the word numbers (b, length + 1) for rows of tokens, in order.

        The first number is 0, and so are all numbers after the last word.
        """
        numbers, bits = facts.unbind(-1)
        is_open = (bits & _STAYS_OPEN).ne(0)
        # A token continues a word only if the previous token did not end it.
        follows = torch.nn.functional.pad(is_open[:, :-1], (1, 0))
        has_letters = (bits & _HAS_LETTERS).ne(0)
        begins = has_letters & ((bits & _BEGINS).ne(0) | ~follows)
        word = begins.cumsum(1)
        # Compute the position of each token's first letter in the row, and from it the position in
        # the word.
        lengths = bits // _LENGTH
        places = lengths.cumsum(1) - lengths
        first = torch.where(begins, places, 0).cummax(1).values
        places = (places - first).clamp(max=_LONGEST - 1)
        parts = numbers * self.powers[places]
        empty = numbers.new_zeros(facts.shape[0], facts.shape[1] + 1)
        return empty.scatter_add(1, word, parts)

    def read_words(self, ids: Sequence[int]) -> list[int]:
        """Return the numbers of the words that a single row of tokens contains."""
        numbers = self.words(self.facts(torch.tensor([list(ids)], device="cpu")))[0]
        return [number for number in numbers.tolist() if number]


class StatedIds:
    """Decide whether rows of token ids contain one of a prompt set's words.

    Attributes:
        targets: (phrases,) int64, the words and phrases to look for, encoded as sorted numbers.
        longest: number of words in the longest phrase.
    """

    def __init__(self, table: WordTable, phrases: Iterable[str], device: torch.device) -> None:
        words = [phrase.split() for phrase in phrases]
        numbers = set()
        for row in words:
            total = sum(_place(place) * _number(word) for place, word in enumerate(row))
            numbers.add(_signed(total & _MASK))
        self.table = table.to(device)
        self.targets = torch.tensor(sorted(numbers), device=device)
        self.longest = max(map(len, words))

    def __call__(self, facts: Tensor) -> Tensor:
        """Return, for each row of tokens (b, length, 2), whether it contains one of the words."""
        words = self.table.words(facts)
        length = words.shape[1]
        padded = torch.nn.functional.pad(words, (0, self.longest - 1))
        phrase = words
        phrases = [phrase]
        for k in range(1, self.longest):
            phrase = phrase + _signed(_place(k)) * padded[:, k : k + length]
            phrases.append(phrase)
        numbers = torch.cat(phrases, dim=1)
        # Binary search avoids a matrix of all numbers and targets.
        nearest = torch.searchsorted(self.targets, numbers).clamp(max=len(self.targets) - 1)
        return (self.targets[nearest] == numbers).any(1)


# Tables are cached per tokenizer, because vocabularies are slow to parse and hosts may share one.
_TABLES: WeakKeyDictionary[object, WordTable | None] = WeakKeyDictionary()


def word_table(tokenizer: object, decode: Callable[[tuple[int, ...]], str]) -> WordTable | None:
    """Return a tokenizer's table, or None if joining the texts of tokens does not decode a row.

    Args:
        tokenizer: a tokenizer of open_clip or transformers, or an open_clip wrapper of either.
        decode: a function from a row of ids to its text, used to check the table on random rows.
    """
    inner = getattr(tokenizer, "tokenizer", tokenizer)
    try:
        if inner not in _TABLES:
            _TABLES[inner] = _checked_table(inner, decode)
    except TypeError:  # the tokenizer is not hashable, or has no vocabulary
        return None
    return _TABLES[inner]


def _checked_table(tokenizer: object, decode: Callable[[tuple[int, ...]], str]) -> WordTable | None:
    """Return a vocabulary's table, or None if it disagrees with the decoder on random rows."""
    tokens, sure = _read_vocabulary(tokenizer)
    if not sure:
        return None
    table = WordTable(tokens)
    random = Random(0)
    for _ in range(_CHECKED):
        row = random.choices(sure, k=8)
        words = StatedWords.split(decode(tuple(row))).split()
        if table.read_words(row) != [_signed(_number(word)) for word in words]:
            return None
    return table


def _read_vocabulary(tokenizer: object) -> tuple[dict[int, _Token], list[int]]:
    """Return the token for each id, and the ids whose text does not depend on neighbours.

    The second list does not include special tokens.
    """
    if hasattr(tokenizer, "get_vocab"):
        token_of_id = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    else:
        token_of_id = dict(getattr(tokenizer, "decoder", {}))
    special = set(getattr(tokenizer, "all_special_ids", ()))
    plain = {token_id: token for token_id, token in token_of_id.items() if token_id not in special}
    read = _reader_of(plain.values())
    tokens = {token_id: read(token) for token_id, token in plain.items()}
    # An added token is plain text, without the vocabulary's word marks.
    for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items():
        if plain.get(token_id) == str(token):
            tokens[token_id] = _UNKNOWN
    sure = [token_id for token_id, token in tokens.items() if not token.unsure]
    tokens |= dict.fromkeys(special, _SEPARATOR)
    unknown = _id_of_unknown(tokenizer)
    if unknown is not None and read is _in_sentence_pieces:
        tokens[unknown] = _UNKNOWN  # the decoder skips this token, which joins its neighbours
    return tokens, sure


def _id_of_unknown(tokenizer: object) -> int | None:
    """Return the id of a tokenizer's unknown token, or None if it has none.

    It is also None for CLIP, which uses its end token: that token ends a text and is not a word.
    """
    unknown: int | None = getattr(tokenizer, "unk_token_id", None)
    ends = {getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad")}
    return None if unknown in ends else unknown


class StatedRows:
    """Decide from ids or decoded text whether rows of token ids contain one of the stated words.

    Text is decoded only if the ids are ambiguous, and decisions are cached.

    Args:
        gate: the words to look for.
        table: function that returns the tokenizer's table. If it returns None, every row is
            decoded.
        texts: function from ids (b, length) to the text of each row.
    """

    def __init__(
        self,
        gate: StatedWords,
        table: Callable[[], WordTable | None],
        texts: Callable[[Tensor], list[str]],
    ) -> None:
        self._gate = gate
        self._find_table = table
        self._texts = texts
        self._table: WordTable | None = None
        self._is_prepared = False
        self._by_ids = dict[torch.device, StatedIds]()
        self._known = dict[bytes, bool]()

    @outside_compiled_code("the tokenizer is not known: pass tokenizer= to debias()")
    @torch.inference_mode(False)  # the tensors must also work with gradients later
    def prepare(self, device: torch.device) -> None:
        """Parse the tokenizer's vocabulary, and move the word numbers to a device."""
        if not self._is_prepared:
            self._table = self._find_table()
            self._is_prepared = True
        if self._table is not None and device not in self._by_ids:
            self._by_ids[device] = StatedIds(self._table, self._gate.phrases, device)

    def __call__(self, ids: Tensor) -> Tensor:
        """Return, for each row of ids (b, length), whether it contains one of the words.

        On the CPU, the decision is the same as for the decoded text. On a GPU and in compiled code,
        nothing is decoded. There, a word with letters that the tokenizer splits into bytes is never
        recognised, and punctuation that is split into bytes counts as a separator.
        """
        rows = ids.reshape(-1, ids.shape[-1])
        if not self._is_prepared or (self._table and rows.device not in self._by_ids):
            self.prepare(rows.device)
        if self._table is None:
            return self._read(rows)
        by_ids = self._by_ids[rows.device]
        facts = by_ids.table.facts(rows)
        if torch.compiler.is_compiling() or rows.device.type != "cpu":
            return by_ids(facts)
        # On the CPU, nothing blocks, so remove padding and decode uncertain rows.
        used = facts[..., 1].ne(0).any(0).nonzero()
        if not len(used):
            return torch.zeros(len(rows), dtype=torch.bool, device="cpu")
        facts = facts[:, : int(used[-1]) + 1]
        stated = by_ids(facts)
        unsure = self._table.unsure(facts)
        if unsure.any():
            stated[unsure] = self._read(rows[unsure])
        return stated

    @outside_compiled_code("token ids of this tokenizer have to be decoded on the CPU")
    def _read(self, rows: Tensor) -> Tensor:
        """Return the decision for each row (b,), decoding the rows that are not cached."""
        plain = rows.detach().to("cpu", torch.int64)
        keys = [row.numpy().tobytes() for row in plain]
        known = self._known  # another thread may replace `self._known` in the meantime
        place_of_new = {key: place for place, key in enumerate(keys) if key not in known}
        decisions = dict[bytes, bool]()
        if place_of_new:
            texts = self._texts(plain[list(place_of_new.values())])
            for key, text in zip(place_of_new, texts, strict=True):
                decisions[key] = bool(self._gate.find(text))
        stated = [decisions[key] if key in decisions else known[key] for key in keys]
        known.update(decisions)
        # If the cache is full, replace it, which avoids tracking the order of use.
        if len(known) > _KEPT:
            self._known = decisions
        return torch.tensor(stated, device=rows.device)
