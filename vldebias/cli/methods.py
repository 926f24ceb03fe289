"""`vldebias methods`: the methods that can be fitted, and what they need."""

from __future__ import annotations

from vldebias.cli.common import print_grid, print_json
from vldebias.cli.flags import Json


def methods(as_json: Json = False) -> None:
    """List the methods that --method takes: what each works on, what it needs, and where it comes from.

    Methods of other packages (entry points "vldebias.methods") are listed too.

    [bold]Examples[/bold]

    \b
      vldebias methods
      vldebias methods --json
    """
    from vldebias.methods import METHODS

    if as_json:
        facts = {"lam": "has_lam", "pipelines": "pipelines", "models": "models", "side": "side"}
        about = {"name": "name", "title": "title", "source": "source"} | facts
        print_json(
            [
                {key: getattr(method, name) for key, name in about.items()} | {"needs": sorted(method.needs)}
                for method in METHODS.values()
            ]
        )
        return
    rows = []
    for one in METHODS.values():
        hosts = ", ".join(kind for kind in ("models", "pipelines") if getattr(one, kind))
        source = f" ({one.source})" if one.source else ""
        rows.append((one.name, hosts, ", ".join(sorted(one.needs)), f"{one.title}{source}"))
    print_grid(("name", "for", "needs", "about"), rows)
