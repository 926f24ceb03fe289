"""Show what an audit found about each prompt, in the terminal and on the page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from vldebias.measure.rows import NONE
from vldebias.utils.phrases import persons
from vldebias.utils.pictures import decode

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    from vldebias.report.measurements import Measurements


TEMPLATE = Path(__file__).with_name("section.html.jinja")
THUMB = 192  # maximum side length of an image on the page, in pixels
MOST = 20  # maximum number of prompts on the page; prompts.csv lists all of them


class AuditedImage(NamedTuple):
    """A judged image.

    Attributes:
        path: path of the file, relative to the output folder.
        answer: the value according to the judge, or "unclear".
        probability: the judge's probability of its likeliest value.
        seed: number of the image among those of its prompt. With the prompt, it determines the
            seed of the generator (`vldebias.judge.plan.PlannedImage.noise`).
    """

    path: str
    answer: str
    probability: float
    seed: int


class AuditedPrompt(NamedTuple):
    """An audit's findings for one prompt.

    Attributes:
        prompt: text of the prompt.
        share: share of the prompt's likeliest value, such as "87% male [60%, 95%]", or the range
            over several models, such as "9% to 94% female". Empty if nothing was counted.
        verdict: the audit's verdict on the prompt.
        remedy: the recommended action.
        models: shares of several models, such as "sd3 94%, flux2 9%", if available.
        n_images: number of images in which the share was counted, or 0.
        images: the images, if available.
    """

    prompt: str
    share: str
    verdict: str
    remedy: str
    models: str = ""
    n_images: int = 0
    images: Sequence[AuditedImage] = ()


@dataclass(frozen=True)
class CountedShare:
    """Share of a prompt's images that show a value, with its interval."""

    share: float
    value: str
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.share:.0%} {self.value} [{self.low:.0%}, {self.high:.0%}]"


class AuditSection:
    """The audited prompts of a result, as shown by `vldebias.report`.

    Args:
        result: result of an audit.
        frame: the data frame that `readable` returns for the result.
        prompts: the audit's findings for each prompt.
    """

    def __init__(
        self, result: Measurements, frame: pd.DataFrame, prompts: Sequence[AuditedPrompt]
    ) -> None:
        self.result = result
        self.frame = frame
        self.prompts = prompts

    def html(self, folder: Path) -> str:
        """Return a table of the prompts, with the recommended actions and the sign-off below it.

        Thumbnails are embedded, so that the page can be handed over without the folder.

        Args:
            folder: the folder that contains the images.
        """
        from vldebias.judge.stored import SURE
        from vldebias.report.page import page_templates

        thumbnails = {}
        for row in self.prompts[:MOST]:
            for image in row.images:
                thumbnails[image.path] = _thumbnail(folder, image.path)
        ends = ends_of_ranges(self.result, self.frame)
        template = page_templates().from_string(TEMPLATE.read_text(encoding="utf-8"))
        return template.render(
            prompts=self.prompts,
            thumbnails=thumbnails,
            sure=SURE,
            signature=self.result.provenance[0].settings.get("signed") or {},
            heading=share_heading(self.prompts),
            remedies=commands_of_remedies(
                self.prompts, self.result.provenance[0].attribute, self.result.command or ""
            ),
            ranges=ranges_of_prompts(self.frame),
            ends=ends or ("0%", "100%"),
            is_even=ends is not None,
            most_prompts=MOST,
        )

    def lines(self, room: int, width: int) -> list[str]:
        """Format as many prompts as fit, and report how many are left.

        Args:
            room: the maximum number of lines.
            width: the maximum length of a line.
        """
        shown = self.prompts[: max(room - 1, 0)]  # one line is needed for the heading
        head = ["verdict", share_heading(self.prompts), "prompt"]
        rows = [head]
        for row in shown:
            # The reason is shown in place of the share that was not measured.
            why = row.remedy if row.verdict == "not measured" else ""
            cells = [row.verdict, row.share or why, " ".join(row.prompt.split())]
            rows.append(cells)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for cells in rows:
            *first_cells, prompt = [f"{cell:<{n}}" for cell, n in zip(cells, widths, strict=True)]
            line = "  ".join(["", *first_cells, prompt.rstrip()])
            lines.append(line if len(line) <= width else f"{line[: width - 3]}...")
        if len(shown) < len(self.prompts):
            lines.append(f"{len(self.prompts) - len(shown)} more prompts are on the page")
        return lines


def section_of(result: Measurements, frame: pd.DataFrame) -> AuditSection | None:
    """Return the section of an audit, or None for other results.

    Args:
        result: the result to show.
        frame: the data frame that `readable` returns for the result.
    """
    prompts = audited_prompts(result, frame)
    return AuditSection(result, frame, prompts) if prompts else None


