"""What is timed for each kind of user is there, every command is called, and a desk sees what somebody would see."""

from pathlib import Path

import pytest

from tests.robust.first_hours import Desk, Step, commands, plan

USERS, _, UNUSED = plan()
STEPS = [(user, step) for user, steps in USERS.items() for step in steps]


@pytest.mark.parametrize(("user", "step"), STEPS, ids=lambda one: getattr(one, "does", one))
def test_every_step_can_be_called(user: str, step: Step) -> None:
    assert len(step.call) > 1
    assert bool(step.page or step.kind == "serves") == bool(step.picture)


def test_every_command_is_called_by_somebody() -> None:
    lines = [" ".join(step.call) for _, step in STEPS] + [step.source for step in UNUSED]
    told = "\n".join(lines).replace("eval quickstart", "eval run quickstart")
    assert [name for name in commands() if f"{name} " not in f"{told} " and f"{name}\n" not in told] == []


def test_pictures_have_names_of_their_own() -> None:
    pictures = [step.picture for _, step in STEPS if step.picture]
    assert len(set(pictures)) == len(pictures) >= len(USERS)


def of(line: str, code: int = 0) -> Step:
    return Step("tries", "run", line, exit=code)


def test_the_first_line_is_that_of_the_screen_without_colours_and_folders(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "desk")
    seen = desk.does(of(r"printf '\033[1m\r\n  \033[32mhere: '$PWD'/it\033[0m\nsecond\n'"))
    assert seen["line"] == "here: /work/it"
    assert 0 <= seen["first"] <= seen["done"]
    assert desk.does(of(r"printf 'bar   0\r\033[2Kbar 100\nend\n'"))["line"] == "bar   0"
    silent = desk.does(of("true"))
    assert (silent["line"], silent["first"]) == ("", silent["done"])
    assert desk.does(of("test -t 1"))["line"] == ""  # it sits at a terminal


def test_what_ends_otherwise_than_expected_stops_with_its_last_words(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "desk")
    assert desk.does(of("bash -c 'exit 2'", 2))["line"] == ""
    with pytest.raises(SystemExit, match=r"ended with 3, not 0:\n\s*no such thing"):
        desk.does(of("bash -c 'echo no such thing; exit 3'"))


def test_a_command_that_stays_is_timed_until_its_page_answers(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "desk")
    server = "bash -c 'echo ready; exec python -m http.server --bind 127.0.0.1 $2' _"
    with desk.served(Step("serves", "serves", server)) as (address, seen):
        assert address.startswith("http://127.0.0.1:")
        assert seen["line"] == "ready"
        assert seen["first"] <= seen["done"]
