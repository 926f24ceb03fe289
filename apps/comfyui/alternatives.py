"""Choose a branch of alternatives such as {red|blue} for each image.

ComfyUI's page chooses alternatives before it sends a prompt, once for the entire batch, and treats
"{gender}" as an alternative with a single choice. The nodes therefore request the original text and
choose separately for each image.
"""

from __future__ import annotations

import random
import re

from vldebias.utils.table_rows import parsed_cell

# Wildcard nodes handle counts and weights ("{2$$a|b}", "{0.3::a|b}") and escaped characters.
_OF_OTHER_NODES = re.compile(r"[$\\]|::")


def choose_alternatives(prompt: str, key: str) -> str:
    """Return a prompt in which one branch of each alternative has been chosen.

    Args:
        prompt: the prompt. JSON is returned unchanged, because its braces are not alternatives.
        key: seed for the choices, which are the same on every machine.

    >>> choose_alternatives("a {red|{dark |}blue} hat, __colour__, {2$$a|b}", "0")
    'a red hat, __colour__, {2$$a|b}'
    """
    if not isinstance(parsed_cell(prompt), str):
        return prompt
    generator = random.Random(key)
    pieces: list[str] = []
    open_braces: list[int] = []  # positions in `pieces` of braces that may begin alternatives
    for piece in re.split(r"([{}])", prompt):
        is_escaped = bool(pieces) and pieces[-1].endswith("\\")
        if piece == "{" and not is_escaped:
            open_braces.append(len(pieces))
        elif piece == "}" and open_braces:
            start = open_braces.pop()
            content = "".join(pieces[start + 1 :])
            if "|" in content and not _OF_OTHER_NODES.search(content):
                pieces[start:] = [generator.choice(content.split("|"))]
                continue
        if piece == "}" or (piece == "{" and is_escaped):
            # Braces that remain in the text are in no alternative, and end those around them.
            open_braces.clear()
        pieces.append(piece)
    return "".join(pieces)