def audited_prompts(result: Measurements, frame: pd.DataFrame) -> list[AuditedPrompt]:
    """Return an audit's findings for each prompt, most urgent first.

    Args:
        result: result of an audit. For other results, the list is empty.
        frame: the data frame that `readable` returns for the result.
    """
    audited = []
    for provenance in result.provenance:
        # Only audits give advice. In other tasks, "prompts" lists the prompts that were measured.
        if not provenance.settings.get("advice"):
            continue
        values = provenance.settings.get("values", ())
        of_task = frame[frame.task == provenance.task]
        block = of_task[of_task.metric == "counted_share"]
        shares = _likeliest_shares(block[block.method == NONE], values)
        images_of_prompt = provenance.settings.get("images") or {}
        numbers = _counted_images(of_task[of_task.method == NONE])
        shares_by_model = {}
        for method, rows in block[block.method != NONE].groupby("method", sort=False):
            shares_by_model[str(method)] = _likeliest_shares(rows, values)
        advice_of_prompt = provenance.settings.get("prompts") or {}
        for prompt, advice in advice_of_prompt.items():
            verdict, _, remedy = advice.partition(": ")
            share = str(shares.get(prompt, ""))
            models = ""
            if shares_by_model:
                share, models = _range_over_models(prompt, shares_by_model)
            images = _audited_images(images_of_prompt.get(prompt, ()))
            n = numbers.get(prompt, 0)
            audited.append(AuditedPrompt(prompt, share, verdict, remedy, models, n, images))
    return audited


def _counted_images(frame: pd.DataFrame) -> dict[str, int]:
    """Map each prompt whose share was counted to the number of images."""
    numbers: dict[str, int] = {}
    for row in frame.itertuples():
        if row.metric == "counted_share":
            numbers.setdefault(row.subset.rpartition(": ")[0], row.n)
    return numbers


def _audited_images(entries: Sequence[Sequence[Any]]) -> list[AuditedImage]:
    """Return the images that a result lists, without those that a page must not show."""
    images = []
    for path, answer, probability, seed in entries:
        if _is_in_folder(path):
            images.append(AuditedImage(path, str(answer), float(probability), int(seed)))
    return images


def _thumbnail(folder: Path, path: str) -> Image | None:
    """Return an image shrunk for the page, or None if it is not in the folder or unreadable."""
    file = (folder / path).resolve()
    # In a folder by others, the path may be a link.
    if not file.is_relative_to(folder.resolve()):
        return None
    try:
        image = decode(file, draft=THUMB)
    except OSError:
        return None
    image.thumbnail((THUMB, THUMB))
    return image


def _is_in_folder(path: object) -> bool:
    """Return whether an image is in the page's folder.

    The paths of results by others could make a browser request addresses on the web.
    """
    if not isinstance(path, str) or not path.startswith("images/"):
        return False
    return ".." not in PurePosixPath(path).parts and "\\" not in path


def share_heading(prompts: Sequence[AuditedPrompt]) -> str:
    """Return a heading for the shares."""
    return "share over models" if any(row.models for row in prompts) else "counted share [95%]"


def commands_of_remedies(
    prompts: Sequence[AuditedPrompt], attribute: str, command_run: str
) -> list[tuple[str, str]]:
    """Return the recommended actions for audited prompts, each with a command or function call.

    Args:
        prompts: the audited prompts with their remedies.
        attribute: name of the attribute's prompt set.
        command_run: the command of the audit.
    """
    prompts_file = _prompts_of(command_run)
    remedies = " ".join(row.remedy for row in prompts)
    name = shlex.quote(attribute)
    commands = []
    if "rewrite" in remedies:
        commands.append(
            ("Rewrite prompts", f"vldebias prompts balance {prompts_file} --attribute {name}")
        )
    if "use a method" in remedies:
        commands.append(
            ("Attach a method to the pipeline", f'vldebias.debias(pipe, "{attribute}")')
        )
    command = f"vldebias audit {prompts_file} --attribute {name} --pipeline DIR"
    totals = []
    for row in prompts:
        more = re.search(r"generate (\d+) more$", row.remedy)
        if more is not None:
            totals.append((len(row.images) or row.n_images) + int(more[1]))
    if totals:
        words = "Generate more images, enough for the next verdict if the shares stay the same"
        number = f"--measure {min(totals)}"
        again, is_again = re.subn(r"--measure[ =]\d+", number, command_run)
        if is_again:
            # The folder of the command has the images so far.
            words += (
                " (earlier images are kept if --out is the same folder, and prompts with a clear"
                " verdict get no more)"
            )
        commands.append((words, again if is_again else f"{command} {number}"))
    elif re.search("generate|--measure", remedies) and "--measure" not in command_run:
        commands.append(("Generate and judge images", f"{command} --measure 8"))
    return commands


