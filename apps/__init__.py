"""The programs that come with vldebias, each in a folder of its own.

A folder with a file `program.py` adds commands and names to vldebias, see `vldebias/programs.py`.
In a wheel, this package is called `vldebias_apps`, so programs import each other with relative
imports.
"""
