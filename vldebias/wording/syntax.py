"""Read the syntax of image generators: `<lora:...>`, BREAK, quality tags, {a|b}, JSON.

A prompt has one reading for each of its alternatives. A reading is as long as the prompt, so that
offsets agree; markup and tags are replaced with spaces, and markup that ends a clause with a line
end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from vldebias.prompts.english.words import gendered, lists, person

MOST_READINGS = 64  # each is read as a prompt of its own

# Tags for the quality of a picture say nothing about a person.
_TAG = (
    r"masterpiece|(?:best|high|highest|amazing|good|great|ultra|top)[ -]quality|(?:ultra |very )?"
    r"high-?res(?:olution)?|absurd-?res|(?:ultra|highly|extremely|very|insanely)[ -]detailed|solo"
    r"|raw photo|\d+k(?: (?:uhd|hdr))?|uhd|hdr|dslr|official art|very aesthetic|aesthetic|newest"
    r"|detailed|intricate(?: details)?|beautiful|looking at (?:the )?viewer|sharp focus|realistic"
    r"|photorealistic|cinematic|best|professional|trending on artstation|score \d+(?: up)?"
)
_TAGS = re.compile(
    rf"(?:^|(?<=[,(\[{{\n]))\s{{0,9}}(?:{_TAG})\s{{0,9}}(?::[\d.]+)?(?=\s{{0,9}}(?:[,)\]}}\n]|$))",
    re.IGNORECASE,
)
# An angle bracket, "<lora:film:0.8>", and a prompt that is scheduled by steps, "[a cat:a dog:0.5]".
_SCHEDULE = r"\[[^\[\]|:]*:[^\[\]|]*:\s*[\d.]+\s*\]"
# Variables: ${job}, {$job}, $job, @job, %job%, @job@, #job#.
_VARIABLE = (
    r"\$\{[^{}|]*\}|\{\$[^{}|]*\}|%[\w/.-]+%|@[\w/.-]+@|#[\w/.-]+#|(?<![\w$@])[$@][A-Za-z]\w*"
)
_MARKUP = re.compile(rf"<[^<>]*>|{_SCHEDULE}")
_VARIABLES = re.compile(_VARIABLE)
# Words that join prompts, in capitals: "and" in small letters joins persons.
_JOINING = re.compile(r"\b(?:(?:BREAK|AND|ADDCOMM|ADDROW|ADDCOL|ADDBASE)\b|COUPLE\([^()]*\))")
# Without such a character or word a prompt is plain text. A final quotation mark is an apostrophe,
# as in "the nurses' room", unless the prompt begins with one.
_SIGN_OF_SYNTAX = re.compile(
    rf"[<>{{}}\[\]()|$%@#_:=\"\u201c\u2018\u00ab]|\A\s*'|--prompt\b|{_JOINING.pattern}"
)
# How many people regions show, who are named there: "2 people, park ADDCOL a doctor".
_PEOPLE_OF_REGIONS = re.compile(
    r"\A[^,]*\b(?:people|persons)\b(?=.*\bADD(?:COMM|BASE|ROW|COL)\b)", re.DOTALL
)
# snake_case, __wildcard__, embedding:name: the words in names of files describe nobody.
_NAMES = re.compile(r"\b(?:embedding|lora|lyco|hypernet):\s?\S+|(?<!\w)\w*_\w*", re.IGNORECASE)
# Names of files, wildcards and variables, which may state a value.
_STATING = re.compile(
    rf"<[^<>]*>|{_SCHEDULE}|{_VARIABLE}|__\S+?__|\b(?:embedding|lora|lyco|hypernet):\s?\S+",
    re.IGNORECASE,
)
# A bracket with one name in it, as templates have it: [gender], {{ gender }}, {sex|}.
_TEMPLATE = re.compile(r"(?<![\w(])[\[{]{1,2}([^\[\]{}]{1,80})[\]}]")
# compel: ("a cook", "a baker").and(), ("a cook", "a baker").blend(0.6, 0.4)
_PARTS = re.compile(r"\s*\((.*)\)\s*\.(?:and|blend)\([^()]*\)\s*", re.DOTALL)
_PART = re.compile(r"\"[^\"]*\"|'(?:[^']|\b'\b)*'")
# A prompt in one pair of quotation marks.
_QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019", "\u00ab": "\u00bb"}
# The weight of a branch, "{2::doctor|nurse}", or how many are drawn, "{2$$doctor|nurse}".
_WEIGHT = re.compile(r"[\d.]+::|[\d-]+\$\$(?:[^$|{}]*\$\$)?")

# Text that does not describe the picture: what must not be in it, instructions to a language model,
# the role names of chat templates, and the settings that A1111 saves below a prompt.
_NEXT_WORDS = r"(?:in|on|at|with|who|while|and|next|near|beside|behind|holding|wearing|standing)"
_NOT_IN_PICTURE = re.compile(
    r"(?<!\S)--(?:no|neg(?:ative)?(?:[-_]prompt)?)\b.*?(?=\s--[a-z]|$)|\[negative:[^\]\n]*|(?:^|\|)[^\S\n]*negative:[^\n]*"
    r"|\bnegative[ _]prompt\s*[:=][^\n]*|^[^\S\n]*steps: \d+,.*"
    rf"|\bwithout (?:(?!\b{_NEXT_WORDS}\b)[^,.;:!?()\n\[\]])*"
    r"|\bgod[- ]?rays\b|\A.*<prompt start>|(?:^|[>:])[^\S\n]*you are [^.\n]{0,1000}[.\n]"
    r"|\A\s*/imagine(?: prompt)?:?"
    r"|<\|(?:im_start\|>)?system.*?(?:<\|(?:im_)?end\|>|(?=<\|user)|\Z)|<<sys>>.*?(?:<</sys>>|\Z)"
    r"|(?:<\|im_start\|>|<start_of_turn>|<\|start_header_id\|>)\s*\w+"
    r"|^[# \t]*system\s*:(?:.{0,4000}?\buser\s*:|[^\n]*)"
    r"|(?:^|(?<=[.!?] ))[# \t]*(?:user|assistant)\s*:"
    r"|<\|[^<>|]*\|>|</?\w+_of_turn>|\[/?inst\]",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
_NEGATIVE_KEY = re.compile(r"negative|exclude|avoid")
_ENTRY = re.compile(r"\{[^{}]*\}")
_NEGATIVE_WEIGHT = re.compile(r"\"weight\"\s*:\s*-")
# The prompt among other options: --prompt "a cook" --steps 20, prompt='a cook', seed=1
_OPTION = re.compile(
    r"(?:(?<!\S)--prompt[ =]|(?<![\w-])['\"]?prompt['\"]?\s*[:=])\s*"
    rf"({_PART.pattern})",
    re.IGNORECASE,
)
# Emphasis right after an article, "a (tired:1.2) nurse", does not end the phrase.
_EMPHASIS = re.compile(r"\ban?(?: [(\[]+[^()\[\],|]+[)\]]+[\d.+-]*)+", re.IGNORECASE)
_MARKS = re.compile(r"(?<=[)\]])[\d.+-]+|:[\d.]+|[()\[\]]")

# An edit changes something that a given picture shows: "make her smile", not "make a cake".
_THE = r"(?:the|this|these|that|those|it|him|her|them|his|their|its|my|background)\b"
_EDIT = re.compile(
    r"\s*(?:please |now |then |can you |could you |i want (?:you )?to |edit: ?)*(?:"
    r"(?:change|replace|remove|erase|delete|turn|keep|swap|edit|convert|transform|adjust|fix|restore"
    r"|enhance|retouch|recolou?r|colou?rize|blur|modify|alter|extend|outpaint|inpaint|crop|give|move"
    r"|dress|age|make|brighten|darken|sharpen|upscale|zoom (?:in|out)(?: on)?)"
    rf" (?:(?!of\b|an?\b|me\b|us\b)[\w'-]+ ){{0,2}}?{_THE}"
    rf"|(?:add|put|insert|paste|place)\b[^,.;:\n]{{0,80}}? (?:to|on|onto|in|into|next to|behind"
    rf"|beside|over|under|around|near) {_THE}"
    r"|let (?:him|her|them|it|this|the (?:person|man|woman|subject))\b)",
    re.IGNORECASE,
)
# A picture that is given with the prompt: "the man in this photo", "the reference image".
_PICTURE = r"(?:image|photo|picture|photograph)"
_WHICH = r"(?:first|second|third|input|original|reference|uploaded|attached|provided|given|source)"
_GIVEN_PICTURE = re.compile(rf"\b{_WHICH} {_PICTURE}\b", re.IGNORECASE)
_IN_GIVEN_PICTURE = re.compile(
    rf"\b(?:the|this|that) (?:\w+ )?(\w+) (?:in|from) (?:the|this|that|my|your) {_PICTURE}\b",
    re.IGNORECASE,
)

# A string in JSON; if a colon follows, it is a key.
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?')
# One of the messages of a chat: {"role": "user", "content": "a nurse"}.
_MESSAGE = re.compile(r'"role"\s*:\s*"(?:system|user|assistant|developer)"', re.IGNORECASE)
_SUBJECT_KEYS = (
    {"subject", "subjects", "main_subject", "character", "characters", "person", "people"}
    | {"persons", "prompt", "positive", "positive_prompt", "description", "caption", "text"}
    | {"main_character", "scene", "type", "role", "profession", "occupation", "who", "inputs"}
)


# Start and end of each branch of a group of alternatives, without the brackets around the group.
_Branches = list[tuple[int, int]]


class UnreadableSyntaxError(ValueError):
    """A prompt must stay unchanged; the message is the reason."""


def picture_of(prompt: str) -> str:
    """Replace everything that does not describe the picture with spaces.

    This includes negative prompts, "without a hat", system prompts and saved settings.
    """
    reading = prompt
    if json_texts(prompt) is None:
        return _NOT_IN_PICTURE.sub(_end_clause, reading)
    negative: set[int] = set()  # offsets of {"text": "a man", "weight": -1}
    for entry in _ENTRY.finditer(prompt):
        if _NEGATIVE_WEIGHT.search(entry[0]):
            negative.update(range(*entry.span()))
    key = ""
    for string in _STRING.finditer(prompt):
        start, end = string.span(1)
        if string[2]:
            key = string[1].lower()
        elif _NEGATIVE_KEY.search(key) or start in negative:
            reading = reading[:start] + " " * (end - start) + reading[end:]
    return reading


def is_edit(prompt: str) -> bool:
    """Return whether a prompt asks to change a given picture, whose person is in it already."""
    if _EDIT.match(prompt) or _GIVEN_PICTURE.search(prompt):
        return True
    for noun in _IN_GIVEN_PICTURE.findall(prompt.lower()):
        if person(noun) or gendered(noun):
            return True  # "the nurse in the photo", not "the light in this photo"
    return False


def is_in_capitals(prompt: str) -> bool:
    """Return whether a prompt is in capitals and more than an acronym such as CEO."""
    if not prompt.isupper():
        return False
    words = set(re.findall(r"[^\W\d_]{2,}", prompt))
    return bool(words - lists()["acronym"].keys())


def json_texts(prompt: str) -> str | None:
    """Return a reading of a JSON prompt that only contains the values of subject keys.

    It is as long as the prompt; None if the prompt is not JSON.
    """
    if prompt.lstrip()[:1] not in ("{", "["):
        return None
    try:
        content = json.loads(prompt)
    except (ValueError, RecursionError):
        return None
    first_entry = content[0] if isinstance(content, list) and content else content
    if not isinstance(first_entry, dict):
        return None
    reading = ["\n"] * len(prompt)
    is_chat = _MESSAGE.search(prompt) is not None
    key = ""
    speaker = ""
    for string in _STRING.finditer(prompt):
        is_key = bool(string[2])
        if is_key:
            key = string[1].strip().lower().replace(" ", "_")
            continue
        if is_chat and key == "role":
            speaker = string[1].lower()
        is_text = key in _SUBJECT_KEYS
        if is_chat:
            # The system and the assistant do not say what the picture shows.
            is_text = speaker == "user" and key in ("content", "text")
        if is_text:
            start, end = string.span(1)
            # An escape, "\\n", becomes a space and a letter, so that offsets stay valid.
            reading[start:end] = string[1].replace("\\", " ")
    return "".join(reading)


def texts_of_markup(prompt: str) -> list[str]:
    """Return the words inside of markup: "random male female" of <random:male|female>.

    Words are separated by spaces: "people women" of __people/women__.
    """
    return [_words_of(match[0]) for match in _STATING.finditer(prompt)]


def has_syntax(prompt: str) -> bool:
    """Return whether a prompt may have markup, alternatives, variables or quotations."""
    return _SIGN_OF_SYNTAX.search(prompt) is not None


def names_of_templates(prompt: str) -> list[str]:
    """Return the names of placeholders in brackets and angles: "gender" of [[gender]]."""
    names: list[str] = []
    for match in _TEMPLATE.finditer(prompt):
        names += map(_words_of, match[1].split("|"))
    for match in _STATING.finditer(prompt):
        names += _words_of(match[0]).split()
        names.append(_words_of(match[0]))
    return names


def _words_of(text: str) -> str:
    """Return the words of a text in lower case, with a space between each two."""
    return " ".join(re.findall(r"[^\W\d_]+", text.lower()))


def read_alternatives(prompt: str) -> list[str]:
    """Return the readings of a prompt.

    Each alternative of "a {doctor|nurse}" is in one of them at least.

    Raises:
        UnreadableSyntaxError: it has more than MOST_READINGS.
    """
    text = json_texts(prompt)
    if text is not None:
        return list(dict.fromkeys(_read(text)))
    text = prompt.lower() if prompt.isupper() else prompt
    if not has_syntax(text):
        return [_TAGS.sub(_blank, text)]
    readings: list[str] = []
    for part in _read_parts(text):
        # Markup becomes spaces, or a line end if it ends a clause.
        reading = _MARKUP.sub(_end_clause, _unquote(part))
        reading = _VARIABLES.sub(_blank, reading)
        reading = _EMPHASIS.sub(lambda phrase: _MARKS.sub(_blank, phrase[0]), reading)
        reading = _PEOPLE_OF_REGIONS.sub(_blank, reading)
        reading = _JOINING.sub(_end_clause, reading)
        reading = _TAGS.sub(_blank, reading)
        readings += _read(_NAMES.sub(_blank, reading))
    return list(dict.fromkeys(readings))


def _read_parts(text: str) -> list[str]:
    """Return a reading for each part of a compel prompt, or one for any other prompt.

    A prompt among options, --prompt "a cook" --steps 20, is read without them.
    """
    parts = _PARTS.fullmatch(text) or _OPTION.search(text)
    if parts is None:
        return [text]
    readings: list[str] = []
    for part in _PART.finditer(text, *parts.span(1)):
        start = part.start() + 1
        end = part.end() - 1
        readings.append(" " * start + text[start:end] + " " * (len(text) - end))
    return readings or [text]


def _unquote(text: str) -> str:
    """Replace the pair of quotation marks around a prompt with spaces."""
    start = len(text) - len(text.lstrip())
    end = len(text.rstrip(" \t\n.,!")) - 1
    if end <= start or _QUOTES.get(text[start]) != text[end]:
        return text
    inside = text[start + 1 : end]
    # An apostrophe is no quotation mark: 'the nurse's desk'.
    has_more = re.search(rf"(?<!\w){re.escape(text[end])}|{re.escape(text[end])}(?!\w)", inside)
    return text if has_more else f"{text[:start]} {inside} {text[end + 1 :]}"


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _end_clause(match: re.Match[str]) -> str:
    return ("\n" + " " * len(match[0]))[: len(match[0])]


def _read(text: str) -> Iterator[str]:
    """Yield the readings of a text; nested alternatives are expanded after outer ones."""
    waiting = [text]
    finished = 0
    while waiting:
        reading = waiting.pop()
        groups = _find_alternatives(reading)
        if not groups:
            finished += 1
            yield reading
            continue
        branches = sum(len(group) for group in groups)
        # Counted before they are made: nested alternatives grow exponentially.
        if finished + len(waiting) + branches > MOST_READINGS:
            raise UnreadableSyntaxError("too many alternatives")
        # Each branch is chosen once, with the first branch of all other groups.
        base = reading
        for group in groups:
            base = _keep(base, reading, group, group[0])
        waiting.append(base)
        for group in groups:
            waiting += [_keep(base, reading, group, branch) for branch in group[1:]]


def _keep(base: str, text: str, group: _Branches, branch: tuple[int, int]) -> str:
    """Return `base` with one branch of a group in its place among spaces."""
    start, end = branch
    opening = group[0][0] - 1  # of the bracket
    behind = group[-1][1] + 1
    words = _WEIGHT.sub(_blank, text[start:end])
    inside = " " * (start - opening) + words + " " * (behind - end)
    return base[:opening] + inside + base[behind:]


def _find_alternatives(text: str) -> list[_Branches]:
    """Return the branches of the outermost brackets that contain a bar, in one pass."""
    if "|" not in text:
        return []
    groups: list[_Branches] = []
    opened: list[tuple[int, list[int]]] = []  # offset of a bracket, and of the bars directly in it
    for offset, character in enumerate(text):
        if character in "{[":
            opened.append((offset, []))
        elif character == "|" and opened:
            _, bars = opened[-1]
            bars.append(offset)
        elif character in "}]" and opened:
            start, bars = opened.pop()
            if not bars:
                continue
            # Groups nested in this one are read with the branch that contains them.
            while groups and groups[-1][0][0] > start:
                groups.pop()
            starts = [bar + 1 for bar in (start, *bars)]
            groups.append(list(zip(starts, [*bars, offset], strict=True)))
    return groups
