"""Check the package's claims on real data, using only its public interface.

    python -m eval.photographs --json eval/results/photographs.json
    python -m eval.photographs --work DIR   # store each gallery, and resume an interrupted run

The data are loaded from $VLDEBIAS_REAL (see `eval.photographs`), and missing parts are skipped with
a note on stderr. The result contains only numbers, and no features, queries or file names.
"""

from __future__ import annotations

from pathlib import Path

from eval.photographs import searches
from eval.tables import parser, run


def main() -> None:
    """Check all claims and write the result."""
    options = parser(__doc__)
    options.add_argument("--draws", type=int, default=2, help="of galleries and references")
    options.add_argument("--work", type=Path, help="folder for finished galleries")
    args = options.parse_args()
    run("photographs", lambda: searches.measure(range(args.draws), args.work), args.json)


if __name__ == "__main__":
    main()
