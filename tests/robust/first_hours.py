"""The first hour of five kinds of user: what they run, how long until they see something, what their pages look like.

python -m tests.robust.first_hours                                           # print what is seen, minutes of a core
python -m tests.robust.first_hours --json eval/results/first_hours.json      # and write it, with hour-*.png
python -m tests.robust.first_hours --user "looks for two minutes" --out try  # of one user
python -m tests.robust.first_hours --work DIR --json ...                     # goes on where a run with DIR was stopped

`first_hours.yaml` says what they do. Each has an empty folder and an empty cache, at a terminal of 80 columns; every
process starts cold. Noted are the seconds until the first line is on the screen, that line, the seconds until all is
done, and those of the processor, which other work on the machine does not change. All must end as expected. Pages are
looked at 1280 and 390 pixels wide, light and dark, and asked by axe-core for what is serious. Then every command is
asked for its help, and those that nobody used are called. The environment is set up already.
"""

from __future__ import annotations

import json
import os
import platform
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any

import yaml
from PIL import Image

from eval.experiments.records import records
from eval.experiments.run import parser
from tests.apps.browsing import COLOURS, NARROW, WIDE, find_browser, free_port, opened, settled, sideways, violations
from vldebias.evaluation.result import Result
from vldebias.files import write_atomically

ROOT = Path(__file__).parents[2]
PLAN, RESULTS = Path(__file__).with_suffix(".yaml"), ROOT / "eval" / "results"
NO_TEXT = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|(?![\r\n])[\x00-\x1f]")  # what a terminal obeys
VIEWS = [(width, scheme) for width in (WIDE, NARROW) for scheme in ("light", "dark")]
HEIGHT, GAP, SCALE = 844, 16, 2  # pixels; a picture is a SCALE-th of what is seen
READY = 300  # seconds for a page to answer
COMMANDS = "commands"


