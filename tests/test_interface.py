"""Test that the public interface only changes on purpose."""

import json

import vldebias
from tests.interface import FILE, interface, public_objects, resolved

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
    assert len(vldebias.__all__) <= 25
    documented = [resolved(path) for path in public_objects()]
    exported = {name: getattr(vldebias, name) for name in vldebias.__all__}
    assert [name for name, public in exported.items() if public not in documented] == []
