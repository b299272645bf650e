"""Writes the sample answers of commands that stand in the documents, by running the commands.

    python scripts/doc_samples.py            write the samples into the documents
    python scripts/doc_samples.py --check    only say which samples are out of date; exit status 1 if one is

A sample is the block of code after <!-- sample: NAME -->. The traces are expected beside the repository, in ../shared.
"""

import io
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from adlro.cli.app import run

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
TRACES: Final = ROOT.parent / "shared" / "traces"
PLACE: Final = re.compile(r"(<!-- sample: ([a-z-]+) -->\n\n```\n)(.*?)(```\n)", re.DOTALL)

ASKED: Final = 'user = "user3"\ngpus = 8\nlimit_s = 7200\n'


def answer(words: Sequence[str]) -> str:
    """What a command prints on the standard output."""
    out = io.StringIO()
    with redirect_stdout(out):
        if run([*words]) != 0:
            raise SystemExit(f"adlro {' '.join(words)} failed.")
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def predict() -> str:
    """The answer about one job."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "job.toml").write_text(ASKED, encoding="utf-8")
        history = str(TRACES / "kth_sp2_1996/kth_sp2_until_20736000s.swf.xz")
        return answer(["predict", "--history", history, "--job", str(Path(folder) / "job.toml")])


SAMPLES: Final[dict[str, Callable[[], str]]] = {"predict": predict}


def main(words: Sequence[str]) -> int:
    """Write or check every sample."""
    stale = 0
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        new = PLACE.sub(lambda found: f"{found[1]}{SAMPLES[found[2]]()}{found[4]}", text)
        if new != text:
            stale += 1
            if "--check" in words:
                print(f"docs/{path.relative_to(DOCS)} has a stale sample. Run: python scripts/doc_samples.py")
            else:
                path.write_text(new, encoding="utf-8")
    return int(stale > 0 and "--check" in words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
