"""Which commit subjects scripts/commit_subject.py lets pass, and what it says about the others."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts/commit_subject.py"


def check(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def check_message(tmp_path: Path, message: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(message)
    return check(str(file))


@pytest.mark.parametrize(
    "subject",
    [
        "Add a policy",
        "Process events in order",
        "Feed the network with estimates",
        "Merge branch 'main' into a-branch-whose-name-is-so-long-that-the-subject-is-far-beyond-the-limit",
        'Revert "Add a policy that has a subject of exactly seventy-two characters, as allowed"',
        "X" * 72,
    ],
)
def test_an_imperative_of_at_most_72_characters_passes(tmp_path: Path, subject: str) -> None:
    assert check_message(tmp_path, subject).returncode == 0


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("X" * 73, "it has 73 characters; expected at most 72"),
        ("Added a policy", "begins with 'Added'; expected a verb"),
        ("Adds a policy", "begins with 'Adds'; expected a verb"),
        ("Adding a policy", "begins with 'Adding'; expected a verb"),
        ("Policies: add one", "begins with 'Policies:'; expected a verb"),
        ("add a policy", "expected a capital letter"),
        ("Add a policy.", "ends with a full stop"),
        ("", "it is empty"),
    ],
)
def test_another_subject_is_refused_with_the_reason(tmp_path: Path, subject: str, expected: str) -> None:
    done = check_message(tmp_path, f"# a comment of git's\n\n{subject}\n\n# and one more\n")
    assert done.returncode == 1
    assert expected in done.stderr


def test_only_commits_after_the_given_one_are_checked(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.hooksPath=/dev/null"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    for subject in ("old and long " * 10, "Add a", "Added b"):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", subject], cwd=tmp_path, check=True)
    done = check("--since", "HEAD~2", folder=tmp_path)
    assert done.returncode == 1
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["commit subject 'Added b'"]
    assert check("--since", "HEAD", folder=tmp_path).returncode == 0


def test_a_wrong_use_is_answered_with_the_right_one() -> None:
    done = check("--until", "HEAD")
    assert done.returncode == 2
    assert "commit_subject.py --since COMMIT" in done.stderr


def test_a_file_that_does_not_exist_is_refused_in_one_line(tmp_path: Path) -> None:
    checked = check(str(tmp_path / "nothing"))
    assert checked.returncode == 2
    assert checked.stderr.count("\n") == 1
    assert "there is no file" in checked.stderr
