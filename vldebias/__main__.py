"""`python -m vldebias` is the `vldebias` command."""

from vldebias.cli import main

if __name__ == "__main__":
    main()
