"""Find the prompt, number of images and seed in a request, and the images in its response."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any, TypeGuard

from starlette.datastructures import UploadFile

from vldebias.wording.persons import NEXT_TEXT

from .given import has_image
from .order import Call, Json, Order, RefusedError

EDITS = "edits a given image"
VARIES = "varies a given image"
SEVERAL = "has several prompts"
CONTINUES = "continues a conversation that may show somebody"
NO_IMAGE = ""  # reason for requests that are not for images
IMAGE_MODELS = ("*image*", "dall-e*", "imagen*")  # name patterns of models that return images
# Names that servers with the path /images/generations give to the number of images.
NUMBER_FIELDS = (
    "n",
    "num_images",
    "num_images_per_prompt",
    "num_outputs_per_prompt",
    "batch_size",
)
VIDEO_FILES = ("input_reference", "image", "video")


class Endpoint:
    """Parse and create requests for one path.

    Attributes:
        items: The response field with the list of images, or "" if a response is a single image.
        usage: The response field with the token counts.
    """

    items = ""
    usage = "usage"

    def read(self, body: Json, limit: int, image_models: Sequence[str]) -> Order | str:
        """Parse a request, or return the reason why its prompt is not balanced.

        Args:
            body: The fields in the request.
            limit: The maximum number of images per request.
            image_models: Name patterns of models that return images.

        Raises:
            RefusedError: If the request is invalid.
        """
        raise NotImplementedError

    def write(self, order: Order, texts: Sequence[str], rows: Sequence[int]) -> Json:
        """Return the fields for a call that requests some of the images.

        Args:
            order: The request.
            texts: The texts that make up the prompt.
            rows: Positions of the images in the request.
        """
        raise NotImplementedError

    def calls(self, order: Order, prompts: Sequence[str], *, batch: bool) -> list[Call]:
        """Return one call for each image, or for each distinct prompt.

        Args:
            order: The request.
            prompts: The balanced prompt of each image.
            batch: Whether to make one call per distinct prompt.
        """
        rows_of_call: list[tuple[int, ...]] = [(row,) for row in range(len(prompts))]
        if batch:
            rows_of_prompt: dict[str, list[int]] = {}
            for row, prompt in enumerate(prompts):
                rows_of_prompt.setdefault(prompt, []).append(row)
            rows_of_call = [tuple(rows) for rows in rows_of_prompt.values()]
        calls = []
        for rows in rows_of_call:
            texts = prompts[rows[0]].split(NEXT_TEXT)
            calls.append(Call(self.write(order, texts, rows), "\n".join(texts), rows))
        return calls

    def label(self, item: Json, row: int, prompt: str) -> Json:
        """Label an image with its position and prompt, as far as the API supports it.

        Args:
            item: The image.
            row: The position of the image in the joined response.
            prompt: The prompt of the image.
        """
        return item

    def is_refusal(self, answer: Json | None) -> bool:
        """Return whether a response without images contains an error.

        OpenRouter returns some errors with status 200.
        """
        return answer is not None and bool(answer.get("error"))


class ImagesEndpoint(Endpoint):
    """`/images/generations` of OpenAI and compatible servers, and `/images` of OpenRouter."""

    items = "data"

    def read(self, body: Json, limit: int, image_models: Sequence[str]) -> Order | str:
        """Parse the prompt and the number of images; requests with an input image are edits."""
        if _has_file(body) or body.get("input_references") or has_image(body):
            return EDITS
        prompt = body.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            raise RefusedError(400, "prompt: expected a non-empty string", param="prompt")
        streams = bool(body.get("stream"))  # servers accept 1 for true
        names = [name for name in NUMBER_FIELDS if body.get(name) is not None]
        numbers = {_number(body, name, limit, streams) for name in names}
        if len(numbers) > 1:
            message = f"{', '.join(names)}: expected the same number of images in each field"
            raise RefusedError(400, message, param=names[1])
        n = numbers.pop() if numbers else 1  # servers default to one image
        return Order(body, (prompt,), n, streams, body.get("seed"))

    def write(self, order: Order, texts: Sequence[str], rows: Sequence[int]) -> Json:
        """Replace the prompt, the number of images and the seed."""
        return {
            **order.body,
            "prompt": texts[0],
            **_number_and_seed(order, order.body, NUMBER_FIELDS, rows),
        }

    def label(self, item: Json, row: int, prompt: str) -> Json:
        """Label an image with its prompt, unless the server added a revised prompt."""
        return {**item, "revised_prompt": item.get("revised_prompt") or prompt}


class ChatEndpoint(Endpoint):
    """`/chat/completions` requests for an image; the last message is the prompt."""

    items = "choices"

    def read(self, body: Json, limit: int, image_models: Sequence[str]) -> Order | str:
        """Parse the last message; conversations that contain an image are edits."""
        modalities = body.get("modalities")
        names_images = isinstance(modalities, list) and "image" in modalities
        if not names_images and not is_image_model(body.get("model"), image_models):
            return NO_IMAGE
        messages = body.get("messages")
        if not _are_objects(messages) or messages[-1].get("role") != "user":
            return NO_IMAGE
        # If an earlier message contains an image, the last one is about that image.
        if _show_images(messages) or has_image(body):
            return EDITS
        texts = _texts(_parts(messages[-1].get("content")), "text")
        if not texts:
            return NO_IMAGE
        streams = bool(body.get("stream"))  # servers accept 1 for true
        return Order(body, texts, _number(body, "n", limit, streams), streams, body.get("seed"))

    def write(self, order: Order, texts: Sequence[str], rows: Sequence[int]) -> Json:
        """Replace the texts in the last message, the number of choices and the seed."""
        messages = list(order.body["messages"])
        content = _with_texts(messages[-1]["content"], "text", texts)
        messages[-1] = {**messages[-1], "content": content}
        return {
            **order.body,
            "messages": messages,
            **_number_and_seed(order, order.body, ("n",), rows),
        }

    def label(self, item: Json, row: int, prompt: str) -> Json:
        """Set the index of a choice."""
        return {**item, "index": row}


class ResponsesEndpoint(Endpoint):
    """`/responses` with the tool `image_generation`; the last input message is the prompt.

    The model rewrites the prompt before it generates the image, but preserves the value.
    """

    def read(self, body: Json, limit: int, image_models: Sequence[str]) -> Order | str:
        """Parse the last input message; conversations that contain an image are edits."""
        if not may_return_image(body, image_models):
            return NO_IMAGE
        items = body.get("input")
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        if not _are_objects(items) or items[-1].get("role") != "user":
            return NO_IMAGE
        if _has_tool(body, action="edit") or has_image(body) or _show_images(items):
            return EDITS
        refers = any(item.get("type") == "item_reference" for item in items)
        if refers or body.get("previous_response_id") or body.get("conversation"):
            return CONTINUES
        texts = _texts(_parts(items[-1].get("content")), "input_text")
        streams = bool(body.get("stream"))  # servers accept 1 for true
        return Order(body, texts, 1, streams, None) if texts else NO_IMAGE

    def write(self, order: Order, texts: Sequence[str], rows: Sequence[int]) -> Json:
        """Replace the texts in the last input message."""
        items = order.body["input"]
        if isinstance(items, str):
            return {**order.body, "input": texts[0]}
        content = _with_texts(items[-1]["content"], "input_text", texts)
        return {**order.body, "input": [*items[:-1], {**items[-1], "content": content}]}


class VideosEndpoint(Endpoint):
    """`/videos`, with one video per request."""

    def read(self, body: Json, limit: int, image_models: Sequence[str]) -> Order | str:
        """Parse the prompt; requests with a file are edits."""
        prompt = body.get("prompt")
        has_file = _has_file(body) or any(body.get(name) for name in VIDEO_FILES)
        if has_file or has_image(body, "image|video|frame|reference"):
            return EDITS
        if not isinstance(prompt, str) or not prompt.strip():
            return NO_IMAGE  # the server reports what is missing
        return Order(body, (prompt,), 1, False, body.get("seed"))

    def write(self, order: Order, texts: Sequence[str], rows: Sequence[int]) -> Json:
        """Replace the prompt."""
        return {**order.body, "prompt": texts[0]}


class GeminiEndpoint(Endpoint):
    """`/models/*:generateContent` of Gemini, if the response's modalities include IMAGE.

    Args:
        model: The model name in the path.
        streams: Whether the path requests a stream of events.
    """

    items = "candidates"
    usage = "usageMetadata"

    def __init__(self, model: str, streams: bool) -> None:
        self.model = model
        self.streams = streams

    def read(self, body: Json, limit: int, image_models: Sequence[str]) -> Order | str:
        """Parse the last content; requests with inline or uploaded files are edits."""
        config = body.get(_config_name(body)) or {}
        if not isinstance(config, dict):
            return NO_IMAGE  # the server reports what is wrong
        returns_images = _names_images(config) or is_image_model(self.model, image_models)
        contents = _contents(body)
        is_conversation = returns_images and _are_objects(contents)
        if not is_conversation or contents[-1].get("role", "user") != "user":
            return NO_IMAGE
        if body.get("cachedContent") or body.get("cached_content"):
            return CONTINUES
        for content in contents:
            for part in _parts(content.get("parts")):
                if part.keys() & {"inlineData", "inline_data", "fileData", "file_data"}:
                    return EDITS
        texts = _texts(_parts(contents[-1].get("parts")))
        if not texts:
            return NO_IMAGE
        n = _number(config, "candidateCount", limit, self.streams)
        return Order(body, texts, n, self.streams, config.get("seed"))

    def write(self, order: Order, texts: Sequence[str], rows: Sequence[int]) -> Json:
        """Replace the texts in the last content, the number of candidates and the seed."""
        body = dict(order.body)
        contents = _contents(body)
        parts = _with_texts(contents[-1]["parts"], None, texts)
        body["contents"] = [*contents[:-1], {**contents[-1], "parts": parts}]
        name = _config_name(body)
        if name in body:
            config = body[name]
            changed = _number_and_seed(order, config, ("candidateCount",), rows)
            body[name] = {**config, **changed}
        return body

    def label(self, item: Json, row: int, prompt: str) -> Json:
        """Set the index of a candidate."""
        return {**item, "index": row}

    def is_refusal(self, answer: Json | None) -> bool:
        """Return whether the prompt was blocked, which Gemini reports with status 200."""
        return super().is_refusal(answer) or (answer is not None and "promptFeedback" in answer)


class ImagenEndpoint(Endpoint):
    """`/models/*:predict` of Imagen and Veo: one prompt in `instances`, images in `predictions`."""

    items = "predictions"

    def read(self, body: Json, limit: int, image_models: Sequence[str]) -> Order | str:
        """Parse the only instance; an instance with an image or a video is an edit."""
        instances = body.get("instances")
        if not _are_objects(instances) or not isinstance(instances[0].get("prompt"), str):
            return NO_IMAGE
        if len(instances) > 1:
            return SEVERAL
        (instance,) = instances
        if instance.keys() & {"image", "referenceImages", "video"} or has_image(instance):
            return EDITS
        parameters = body.get("parameters") or {}
        if not isinstance(parameters, dict):
            return NO_IMAGE
        n = _number(parameters, "sampleCount", limit, False)
        return Order(body, (instance["prompt"],), n, False, parameters.get("seed"))

    def write(self, order: Order, texts: Sequence[str], rows: Sequence[int]) -> Json:
        """Replace the prompt, the number of samples and the seed."""
        body = dict(order.body)
        body["instances"] = [{**body["instances"][0], "prompt": texts[0]}]
        if "parameters" in body:
            parameters = body["parameters"] or {}
            changed = _number_and_seed(order, parameters, ("sampleCount",), rows)
            body["parameters"] = {**parameters, **changed}
        return body

    def label(self, item: Json, row: int, prompt: str) -> Json:
        """Add the prompt to a prediction."""
        return {**item, "prompt": item.get("prompt") or prompt}

    def is_refusal(self, answer: Json | None) -> bool:
        """Return whether all images were filtered, in which case Imagen omits the list."""
        return answer is not None and self.items not in answer


_OF_PATH: dict[str, Endpoint] = {
    "images/generations": ImagesEndpoint(),
    "images": ImagesEndpoint(),
    "chat/completions": ChatEndpoint(),
    "responses": ResponsesEndpoint(),
    "videos": VideosEndpoint(),
}
# Matches "v1beta/models/gemini-3-image:generateContent", and Vertex's "v1/projects/.../models/...".
_OF_MODEL = re.compile(r"(?:^|/)models/([^/:]+):(\w+)$")
_AZURE = re.compile(r"^openai/(?:v1/|deployments/[^/]+/)?")
_VERBS = ("generateContent", "streamGenerateContent", "predict", "predictLongRunning")
_NOT_BALANCED = {"images/edits": EDITS, "images/variations": VARIES}


def endpoint_of(path: str) -> Endpoint | None:
    """Return a path's endpoint, or None if its requests are not for images.

    Args:
        path: The path without leading slash and version, such as "images/generations". Azure's
            paths begin with "openai/".
    """
    path = _AZURE.sub("", path)
    if path in _OF_PATH:
        return _OF_PATH[path]
    match = _OF_MODEL.search(path)
    if match is None:
        return None
    model, verb = match.groups()
    if verb in ("generateContent", "streamGenerateContent"):
        return GeminiEndpoint(model, verb == "streamGenerateContent")
    if verb in ("predict", "predictLongRunning"):
        return ImagenEndpoint()
    return None


def resembled_endpoint(path: str) -> str:
    """Return the path of the image endpoint that a misspelled path resembles, or "" if none.

    Args:
        path: The path as lenient servers read it (`RequestPath.plain`).

    >>> resembled_endpoint("V1/Images/Generations")
    'v1/images/generations'
    """
    lower = path.lower()
    if _AZURE.sub("", lower.removeprefix("v1/")) in _OF_PATH:
        return lower
    # Model names may be case-sensitive, so they are kept.
    start, _, rest = path.rpartition(":")
    folder, _, model = start.rpartition("/")
    for verb in _VERBS:
        meant = f"{folder.lower()}/{model}:{verb}".lstrip("/")
        if rest.lower() == verb.lower() and endpoint_of(meant) is not None:
            return meant
    return ""


def reason_to_leave(path: str) -> str:
    """Return why image requests to a path are not balanced, or "" for all other paths."""
    if path.startswith("videos/"):
        return EDITS  # a change to an existing video, such as "videos/ID/remix"
    return _NOT_BALANCED.get(_AZURE.sub("", path), "")


def is_image_model(name: object, patterns: Sequence[str]) -> bool:
    """Return whether a model name matches a pattern for models that return images.

    Args:
        name: The value of the request's `model` field, which may not be a string.
        patterns: Patterns with wildcards, such as `dall-e*`.

    >>> is_image_model("google/gemini-2.5-flash-image", IMAGE_MODELS)
    True
    """
    if not isinstance(name, str):
        return False
    last = name.lower().rpartition("/")[2]
    return any(fnmatch(last, pattern.lower()) for pattern in patterns)


def may_return_image(body: Mapping[str, object], image_models: Sequence[str]) -> bool:
    """Return whether a request's tools or its model generate images."""
    return _has_tool(body) or is_image_model(body.get("model"), image_models)


