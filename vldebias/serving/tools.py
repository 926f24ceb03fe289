"""Offer balanced prompts and audits as tools of the Model Context Protocol, so that an assistant
that writes prompts can balance and check them. The extra "mcp" brings the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, Field

from vldebias.errors import InvalidInputError, need
from vldebias.measure.rows import NONE
from vldebias.version import __version__
from vldebias.wording import BalancedPrompts, Balancer, balance_prompts
from vldebias.wording.reasons import reason_in_words

MOST_IMAGES = 1000  # of one call

INSTRUCTIONS = (
    "Write sampled values of an attribute, such as gender, into prompts for images that leave it"
    " open, so that pictures of 'a CEO' show women and men. Call balance_prompts with the user's"
    " own words before you generate pictures of people; prompts that state a value, name somebody"
    " or show no person come back as they are, with the reason."
)


class WrittenPrompt(BaseModel):
    """Hold one image's prompt.

    Attributes:
        prompt: to generate from. value: that was written into it. reason: why it was left alone.
    """

    prompt: str
    value: Any = Field(description="the value that was written, null where none was")
    reason: str | None = Field(description="why the prompt was left alone, null where it was not")


class WrittenPrompts(BaseModel):
    """Hold the prompts of a call; with the seed the same call gives the same ones."""

    prompts: list[WrittenPrompt]
    seed: int


class AuditedPrompt(BaseModel):
    """Hold what is predicted of one prompt.

    Attributes:
        advice: what to do about it. value: the likeliest value. share: of the images, with its
            interval from low to high; null where nothing is predicted.
    """

    prompt: str
    advice: str
    value: str | None = None
    share: float | None = None
    low: float | None = None
    high: float | None = None


class AuditedPrompts(BaseModel):
    """Hold an audit: the prompts, most urgent first, and what it is based on."""

    prompts: list[AuditedPrompt]
    summary: list[str]


class Tools:
    """Hold the tools of a server.

    sets: the default attribute, by name. model, pipeline: what `audit_prompts` reads texts with, as
    `vldebias.load_host` takes it; without one it says which prompts are open and predicts no share.
    """

    def __init__(
        self, sets: str = "gender", *, model: str | None = None, pipeline: str | None = None
    ) -> None:
        if model is not None and pipeline is not None:
            raise InvalidInputError("got a model and a pipeline; expected one of them, or none")
        self.sets = sets
        self.model = model
        self.pipeline = pipeline
        # One for the life of the server, so that values are even over its calls.
        self._balancer_of_attribute: dict[str, Balancer] = {sets: Balancer(sets)}

    def balance_prompts(
        self,
        prompts: list[str],
        images: int = 1,
        attribute: str | None = None,
        shares: dict[str, float] | None = None,
        seed: int | None = None,
    ) -> WrittenPrompts:
        """Write sampled values of an attribute into prompts that leave it open.

        Returns one prompt for each image. Example: prompts ["A photo of a CEO"], images 2 ->
        "A photo of a female CEO" and "A photo of a male CEO", in some order.

        Args:
            prompts: the user's own words, one text for each picture.
            images: how many images of each prompt are generated.
            attribute: gender, age, race or skin-tone. Default: that of the server.
            shares: value -> share of the images, such as {"female": 0.7, "male": 0.3}. Default:
                even.
            seed: with it the same call gives the same prompts. Default: values are even over all
                calls.
        """
        if not 1 <= images * max(len(prompts), 1) <= MOST_IMAGES:
            raise InvalidInputError(
                f"images: got {images} for each of {len(prompts)} prompts; expected from 1 to"
                f" {MOST_IMAGES} in all"
            )
        listed = []
        for prompt in prompts:
            listed += [prompt] * images
        name = attribute or self.sets
        balanced: BalancedPrompts
        if shares is None and seed is None:
            if name not in self._balancer_of_attribute:
                self._balancer_of_attribute[name] = Balancer(name)
            balanced = self._balancer_of_attribute[name].next(listed)
        else:
            balanced = balance_prompts(listed, name, shares=shares, seed=seed)
        rows = zip(balanced.prompts, balanced.values, balanced.reasons, strict=True)
        written = [
            WrittenPrompt(prompt=prompt, value=value, reason=reason)
            for prompt, value, reason in rows
        ]
        return WrittenPrompts(prompts=written, seed=balanced.seed)

    def audit_prompts(self, prompts: list[str], attribute: str | None = None) -> AuditedPrompts:
        """Say of each prompt whether it leaves an attribute open, and how its images will lean.

        Shares are predicted from the texts, before any image is generated, with 95 % intervals,
        where the server was started with a model. Example: prompts ["A photo of a pilot"] ->
        "leans male: rewrite it or use a method", share 0.93 [0.60, 1.00].

        Args:
            prompts: texts, one for each picture.
            attribute: gender, age, race or skin-tone. Default: that of the server.
        """
        name = attribute or self.sets
        if self.model is None and self.pipeline is None:
            return _audit_of_texts(prompts, name)
        # torch and the model's library, which take seconds.
        from vldebias.study import audit

        result = audit(prompts, name, model=self.model, pipe=self.pipeline)
        (task,) = result.provenance
        row_of_prompt = {}
        for row in result.rows:
            # Rows of single models bear their names; the advice is about what the models share.
            if row.metric == "predicted_share" and row.method == NONE:
                prompt, _, value = row.subset.rpartition(": ")
                row_of_prompt[prompt] = (value, row)
        audited = []
        for prompt, advice in task.settings["prompts"].items():
            if prompt in row_of_prompt:
                value, row = row_of_prompt[prompt]
                audited.append(
                    AuditedPrompt(
                        prompt=prompt,
                        advice=advice,
                        value=value,
                        share=row.value,
                        low=row.interval[0],
                        high=row.interval[1],
                    )
                )
            else:
                audited.append(AuditedPrompt(prompt=prompt, advice=advice))
        return AuditedPrompts(prompts=audited, summary=list(task.settings["advice"]))


def _audit_of_texts(prompts: list[str], attribute: str) -> AuditedPrompts:
    """Return which prompts leave an attribute open; without a model no share is predicted."""
    balanced = balance_prompts(prompts, attribute, seed=0)
    audited = []
    for prompt, reason in zip(prompts, balanced.reasons, strict=True):
        advice = "leaves it open: balance it"
        if reason is not None:
            advice = f"left alone: {reason_in_words(reason)}"
        audited.append(AuditedPrompt(prompt=prompt, advice=advice))
    opened = sum(reason is None for reason in balanced.reasons)
    summary = [
        f"{opened} of {len(prompts)} prompts leave {attribute} open.",
        "No share is predicted: start the server with --model or --pipeline.",
    ]
    return AuditedPrompts(prompts=audited, summary=summary)


def tools_server(tools: Tools) -> Any:
    """Return a server of the Model Context Protocol that offers the tools.

    Raises:
        MissingPackageError: the package `mcp` is not installed.
    """
    server = need("mcp.server").MCPServer(
        "vldebias", instructions=INSTRUCTIONS, version=__version__
    )
    offered: tuple[Callable[..., BaseModel], ...] = (tools.balance_prompts, tools.audit_prompts)
    for tool in offered:
        server.tool()(tool)
    return server
