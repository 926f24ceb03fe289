"""Fuzz one parser with atheris: contents that reach new lines of the package are kept and changed.

python -m tests.robust.fuzz_atheris prompts               # until it is stopped
python -m tests.robust.fuzz_atheris "tables, comma" -runs=3000 -seed=1
"""

import sys

import atheris

with atheris.instrument_imports(include=["vldebias"]):
    from tests.robust.fuzzed import PARSERS


def main() -> None:
    parser = PARSERS[sys.argv.pop(1)]

    def once(data: bytes) -> None:
        end = parser.tried(data)
        if end not in ("read", "refused"):
            raise RuntimeError(end)

    atheris.Setup(sys.argv, once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