@dataclass(frozen=True)
class Step:
    """One thing that is done. kind: "run", "block" or "serves"; source: the command, or "page.md: words".

    exit: the exit code that is expected. page, picture: what is looked at afterwards, and the name of its picture.
    """

    does: str
    kind: str
    source: str
    exit: int = 0
    page: str = ""
    picture: str = ""

    @classmethod
    def of(cls, told: dict[str, Any]) -> Step:
        """From an entry of the plan."""
        (kind,) = told.keys() & {"run", "block", "serves"}
        rest = {name: value for name, value in told.items() if name != kind}
        return cls(**{"does": told[kind]} | rest, kind=kind, source=told[kind])

    @property
    def call(self) -> list[str]:
        """What the process is called with."""
        if self.kind != "block":
            return ["bash", "-c", f"exec {self.source}"]
        page, words = self.source.split(": ", 1)
        found = re.findall(r"```(python|bash)\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
        ((language, block),) = (one for one in found if words in one[1])
        return ["bash", "-ec", block] if language == "bash" else [sys.executable, "-c", block]

    def on(self, port: int) -> Step:
        """One that serves, at this port."""
        return replace(self, source=f"{self.source} --port {port}")


def plan() -> tuple[dict[str, list[Step]], str, list[Step]]:
    """User -> steps; what is prepared for the commands that nobody uses; these."""
    told = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    users = {one["user"]: [Step.of(step) for step in one["steps"]] for one in told["users"]}
    return users, told["prepare"], [Step.of(one) for one in told["commands"]]


def commands() -> list[str]:
    """Every command as it is called, "vldebias eval list"."""
    import typer

    from vldebias.cli import app

    def walk(command: Any, words: str) -> Iterator[str]:
        below = getattr(command, "commands", None)
        if not below:
            yield words
        for name, one in (below or {}).items():
            yield from walk(one, f"{words} {name}")

    return list(walk(typer.main.get_command(app), "vldebias"))


class Desk:
    """An empty folder at a terminal, where `vldebias` is this checkout's."""

    def __init__(self, folder: Path) -> None:
        self.work, tools = folder / "work", folder / "tools"
        for one in (self.work, tools):
            one.mkdir(parents=True, exist_ok=True)
        for name, module in (("vldebias", " -m vldebias"), ("python", "")):
            (tools / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{module} "$@"\n')
            (tools / name).chmod(0o755)
        own = {"PYTHONPATH": str(ROOT), "VLDEBIAS_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
        screen = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24", "PYTHONUNBUFFERED": "1"}
        self.env = {**os.environ, **own, **screen, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}

    def does(self, step: Step) -> dict[str, Any]:
        """Seconds, and the first line on the screen.

        Raises:
            SystemExit: it ended otherwise than expected; with the last of what it printed.
        """
        if step.kind == "serves":
            with self.served(step) as (_, seen):
                return seen
        with self._watched(step.call) as (process, screen):
            _, status, used = os.wait4(process.pid, 0)
            process.returncode, done = os.waitstatus_to_exitcode(status), screen.now
        if process.returncode != step.exit:
            raise SystemExit(f"{step.source}: ended with {process.returncode}, not {step.exit}:\n{screen.text[-2000:]}")
        seconds = {"done": round(done, 1), "processor": round(used.ru_utime + used.ru_stime, 1)}
        return screen.first(done) | seconds

    @contextmanager
    def served(self, step: Step) -> Iterator[tuple[str, dict[str, Any]]]:
        """The address of a command that stays, and what was seen until it answered."""
        port = free_port()
        address = f"http://127.0.0.1:{port}"
        with self._watched(step.on(port).call) as (process, screen):
            while not _answers(address):
                if process.poll() is not None or screen.now > READY:
                    raise SystemExit(f"{step.source}: no page at {address} after {screen.now:.0f} s:\n{screen.text}")
                time.sleep(0.1)
            done = screen.now
            for _ in range(20):  # what it printed before may not be read yet
                if screen.text.strip():
                    break
                time.sleep(0.05)
            try:
                yield address, screen.first(done) | {"done": round(done, 1)}
            finally:
                process.terminate()
                process.wait()

    @contextmanager
    def _watched(self, call: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], Screen]]:
        ours, theirs = pty.openpty()
        with closing(os.fdopen(ours, "rb", buffering=0)) as out:
            screen = Screen(out, {str(self.work.parent): "", f"{ROOT}/": ""})
            process = subprocess.Popen(
                call, cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
            )
            os.close(theirs)
            try:
                yield process, screen
            finally:
                screen.join()


class Screen(Thread):
    """What a process has printed, and when the first of it was there; names of folders are left out."""

    def __init__(self, out: Any, hidden: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self._out, self._hidden, self._begun, self._first, self._printed = out, hidden, time.perf_counter(), 0.0, b""
        self.start()

    def run(self) -> None:
        """Until the process has closed its end, which a terminal answers with an error."""
        try:
            while told := self._out.read(65536):
                self._printed += told
                if not self._first and self.text.strip():
                    self._first = self.now
        except OSError:
            pass

    @property
    def now(self) -> float:
        """Seconds since it was begun."""
        return time.perf_counter() - self._begun

    @property
    def text(self) -> str:
        """Without what moves a cursor or colours."""
        text = NO_TEXT.sub("", self._printed.decode(errors="replace"))
        for path, word in self._hidden.items():
            text = text.replace(path, word)
        return text

    def first(self, done: float) -> dict[str, Any]:
        """Seconds until the first line, and the line; of what printed nothing or had ended, those to its end."""
        lines = [line.strip(" ╭╮─│") for line in self.text.splitlines()]
        return {"first": round(min(self._first or done, done), 1), "line": next(filter(None, lines), "")}


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except urllib.error.HTTPError:  # it wants a password
        return True
    except OSError:
        return False


# ---- pages -----------------------------------------------------------------------------------------------------------


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        yield found
        found.close()


def _drawn(page: Any) -> None:
    """Wait until a page says and shows the same twice, a second apart: pages of servers are built by scripts."""
    asked = "[document.body.innerText.length, document.images.length, [...document.images].every(one => one.complete)]"
    before = None
    for _ in range(READY):
        now = page.evaluate(asked)
        if now == before and now[0] and now[2]:
            return
        before = now
        page.wait_for_timeout(1000)


def looked_at(browser: Any, address: str, html: str | None, picture: Path) -> dict[str, Any]:
    """First screens of a page side by side as a picture; what axe-core finds serious, and pixels to scroll sideways."""
    screens, faults, over = [], 0, 0
    for width, scheme in VIEWS:
        with opened(browser, address, width, HEIGHT, go=html is None, color_scheme=scheme) as page:
            if html is not None:
                page.set_content(html)
            _drawn(page)
            settled(page)
            shot = picture.with_suffix(".part.png")
            page.screenshot(path=shot, animations="disabled")
            with Image.open(shot) as image:
                screens.append(image.convert("RGB").resize((width // SCALE, HEIGHT // SCALE), Image.Resampling.LANCZOS))
            shot.unlink()
            faults, over = faults + len(violations(page)), max(over, sideways(page))
    sheet = Image.new("RGB", (sum(one.width + GAP for one in screens) - GAP, HEIGHT // SCALE), "#8a94a0")
    left = 0
    for one in screens:
        sheet.paste(one, (left, 0))
        left += one.width + GAP
    write_atomically(picture, lambda to: sheet.quantize(2 * COLOURS).save(to, format="png", optimize=True))
    return {"serious": faults, "sideways": over}


# ---- all of it -------------------------------------------------------------------------------------------------------


class Notes:
    """What was seen, a line of JSON each, in a folder where a second run finds it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "seen.jsonl"
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.is_file() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def has(self, **where: str) -> bool:
        """Is there a row of this step or command?"""
        return any(where.items() <= row.items() for row in self.rows)

    def add(self, **row: Any) -> None:
        """Note it and say it."""
        self.rows.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(
            "{about}: {first} s, {done} s: {line}".format(about=row.get("command", row.get("does")), **row), flush=True
        )

    def of(self, part: str, *without: str) -> list[dict[str, Any]]:
        """The rows of a part, without the columns that only tell them apart."""
        rows = [row for row in self.rows if row["part"] == part]
        return [{name: value for name, value in row.items() if name not in ("part", *without)} for row in rows]

    def write(self, path: Path) -> None:
        """As a result: three tasks."""
        about = {"cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[2], 1)}
        about |= {"machine": platform.machine()}
        parts = [
            records("hours", "What each user does first", self.of("hours"), "does", ("user", "source"), **about),
            records("help", "--help of every command", self.of("help"), "command", **about),
            records("commands", "A call of commands that no user used", self.of("commands"), "command", **about),
        ]
        Result.of(path.stem, [part for part in parts if part.rows], seconds=None).write(path)


def hour(user: str, steps: Sequence[Step], folder: Path, pictures: Path, browser: Any, notes: Notes) -> None:
    """The steps of a user that are not noted yet."""
    desk = Desk(folder)
    for step in steps:
        if notes.has(part="hours", user=user, does=step.does):
            continue
        if step.kind == "serves":
            with desk.served(step) as (address, seen):
                row = seen | looked_at(browser, address, None, pictures / f"hour-{step.picture}.png")
        else:
            row = desk.does(step)
            if step.page:
                html = (desk.work / step.page).read_text(encoding="utf-8")
                row |= looked_at(browser, "http://127.0.0.1", html, pictures / f"hour-{step.picture}.png")
        notes.add(part="hours", user=user, does=step.does, source=step.source, picture=step.picture, **row)


def every_command(prepare: str, unused: Sequence[Step], folder: Path, notes: Notes) -> None:
    """Help of all, and a call of those that nobody used; what is not noted yet."""
    desk = Desk(folder)
    for name in commands():
        if not notes.has(part="help", command=name):
            notes.add(part="help", command=name, **desk.does(Step("asks", "run", f"{name} --help")))
    desk.does(Step("prepares", "run", f"bash -ec {shlex.quote(prepare)}"))
    for step in unused:
        if not notes.has(part="commands", command=step.source):
            notes.add(part="commands", command=step.source, **desk.does(step))


def main() -> None:
    """Of all users, then of all commands; what is there is written after each."""
    options = parser(__doc__)
    options.add_argument("--user", nargs="+", help="these alone, and no commands; 'commands': these alone")
    options.add_argument("--out", type=Path, help="folder of the pictures; default: that of --json")
    options.add_argument("--work", type=Path, help="where folders and notes are kept, for a second start")
    given = options.parse_args()
    users, prepare, unused = plan()
    asked = given.user or [*users, COMMANDS]
    if not set(asked) <= {*users, COMMANDS}:
        options.error(f"--user: expected some of {', '.join((*users, COMMANDS))}, got {asked}")
    out = given.out or (given.json.parent if given.json else Path())
    with tempfile.TemporaryDirectory() as made, chromium() as browser:
        folder = (given.work or Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        notes = Notes(folder)
        for user in asked:
            if user == COMMANDS:
                every_command(prepare, unused, folder / COMMANDS, notes)
            else:
                hour(user, users[user], folder / user.replace(" ", "-"), out, browser, notes)
            if given.json:
                notes.write(given.json)


if __name__ == "__main__":
    main()
