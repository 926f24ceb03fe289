"""Embed on Ray; tests start and kill this program.

python ray_program.py FOLDER [DEADLY]: DEADLY is the row at which this process is killed.
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_parts import Counting, embed, make_data

from vldebias.data import OnRay

HOW: dict[str, Any] = {"shard_size": 4, "batch_size": 3, "workers": 0}


def main(folder: str, deadly: int = -1) -> None:
    import ray  # not installed in every environment

    data = make_data(50, {7})
    program = os.getpid()

    def read(row: int) -> Any:
        if row == deadly:
            os.kill(program, signal.SIGKILL)
        return data.read(row)

    with OnRay(workers=1) as runner:
        embed(replace(data, read=read), Counting(), Path(folder), **HOW, runner=runner)
    assert not ray.is_initialized()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
