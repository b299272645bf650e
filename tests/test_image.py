"""The Dockerfile: hadolint finds nothing, and what a linter does not know holds too."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import yaml
from tests.parts import tool

ROOT = Path(__file__).parent.parent
DOCKERFILE = ROOT / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Word and rest of each instruction, with continued lines joined and comments left out."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for line in joined.splitlines() if line for word, rest in [line.split(None, 1)]]


def last(word: str) -> str:
    """The last instruction of a kind, which is the one that counts."""
    return [rest for each, rest in instructions() if each == word][-1]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path out; all that is not named is kept out."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    within = (path == rule[1:] or path.startswith(f"{rule[1:]}/") for rule in rules if rule.startswith("!"))
    return not any(within)


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([tool("hadolint"), str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_base_images_are_pinned_to_a_version_and_the_python_is_one_that_we_test() -> None:
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert len(bases) == 2
    assert len(set(bases)) == 1
    found = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-\w+", bases[0])
    assert found is not None, bases
    assert found[1] in ("3.11", "3.12")
    assert f"/lib/python{found[1]}/" in DOCKERFILE.read_text()


def test_the_image_runs_without_root_and_without_a_shell() -> None:
    assert last("USER") == "10001:10001"
    chart = (ROOT / "deploy/helm/adlro/templates/_helpers.tpl").read_text()
    assert "runAsUser: 10001" in chart
    for word in ("ENTRYPOINT", "CMD"):
        assert isinstance(json.loads(last(word)), list)
    health = last("HEALTHCHECK").partition(" CMD ")[2]
    assert json.loads(health)[0] == "python"
    assert "/healthz" in health
    words = [word for word, _ in instructions()]
    assert words.index("USER") > max(at for at, word in enumerate(words) if word == "RUN")


def test_what_is_copied_is_there_and_passes_the_dockerignore() -> None:
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    for path in (path for paths in copied for path in paths):
        assert (ROOT / path).exists(), path
        assert not ignored(path), path
    readme = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {readme["readme"], *readme["license-files"]} <= {path for paths in copied for path in paths}
    assert ignored(".git")
    assert ignored("tests")


def test_the_chart_and_the_image_agree_on_folders() -> None:
    said = dict(re.findall(r"(\w+)=(\S+)", last("ENV")))
    helpers = (ROOT / "deploy/helm/adlro/templates/_helpers.tpl").read_text()
    folders = dict(re.findall(r"\{name: (\w+), value: (\S+)\}", helpers))
    assert folders
    assert {name: said[name] for name in folders} == folders


def test_a_release_builds_the_image_and_packs_the_chart() -> None:
    steps = yaml.safe_load((ROOT / ".github/workflows/image.yml").read_text())["jobs"]["image"]["steps"]
    commands = "\n".join(step.get("run", "") for step in steps)
    for command in ("docker build", "--read-only", "helm package deploy/helm/adlro"):
        assert command in commands
