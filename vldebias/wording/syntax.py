"""Parse image generator syntax such as `<lora:...>`, BREAK, quality tags, {a|b} and JSON.

A prompt is expanded into readings that cover its alternatives. A reading is as long as the prompt,
so that offsets are valid in both. Markup and tags are replaced with spaces, and markup that ends a
clause is replaced with a line break.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from vldebias.prompts.english.words import gendered, listed, lists, person, read_lists
from vldebias.wording.absent import end_clause, without_labelled

MOST_READINGS = 64  # Maximum number of readings, each of which is analysed like a prompt.

_LISTS = read_lists(Path(__file__).with_suffix(".txt"))
# Quality tags do not describe a person.
_TAG = (
    r"(?:best|high|highest|amazing|good|great|ultra|top)[ -]quality|(?:ultra |very )?high-?res"
    r"(?:olution)?|absurd-?res|(?:ultra|highly|extremely|very|insanely)[ -]detailed"
    rf"|\d+k(?: (?:uhd|hdr))?|score \d+(?: up)?|{'|'.join(_LISTS['tag'])}"
)
_TAGS = re.compile(
    rf"(?:^|(?<=[,(\[{{\n]))\s{{0,9}}(?:{_TAG})\s{{0,9}}(?::[\d.]+)?(?=\s{{0,9}}(?:[,)\]}}\n]|$))",
    re.IGNORECASE,
)
# Prompt schedules, "[a cat:a dog:0.5]", which switch to the second prompt after some steps.
_SCHEDULE = r"\[[^\[\]|:]*:[^\[\]|]*:\s*[\d.]+\s*\]"
# Variables: ${job}, {$job}, $job, @job, %job%, @job@, #job#.
_VARIABLE = (
    r"\$\{[^{}|]*\}|\{\$[^{}|]*\}|%[\w/.-]+%|@[\w/.-]+@|#[\w/.-]+#|(?<![\w$@])[$@][A-Za-z]\w*"
)
_MARKUP = re.compile(rf"<[^<>]*>|{_SCHEDULE}|\[SEP\]")
_VARIABLES = re.compile(_VARIABLE)
# Capitalized words that join prompts. A lower-case "and" joins people instead.
_JOINING = re.compile(r"\b(?:(?:BREAK|AND|ADDCOMM|ADDROW|ADDCOL|ADDBASE)\b|COUPLE\([^()]*\))")
# A prompt without any of these characters or words is plain text. A single quotation mark counts
# only at the start of the prompt, since it is an apostrophe elsewhere, as in "the nurses' room".
_SIGN_OF_SYNTAX = re.compile(
    rf"[<>{{}}\[\]()|$%@#_:=\"\u201c\u2018\u00ab]|\A\s*'|--prompt\b|{_JOINING.pattern}"
)
# The number of people before a list of regions that name them: "2 people, park ADDCOL a doctor".
_PEOPLE_OF_REGIONS = re.compile(
    r"\A[^,]*\b(?:people|persons)\b(?=.*\bADD(?:COMM|BASE|ROW|COL)\b)", re.DOTALL
)
# snake_case, __wildcard__ and embedding:name, because words in file names do not describe people.
_NAMES = re.compile(r"\b(?:embedding|lora|lyco|hypernet):\s?\S+|(?<!\w)\w*_\w*", re.IGNORECASE)
# Names of files, wildcards, variables and tags in snake_case. They may state a value.
_STATING = re.compile(rf"<[^<>]*>|{_SCHEDULE}|{_VARIABLE}|__\S+?__|{_NAMES.pattern}", re.IGNORECASE)
# Template placeholders: [gender], {{ gender }}, {sex|}.
_TEMPLATE = re.compile(r"(?<![\w(])[\[{]{1,2}([^\[\]{}]{1,80})[\]}]")
# Syntax of the library compel: ("a cook", "a baker").and(), ("a cook", "a baker").blend(0.6, 0.4).
_PARTS = re.compile(r"\s*\((.*)\)\s*\.(?:and|blend)\([^()]*\)\s*", re.DOTALL)
_PART = re.compile(r"\"[^\"]*\"|'(?:[^']|\b'\b)*'")
# Quotation marks that may surround an entire prompt.
_QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019", "\u00ab": "\u00bb"}
# The weight of an alternative, "{2::doctor|nurse}", or the number to draw, "{2$$doctor|nurse}".
_WEIGHT = re.compile(r"(?<![\d.])[\d.]+::|(?<![\d-])[\d-]+\$\$(?:[^$|{}]*\$\$)?")

# Text that does not describe the picture: things to exclude, instructions to a language model, role
# names in chat templates, and the settings that Automatic1111 saves below a prompt.
_NOT_IN_PICTURE = re.compile(
    r"(?<!\S)--(?:no?|neg(?:ative)?(?:[-_]prompt)?)\b.*?(?=\s--[a-z]|$)"
    r"|\[negative:[^\]\n]*|^[^\S\n]*steps: \d+,.*"
    r"|\bgod[- ]?rays\b|\A.*<prompt start>"
    # A system prompt ends at a marker, an empty line, a request ("Draw a nurse") or a caption on a
    # line of its own.
    r"|(?:^|[>:])[^\S\n]*you are [^.\n]{0,1000}(?=[.\n]).*?(?:\Z"
    r"|\n(?=\s*\n|[^\S\n]*(?:an? |the |two ))"
    r"|(?=<|\b(?:user|prompt|following|scene|image|picture|subject|description|input|request)\s*:)"
    r"|(?<=[.!?]\s)(?=(?:draw|paint|generate|create|make|show|depict) (?:me )?"
    r"(?:an?|the|two)\s(?!prompt)))"
    r"|\A\s*/imagine(?: prompt)?:?"
    # A request is no part of the picture: "can you generate", "I need".
    r"|\A\s*(?:please |hey,? |hi,? |hello,? )?(?:(?:can|could|would|will) you (?:please |kindly )?"
    r"(?:draw|paint|generate|create|make|show|design|render|produce|give)(?: me| us)?"
    r"|i(?:['\u2019]d| would)? (?:need|want|like)(?: to see)?|(?:make|give|show|get|draw) me)\b"
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
# A prompt given as one of several options: --prompt "a cook" --steps 20; prompt='a cook', seed=1.
_OPTION = re.compile(
    r"(?:(?<!\S)--prompt[ =]|(?<![\w-])['\"]?prompt['\"]?\s*[:=])\s*"
    rf"({_PART.pattern})",
    re.IGNORECASE,
)
# Emphasis right after an article, "a (tired:1.2) nurse", does not end the phrase.
_EMPHASIS = re.compile(r"\ban?(?: [(\[]+[^()\[\],|]+[)\]]+[\d.+-]*)+", re.IGNORECASE)
_MARKS = re.compile(r"(?<=[)\]])[\d.+-]+|:[\d.]+|[()\[\]]")

# An edit changes something in an existing picture: "make her smile", but not "make a cake".
_THE = r"(?:the|this|these|that|those|it|him|her|them|his|their|its|my|background)\b"
_EDIT = re.compile(
    r"\s*(?:please |now |then |can you |could you |i want (?:you )?to |edit: ?)*"
    rf"(?:(?:{'|'.join(_LISTS['edit'])}) (?:(?!of\b|an?\b|me\b|us\b)[\w'-]+ ){{0,2}}?{_THE}"
    r"|extend (?:for|back)ward\b|(?:convert|turn|transform) [^.;:\n]{1,80}? into\b"
    rf"|(?:add|put|insert|paste|place)\b[^,.;:\n]{{0,80}}? (?:to|on|onto|in|into|next to|behind"
    rf"|beside|over|under|around|near) {_THE}"
    r"|(?:remove|erase|delete) [^.;:\n]{1,60}? from the (?:image|photo|picture|background)\b"
    r"|let (?:him|her|them|it|this|the (?:person|man|woman|girl|boy|subject))\b)",
    re.IGNORECASE,
)
# References to an input picture: "the man in this photo", "the reference image", "image 1", "this
# person".
_PICTURE = r"(?:image|photo|picture|photograph|attachment|screenshot)"
_WHICH = r"(?:first|second|third|input|original|reference|uploaded|attached|provided|given|source)"
_GIVEN_PICTURE = re.compile(
    r"\b(?:(?:do not|don['\u2019]t) change\b"
    r"|(?:not|without) (?:alter|chang|modify)\w* [^.;\n]{0,20}"
    r"\b(?:fac(?:e|ial)|features|identity)\b"
    r"|reference (?:recording|video|clip|voice)\b"
    r"|(?:input|reference|uploaded|attached|provided|supplied|source) (?:\w+ )?(?:selfie|face"
    r"|likeness|portrait|headshot|person|people|identity)\b"
    r"|(?:as|for) (?:a |the )?reference\b|reference (?:wo)?m[ae]n\b"
    rf"|(?:using|use|edit|take|with) (?:this|these) (?:[\w']+ ){{0,3}}{_PICTURE}s?\b"
    rf"|(?:use|using|based on|as in|same as) (?:the |this )?{_PICTURE}\b"
    rf"|see (?:attached )?{_PICTURE}\b|(?:exact fac(?:e|ial)|real face)\b"
    rf"|{_PICTURE} (?:(?:that |which )?(?:i|you)(?: have|['\u2019]ve)? )?"
    r"(?:uploaded|attached|provided)\b(?! (?:by|to|on|at|in)\b)"
    r"|(?:the|exact|given) reference(?=\s*(?:[.,;:!?)\n]|$))"
    # Whoever writes the prompt has a picture of themselves: "with my face", "a portrait of me".
    rf"|my (?:\w+ )?(?:{_PICTURE}|selfie|face|features|likeness|headshot|portrait)\b"
    r"(?! (?:frame|book|album))"
    r"|(?<!front )(?<!ahead )(?<!because )(?:of|like|resembling) me\b"
    r"|(?:same|identical|original) (?:exact )?(?:face|identity|facial features)\b"
    r"|(?:keep|preserv|maintain|retain|lock)(?:e|ing)?\b[^.;\n]{0,30}\b(?:likeness|identity"
    r"|facial (?:features|structure|details)|face (?:\w+ )?(?:unchanged|intact|identical|same))\b"
    r"|preserv(?:e|ing) (?:the |h(?:er|is) |their )?face\b|face exactly the same\b"
    rf"|perform an? {_PICTURE} edit\b"
    rf"|{_WHICH} (?:\w+ )?{_PICTURE}\b"
    r"|(?:image|figure(?! \d+[:.])|photo|picture|reference)[ _]?#?\d\b"
    r"|(?:this|uploaded|attached|provided) (?:person|people|character|subject|individual)\b"
    r"|these (?:\w+ |\{[^{}]*\} )?(?:people|persons|characters|subjects|individuals)\b)"
    # Chinese: "image 1", "the original image", "in the image", "replace the image"
    r"|第\s*\d+\s*[张張][图圖]|[原本][图圖]|参考图|參考圖|[图圖]片?[中上里裡同]|[将將]图片|[图圖]片本人",
    re.IGNORECASE,
)
_IN_GIVEN_PICTURE = re.compile(
    rf"\b(?:the|this|that) (?:\w+ )?(\w+) (?:in|from) (?:the|this|that|my|your) {_PICTURE}\b",
    re.IGNORECASE,
)
# The person in an input picture, unless somebody precedes: "the uploaded boy", "blur this kid".
_GIVEN_PERSON = re.compile(
    r"(?:\b(?:uploaded|attached)|(?<=the )provided|(?<=\w )this) (\w+(?: \w+)?)", re.IGNORECASE
)

# Source code, markup of a web page and instructions to a language model: "def draw(person):",
# "void main() {", "</role>".
_CODE = re.compile(
    r"\b(?:def|function|func|fn|void|int|class|public|private|static)"
    r" \w{1,40}\s?\([^()\n]{0,80}\)\s?[:{]"
    r"|</(?:role|approach|instructions?|task|rules?|details|summary|h\d|div|table|t[dr]|a|sub)>"
    r"|\b(?:const|let|var|string|int) \w+ = "
)
# A template to be filled in: "[CHARACTER]", "[brand name]", "(insert a hero)".
_INSIDE = r"[^\[\](){}:|]{0,60}"
_PLACEHOLDER = re.compile(
    r"[\[({](?!SEP\])(?:[A-Z][A-Z0-9 _/&-]{3,40}\b"
    rf"|(?i:{'|'.join(_LISTS['gap'])}|colou?r\d?)\b{_INSIDE}){_INSIDE}[\])}}]"
)
# A placeholder, as in {argument name="job" default="a nurse"}, whose default value is read.
_ARGUMENT = re.compile(r"\{argument [^{}]*?default=\\?\"([^{}\"\\]*)\\?\"[^{}]*\}")

# A JSON string, which is a key if a colon follows.
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?')
# The role of a chat message: {"role": "user", "content": "a nurse"}.
_MESSAGE = re.compile(r'"role"\s*:\s*"(?:system|user|assistant|developer)"', re.IGNORECASE)

# Start and end of each alternative in braces, such as "nurse" and "doctor" in "{nurse|doctor}".
_Branches = list[tuple[int, int]]


def picture_of(prompt: str) -> str:
    """Replace everything that does not describe the picture with spaces.

    This includes negative prompts, system prompts and saved settings.
    """
    reading = prompt
    for argument in _ARGUMENT.finditer(prompt):
        start, end = argument.span()
        default = " " * (argument.start(1) - start) + argument[1]
        reading = reading[:start] + default.ljust(end - start) + reading[end:]
    if json_texts(prompt) is None:
        return without_labelled(_NOT_IN_PICTURE.sub(end_clause, reading))
    negative: set[int] = set()  # offsets of {"text": "a man", "weight": -1}
    for entry in _ENTRY.finditer(prompt):
        if _NEGATIVE_WEIGHT.search(entry[0]):
            negative.update(range(*entry.span()))
    for key, string in _json_values(prompt):
        start, end = string.span(1)
        if _NEGATIVE_KEY.search(key) or start in negative:
            reading = reading[:start] + " " * (end - start) + reading[end:]
    return reading


def is_edit(prompt: str) -> bool:
    """Return whether a prompt asks to edit an existing picture, which already shows the person."""
    prompt = prompt.replace("_", " ")  # in JSON: "reference_image"
    if _EDIT.match(prompt) or _GIVEN_PICTURE.search(prompt):
        return True
    for match in _GIVEN_PERSON.finditer(prompt):
        if _has_person(match[1]) and not _has_person(prompt[: match.start()]):
            return True
    for noun in _IN_GIVEN_PICTURE.findall(prompt.lower()):
        if person(noun) or gendered(noun) or noun in ("character", "figure"):
            return True  # "the nurse in the photo", not "the light in this photo"
    return False


def _has_person(text: str) -> bool:
    """Return whether a text contains a noun for a person."""
    words = [w for w in re.findall(r"[\w-]+", text.lower()) if not listed(w, "gendered-pronoun")]
    return any(map(person, words)) or any(map(gendered, words))


def names_a_model(prompt: str) -> bool:
    """Return whether a prompt loads a fine-tuned model and states the gender of its person."""
    is_loaded = re.search(r"<(?:lora|lyco|hypernet):", prompt, re.IGNORECASE) is not None
    return is_loaded and any(map(gendered, re.findall(r"\w+", prompt.lower())))


def is_code(prompt: str) -> bool:
    """Return whether a prompt contains source code or is a template with gaps to be filled in."""
    is_template = not prompt.isupper() and _PLACEHOLDER.search(prompt) is not None
    return is_template or _CODE.search(prompt) is not None


def is_in_capitals(prompt: str) -> bool:
    """Return whether a prompt is in capital letters and not just an acronym such as CEO."""
    if not prompt.isupper():
        return False
    words = set(re.findall(r"[^\W\d_]{2,}", prompt))
    return bool(words - lists()["acronym"].keys())


def json_texts(prompt: str) -> str | None:
    """Keep only the values of subject keys in a JSON prompt, without changing its length.

    Returns None if the prompt is not JSON.
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
    speaker = ""
    for key, string in _json_values(prompt):
        if is_chat and key == "role":
            speaker = string[1].lower()
        is_text = key in _LISTS["subject-key"]
        if is_chat:
            # System and assistant messages do not describe the picture.
            is_text = speaker == "user" and key in ("content", "text")
        if is_text:
            start, end = string.span(1)
            # An escape such as "\\n" becomes a space and a letter, so that offsets stay valid.
            reading[start:end] = string[1].replace("\\", " ")
    return "".join(reading)


