"""List the prompts that a task embeds without importing torch, which the tasks need.

`vldebias eval show SUITE --texts` and the tasks use the same function, so the command is fast for
users who embed the prompts elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.prompts import PromptSet, load_prompts
from vldebias.utils.files import packaged, read_yaml


def texts_of_packaged_suite(name: str) -> tuple[str, ...]:
    """Return all prompts that an image-text model must embed for a packaged suite, in order."""
    tasks = read_yaml(packaged("suites")[name])["tasks"]
    return tuple(dict.fromkeys(chain(*map(texts_of_task, tasks))))


def texts_of_task(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the distinct prompts that an image-text model must embed for a task.

    A groups task embeds the prompts of its set, and a retrieval task those of its sets, the queries
    and the class prompts. Captions are not included, because they are part of the data.

    Args:
        fields: the fields of the task, as in a suite file or validated.
    """
    if fields["task"] == "groups":
        return load_prompts(fields["attribute"]).texts
    if fields["task"] != "retrieval":
        return ()
    texts: list[str] = []
    for sets in fields["attribute"].values():
        for prompt_set in [sets] if isinstance(sets, str) else sets:
            texts += load_prompts(prompt_set).texts
    texts += read_queries(fields["queries"])
    for prompt_of_value in fields.get("classes", {}).values():
        texts += prompt_of_value.values()
    return tuple(dict.fromkeys(texts))


def read_queries(queries: Any) -> Any:
    """Return the query strings.

    Queries are a list of strings, a prompt set whose class prompts are the queries, or a mapping
    {of: SET, held_out: true}. Any other value is returned unchanged and left to the caller to
    validate.

    Raises:
        InvalidInputError: If a string is not the name of a prompt set.
    """
    if isinstance(queries, (str, PromptSet)):
        try:
            return list(load_prompts(queries).classes)
        except InvalidInputError as error:
            # A single string is interpreted as the name of a prompt set.
            raise InvalidInputError(
                f"{error}; to pass query text, use a list: [{queries!r}]"
            ) from error
    if isinstance(queries, Mapping) and "of" in queries and set(queries) <= {"of", "held_out"}:
        prompt_set = load_prompts(queries["of"])
        return list(prompt_set.held_out_classes if queries.get("held_out") else prompt_set.classes)
    return queries
