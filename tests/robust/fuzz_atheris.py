"""Fuzz one parser with atheris: structure that reaches new lines of the package is kept and varied.

python -m tests.robust.fuzz_atheris prompts               # until it is stopped
python -m tests.robust.fuzz_atheris "tables, comma" -runs=500 -seed=1

The bytes of atheris choose what hypothesis makes of a parser's content, so that YAML, JSON and
headers are sound enough to be read to their end.
"""

import sys

import atheris
from hypothesis import given, settings

with atheris.instrument_imports(include=["vldebias"]):
    from tests.robust.fuzzed import PARSERS


def main() -> None:
    parser = PARSERS[sys.argv.pop(1)]

    @settings(database=None, deadline=None)
    @given(parser.content)
    def attempt(content: bytes) -> None:
        end = parser.tried(content)
        if end not in ("read", "refused"):
            raise RuntimeError(f"{end}: {content!r}")

    # Long from the start: a few bytes choose no content.
    lengths = ["-len_control=0", "-max_len=2000"]
    atheris.Setup([sys.argv[0], *lengths, *sys.argv[1:]], attempt.hypothesis.fuzz_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
