"""Make what the demo and the README open with: `python -m eval.opening` writes the saved examples
of both tabs, and opening.png."""

from __future__ import annotations

import shutil
import threading

from eval.tables import RESULTS
from vldebias.cli.apps import page


def main() -> None:
    """Generate the default request and make the default search, and keep both."""
    opening = page("demo.opening")
    engine = page("demo.engine").Engine()
    request = page("demo.request").Request(page("demo.generate_tab").PROMPT)
    for result in page("demo.generate").generate(engine, request, threading.Event()):
        print(f"{result.share:.0%}", end=" ", flush=True)
    opening.save_result(result)
    shutil.copyfile(opening.GENERATED.with_suffix(".png"), RESULTS / "opening.png")
    print(*(text for text, _ in result.sentences()), sep="\n")

    query = page("demo.search_tab").QUERIES[0]
    answer, gallery = page("demo.search").search(engine, query, "gender", "default")
    pictures = [
        tuple(gallery.picture(engine, row) for row in found.rows)
        for found in (answer.before, answer.after)
    ]
    opening.save_search(opening.SavedSearch(answer, *pictures))
    print(answer.sentence())


if __name__ == "__main__":
    main()
