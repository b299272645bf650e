"""The house rules that a machine can check."""

import ast
import re
import socket
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import adlro

ROOT = Path(__file__).parent.parent
LARGEST_FILE = 2_000_000  # bytes
LONGEST_MODULE = 500  # lines
KINDS_OF_CHANGE = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}  # of Keep a Changelog

# Written so that this file does not match itself.
PATH_OF_ONE_MACHINE = re.compile(r"(?<![\w.~-])/(?:home|root|work|Users)/\w+")
REGISTRY = re.compile(r"\b(?:pypi|pythonhosted|anaconda|npmjs|crates|rubygems|download\.pytorch)\.(?:org|com|io)\b")
CODE_BLOCK = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(<?([^)\s>]+)|(?:src|href)=\"([^\"]+)\"|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)


def project_files() -> list[Path]:
    """Every file that is, or would be, under version control."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("git does not know this folder, so nobody can say which files are the project's")
    return [path for name in listed if name and (path := ROOT / name).is_file()]


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    """Where the pattern occurs in the project's text files, as file:line: match."""
    found = []
    for path in project_files():
        text = path.read_bytes().decode(errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            found += [f"{path.relative_to(ROOT)}:{number}: {match[0]}" for match in pattern.finditer(line)]
    return found


def links(markdown: str) -> list[str]:
    """The targets of the links and pictures in a Markdown text that lead to files."""
    targets = (next(filter(None, groups)) for groups in LINK.findall(CODE_BLOCK.sub("", markdown)))
    files = (target.partition("#")[0] for target in targets if not re.match(r"[a-z][a-z0-9+.-]*:", target))
    return [file for file in files if file]


def test_no_file_names_a_path_of_one_machine() -> None:
    assert lines_matching(PATH_OF_ONE_MACHINE) == []


def test_no_file_names_a_package_registry() -> None:
    assert lines_matching(REGISTRY) == []


def test_no_file_is_large() -> None:
    assert [path for path in project_files() if path.stat().st_size > LARGEST_FILE] == []


def test_every_module_says_what_it_is_for() -> None:
    modules = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert modules
    assert [str(path.relative_to(ROOT)) for path in modules if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_a_module_over_500_lines_says_why() -> None:
    modules = [path for path in (ROOT / "src").rglob("*.py") if len(path.read_text().splitlines()) > LONGEST_MODULE]
    silent = [
        path for path in modules if "Over 500 lines: " not in (ast.get_docstring(ast.parse(path.read_text())) or "")
    ]
    assert [str(path.relative_to(ROOT)) for path in silent] == []


def test_the_version_is_the_same_everywhere_and_in_the_changelog() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert adlro.__version__ == version
    assert metadata.version("adlro") == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version


def test_the_changelog_has_one_section_for_each_version_and_kind_newest_first() -> None:
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert sections[0].startswith("[Unreleased]\n")
    titles = [re.match(r"\[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d\d-\d\d\n", section) for section in sections[1:]]
    assert all(titles)
    versions = [tuple(map(int, title.groups())) for title in titles if title]
    assert versions == sorted(set(versions), reverse=True)
    for section in sections:
        kinds = re.findall(r"^### (.+)$", section, re.MULTILINE)
        assert len(kinds) == len(set(kinds))
        assert set(kinds) <= KINDS_OF_CHANGE


def test_workflows_and_hooks_call_make_targets_and_scripts_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):(?!=)", makefile, re.MULTILINE))
    files = [*(ROOT / ".github/workflows").glob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    lines = [line for file in files for line in commands_in(yaml.safe_load(file.read_text()))]
    called = {line.split()[1] for line in lines if line.startswith("make ")}
    assert called >= {"docs", "layers", "style", "types", "wheel"}
    assert called <= targets
    scripts = {word for line in lines for word in re.findall(r"(?:scripts|\.ci)/\S+", line)}
    assert scripts >= {".ci/run", "scripts/commit_subject.py"}
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_the_tested_pythons_are_the_ones_that_the_package_promises() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = [text.rsplit(" ", 1)[1] for text in project["classifiers"] if ":: Python :: 3." in text]
    for name in ("test", "wheel"):
        workflow = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
        assert workflow["jobs"][name]["strategy"]["matrix"]["python"] == promised


NAMES_OF_ONE_CONTRACT = {
    "POLICIES": "a module of policies lists them",
    "app": "a group of commands is a Typer application",
    "log": "a module writes to the logger of its package",
    "main": "a program begins here",
    "check": "`adlro slurm check` and `adlro kubernetes check` are named as the user types them",
    "compare": "`adlro compare` calls adlro.compare",
    "policies": "`adlro policies` prints what the catalogue of policies has",
    "report": "`adlro report` and `adlro shadow report` are named as the user types them",
    "simulate": "`adlro simulate` calls adlro.simulate, which calls the simulator",
    "sweep": "`adlro sweep` calls adlro.sweep",
    "train": "`adlro train` calls adlro.train",
    "forward": "a Q-network computes its values",
    "observe": "a Q-network writes its observation",
    "empty": "a predictor begins with a state that has learnt nothing",
    "follow": "a predictor goes through a history of jobs",
    "guess": "a predictor predicts one job",
    "learn_runtime": "a predictor learns from one job that has ended",
}
"""Public names that several modules may define, because each is one implementation of the same contract."""


def public_names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """The public classes, functions, constants and type aliases that a module defines at its top level."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            found |= {name.id: node for name in names if isinstance(name.ctx, ast.Store)}
        elif isinstance(node, ast.If | ast.Try):
            found |= public_names(node.body) | public_names(node.orelse)
    return {name: node for name, node in found.items() if not name.startswith("_")}


def test_a_public_name_has_one_meaning() -> None:
    modules = sorted((ROOT / "src").rglob("*.py"))
    defined = {str(path.relative_to(ROOT)): public_names(ast.parse(path.read_text()).body) for path in modules}
    users = {name: [path for path in defined if name in defined[path]] for names in defined.values() for name in names}
    shared = {name: paths for name, paths in users.items() if len(paths) > 1}
    assert {name: paths for name, paths in shared.items() if name not in NAMES_OF_ONE_CONTRACT} == {}
    assert set(NAMES_OF_ONE_CONTRACT) <= set(shared), "a name in the table is no longer shared: remove it"
    classes = [
        name for name, paths in shared.items() for path in paths if isinstance(defined[path][name], ast.ClassDef)
    ]
    assert classes == [], "a class never shares its name"


def test_public_names_are_found_in_every_kind_of_definition() -> None:
    text = (
        "A = 1\nB: int = 2\nc, d = 1, 2\n_e = 3\nif A:\n    def f(): pass\nelse:\n    G = 1\n"
        "class H:\n    i = 1\nasync def j(): k = 1\n"
    )
    assert set(public_names(ast.parse(text).body)) == {"A", "B", "c", "d", "f", "G", "H", "j"}


def commands_in(node: object) -> list[str]:
    """The lines of every `run` of a workflow, or `entry` of a hook."""
    if isinstance(node, list):
        return [line for item in node for line in commands_in(item)]
    if not isinstance(node, dict):
        return []
    own = [line.strip() for key in ("run", "entry") for line in str(node.get(key, "")).splitlines()]
    return own + [line for value in node.values() for line in commands_in(value)]


def test_every_dependency_has_a_pinned_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"[^\w-]", requirement)[0].lower() for group in asked for requirement in group}
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert names - {name.lower() for name in pinned} == set()


def test_every_relative_link_in_the_documents_leads_to_a_file_of_the_project() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in project_files()
        if path.suffix == ".md"
        for target in links(path.read_text())
        if not (there := (path.parent / target).resolve()).exists() or not there.is_relative_to(ROOT)
    ]
    assert broken == []


def test_links_are_found_outside_code_and_without_their_anchors() -> None:
    text = (
        "[a](x.md#top) ![b](p.png 'title') [web](https://example.org) [here](#top)\n```\n[code](y.md)\n```\n[r]: z.md\n"
    )
    assert links(text) == ["x.md", "p.png", "z.md"]


def test_a_test_cannot_reach_another_machine() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"192\.0\.2\.1"):
        socket.create_connection(("192.0.2.1", 9), timeout=0.01)
    with pytest.raises(pytest.fail.Exception, match=r"example\.org"):
        socket.getaddrinfo("example.org", 80)


def test_a_test_can_talk_to_its_own_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.sendall(b"hello")
        with server.accept()[0] as accepted:
            assert accepted.recv(5) == b"hello"
