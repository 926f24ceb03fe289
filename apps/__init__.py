"""Apps, including the pages `demo` (vldebias demo) and `label` (vldebias label).

They are imported as `vldebias.cli.apps.demo` and `vldebias.cli.apps.label`. In a checkout, they are
loaded from this folder; in a wheel, they are part of the package (see vldebias/cli/apps). They
import each other with relative imports.
"""
