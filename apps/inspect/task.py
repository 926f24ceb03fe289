"""Measure who appears, as an inspect-ai task using an images API or a pipeline.

    inspect eval vldebias/who_appears --model none \\
        -T api=https://api.openai.com/v1 -T model=gpt-image-1

Needs `pip install '.[inspect]'`. Each sample is an image for one of the protocol's prompts. The
solver requests the image, the scorer uses one of this package's judges, and `record_of_log`
converts the log to a record.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import anyio
import httpx
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    Content,
    ContentImage,
    ModelOutput,
)
from inspect_ai.scorer import (
    Metric,
    SampleScore,
    Score,
    Scorer,
    Target,
    metric,
    scorer,
)
from inspect_ai.solver import Generate, Solver, TaskState, solver

from vldebias.errors import InvalidInputError
from vldebias.hosts.loading import load_host
from vldebias.judge.judges import Judge, MiniatureJudge
from vldebias.judge.stored import NO_VALUE, SURE, decide
from vldebias.utils.options import Options
from vldebias.utils.pictures import decode

from ..audit.pilot import suite_judge
from ..audit.records.figures import figures_of
from ..audit.records.protocol import ProtocolPrompt, load_protocol
from ..audit.records.schema import NEUTRAL
from .logs import record_of_scores

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline
    from PIL.Image import Image

IMAGE = "data:image/png;base64,"
SECONDS = 300.0  # timeout for one image
REFUSED = 400  # HTTP status if an images API rejects a prompt
Generator = Callable[[str, int], Awaitable[bytes | str]]
"""A function from a prompt and a seed to the image file, or to the reason why there is none."""

Registered = TypeVar("Registered", bound=Callable[..., object])


def _in_vldebias(function: Registered) -> Registered:
    """Make inspect-ai register a function as "vldebias/NAME".

    inspect-ai uses the package of the function's module, whose name differs between a checkout and
    a wheel.
    """
    function.__module__ = "vldebias"
    return function


@task
@_in_vldebias
def who_appears(
    api: str | None = None,
    model: str | None = None,
    pipeline: str | None = None,
    attribute: str = "gender",
    images: int = 8,
    neutral: bool = True,
    judge: str | None = None,
    size: str = "1024x1024",
) -> Task:
    """Measure who appears in images generated from the protocol's prompts.

    Args:
        api: base address of an OpenAI-compatible images API, such as https://api.openai.com/v1;
            its key is read from OPENAI_API_KEY.
        model: the API's name for the model.
        pipeline: a diffusers id or folder, or "miniature", to use instead of an API.
        attribute: the attribute to measure.
        images: number of images per prompt.
        neutral: whether to use only the neutral wording. If False, the six qualifiers are also
            used.
        judge: an open_clip or transformers CLIP model, or "miniature". Default: the judge from the
            suite "generation".
        size: image size to request from the API.

    Raises:
        InvalidInputError: If both an API and a pipeline were passed, or neither.
    """
    if (api is None) == (pipeline is None) or (api is not None and model is None):
        raise InvalidInputError(
            f"got api={api!r}, model={model!r}, pipeline={pipeline!r}; expected api together with"
            " model, or only pipeline"
        )
    generator = _api(api, str(model), size) if api is not None else _pipeline(str(pipeline))
    prompts = load_protocol().prompts()
    if neutral:
        prompts = [prompt for prompt in prompts if prompt.qualifier == NEUTRAL]
    samples = [_sample(prompt, seed) for prompt in prompts for seed in range(images)]
    return Task(
        dataset=samples,
        solver=one_image(generator),
        scorer=who_is_shown(attribute, judge),
        metadata={"generator": model if api is not None else pipeline, "api": api, "size": size},
        name="who_appears",
    )


def _sample(prompt: ProtocolPrompt, seed: int) -> Sample:
    """Return the sample for one image."""
    metadata = {"subject": prompt.subject, "qualifier": prompt.qualifier, "seed": seed}
    name = f"{prompt.qualifier} {prompt.subject}".strip()
    return Sample(input=prompt.text, id=f"{name} {seed}", metadata=metadata)


def _api(address: str, model: str, size: str) -> Generator:
    """Return a function that requests an image from an images API."""
    headers = {}
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"

    async def generate(prompt: str, seed: int) -> bytes | str:
        # APIs do not accept seeds, but their images are independent anyway.
        request = {"model": model, "prompt": prompt, "n": 1, "size": size}
        async with httpx.AsyncClient(timeout=SECONDS, headers=headers) as client:
            url = f"{address.rstrip('/')}/images/generations"
            answer = await client.post(url, json=request)
            if answer.status_code == REFUSED:
                return f"refused: {answer.text[:200]}"
            answer.raise_for_status()
            item = answer.json()["data"][0]
            if item.get("b64_json"):
                return base64.b64decode(item["b64_json"])
            picture = await client.get(item["url"], headers={"Authorization": ""})
            picture.raise_for_status()
            return picture.content

    return generate


def _pipeline(name: str) -> Generator:
    """Return a function that generates an image with a pipeline, which is loaded on first use."""
    lock = Lock()
    loaded: list[DiffusionPipeline] = []

    def generate_with_lock(prompt: str, seed: int) -> bytes:
        import torch

        # A pipeline has state, so only one image can be generated at a time.
        with lock:
            if not loaded:
                device = "cuda" if torch.cuda.is_available() else "cpu"
                loaded.append(load_host(pipeline=name, device=device).host)
                loaded[0].set_progress_bar_config(disable=True)
            noise = torch.Generator("cpu").manual_seed(seed)
            picture = loaded[0](prompt, generator=noise, output_type="pil").images[0]
        file = io.BytesIO()
        picture.save(file, "PNG")
        return file.getvalue()

    async def generate(prompt: str, seed: int) -> bytes:
        return await anyio.to_thread.run_sync(generate_with_lock, prompt, seed)

    return generate


@solver
@_in_vldebias
def one_image(generator: Generator) -> Solver:
    """Generate the image for the sample's prompt, or store why it was rejected."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        image = await generator(state.input_text, state.metadata["seed"])
        content: str | list[Content]
        if isinstance(image, bytes):
            content = [ContentImage(image=IMAGE + base64.b64encode(image).decode())]
        else:
            content = image
        message = ChatMessageAssistant(content=content)
        state.messages.append(message)
        state.output = ModelOutput(choices=[ChatCompletionChoice(message=message)])
        return state

    return solve


