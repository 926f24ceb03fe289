"""Test that the public interface only changes on purpose."""

import inspect
import json
from collections.abc import Callable

import pytest

import vldebias
import vldebias.data
from tests.interface import FILE, interface, parameters, public_objects, resolved
from vldebias.errors import InvalidInputError
from vldebias.losses import LOSSES
from vldebias.methods import METHODS
from vldebias.metrics import METRICS

HOW = (
    "the public interface differs from tests/interface.json. If the change is intended, run"
    " `python -m tests.interface`, commit the file and add a line to CHANGELOG.md. If fields of"
    " saved files changed so that an older version would misread them, also add a new format as"
    " described in tests/formats/__init__.py"
)


def test_names_options_and_fields_of_files_only_change_on_purpose() -> None:
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    current = json.loads(json.dumps(interface()))
    changed = [f"{part}: new part" for part in current.keys() - stored.keys()]
    for part, entries in stored.items():
        if isinstance(entries, list):
            changed += [f"{part}: {name}" for name in set(entries) ^ set(current[part])]
            continue
        for name in sorted(entries.keys() | current[part].keys()):
            before = entries.get(name, "absent")
            after = current[part].get(name, "absent")
            if before != after:
                changed.append(f"{part}: {name}: {before} -> {after}")
    assert changed == [], HOW


def test_the_package_exports_few_names_and_the_reference_describes_them_all() -> None:
    assert len(vldebias.__all__) <= 26
    documented = [resolved(path) for path in public_objects()]
    exported = {name: getattr(vldebias, name) for name in vldebias.__all__}
    exported |= {name: getattr(vldebias.data, name) for name in vldebias.data.__all__}
    exported |= {"LOSSES": LOSSES, "METHODS": METHODS, "METRICS": METRICS}
    assert [name for name, public in exported.items() if public not in documented] == []


def test_a_new_option_replaces_another_one() -> None:
    """Each command's options are counted, without those of `vldebias` itself, such as --version."""
    options = [
        parameter.opts[0]
        for words, shown in parameters().items()
        for parameter in shown
        if words != "vldebias" and parameter.param_type_name == "option"
    ]
    assert len(options) <= 236, "delete an option for each new one"
    assert len(set(options)) <= 101


# A custom host's model can be of any class. The task, `debias` or the chat service checks the other
# options.
ANYTHING = {
    "ChatFinder": "options",
    "attachment_of": "host",
    "evaluate": "options",
    "grid": "options",
}


def test_signatures_say_what_exported_functions_accept() -> None:
    untyped = {}
    for name in vldebias.__all__:
        for parameter in inspect.signature(getattr(vldebias, name)).parameters.values():
            if str(parameter.annotation) in ("object", "Any", str(inspect.Parameter.empty)):
                untyped[name] = parameter.name
    assert untyped == ANYTHING


@pytest.mark.parametrize(
    ("call", "new"),
    [
        (lambda: vldebias.debias(None, prompts="gender"), "attribute"),
        (lambda: vldebias.balance_prompts(["A CEO"], sets="gender"), "attribute"),
        (lambda: vldebias.balance_prompts(["A CEO"], "gender", groups="same"), "people"),
        (lambda: vldebias.audit(["A CEO"], attribute_set="gender"), "attribute"),
        (lambda: vldebias.evaluate("miniature", prompts="gender"), "attribute"),
        (lambda: vldebias.load_prompts({"groups": [["a man", "a woman"]]}), "variants"),
        (lambda: vldebias.losses.generalized_cross_entropy, "gce"),
        (lambda: vldebias.losses.InfoNCELoss, "InfoNCE"),
        (lambda: vldebias.losses.LOSSES["generalized_cross_entropy"], "gce"),
    ],
)
def test_an_old_name_is_answered_with_the_new_one(call: Callable[[], object], new: str) -> None:
    with pytest.raises(
        (TypeError, AttributeError, InvalidInputError),
        match=f"did you mean '{new}'",
    ):
        call()
