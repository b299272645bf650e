"""From a config, or a command line, to a daemon: the parts that are opened, the API on its port, and `adlro serve`."""

import configparser
import json
import socket
import threading
import tomllib
import urllib.request
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.daemon.daemons import until
from typer.testing import CliRunner

from adlro.cli.serve import serve
from adlro.core.errors import BackendError, CatalogueError, ConfigError, StoreError, UsageError
from adlro.daemon.config import Config, load_config
from adlro.daemon.daemon import Daemon
from adlro.daemon.leader import Alone, FileLock, PostgresLock
from adlro.daemon.opening import _bound, answering, check_config, is_led, leadership_for, open_memory, open_parts
from adlro.daemon.store_sqlite import FullError
from adlro.live.scene import Scenes

QUICK = {"policy.name": "fcfs", "policy.fallback": "fcfs"}


def command(*words: str) -> Any:
    app = typer.Typer()
    app.command()(serve)
    return CliRunner().invoke(app, list(words))


# ---- parts -------------------------------------------------------------------------------------------------------


def test_the_defaults_make_a_daemon_that_decides(tmp_path: Path) -> None:
    daemon = Daemon(load_config(None, QUICK), open_parts)
    tick = daemon.tick()
    assert tick is not None
    assert tick.decisions
    state = daemon.state()
    assert state.backend == "simulated"
    assert len(state.telemetry) == state.snapshot.cluster.gpu_count
    daemon.close()


def test_a_simulated_cluster_can_be_named_and_starts_empty() -> None:
    opened = load_config(None, {"simulated.cluster": "paper16"}).open_backend()
    seen = opened.backend.read()
    assert (seen.cluster.name, seen.jobs) == ("paper16", ())
    assert abs(opened.clock() - seen.time_s) < 60


def test_the_local_machine_has_the_gpus_that_are_declared(tmp_path: Path) -> None:
    flags = {"backend.kind": "local", "local.gpus": "v100:4,t4:2", "store.url": f"sqlite:{tmp_path}/a.db"}
    backend = load_config(None, flags).open_backend().backend
    assert backend.read().cluster.gpu_count == 6
    assert (tmp_path / "jobs").is_dir()
    backend.close()


def test_a_machine_without_gpus_says_how_to_declare_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.backends.local.machine.asked", lambda drivers: [])
    flags = {"backend.kind": "local", "store.url": f"sqlite:{tmp_path}/a.db"}
    with pytest.raises(BackendError, match="--gpus v100:4"):
        load_config(None, flags).open_backend()


def test_slurm_and_its_shadow_are_made_without_asking_slurm(tmp_path: Path) -> None:
    flags = {"store.url": f"sqlite:{tmp_path}/a.db", "slurm.rest": f"unix:{tmp_path}/nobody"}
    for kind in ("slurm", "shadow"):
        backend = load_config(None, flags | {"backend.kind": kind}).open_backend().backend
        assert backend.name == kind
        backend.close()


def test_a_store_on_a_full_disk_is_replaced_by_one_in_memory_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adlro.daemon import store

    def full(path: Path) -> None:
        raise FullError(f"{path}: the disk is full; make room.")

    monkeypatch.setattr(store, "prepare_file", full)
    memory, notes = open_memory(load_config(None, {"store.url": f"sqlite:{tmp_path}/a.db"}))
    memory.put("a", "b")
    assert "nothing outlasts this process" in notes[0]
    memory.close()


def test_a_store_that_is_wrong_is_an_error() -> None:
    with pytest.raises(StoreError):
        open_memory(load_config(None, {"store.url": "mysql://x"}))


def test_the_leaders_lock_is_that_of_the_store(tmp_path: Path) -> None:
    assert isinstance(leadership_for(load_config(None)), Alone)
    assert isinstance(leadership_for(load_config(None, {"store.url": "postgresql://h/d"})), PostgresLock)
    config = load_config(None, {"backend.kind": "local", "store.url": f"sqlite:{tmp_path}/a.db"})
    lock = leadership_for(config)
    assert isinstance(lock, FileLock)
    assert not is_led(config)
    lock.take()
    assert is_led(config)
    lock.release()


def test_a_mistake_that_would_show_at_a_take_over_is_found_at_the_start() -> None:
    check_config(load_config(None))
    with pytest.raises(CatalogueError, match="fcsf"):
        check_config(load_config(None, {"policy.fallback": "fcsf"}))
    with pytest.raises(UsageError, match="expected http"):
        check_config(load_config(None, {"telemetry.prometheus": "host:9090"}))


def test_a_config_under_which_jobs_could_not_run_as_their_users_is_refused_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"store.url": f"sqlite:{tmp_path}/a.db", "slurm.submit_as": "user", "slurm.rest": f"unix:{tmp_path}/nobody"}
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    slurm = load_config(None, flags | {"backend.kind": "slurm"})
    for refuse in (check_config, Config.open_backend):
        with pytest.raises(ConfigError, match="the daemon must be root"):
            refuse(slurm)
    shadow = load_config(None, flags | {"backend.kind": "shadow"}).open_backend()  # it submits nothing
    shadow.backend.close()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    local = load_config(None, {"backend.kind": "local", "local.gpus": "v100:1", "api.auth": "off"})
    for refuse in (check_config, Config.open_backend):
        with pytest.raises(ConfigError, match="everybody on this machine"):
            refuse(local)


