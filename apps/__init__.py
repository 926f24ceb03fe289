"""The pages that open in a browser: `compare` (vldebias demo) and `label` (vldebias label).

Each has `build_demo(engine) -> gr.Blocks` and `main(argv=None)`. Modules import one another relatively, since the
folder is the package `apps` in a checkout (`python -m apps.label`) and lies inside `vldebias` in an installed wheel;
both are reached by `vldebias.resources.load_app("label")`.
"""
