"""Every address held against the document by a stranger: schemathesis, with inputs right and wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.api.api_server import serving

from adlro.api.settings import ApiSettings

SETTINGS = ApiSettings(port=0, rate_per_s=1e6, burst=1e6, stream_s=0.02)  # streams that end, and no 429


@pytest.mark.parametrize(
    ("name", "phases", "examples"), [("root", "examples,coverage,fuzzing,stateful", 10), ("ann", "fuzzing", 3)]
)
def test_the_api_is_as_its_document_says(tmp_path: Path, name: str, phases: str, examples: int) -> None:
    with serving(settings=SETTINGS) as place:
        ended = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")), "run", f"{place.url}/api/v1/openapi.json",
                "--header", f"Authorization: Bearer adlro_{name}", "--checks", "all",
                # A cancelled job can still be read: what became of it is what people want to know.
                "--exclude-checks", "use_after_free",
                "--phases", phases, "--max-examples", str(examples), "--seed", "1",
                "--no-color", "--continue-on-failure",
            ],
            cwd=tmp_path, env={**os.environ, "NO_PROXY": "*"}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert "Tested: 24" in ended.stdout