def _has_tool(body: Mapping[str, object], **fields: str) -> bool:
    """Return whether a request has a tool that generates images, with these fields."""
    tools = body.get("tools")
    expected = {"type": "image_generation", **fields}
    return _are_objects(tools) and any(expected.items() <= tool.items() for tool in tools)


def _number(fields: Json, name: str, limit: int, streams: bool) -> int:
    """Return the requested number of images.

    Raises:
        RefusedError: If the number is not an integer within the limit, or if several images are to
            be streamed.
    """
    n = fields.get(name)
    # All APIs default to 1.
    n = 1 if n is None else n
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= limit:
        message = f"{name}: expected a whole number from 1 to {limit}"
        raise RefusedError(400, message, param=name)
    # With several calls, clients could not tell to which image an event belongs.
    if streams and n > 1:
        message = "stream: several images cannot be streamed; request one image, or do not stream"
        raise RefusedError(400, message, param="stream", code="unsupported_value")
    return n


def _number_and_seed(order: Order, fields: Json, names: Sequence[str], rows: Sequence[int]) -> Json:
    """Return a call's number of images and seed, if the request contains these fields.

    No fields are added, because servers may reject unknown ones. Images have consecutive seeds,
    because images with the same prompt and seed would be identical.
    """
    changed: Json = {name: len(rows) for name in names if name in fields}
    if order.seed is not None:
        changed["seed"] = order.seed + rows[0]
    return changed


