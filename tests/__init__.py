"""A package, so that `python -m tests.robust.kills` runs; libraries install a `tests` of their
own."""
