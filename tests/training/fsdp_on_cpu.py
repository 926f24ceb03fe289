"""`vldebias train` under FSDP2 on CPUs, which accelerate knows on GPUs alone: it is told that it is there.

Started by two processes of torch.distributed.run with the arguments of `vldebias`.
"""

from __future__ import annotations

from typing import Any

import accelerate
from accelerate import FullyShardedDataParallelPlugin
from accelerate.state import PartialState
from accelerate.utils import DistributedType

from vldebias.cli import main

_init = accelerate.Accelerator.__init__


def _with_fsdp(self: Any, *arguments: Any, **options: Any) -> None:
    _init(self, *arguments, **options)
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP  # from here accelerate reads it again
    self.state.distributed_type = DistributedType.FSDP
    self.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")


if __name__ == "__main__":
    accelerate.Accelerator.__init__ = _with_fsdp  # type: ignore[method-assign]
    main()
