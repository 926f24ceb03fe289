"""Offer balanced prompts and audits to assistants as Model Context Protocol tools.

Requires the package `mcp`, which the extra "mcp" installs.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec

from pydantic import BaseModel, Field

from vldebias.errors import InvalidInputError, VldebiasError, did_you_mean, need, shortened
from vldebias.measure.rows import NONE
from vldebias.prompts import PromptSet, load_prompts
from vldebias.utils.files import packaged
from vldebias.version import __version__
from vldebias.wording import BalancedPrompts, Balancer, balance_prompts

if TYPE_CHECKING:
    from mcp.server import MCPServer

Parameters = ParamSpec("Parameters")

# Limits per call. Analysing 100,000 characters takes about a second.
MAX_IMAGES = 1000
MAX_CHARACTERS = 10_000  # per prompt
MAX_TOTAL_CHARACTERS = 500_000  # total over all images

INSTRUCTIONS = (
    "Insert sampled values of an attribute, such as gender, into image prompts that leave it"
    " open, so that images of 'a CEO' show women and men. Call balance_prompts with the user's"
    " own words before you generate images of people; prompts that state a value, name a"
    " specific person or describe nobody are returned unchanged, with the reason."
)

# Matches every JSON escape in full, because \\ud83d is an escaped backslash followed by five
# characters.
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)


class WrittenPrompt(BaseModel):
    """Store one image's prompt.

    Attributes:
        prompt: the prompt to generate from.
        value: the value that was inserted into the prompt.
        reason: why the prompt was left unchanged.
    """

    prompt: str
    value: Any = Field(
        description="the value that was inserted, or null if the prompt is unchanged"
    )
    reason: str | None = Field(description="why the prompt is unchanged, or null if it was changed")


class WrittenPrompts(BaseModel):
    """Store a call's prompts, and the seed with which a call returns the same prompts."""

    prompts: list[WrittenPrompt]
    seed: int


class AuditedPrompt(BaseModel):
    """Store the audit of one prompt.

    Attributes:
        prompt: the original prompt.
        advice: what to do about the prompt.
        value: the value whose share was counted, or null if no images were counted.
        share: the share of counted images that show the value.
        low: lower end of the share's 95% interval.
        high: upper end of the share's 95% interval.
    """

    prompt: str
    advice: str
    value: str | None = None
    share: float | None = None
    low: float | None = None
    high: float | None = None


class AuditedPrompts(BaseModel):
    """Store an audit: the prompts, most urgent first, and a summary."""

    prompts: list[AuditedPrompt]
    summary: list[str]


class Tools:
    """Implement the tools that the server offers.

    Prompts are untrusted, because an assistant may be manipulated by text that it reads. Therefore,
    their number and length are limited, and an attribute must be a name, so that no call can open a
    file.

    Args:
        attribute: the default attribute: the name of a packaged prompt set, or the path of a YAML
            file.
        pipeline: name of the pipeline whose published counts `audit_prompts` shows. Default: those
            of all released models.
    """

    def __init__(self, attribute: str = "gender", *, pipeline: str | None = None) -> None:
        self.default_set = load_prompts(attribute)
        self.pipeline = pipeline
        # Reuse balancers, so that values are balanced over all calls.
        self._balancer_of_attribute = {self.default_set.name: Balancer(self.default_set)}

    def balance_prompts(
        self,
        prompts: list[str],
        images: int = 1,
        attribute: str | None = None,
        shares: dict[str, float] | None = None,
        seed: int | None = None,
    ) -> WrittenPrompts:
        """Insert sampled values of an attribute into prompts that leave it open.

        Returns one prompt per image. Example: prompts ["A photo of a CEO"], images 2 -> "A photo of
        a female CEO" and "A photo of a male CEO", in some order.

        Args:
            prompts: the user's own words, one prompt per image.
            images: the number of images to generate from each prompt.
            attribute: gender, age, race or skin-tone. Default: the server's attribute.
            shares: the share of images for each value, such as {"female": 0.7, "male": 0.3}.
                Default: equal shares.
            seed: makes the call reproducible. Default: values are balanced over all calls.
        """
        _check_prompts(prompts, images)
        prompt_set = self._set_named(attribute)
        listed = []
        for prompt in prompts:
            listed += [prompt] * images
        balanced: BalancedPrompts
        if shares is None and seed is None:
            name = prompt_set.name
            if name not in self._balancer_of_attribute:
                self._balancer_of_attribute[name] = Balancer(prompt_set)
            balanced = self._balancer_of_attribute[name].next(listed)
        else:
            balanced = balance_prompts(listed, prompt_set, shares=shares, seed=seed)
        rows = zip(balanced.prompts, balanced.values, balanced.reasons, strict=True)
        written = [
            WrittenPrompt(prompt=prompt, value=value, reason=reason)
            for prompt, value, reason in rows
        ]
        return WrittenPrompts(prompts=written, seed=balanced.seed)

    def audit_prompts(self, prompts: list[str], attribute: str | None = None) -> AuditedPrompts:
        """Report which prompts leave an attribute open, and which value images of them show.

        Shares with 95% intervals are counted in published images of the same subject, if there are
        any for the server's pipeline. Example: prompts ["A photo of a pilot"] -> "counted, leans
        male: rewrite it or use a method", share 0.93 [0.60, 1.00].

        Args:
            prompts: the prompts, one per image.
            attribute: gender, age, race or skin-tone. Default: the server's attribute.
        """
        _check_prompts(prompts)
        prompt_set = self._set_named(attribute)
        from ..audit.advice import audit

        result = audit(prompts, prompt_set, pipe=self.pipeline)
        (task,) = result.provenance
        share_of_prompt: dict[str, dict[str, Any]] = {}
        for row in result.rows:
            # Without a pipeline, each released model has rows of its own.
            if row.method == NONE:
                prompt, _, value = row.subset.rpartition(": ")
                low, high = row.interval
                facts = {"value": value, "share": row.value, "low": low, "high": high}
                share_of_prompt[prompt] = facts
        audited = []
        for prompt, advice in task.settings["prompts"].items():
            share = share_of_prompt.get(prompt, {})
            audited.append(AuditedPrompt(prompt=prompt, advice=advice, **share))
        return AuditedPrompts(prompts=audited, summary=list(task.settings["advice"]))

    def _set_named(self, attribute: str | None) -> PromptSet:
        """Return the server's default prompt set or a packaged one by name."""
        if attribute is None or attribute == self.default_set.name:
            return self.default_set
        names = list(dict.fromkeys([self.default_set.name, *packaged("prompts")]))
        if attribute not in names:
            hint = did_you_mean(attribute, names)
            raise InvalidInputError(
                f"attribute: got {shortened(repr(attribute), 80)}; expected one of"
                f" {', '.join(names)}; {hint}"
            )
        return load_prompts(attribute)


