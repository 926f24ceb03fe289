"""Fuzz one parser with atheris, which keeps and varies inputs that reach new lines of the package.

    python -m tests.robust.fuzz_atheris prompts               # until it is stopped
    python -m tests.robust.fuzz_atheris "tables, comma" -runs=500 -seed=1

The bytes from atheris determine the content that hypothesis generates for a parser, so that most
YAML, JSON and headers are valid enough to be read to the end.
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

    # Inputs are long from the start, because a few bytes do not determine any content.
    lengths = ["-len_control=0", "-max_len=2000"]
    atheris.Setup([sys.argv[0], *lengths, *sys.argv[1:]], attempt.hypothesis.fuzz_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
