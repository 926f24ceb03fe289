"""Start the demo as a Gradio Space, without a password, in the frame that huggingface.co shows."""

import os
from importlib import import_module

from vldebias.programs import commands

# The package of the demo is "apps.demo" in the repository and "vldebias_apps.demo" in the wheel.
PACKAGE = commands()["demo"].module.rpartition(".")[0]

if __name__ == "__main__":
    import_module(f"{PACKAGE}.page").serve_demo(
        {},
        port=int(os.environ.get("GRADIO_SERVER_PORT", "7860")),
        public=True,
        site="https://huggingface.co",
    )
