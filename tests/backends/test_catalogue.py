"""The catalogue of back ends: what each one has in the config, its folder and the document, and who may be watched."""

from pathlib import Path

import pytest

from adlro.backends.catalogue import BACKENDS
from adlro.core.errors import ConfigError
from adlro.core.ports import Backend
from adlro.daemon.config import Config, load_config
from adlro.ingest.telemetry.catalogue import SOURCES

ROOT = Path(__file__).resolve().parents[2]


def opened(tmp_path: Path, **flags: object) -> Backend:
    common = {
        "store.url": f"sqlite:{tmp_path}/a.db",
        "slurm.rest": f"unix:{tmp_path}/nobody",
        "local.gpus": "v100:2",
        "kubernetes.server": "http://127.0.0.1:1",
    }
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return load_config(None, common | named).open_backend().backend


@pytest.mark.parametrize("name", BACKENDS)
def test_each_back_end_has_a_folder_a_table_and_a_section_in_the_document(name: str) -> None:
    assert (ROOT / "src" / "adlro" / "backends" / name / "kind.py").is_file()
    assert Config.model_fields[name].annotation is BACKENDS[name].options
    assert f"| `{name}` |" in (ROOT / "docs" / "backends.md").read_text()


def test_every_folder_of_a_back_end_is_in_the_catalogue() -> None:
    folders = {path.parent.name for path in (ROOT / "src" / "adlro" / "backends").glob("*/kind.py")}
    assert folders == set(BACKENDS)


@pytest.mark.parametrize("name", BACKENDS)
def test_each_back_end_opens_by_its_name(tmp_path: Path, name: str) -> None:
    backend = opened(tmp_path, backend__kind=name)
    assert backend.name == name
    backend.close()


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "shadow"])
def test_a_shadow_can_watch_any_other_back_end_and_submits_nothing_to_it(tmp_path: Path, name: str) -> None:
    shadow = opened(tmp_path, backend__kind="shadow", shadow__backend=name, slurm__submit_as="self")
    assert shadow.name == "shadow"
    assert (tmp_path / "shadow.jsonl").is_file()
    shadow.close()


@pytest.mark.parametrize("name", ["shadow", "slrum"])
def test_a_shadow_of_itself_or_of_nothing_is_refused_at_the_start(name: str) -> None:
    config = load_config(None, {"backend.kind": "shadow", "shadow.backend": name})
    with pytest.raises(ConfigError, match=f"'shadow.backend' is '{name}'; expected one of simulated, local, slurm"):
        config.check_owners()


def test_each_source_of_telemetry_is_a_key_of_the_config_and_in_its_document() -> None:
    document = (ROOT / "docs" / "telemetry.md").read_text()
    for name in SOURCES:
        assert not getattr(load_config(None).telemetry, name)
        assert f"--{name}" in document
