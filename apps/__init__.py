"""Browser pages: `demo` (vldebias demo) and `label` (vldebias label).

They are imported as `vldebias.cli.apps.demo` and `vldebias.cli.apps.label`, from this folder in a
checkout and from inside the package in a wheel (see vldebias/cli/apps), and use relative imports
among each other.
"""
