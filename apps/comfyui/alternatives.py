"""Choose a branch of alternatives such as {red|blue} for each image.

ComfyUI's page chooses alternatives before it sends a prompt, once for the entire batch, and treats
"{gender}" as an alternative with a single choice. The nodes therefore request the original text and
choose separately for each image.
"""

from __future__ import annotations

import json
import random
import re

# Innermost braces that contain a bar. Counts and weights ("{2$$a|b}", "{0.3::a|b}") and escaped
# braces ("\\{") are not matched, since wildcard nodes handle them.
_INNERMOST = re.compile(r"(?<!\\)\{((?:[^{}$\\:]|:(?!:))*\|(?:[^{}$\\:]|:(?!:))*)\}")


def choose_alternatives(prompt: str, key: str) -> str:
    """Return a prompt in which one branch of each alternative has been chosen.

    Args:
        prompt: the prompt. JSON is returned unchanged, because its braces are not alternatives.
        key: seed for the choices, which are the same on every machine.

    >>> choose_alternatives("a {red|{dark |}blue} hat, __colour__, {2$$a|b}", "0")
    'a red hat, __colour__, {2$$a|b}'
    """
    if _is_json(prompt):
        return prompt
    generator = random.Random(key)
    match = _INNERMOST.search(prompt)
    while match is not None:
        branch = generator.choice(match[1].split("|"))
        prompt = prompt[: match.start()] + branch + prompt[match.end() :]
        match = _INNERMOST.search(prompt)
    return prompt


def _is_json(prompt: str) -> bool:
    if not prompt.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(prompt)
    except (ValueError, RecursionError):
        return False
    return True
