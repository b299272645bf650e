#!/usr/bin/env python3
"""Check the subjects of new commits: in the imperative, at most 72 characters, no full stop.

    scripts/commit_subject.py FILE            a message, as git gives it to a commit-msg hook
    scripts/commit_subject.py --since COMMIT  every commit after COMMIT, without merges

Whether a word is an imperative is guessed by its ending; ENDS_LIKE_ANOTHER_FORM has the words for which this is wrong.
"""

import subprocess
import sys
from pathlib import Path

LONGEST = 72
MADE_BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
ENDS_LIKE_ANOTHER_FORM = frozenset(
    (
        "always",
        "bring",
        "embed",
        "exceed",
        "feed",
        "focus",
        "heed",
        "need",
        "ping",
        "proceed",
        "ring",
        "seed",
        "shed",
        "speed",
        "spring",
        "string",
        "succeed",
    )
)
USAGE = 2


def faults(subject: str) -> list[str]:
    """What is wrong with a subject, in words."""
    if subject.startswith(MADE_BY_GIT):
        return []
    found = []
    if not subject:
        return ["it is empty"]
    if len(subject) > LONGEST:
        found.append(f"it has {len(subject)} characters; expected at most {LONGEST}")
    if subject.endswith("."):
        found.append("it ends with a full stop")
    word = subject.split()[0]
    if not word[0].isupper():
        found.append(f"it begins with {word!r}; expected a capital letter")
    if not may_be_imperative(word):
        found.append(f"it begins with {word!r}; expected a verb as in 'Add' (not 'Added', 'Adds', 'Adding' or 'Area:')")
    return found


def may_be_imperative(word: str) -> bool:
    """Whether a word may be a verb in the imperative, as far as its ending tells."""
    verb = word.lower()
    is_third_person = verb.endswith("s") and not verb.endswith("ss")
    return verb in ENDS_LIKE_ANOTHER_FORM or not (is_third_person or verb.endswith(("ed", "ing", ":")))


def subject_of(message: str) -> str:
    """The first line of a message that is not a comment."""
    lines = (line.strip() for line in message.splitlines() if not line.startswith("#"))
    return next((line for line in lines if line), "")


def subjects_since(commit: str) -> list[str]:
    """The subjects of the commits after one, without merges."""
    command = ["git", "log", "--no-merges", "--format=%s", f"{commit}..HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def main(arguments: list[str]) -> int:
    """Check what the arguments name; 1 if something is wrong."""
    match arguments:
        case ["--since", commit]:
            subjects = subjects_since(commit)
        case [file] if not file.startswith("-"):
            if not Path(file).is_file():
                print(f"there is no file {file!r}; expected the file of a commit message.", file=sys.stderr)
                return USAGE
            subjects = [subject_of(Path(file).read_text(encoding="utf-8"))]
        case _:
            print(__doc__, file=sys.stderr)
            return USAGE
    wrong = [(subject, fault) for subject in subjects for fault in faults(subject)]
    for subject, fault in wrong:
        print(f"commit subject {subject!r}: {fault}.", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