def _json_values(prompt: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield the key, in lower case with spaces, and the match of each string value in JSON."""
    key = ""
    for string in _STRING.finditer(prompt):
        if string[2]:
            key = string[1].strip().lower().replace("_", " ")
        else:
            yield key, string


def texts_of_markup(prompt: str) -> list[str]:
    """Return the words in each piece of markup, separated by spaces.

    <random:male|female> yields "random male female", and __people/women__ yields "people women".
    """
    return [_words_of(match[0]) for match in _STATING.finditer(prompt)]


def has_syntax(prompt: str) -> bool:
    """Return whether a prompt may contain markup, alternatives, variables or quotation marks."""
    return _SIGN_OF_SYNTAX.search(prompt) is not None


def names_of_templates(prompt: str) -> list[str]:
    """Return the names of template placeholders, such as "gender" for [[gender]]."""
    names: list[str] = []
    for match in _TEMPLATE.finditer(prompt):
        names += map(_words_of, match[1].split("|"))
    return names


def _words_of(text: str) -> str:
    """Return the words in a text in lower case, separated by spaces."""
    return " ".join(re.findall(r"[^\W\d_]+", text.lower()))


def read_alternatives(prompt: str) -> list[str]:
    """Return the distinct readings of a prompt.

    Each alternative in a prompt such as "a {doctor|nurse}" occurs in at least one reading. The
    result is empty if there are more than MOST_READINGS readings.
    """
    low = prompt.lower()
    # Offsets must stay valid, although a few capitals have two lower-case characters.
    text = low if prompt.isupper() and len(low) == len(prompt) else prompt
    if not has_syntax(text):
        return [_TAGS.sub(_blank, text)]
    content = json_texts(prompt)
    parts = list(map(_without_markup, _read_parts(text))) if content is None else [content]
    waiting = parts[::-1]
    # Expand outer alternatives before nested ones.
    readings: list[str] = []
    while waiting:
        reading = waiting.pop()
        groups = _find_alternatives(reading)
        if not groups:
            readings.append(reading)
            continue
        branches = sum(len(group) for group in groups)
        # Check the limit before expanding, because nested alternatives grow exponentially.
        if len(readings) + len(waiting) + branches > MOST_READINGS:
            return []
        # Combine each branch with the first branch of every other group.
        base = reading
        for group in groups:
            base = _keep(base, reading, group, group[0])
        waiting.append(base)
        for group in groups:
            waiting += [_keep(base, reading, group, branch) for branch in group[1:]]
    return list(dict.fromkeys(readings))


def _without_markup(part: str) -> str:
    """Replace markup with a line break, which ends a clause, and variables and tags with spaces."""
    reading = _MARKUP.sub(end_clause, _unquote(part))
    reading = _VARIABLES.sub(_blank, reading)
    reading = _EMPHASIS.sub(lambda phrase: _MARKS.sub(_blank, phrase[0]), reading)
    reading = _PEOPLE_OF_REGIONS.sub(_blank, reading)
    reading = _JOINING.sub(end_clause, reading)
    reading = _TAGS.sub(_blank, reading)
    return _NAMES.sub(_blank, reading)


def _read_parts(text: str) -> list[str]:
    """Return a reading for each part of a compel prompt, or one reading for any other prompt.

    If a prompt is given as an option, as in --prompt "a cook" --steps 20, the rest is left out.
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
    """Replace the quotation marks around a prompt with spaces."""
    start = len(text) - len(text.lstrip())
    end = len(text.rstrip(" \t\n.,!")) - 1
    if end <= start or _QUOTES.get(text[start]) != text[end]:
        return text
    inside = text[start + 1 : end]
    # An apostrophe inside the text is not a closing quotation mark: 'the nurse's desk'.
    has_more = re.search(rf"(?<!\w){re.escape(text[end])}|{re.escape(text[end])}(?!\w)", inside)
    return text if has_more else f"{text[:start]} {inside} {text[end + 1 :]}"


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _keep(base: str, text: str, group: _Branches, branch: tuple[int, int]) -> str:
    """Replace a group in `base` with one of its branches, padded with spaces."""
    start, end = branch
    opening = group[0][0] - 1  # Offset of the opening bracket.
    behind = group[-1][1] + 1
    words = _WEIGHT.sub(_blank, text[start:end])
    inside = " " * (start - opening) + words + " " * (behind - end)
    return base[:opening] + inside + base[behind:]


def _find_alternatives(text: str) -> list[_Branches]:
    """Return the branches of the outermost brackets that contain a vertical bar."""
    if "|" not in text:
        return []
    groups: list[_Branches] = []
    opened: list[tuple[int, list[int]]] = []  # offsets of a bracket and its own bars
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
            # Drop nested groups, which are expanded after the branch that contains them.
            while groups and groups[-1][0][0] > start:
                groups.pop()
            starts = [bar + 1 for bar in (start, *bars)]
            groups.append(list(zip(starts, [*bars, offset], strict=True)))
    return groups
