"""Choose one of {red|blue} for each picture.

ComfyUI's browser page chooses alternatives before it sends a prompt, once for a whole batch, and
takes "{gender}" for one with a single choice. So the nodes ask for the text as it was typed, and
choose themselves, once for each picture.
"""

from __future__ import annotations

import json
import random
import re

# The innermost braces with a bar between them. Nodes of wildcards read more than that: those with
# counts and weights ("{2$$a|b}", "{0.3::a|b}") and escaped ones ("\\{") pass through.
_INNERMOST = re.compile(r"(?<!\\)\{((?:[^{}$\\:]|:(?!:))*\|(?:[^{}$\\:]|:(?!:))*)\}")


def choose_alternatives(prompt: str, key: str) -> str:
    """Return a prompt with one branch of each of its alternatives.

    Args:
        prompt: the prompt. One in JSON, whose braces are no alternatives, is returned as it is.
        key: decides the branches, the same on every machine.

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
