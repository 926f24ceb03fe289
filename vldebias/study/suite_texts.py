"""List the prompts in a packaged suite without importing torch, which the tasks need.

This keeps `vldebias eval show SUITE --texts` fast for users who embed the prompts elsewhere. Tests
check that the lists match `Suite.texts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.prompts import PromptSet, load_prompts
from vldebias.utils.files import packaged, read_yaml


def texts_of_packaged_suite(name: str) -> tuple[str, ...]:
    """Return all prompts that an image-text model must embed for a packaged suite, in order.

    Raises:
        InvalidInputError: If no packaged suite has this name.
    """
    suites = packaged("suites")
    if name not in suites:
        raise InvalidInputError(f"got the suite {name!r}; expected one of {', '.join(suites)}")
    texts: dict[str, None] = {}
    for task in read_yaml(suites[name])["tasks"]:
        if task["task"] == "groups":
            texts |= dict.fromkeys(load_prompts(task["prompts"]).texts)
        elif task["task"] == "retrieval":
            names = []
            for sets in task["prompts"].values():
                names += sets if isinstance(sets, list) else [sets]
            queries = read_queries(task["queries"])
            classes = task.get("classes", {})
            texts |= dict.fromkeys(texts_of_retrieval(names, queries, classes))
    return tuple(texts)


def texts_of_retrieval(
    sets: Iterable[str | PromptSet],
    queries: Sequence[str],
    classes: Mapping[str, Mapping[str, str]],
) -> tuple[str, ...]:
    """Return the distinct prompts of a retrieval task: sets, queries and class prompts.

    Captions are not included, because they are part of the data.

    Args:
        sets: prompt sets or their names.
        queries: search texts, in addition to the prompts in the sets.
        classes: column -> value -> class prompt.
    """
    texts: list[str] = []
    for prompts in sets:
        texts += load_prompts(prompts).texts
    texts += queries
    for prompt_of_value in classes.values():
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
        prompts = load_prompts(queries["of"])
        return list(prompts.held_out_classes if queries.get("held_out") else prompts.classes)
    return queries
