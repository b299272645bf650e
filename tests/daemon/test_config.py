"""The config: good without a file, wrong in one clear line, and the same as its document says."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from adlro.api.settings import ApiSettings
from adlro.core.accounts import Owners
from adlro.core.errors import ConfigError
from adlro.daemon.config import Config, changes, example, load_config, options

DOC = Path(__file__).parents[2] / "docs" / "daemon.md"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "adlro.toml"
    path.write_text(text)
    return path


def test_nothing_needs_to_be_said() -> None:
    config = load_config(None)
    assert (config.backend.kind, config.policy.name, config.policy.fallback) == ("simulated", "adlro", "fcfs-first-fit")
    assert (config.api.host, config.api.auth) == ("127.0.0.1", "tokens")


def test_an_empty_file_is_the_same_as_none(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "")) == load_config(None)


def test_the_printed_example_is_the_defaults(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, example())) == load_config(None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[backend]\nkind = "slrum"', r"'backend.kind' is 'slrum'; expected .*'slurm'.* Did you mean 'slurm'"),
        ('[policy]\nweights = "prio"', r"'policy.weights' is 'prio'; expected 'equal' or 'priority'"),
        ("[policy]\nbudget_ms = -1", r"'policy.budget_ms' is -1; expected a number above 0"),
        ('tick_s = "often"', r"'tick_s' is 'often'; expected a number"),
        ('[api]\nport = 70000', r"'api.port' is 70000; expected a whole number from 0 to 65535"),
        ("[api]\nrate_per_s = 0", r"'api.rate_per_s' is 0; expected a number above 0"),
        ('[stoer]\nurl = "x"', r"unknown key 'stoer'. Did you mean 'store'"),
        ('[log]\nlevle = "info"', r"unknown key 'log.levle'. Did you mean 'level'"),
        ("[telemetry]\nnvml = true\namdsmi = true", r"expected one of prometheus, metrics, nvml and amdsmi"),
        ("[api", "this is not TOML"),
        ("tick_s = inf", "'tick_s' is inf"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_the_file_the_key_what_was_found_and_what_was_expected(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        load_config(written(tmp_path, text))
    assert str(error.value).count("\n") == 0
    assert "adlro.toml" in str(error.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the config file .*nowhere"):
        load_config(tmp_path / "nowhere.toml")


def test_a_flag_takes_the_place_of_what_the_file_says_and_none_does_not(tmp_path: Path) -> None:
    path = written(tmp_path, 'tick_s = 7\n[policy]\nname = "sjf"\nfallback = "fcfs"')
    config = load_config(path, {"policy.name": "srtf", "policy.fallback": None, "tick_s": None, "api.port": 0})
    assert (config.policy.name, config.policy.fallback, config.tick_s, config.api.port) == ("srtf", "fcfs", 7, 0)


def test_changes_are_told_by_table() -> None:
    one = load_config(None)
    assert changes(one, load_config(None, {"tick_s": 9.0, "log.level": "debug"})) == {"tick_s", "log"}
    assert changes(one, one) == frozenset()


def test_the_passwords_of_its_addresses_are_known_as_secrets() -> None:
    config = load_config(
        None, {"store.url": "postgresql://a:geheim1@h/d", "telemetry.prometheus": "http://b:geheim2@h:9090"}
    )
    assert config.secrets() == ("geheim1", "geheim2")


def test_the_store_of_a_simulated_cluster_is_in_memory_and_of_a_real_one_in_the_folder_of_the_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    assert load_config(None).store_url() == "sqlite::memory:"
    local = load_config(None, {"backend.kind": "local"})
    assert local.store_url() == f"sqlite:{tmp_path}/adlro.db"
    assert local.beside_store("a.json") == tmp_path / "a.json"
    assert local.beside_store("a.json", "/else/b.json") == Path("/else/b.json")
    assert load_config(None, {"store.url": "postgresql://h/d"}).beside_store("a.json") == tmp_path / "a.json"
    monkeypatch.delenv("STATE_DIRECTORY")
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert local.store_url() == "sqlite:/x/adlro/adlro.db"


def test_the_api_gets_what_the_file_says(tmp_path: Path) -> None:
    path = written(tmp_path, '[api]\nport = 9\ntls_cert = "c.pem"\nothers = "shown"\nhosts = ["gpu.example.org"]')
    settings = load_config(path).api_settings()
    assert (settings.port, settings.tls_cert, settings.tls_key) == (9, "c.pem", "")
    assert (settings.others, settings.hosts) == ("shown", ["gpu.example.org"])


def test_the_api_gets_the_file_of_tokens_and_whose_jobs_it_takes(tmp_path: Path) -> None:
    assert load_config(None).api_settings() == ApiSettings(token_file=load_config(None).beside_store("tokens.json"))
    path = written(tmp_path, f'[api]\ntokens = "{tmp_path}/t.json"\nmin_uid = 7')
    settings = load_config(path).api_settings()
    assert (settings.token_file, settings.owners.min_uid) == (tmp_path / "t.json", 7)


@pytest.mark.parametrize(
    ("uid", "flags", "word"),
    [
        (0, {"backend.kind": "local", "api.auth": "off"}, "as anybody"),
        (0, {"backend.kind": "local", "local.shared_account": True}, "never run as root"),
        (0, {"backend.kind": "slurm", "slurm.submit_as": "user", "api.auth": "off"}, "as anybody"),
        (0, {"backend.kind": "slurm", "slurm.submit_as": "self"}, "its uid is 0"),
        (64_030, {"backend.kind": "slurm", "slurm.submit_as": "self"}, "belong to services"),
        (1000, {"backend.kind": "slurm", "slurm.submit_as": "self", "slurm.rest": "http://h", "slurm.user": "root"},
         "token of 'root'"),
    ],
)  # fmt: skip
def test_a_config_that_gives_people_accounts_of_others_is_refused(
    monkeypatch: pytest.MonkeyPatch, uid: int, flags: dict[str, Any], word: str
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    with pytest.raises(ConfigError, match=word):
        load_config(None, flags).check_owners()
    load_config(None, flags | {"api.is_on": False}).check_owners()  # nobody can submit


def test_who_owns_jobs_goes_by_the_back_end_and_by_the_daemons_own_account(monkeypatch: pytest.MonkeyPatch) -> None:
    def owners(uid: int, **flags: Any) -> Owners:
        monkeypatch.setattr("os.geteuid", lambda: uid)
        config = load_config(None, {name.replace("__", "."): value for name, value in flags.items()})
        config.check_owners()
        return config.owners()

    me = 123_456_789  # an account without a name
    assert owners(0) == owners(0, backend__kind="slurm") == Owners()
    assert owners(0, backend__kind="slurm", slurm__submit_as="user", api__min_uid=7) == Owners(True, 7)
    assert owners(me, backend__kind="slurm", slurm__submit_as="self") == Owners()
    assert owners(0, backend__kind="local") == Owners(True)
    assert owners(me, backend__kind="local") == Owners(only=str(me))
    assert owners(me, backend__kind="local", local__shared_account=True) == Owners()
    assert owners(me, backend__kind="local", api__auth="off") == Owners()


def test_every_option_has_a_sentence() -> None:
    for option in options():
        assert option.sentence.endswith((".", "…")), option


def test_the_document_has_every_option_with_its_default_and_its_sentence_and_no_other() -> None:
    part = DOC.read_text().split("## Config\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| `(.*?)` \| (.*) \|$", part, re.MULTILINE)
    ours = [(f"{o.table}.{o.key}" if o.table else o.key, o.default, o.sentence) for o in options()]
    assert rows == ours


def test_the_example_is_toml_with_every_table() -> None:
    assert set(tomllib.loads(example())) == set(Config.model_fields)