def _has_file(body: Json) -> bool:
    """Return whether a form contains a file. Files with the same name are in a list."""
    for value in body.values():
        values = value if isinstance(value, list) else [value]
        if any(isinstance(item, UploadFile) for item in values):
            return True
    return False


def _are_objects(items: object) -> TypeGuard[list[Json]]:
    """Return whether `items` is a non-empty list of objects."""
    return isinstance(items, list) and bool(items) and all(isinstance(row, dict) for row in items)


def _parts(content: object) -> list[Json]:
    """Return the parts of a message, in which plain text is a single part."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if _are_objects(content) else []


def _show_images(messages: Sequence[Json]) -> bool:
    """Return whether any message of a conversation is or contains an image."""
    for message in messages:
        parts = [message, *_parts(message.get("content"))]
        if message.get("images") or any("image" in str(part.get("type")) for part in parts):
            return True
    return False


def _texts(parts: Sequence[Json], kind: str | None = None) -> tuple[str, ...]:
    """Return a message's non-blank texts.

    Args:
        parts: The message parts.
        kind: The type of text parts, or None if parts have no type. Plain text has the type "text".
    """
    return tuple(part["text"] for part in parts if _is_text(part, kind))


def _is_text(part: Json, kind: str | None) -> bool:
    """Return whether a message part is text from the user."""
    is_of_kind = kind is None or part.get("type") in (kind, "text")
    text = part.get("text")
    return is_of_kind and isinstance(text, str) and bool(text.strip())


def _with_texts(
    content: str | list[Json], kind: str | None, texts: Sequence[str]
) -> str | list[Json]:
    """Return a message's content with its texts replaced."""
    if isinstance(content, str):
        return texts[0]
    remaining = iter(texts)
    return [{**part, "text": next(remaining)} if _is_text(part, kind) else part for part in content]


def _contents(body: Json) -> Any:
    """Return the messages in a Gemini request, which may be a single message without a list."""
    contents = body.get("contents")
    return [contents] if isinstance(contents, dict) else contents


def _names_images(config: Json) -> bool:
    """Return whether a Gemini request's settings ask for images."""
    modalities = config.get("responseModalities") or config.get("response_modalities")
    if not isinstance(modalities, list):
        return False
    return "IMAGE" in [str(modality).upper() for modality in modalities]


def _config_name(body: Json) -> str:
    """Return how a Gemini request spells its settings field."""
    return "generation_config" if "generation_config" in body else "generationConfig"
