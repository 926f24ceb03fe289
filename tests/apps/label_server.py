"""Serves the pages of one study in a process of its own, until its input ends; says where, and whom it connected to.

Gradio warns and leaves loops open, which would fail tests in this process that have nothing to do with it.
"""

import json
import socket
import sys
from pathlib import Path

reached: set[str] = set()
_connect = socket.socket.connect


def _recorded(self: socket.socket, address: object) -> None:
    reached.add(str(address[0]) if isinstance(address, tuple) else "file")
    _connect(self, address)  # type: ignore[arg-type]


def main(folder: Path, out: Path) -> None:
    socket.socket.connect = _recorded  # type: ignore[method-assign]
    from label_parts import AGE, GENDER, study

    from vldebias.cli.apps import page

    serve = page("serving").serve
    label = page("label.page").build_demo
    demos = {
        "label": serve(label(study(folder, GENDER, AGE, out=out)), block=False),
        "besieged": serve(label(study(folder, out=out)), auth="ada:secret", block=False),
        "locked": serve(label(study(folder, out=out)), auth="ada:secret", proxy="127.0.0.1", block=False),
        "results": serve(page("label.results").build_results(study(folder, out=out), resamples=50), block=False),
    }
    socket.create_connection(("127.0.0.1", int(demos["label"].rsplit(":")[-1].strip("/")))).close()  # is it recorded?
    print(json.dumps(demos), flush=True)
    for _ in sys.stdin:
        print(json.dumps(sorted(reached)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
