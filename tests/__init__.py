"""Make the tests a package so that `python -m tests.robust.mutants` works: some libraries install a
top-level `tests` package."""