def _check_prompts(prompts: list[str], images: int = 1) -> None:
    """Raise InvalidInputError if a call has too few or too many images, or too much text."""
    if not 1 <= images * max(len(prompts), 1) <= MAX_IMAGES:
        raise InvalidInputError(
            f"images: got {images} for each of {len(prompts)} prompts; expected 1 to {MAX_IMAGES}"
            " images per call"
        )
    longest = max(map(len, prompts), default=0)
    if longest > MAX_CHARACTERS:
        raise InvalidInputError(
            f"prompts: got a prompt of {longest:,} characters; expected at most {MAX_CHARACTERS:,}"
        )
    total = images * sum(map(len, prompts))
    if total > MAX_TOTAL_CHARACTERS:
        raise InvalidInputError(
            f"prompts: got {total:,} characters over all images; expected at most"
            f" {MAX_TOTAL_CHARACTERS:,} per call; split the call"
        )


def tools_server(tools: Tools) -> MCPServer:
    """Return a Model Context Protocol server that offers the tools.

    Raises:
        MissingPackageError: If the package `mcp` is not installed.
    """
    server: MCPServer = need("mcp.server").MCPServer(
        "vldebias", instructions=INSTRUCTIONS, version=__version__
    )
    for tool in (tools.balance_prompts, tools.audit_prompts):
        server.tool()(_with_messages(tool))
    return server


def _with_messages(tool: Callable[Parameters, BaseModel]) -> Callable[Parameters, BaseModel]:
    """Wrap a tool so that its error messages are shown to the assistant.

    The server hides the messages of other exceptions, and logs their tracebacks.
    """
    tool_error = need("mcp.server.mcpserver.exceptions").ToolError

    @functools.wraps(tool)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> BaseModel:
        try:
            return tool(*args, **kwargs)
        except VldebiasError as error:
            raise tool_error(str(error)) from None

    return call


def replace_lone_surrogates(line: bytes) -> bytes:
    """Replace lone surrogate escapes in a line of JSON with U+FFFD.

    A client that truncates text in the middle of an emoji sends half of a surrogate pair. Such a
    line is not valid Unicode, and the server would ignore it.
    """
    return _ESCAPE.sub(lambda match: rb"\ufffd" if match["lone"] else match[0], line)


def serve_stdio(server: MCPServer) -> None:
    """Run a server on stdin and stdout until stdin ends."""
    # The transport reads file descriptor 0, so forward the client's lines through a pipe.
    client = os.dup(0)
    read_end, write_end = os.pipe()
    os.dup2(read_end, 0)
    os.close(read_end)

    def forward() -> None:
        with open(client, "rb") as lines, open(write_end, "wb", buffering=0) as pipe:
            for line in lines:
                pipe.write(replace_lone_surrogates(line))

    threading.Thread(target=forward, daemon=True).start()
    server.run()
