"""Run the `vldebias` command as `python -m vldebias`."""

from vldebias.cli import main

if __name__ == "__main__":
    main()