@metric(scores="unreduced")
@_in_vldebias
def shares() -> Metric:
    """Compute the share of each value with its 95% interval, and the unknown rate."""

    def compute(scores: list[SampleScore]) -> dict[str, float]:
        record = record_of_scores([score.score for score in scores])
        numbers = {"unknown": 1.0}
        for figure in figures_of(record):
            if figure.metric == "discrepancy":
                continue
            name = " ".join(filter(None, (figure.qualifier, figure.value or figure.metric)))
            numbers[name] = figure.estimate
            numbers[f"{name} low"] = figure.low
            numbers[f"{name} high"] = figure.high
        return numbers

    return compute


@scorer(metrics=[shares()])
@_in_vldebias
def who_is_shown(attribute: str, judge: str | None = None) -> Scorer:
    """Score an image by the value that a judge detects, or "unknown" if the judge is not confident.

    Args:
        attribute: the attribute to measure.
        judge: name of a CLIP model, "miniature", or None for the judge of "generation".
    """
    lock = Lock()
    loaded: list[Judge] = []

    def read(picture: Image | None) -> tuple[str, Judge]:
        with lock:
            if not loaded:
                loaded.append(_judge(judge))
            (reader,) = loaded
            if picture is None:
                return NO_VALUE, reader
            probabilities = reader.predict([picture])[attribute]
        values = reader.names[attribute]
        (code,) = decide(probabilities, values, SURE).codes.tolist()
        return (values[code] if code >= 0 else NO_VALUE), reader

    async def score(state: TaskState, target: Target) -> Score:
        content = state.output.message.content
        picture = None
        reason = None
        if isinstance(content, str):
            reason = content
        else:
            (image,) = (part for part in content if isinstance(part, ContentImage))
            data = base64.b64decode(image.image.removeprefix(IMAGE))
            picture = decode(data)
        value, reader = await anyio.to_thread.run_sync(read, picture)
        provenance = {
            "subject": state.metadata["subject"],
            "qualifier": state.metadata["qualifier"],
            "prompt": state.input_text,
            "attribute": attribute,
            "values": list(reader.names[attribute]),
            "judge": reader.name,
            "fingerprint": reader.fingerprint,
        }
        return Score(value=value, explanation=reason, metadata=provenance)

    return score


def _judge(name: str | None) -> Judge:
    """Load the judge with a name, or the judge of the suite "generation"."""
    if name == "miniature":
        return MiniatureJudge().ready()
    return suite_judge(Options(out=Path(), judge=name))
