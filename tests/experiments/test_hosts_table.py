"""The table of pipelines in the docs, and that it leaves no class of diffusers out."""

from pathlib import Path

import diffusers
import pytest

from eval import hosts_table
from vldebias.hosts.diffusers import list_families, list_pipelines
from vldebias.hosts.diffusers_families import REFUSED

FOLDER = Path(__file__).parents[2] / "docs/explanation"
PINNED = diffusers.__version__ in (FOLDER / "pipelines-counted.md").read_text(encoding="utf-8")


@pytest.mark.skipif(not PINNED, reason="the page was made with another release of diffusers")
@pytest.mark.parametrize("name", hosts_table.PAGES)
def test_the_page_is_up_to_date(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert hosts_table.page(name, text) == text, "run python -m eval.hosts_table --write docs/explanation"


def test_every_class_with_a_text_side_is_known_asked_or_refused():
    classes = hosts_table.with_a_text_side()
    served = {name for name, cls in classes.items() if hosts_table.known(cls)}
    listed = "\n".join(hosts_table.coverage())
    assert served.isdisjoint(REFUSED)
    asked = set(classes) - served - set(REFUSED)
    assert all((f"- `{name}`: " in listed) == (name in REFUSED) for name in classes)
    assert f"{len(served)} are known; {len(set(classes) & set(REFUSED))} are refused" in listed
    assert f"{len(asked)} are asked on first use" in listed
    if PINNED:
        assert len(served) > 150
        assert set(list_pipelines()) - set(classes) == {"ConsisIDPipeline"}  # opencv is not installed


def test_every_family_has_a_row():
    rows = list(hosts_table.families())[2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [family.name for family in list_families()]
    assert all(row.count(" | ") == 5 for row in rows)