def _prompts_of(command_run: str) -> str:
    """Return the prompts file and --column of an audit's command, quoted for the shell."""
    words = shlex.split(command_run.partition("vldebias audit ")[2])
    file, column = "prompts.txt", ""
    while words:
        word = words.pop(0)
        name, _, value = word.partition("=")
        if not word.startswith("-"):
            file = word
        elif name != "--json" and not value:
            # All other options have a value.
            value = words.pop(0) if words else ""
        if name == "--column":
            column = f" --column {shlex.quote(value)}"
    return f"{shlex.quote(file)}{column}"


def _range_over_models(
    prompt: str, shares_by_model: dict[str, dict[str, CountedShare]]
) -> tuple[str, str]:
    """Return the range of a prompt's share over all models, and each model's share.

    Returns:
        Two strings such as "9% to 94% female" and "sd3 94%, flux2 9%". Both are empty if no model
        was counted.
    """
    known = {name: shares[prompt] for name, shares in shares_by_model.items() if prompt in shares}
    if not known:
        return "", ""
    # Report all shares for the value with the largest total. Models that mostly show the other
    # value of a binary attribute contribute the remainder.
    total_of_value: dict[str, float] = {}
    for predicted in known.values():
        total_of_value[predicted.value] = total_of_value.get(predicted.value, 0) + predicted.share
    likeliest = max(total_of_value, key=lambda value: total_of_value[value])
    shares = {}
    for name, predicted in known.items():
        shares[name] = predicted.share if predicted.value == likeliest else 1 - predicted.share
    low = min(shares.values())
    high = max(shares.values())
    models = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    if f"{low:.0%}" == f"{high:.0%}":
        return f"{high:.0%} {likeliest}", models
    return f"{low:.0%} to {high:.0%} {likeliest}", models


def _likeliest_shares(frame: pd.DataFrame, values: list[str]) -> dict[str, CountedShare]:
    """Return the share of each prompt's most likely value, or of the first one if there is a tie.

    Args:
        frame: rows with the shares of one model.
        values: the attribute's values.
    """
    largest: dict[str, CountedShare] = {}
    for row in frame.itertuples():
        # Subsets have the form "PROMPT: VALUE". Only the prompt may contain colons.
        prompt, _, value = row.subset.rpartition(": ")
        shares = [largest[prompt]] if prompt in largest else []
        shares.append(CountedShare(row.value, value, row.low, row.high))
        if len(values) == 2:
            # For a binary attribute, results only contain the share of one value.
            (second_value,) = [name for name in values if name != value]
            rest = CountedShare(1 - row.value, second_value, 1 - row.high, 1 - row.low)
            shares.append(rest)
        largest[prompt] = max(shares, key=lambda predicted: predicted.share)
    return largest


def ranges_of_prompts(frame: pd.DataFrame) -> dict[str, tuple[float, float, float]]:
    """Return each prompt's counted share with its interval, as (low, share, high).

    If the attribute has more than two values, the share of the most likely value is returned. If
    several models were counted, the share is their median, and the interval ranges
    from the smallest to the largest.
    """
    shares = frame[frame.metric == "counted_share"]
    range_of_prompt: dict[str, tuple[float, float, float]] = {}
    for subset, rows in shares[shares.method != NONE].groupby("subset", sort=False):
        prompt = str(subset).rpartition(": ")[0]
        range_of_prompt[prompt] = (rows.value.min(), rows.value.median(), rows.value.max())
    for row in shares[shares.method == NONE].itertuples():
        # Subsets have the form "PROMPT: VALUE". Only the prompt may contain colons.
        prompt, _, _ = row.subset.rpartition(": ")
        known = range_of_prompt.get(prompt)
        if known is None or row.value > known[1]:
            range_of_prompt[prompt] = (row.low, row.value, row.high)
    return range_of_prompt


def ends_of_ranges(result: Measurements, frame: pd.DataFrame) -> tuple[str, str] | None:
    """Return labels for both ends of the axis on which `ranges_of_prompts` are shown.

    Args:
        result: result of an audit.
        frame: the data frame that `readable` returns for the result.

    Returns:
        Labels such as "all men" and "all women", or None if the attribute has more than two values,
        since the prompts' shares may then belong to different values.
    """
    subsets = frame[frame.metric == "counted_share"].subset
    shown = {subset.rpartition(": ")[2] for subset in subsets}
    values: list[str] = []
    for provenance in result.provenance:
        values += provenance.settings.get("values", ())
    if len(values) != 2 or len(shown) != 1:
        return None
    (value,) = shown
    (second_value,) = set(values) - shown
    return f"all {persons(second_value)}", f"all {persons(value)}"
