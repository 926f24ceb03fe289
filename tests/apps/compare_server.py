"""Serves the demo in a process of its own, until its input ends; asked for lambda 666, it fails as nobody foresaw.

Gradio leaves loops and sockets open, which would fail tests in this process that have nothing to do with it.
"""

import sys
from typing import Any

from vldebias.resources import load_app


def main() -> None:
    api = load_app("compare_api")
    inspect = api.inspect

    def failing(engine: Any, side: str, mitigation: Any, role: str) -> Any:
        if mitigation.lam == 666:
            raise RuntimeError("a secret of the server")
        return inspect(engine, side, mitigation, role)

    api.inspect = failing
    compare = load_app("compare")
    page = compare.build_demo(load_app("compare_engine").Engine())
    print(load_app("serving").serve(page, css=compare.style(), block=False), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
