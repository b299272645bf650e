"""A real `adlro serve` in a process of its own, with its API on a port of this machine."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.daemon.daemons import until

COMMAND = (sys.executable, "-c", "import typer; from adlro.cli.serve import serve; typer.run(serve)")


@dataclass
class Served:
    """A process and where it answers."""

    process: subprocess.Popen[str]
    out: Path
    err: Path
    token: str = ""

    @property
    def address(self) -> str:
        found = re.search(r"https?://\S+/", self.out.read_text())
        return found[0] if found else ""

    def ask(self, path: str, body: object = None, method: str = "") -> Any:
        """The JSON of an answer; None while nobody answers, or it is not ready."""
        request = urllib.request.Request(
            self.address + path,
            json.dumps(body).encode() if body is not None else None,
            {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.token}"} if self.token else {}),
            method=method or ("POST" if body is not None else "GET"),
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise AssertionError(error.read().decode()) from None
            return None
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.err.read_text()[-2000:]
        found = self.ask("readyz") if self.address else None
        return bool(found and found["ready"])


@contextmanager
def served(folder: Path, *flags: str, config: str = "", waits: bool = True, token: str = "") -> Iterator[Served]:
    """A daemon until the end of the block, ready to answer; whatever happens, it is gone then."""
    number = len(list(folder.glob("serve*.out")))
    out, err = folder / f"serve{number}.out", folder / f"serve{number}.err"
    file = folder / "adlro.toml"
    if config:
        file.write_text(config)
    words: Sequence[str] = (*COMMAND, "--config", str(file), "--port", "0", *flags)
    with out.open("w") as told, err.open("w") as said:
        process = subprocess.Popen(words, stdout=told, stderr=said, text=True, cwd=folder)
    found = Served(process, out, err, token)
    try:
        if waits:
            until(found.is_ready, seconds=120)
        yield found
    finally:
        process.kill()
        process.wait(timeout=60)
