"""Serves the demo in a process of its own, until its input ends; asked for lambda 666, it fails as nobody foresaw.

Gradio leaves loops and sockets open, which would fail tests in this process that have nothing to do with it.
"""

import sys
from typing import Any

from vldebias.cli.apps import page


def main() -> None:
    api = page("compare.api")
    inspect = api.inspect

    def failing(engine: Any, side: str, mitigation: Any, role: str) -> Any:
        if mitigation.lam == 666:
            raise RuntimeError("a secret of the server")
        return inspect(engine, side, mitigation, role)

    api.inspect = failing
    compare = page("compare.page")
    demo = compare.build_demo(page("compare.engine").Engine())
    print(page("serving").serve(demo, css=compare.style(), uploads="10mb", block=False), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
