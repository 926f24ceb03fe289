"""Test continuous integration and packages: actions are pinned by commit, and packages have the
right content."""

import re
import tomllib
from pathlib import Path

import yaml

import vldebias

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
USES = re.compile(r"^\s*(?:- )?uses:\s*(.+?)\s*$", re.MULTILINE)
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}  # v\d+(\.\d+)*")


def test_every_action_is_pinned_to_a_commit_and_states_its_tag() -> None:
    used = []
    for path in WORKFLOWS:
        used += USES.findall(path.read_text(encoding="utf-8"))
    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []


def test_jobs_only_have_permission_to_write_what_they_publish() -> None:
    read = {"contents": "read"}
    workflows = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in WORKFLOWS}
    assert all(workflow["permissions"] == read for workflow in workflows.values())
    permissions = {}
    for name, workflow in workflows.items():
        for job, settings in workflow["jobs"].items():
            if "permissions" in settings:
                permissions[name, job] = settings["permissions"]
    findings = {"security-events": "write"}
    assert permissions == {
        ("release.yml", "publish"): {"id-token": "write"},
        ("release.yml", "attest"): {**read, "id-token": "write", "attestations": "write"},
        ("codeql.yml", "analyze"): read | findings,
        ("scorecard.yml", "analysis"): read | findings | {"id-token": "write"},
    }


def test_published_packages_were_tested_and_attested() -> None:
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    needs = {name: job.get("needs") for name, job in release["jobs"].items()}
    assert needs == {
        "build": None,
        "try": "build",
        "materials": "try",
        "attest": "materials",
        "publish": "attest",
    }


def test_jobs_that_may_sign_run_for_tags_only_and_install_nothing() -> None:
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    signing = [job for job in release["jobs"].values() if "id-token" in job.get("permissions", {})]
    assert len(signing) == 2
    for job in signing:
        assert job["if"] == "github.ref_type == 'tag'"
        assert [step for step in job["steps"] if "run" in step] == []


def test_wheels_are_built_with_a_pinned_backend() -> None:
    places = [*WORKFLOWS, ROOT / "Makefile", ROOT / ".ci" / "run"]
    builds = []
    for path in places:
        builds += re.findall(r"\buv\"? build [^\n)]*", path.read_text(encoding="utf-8"))
    assert len(builds) == 4
    pinned = "--build-constraint .ci/build.txt --require-hashes"
    assert [line for line in builds if pinned not in line] == []
    text = (ROOT / ".ci" / "build.txt").read_text(encoding="utf-8")
    packages = re.findall(r"^([\w-]+)==[\d.]+ \\$", text, re.MULTILINE)
    assert "hatchling" in packages
    assert text.count("--hash=sha256:") == 2 * len(packages)  # a wheel and a source archive each


def test_advisories_are_looked_up_for_all_pinned_versions() -> None:
    checks = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    (step,) = [step["run"] for step in checks["jobs"]["audit"]["steps"] if "run" in step]
    files = {f".ci/{path.name}" for path in (ROOT / ".ci").glob("*.txt")}
    assert set(re.findall(r"\.ci/\w+\.txt", step)) == files


def test_the_first_packages_that_pip_installs_have_hashes() -> None:
    """The first packages install the other packages at the versions in `.ci/*.txt`."""
    installed = []
    for path in WORKFLOWS:
        installed += re.findall(r"(?<!uv )\bpip install [^\n]*", path.read_text(encoding="utf-8"))
    assert installed
    assert set(installed) == {"pip install --require-hashes --requirement .ci/uv.txt"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installs = "bin/pip install --quiet --require-hashes --requirement .ci/uv.txt"
    assert makefile.replace("$(BIN)", "bin").count(installs) == makefile.count(" -m venv ") == 2
    lines = (ROOT / ".ci" / "uv.txt").read_text(encoding="utf-8").splitlines()
    (pinned,) = [line for line in lines if not line.startswith(("#", " "))]
    assert re.fullmatch(r"uv==[\d.]+ \\", pinned)
    assert sum("--hash=sha256:" in line for line in lines) > 10


def test_tools_are_installed_with_hashes() -> None:
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"\bpipx\b|\buvx\b|uv tool", text) == []
        installs = text.count("--require-hashes --requirement .ci/tools.txt")
        assert installs == text.count("uv venv tools")
    text = (ROOT / ".ci" / "tools.txt").read_text(encoding="utf-8")
    packages = re.findall(r"^([\w.-]+)==[\w.]+ \\$", text, re.MULTILINE)
    assert {"twine", "cyclonedx-bom", "pip-audit"} <= set(packages)
    for block in re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in block


def test_the_supported_version_is_the_released_one() -> None:
    policy = (ROOT / ".github" / "SECURITY.md").read_text(encoding="utf-8")
    minor = vldebias.__version__.rpartition(".")[0]
    assert f"| {minor}.x, the newest release | yes |" in policy


def test_a_release_has_one_version_and_a_date() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["version"] == cited["version"] == vldebias.__version__
    heads = re.findall(
        r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    release = f"{cited['version']} ({cited['date-released']})"
    assert heads[0] == release or heads[:2] == ["Unreleased", release]


def test_the_source_distribution_has_what_the_build_needs_and_nothing_large() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"][
        "build"
    ]["targets"]
    sdist = build["sdist"]
    assert [entry for entry in sdist["include"] if not (ROOT / entry).exists()] == []
    included = []
    for entry in sdist["include"]:
        place = ROOT / entry
        included += [place] if place.is_file() else place.rglob("*")
    packed = []
    for path in included:
        is_excluded = any(path.is_relative_to(ROOT / out) for out in sdist["exclude"])
        if path.is_file() and "__pycache__" not in path.parts and not is_excluded:
            packed.append(path)
    for source in (*build["wheel"]["only-include"], *build["wheel"]["force-include"]):
        assert any(
            path == ROOT / source or path.is_relative_to(ROOT / source) for path in packed
        ), source
    weights = ROOT / "vldebias" / "miniature" / "weights"
    heavy = [
        path for path in packed if path.stat().st_size > 1e6 and not path.is_relative_to(weights)
    ]
    assert [
        path for path in heavy if path.suffix in (".png", ".json", ".parquet", ".html", ".csv")
    ] == []
