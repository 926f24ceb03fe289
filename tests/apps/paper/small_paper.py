"""Run `vldebias` with small versions of the paper's suites.

They generate one image for every fifth prompt in two steps, resample twenty times, and use the
embedded model as the judge. Tests start and kill this program.

    python tests/apps/paper/small_paper.py eval paper --only human --pipeline miniature --out DIR
"""

from typing import Any

from apps.label.people import PeopleTask
from apps.paper import tables as paper
from tests.fewer import few
from vldebias.cli import main
from vldebias.judge.judges import ClipJudge
from vldebias.study.suite import Suite, load_suite
from vldebias.study.tasks.generation import GenerationTask


def small(name: str) -> Suite:
    """Return a small version of one of the paper's suites."""
    suite = load_suite(name)
    tasks = []
    for task in suite.tasks:
        changes: dict[str, Any] = {"resamples": 20}
        if isinstance(task, GenerationTask | PeopleTask):
            changes |= {"images": 1, "steps": 2, "attribute": few(task.attribute)}
        judge = getattr(task, "judge", None)
        if isinstance(judge, ClipJudge):
            changes["judge"] = judge.model_copy(update={"model": "miniature", "pretrained": None})
        tasks.append(task.model_copy(update=changes))
    return suite.model_copy(update={"tasks": tuple(tasks)})


if __name__ == "__main__":
    paper.load_suite = small
    main()
