"""Write the terminal output of commands to docs/terminal/*.txt.

`python -m eval.terminal` writes all files, and `python -m eval.terminal train` only those of one
command. Each file contains the output on stdout in a terminal with 80 or 120 columns, without
colours. `label` prints nothing to stdout, so its output on stderr is used.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
from click.testing import Result
from typer.testing import CliRunner

import vldebias.cli.common as common
from eval.tables import RESULTS, plain_parser
from vldebias.cli import app

FOLDER = Path(__file__).parents[1] / "docs" / "terminal"
WIDTHS = (80, 120)
PROMPTS = (
    "A CEO in an office, shot on 35mm film, early morning light",
    "a Catholic priest",
    "two doctors",
    "A photo of Marie Curie in her laboratory",
)
AUDITED = (
    "A photo of a nurse.",
    "A photo of a pilot.",
    "A photo of a hairdresser.",
    "A CEO in an office",
    "A photo of a female doctor.",
    "A photo of Marie Curie",
    "A red chair",
)


@contextlib.contextmanager
def terminal(width: int) -> Iterator[None]:
    """Set the width of both consoles, turn off colours, and change to an empty folder."""
    before = {console: console.width for console in (common.out(), common.err())}
    with (
        mock.patch.dict(os.environ, FORCE_COLOR="1"),
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
    ):
        try:
            for console in before:
                console.width = width
            yield
        finally:
            for console, columns in before.items():
                console.width = columns


def stdout_of(*words: str) -> str:
    """Run a command and return its output on stdout."""
    return finished(*words).stdout


def finished(*words: str) -> Result:
    """Run a command until it finishes and return its result."""
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def quickstart() -> str:
    """Return the end of the output of `vldebias quickstart`, from its committed result."""
    from vldebias.report.result import Result
    from vldebias.study.suite import load_suite

    buffer = io.StringIO()
    result = Result.read(RESULTS / "quickstart.json")
    with contextlib.redirect_stdout(buffer):
        common.print_result(result, load_suite("quickstart").headline, as_json=False)
    return buffer.getvalue()


def compare() -> str:
    """Return the output of `vldebias eval compare` for two committed results."""
    for name in ("quickstart.json", "miniature.json", "miniature.parquet"):
        Path(name).write_bytes((RESULTS / name).read_bytes())
    return stdout_of("eval", "compare", "quickstart.json", "miniature.json")


def balance() -> str:
    """Return the output of `vldebias prompts balance`, whose first line is on stderr."""
    Path("prompts.txt").write_text("\n".join(PROMPTS))
    words = ("prompts", "balance", "prompts.txt", "--attribute", "gender", "--seed", "0")
    return finished(*words).output


def audit() -> str:
    """Return the output of `vldebias audit` for several kinds of prompts."""
    Path("prompts.txt").write_text("\n".join(AUDITED))
    words = ("audit", "prompts.txt", "--attribute", "gender", "--pipeline", "miniature")
    return stdout_of(*words)


def diagnose() -> str:
    """Return the output of `vldebias diagnose` for random features with two label columns."""
    from vldebias.data import Embeddings, save_embeddings

    rng = np.random.default_rng(0)
    smile = rng.integers(2, size=600)
    gender = rng.integers(2, size=600)
    features = rng.normal(size=(600, 16))
    features[:, 0] += 3 * smile
    features[:, 1] += 3 * gender
    columns = {
        "smiling": np.array(["no", "yes"])[smile],
        "gender": np.array(["female", "male"])[gender],
    }
    save_embeddings(Path("features.npz"), Embeddings.from_arrays(features, columns))
    return stdout_of(
        "diagnose", "features.npz", "--label-column", "smiling", "--group-column", "gender"
    )


def generate() -> str:
    """Return the output of `vldebias generate` for one prompt with the miniature."""
    words = ("generate", "A photo of an editor.", "--attribute", "gender", "--out", "editor")
    return stdout_of(*words)


def label() -> str:
    """Return the output of `vldebias label` until it starts its server."""
    from apps.label import page

    generate()

    def serve(*_: object, announce: Callable[[str], None], **__: object) -> None:
        announce("http://127.0.0.1:7860/")

    with mock.patch.object(page, "serve", serve):
        return finished("label", "editor", "--attribute", "gender", "--questions", "12").stderr


def train() -> str:
    """Return the output of `vldebias train` after a few steps."""
    words = ("train", "--data", "birds", "--label", "label", "--loss", "rince", "--tune", "heads")
    return stdout_of(*words, "--set", "group=place", "--steps", "5", "--out", "run")


CASES: dict[str, Callable[[], str]] = {
    "quickstart": quickstart,
    "compare": compare,
    "balance": balance,
    "audit": audit,
    "diagnose": diagnose,
    "generate": generate,
    "label": label,
    "train": train,
}
TEXTS = [(name, width) for name in CASES for width in WIDTHS]
# Commands that do not load a model, and whose output does not depend on the machine.
CHEAP = ("quickstart", "compare", "balance")


def shown(name: str, width: int) -> str:
    """Return the output of a command at the given width, without trailing spaces."""
    with terminal(width):
        text = CASES[name]()
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def main() -> None:
    """Write the output of the named commands, or of all."""
    parser = plain_parser(__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    names = parser.parse_args().cases or list(CASES)
    FOLDER.mkdir(exist_ok=True)
    for name, width in TEXTS:
        if name not in names:
            continue
        path = FOLDER / f"{name}-{width}.txt"
        path.write_text(shown(name, width), encoding="utf-8")
        print(path, flush=True)


if __name__ == "__main__":
    main()
