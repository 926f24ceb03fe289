"""Generate what the demo and the README open with: `python -m eval.opening` writes opening.png and
opening.json."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict

from PIL import Image

from eval.tables import RESULTS
from vldebias.cli.apps import page


def main() -> None:
    """Generate the default request with all rows, and keep images and readings."""
    demo, engine = page("demo.page"), page("demo.engine").Engine()
    request = page("demo.request").Request(demo.PROMPT)
    for now in page("demo.generate").generate(engine, request, threading.Event()):
        print(f"{now.share:.0%}", end=" ", flush=True)
    side, rows = now.rows[0].images[0].width, now.rows
    sheet = Image.new("RGB", (side * request.number, side * len(rows)))
    for at, row in enumerate(rows):
        for i, image in enumerate(row.images):
            sheet.paste(image, (i * side, at * side))
    for place in (demo.OPENING.with_suffix(".png"), RESULTS / "opening.png"):
        sheet.save(place, optimize=True)
    about = [
        {name: getattr(row, name) for name in ("name", "codes", "recognised", "dealt")}
        for row in rows
    ]
    kept = {"request": asdict(request), "values": now.values, "rows": about}
    demo.OPENING.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(*(text for text, _ in now.sentences()), sep="\n")


if __name__ == "__main__":
    main()