# ---- the API on its port -----------------------------------------------------------------------------------------

OPEN = QUICK | {"api.auth": "off", "api.port": 0, "simulated.cluster": "paper16"}


def test_the_api_answers_while_the_daemon_runs_and_not_after() -> None:
    config = load_config(None, OPEN)
    daemon = Daemon(config, open_parts)
    with answering(daemon, config) as address:
        thread = threading.Thread(target=daemon.run)
        thread.start()
        until(lambda: daemon.is_ready()[0], seconds=60)
        page = urllib.request.urlopen(f"{address}metrics", timeout=30).read().decode()
        assert "adlro_leader 1.0" in page
        daemon.stop()
        thread.join()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{address}healthz", timeout=30)


def test_a_port_that_is_taken_is_told_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = load_config(None, OPEN | {"api.port": taken.getsockname()[1]})
        daemon = Daemon(config, open_parts)
        with pytest.raises(ConfigError, match="--port"), answering(daemon, config):
            pass
        daemon.close()


def test_the_api_of_a_standby_waits_for_the_leaders_port(tmp_path: Path) -> None:
    flags = OPEN | {"backend.kind": "local", "local.gpus": "v100:1", "store.url": f"sqlite:{tmp_path}/a.db"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = load_config(None, flags | {"api.port": port})
        leader = leadership_for(config)
        leader.take()
        standby = Daemon(config, open_parts, leadership_for(config))
        with answering(standby, config) as address:
            assert address == ""
            taken.close()
            until(lambda: answers(f"http://127.0.0.1:{port}/healthz"))
        standby.close()
        leader.release()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=30) as found:
            return bool(found.status == 200)
    except OSError:
        return False


def test_an_api_that_is_off_has_no_address() -> None:
    config = load_config(None, {"api.is_on": False})
    daemon = Daemon(config, open_parts)
    with answering(daemon, config) as address:
        assert address == ""
    daemon.close()


# ---- the command -------------------------------------------------------------------------------------------------


def test_once_is_one_turn_in_words_or_as_json() -> None:
    words = ("--once", "--policy", "fcfs", "--fallback", "fcfs")
    shown = command(*words)
    assert shown.exit_code == 0, shown.output
    assert "simulated cluster demo32: 8 nodes, 32 GPUs" in shown.output
    assert "done" in shown.output
    told = json.loads(command(*words, "--json").output)
    assert told["tick"]["decided_by"] == "fcfs"
    assert all(answer["done"] for answer in told["tick"]["answers"])


def test_jobs_are_stopped_only_with_the_flag_and_a_policy_that_stops_jobs_says_so_without() -> None:
    words = ("--once", "--policy", "srtf", "--fallback", "fcfs")
    assert "No running job is stopped" in command(*words).output
    shown = command(*words, "--preempt")
    assert shown.exit_code == 0, shown.output
    assert "No running job is stopped" not in shown.output


@pytest.mark.parametrize("words", [(), ("--weights", "equal"), ("--weights", "priority")])
def test_jobs_count_by_their_priorities_only_with_the_flag(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    new = Scenes.__init__

    def noted(self: Scenes, *args: Any, **named: Any) -> None:
        new(self, *args, **named)
        made.append(self._weights)

    monkeypatch.setattr(Scenes, "__init__", noted)
    monkeypatch.setattr("adlro.daemon.warming.daemon_steps", lambda policies: ())
    assert command("--once", "--policy", "fcfs", "--fallback", "fcfs", *words).exit_code == 0
    assert made
    assert ("priority" in made) == ("priority" in words)


def test_the_printed_config_can_be_read() -> None:
    assert tomllib.loads(command("--print-config").output)["policy"]["name"] == "adlro"


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [
        (("--backend", "slrum"), UsageError, "expected one of simulated, local, slurm, kubernetes, shadow"),
        (("--weights", "prio"), UsageError, "weights is 'prio'; expected equal or priority"),
        (("--config", "/nowhere.toml"), ConfigError, "cannot read the config file"),
        (("--once", "--policy", "fcsf"), CatalogueError, "Did you mean 'fcfs'"),
        (("--once", "--store", "mysql://x"), StoreError, "expected sqlite:PATH"),
        (("--once", "--cluster", "papre16"), CatalogueError, "Did you mean 'paper16'"),
    ],
)
def test_a_mistake_is_told_as_one_error(words: tuple[str, ...], kind: type[Exception], told: str) -> None:
    error = command(*words).exception
    assert isinstance(error, kind)
    assert told in str(error)


# ---- the units ---------------------------------------------------------------------------------------------------


def unit(name: str) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None, strict=False)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read_string((files("adlro.daemon") / "units" / name).read_text())
    return found


def test_the_unit_is_watched_and_gives_the_queue_back_when_it_fails() -> None:
    daemon = unit("adlro.service")
    assert daemon["Service"]["Type"] == "notify"
    assert int(daemon["Service"]["WatchdogSec"]) > 0
    assert daemon["Service"]["Restart"] == "on-failure"
    assert daemon["Unit"]["OnFailure"] == "adlro-release.service"
    assert "adlro serve --config" in daemon["Service"]["ExecStart"]
    assert "adlro slurm release-all" in unit("adlro-release.service")["Service"]["ExecStart"]


def test_answers_in_two_halves_do_not_wait_for_the_readers_acknowledgement() -> None:
    listener = _bound("127.0.0.1", 0)
    assert listener is not None
    with listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
