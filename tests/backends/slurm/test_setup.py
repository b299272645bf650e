"""What `adlro slurm` makes of a site without a Slurm: files, units, GPU types, and when the queue is given back."""

import subprocess
import time
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adlro.backends.slurm import backend as slurm
from adlro.backends.slurm.backend import is_alive, naming_of, stays_silent
from adlro.backends.slurm.check import split_models
from adlro.backends.slurm.nodes import sites_of
from adlro.backends.slurm.options import SlurmOptions
from adlro.backends.slurm.parse import SlurmNode
from adlro.backends.slurm.setup import notes_of, setup, steps, undo
from adlro.backends.slurm.shapes import common_features
from adlro.backends.slurm.site import SiteNow, unknown_partitions
from adlro.cli.app import commands
from adlro.core.errors import ConfigError, UsageError
from adlro.daemon.config import load_config

CONF = "/etc/slurm/slurm.conf"
TURING = SlurmNode("turing0", 16, 64_000, (("turing", 4),), ("IDLE",), ("nvidia",), ("canary",))


def written(now: SiteNow, **options: object) -> dict[str, str]:
    """The files of `adlro slurm install` by name."""
    wished = SlurmOptions(partitions=["canary"], **options)  # type: ignore[arg-type]
    made = setup(
        wished, now, user="slurm", uid=64030, ready="http://127.0.0.1:8321/readyz", adlro="/opt/adlro/bin/adlro"
    )
    return {file.name: file.text for file in made}


def site(conf: str, lua: str = "", plugins: str = "", *nodes: SlurmNode) -> SiteNow:
    """A site with these files."""
    sites, problems = sites_of(nodes, naming_of(SlurmOptions()))
    texts = {CONF: conf} | ({"/etc/slurm/job_submit.lua": lua} if lua else {})
    return SiteNow(sites, {"canary": {}}, {"JobSubmitPlugins": plugins}, CONF, texts, tuple(problems))


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conf", "plugins", "changed"),
    [
        ("ClusterName=x\n", "", ["+JobSubmitPlugins=lua"]),
        ("ClusterName=x", "", ["-ClusterName=x", "+ClusterName=x", "+JobSubmitPlugins=lua"]),
        ("jobsubmitplugins = pbs\n", "pbs", ["-jobsubmitplugins = pbs", "+JobSubmitPlugins=pbs,lua"]),
        ("JobSubmitPlugins=lua\n", "lua", []),
        ("JobSubmitPlugins=pbs,lua\n", "pbs,lua", []),
    ],
)
def test_slurm_conf_changes_in_nothing_but_the_plugin(conf: str, plugins: str, changed: list[str]) -> None:
    diff = written(site(conf, "", plugins)).get("slurm.conf.diff", "")
    lines = [line for line in diff.splitlines() if line[0] in "+-" and not line.startswith(("+++", "---"))]
    assert lines == changed


def test_a_job_submit_lua_of_the_site_stays_and_loads_ours_before_its_last_line() -> None:
    theirs = "function slurm_job_submit() end\nreturn slurm.SUCCESS\n"
    made = written(site("JobSubmitPlugins=lua\n", theirs, "lua"))
    assert "job_submit.lua" not in made
    assert "ADLRO's job_submit plugin" in made["adlro.lua"]
    after = [line for line in made["job_submit.lua.diff"].splitlines() if not line.startswith(("-", "@", "+++"))]
    assert 'pcall(dofile, "/etc/slurm/adlro.lua")' in after[1]
    assert after[-1] == " return slurm.SUCCESS"


def test_our_own_plugin_is_written_anew_in_its_place() -> None:
    ours = written(site("JobSubmitPlugins=lua\n"))["job_submit.lua"]
    made = written(site("JobSubmitPlugins=lua\n", ours, "lua"))
    assert {name for name in made if "lua" in name} == {"job_submit.lua"}


def test_the_units_get_the_account_and_the_paths_of_the_site() -> None:
    made = written(site("x=1\n"), conf="/etc/slurm/slurm.conf", rest="unix:/run/a b.sock")
    assert "\nUser=slurm\n" in made["adlro.service"]
    assert "\nExecStartPre=-/opt/adlro/bin/adlro warm --config /etc/adlro/adlro.toml\n" in made["adlro.service"]
    assert "\nExecStart=/opt/adlro/bin/adlro serve --config /etc/adlro/adlro.toml\n" in made["adlro.service"]
    (command,) = (line for line in made["adlro-release.service"].splitlines() if line.startswith("ExecStart="))
    assert command == (
        "ExecStart=/opt/adlro/bin/adlro slurm release-all --rest 'unix:/run/a b.sock' --conf /etc/slurm/slurm.conf "
        "--partition canary --unless-ready http://127.0.0.1:8321/readyz --patience 120 --unit adlro.service"
    )
    assert "[Timer]" in made["adlro-release.timer"]


def test_there_is_one_copy_of_each_unit_and_the_daemon_may_have_many_connections() -> None:
    package = Path(str(files("adlro.daemon")))
    names = [path.name for path in package.rglob("*") if path.suffix in (".service", ".timer")]
    assert sorted(names) == ["adlro-release.service", "adlro-release.timer", "adlro.service"]
    assert "LimitNOFILE=65536" in (package / "units" / "adlro.service").read_text()


def test_steps_and_undo_name_every_file() -> None:
    now = site("x=1\n", "function slurm_job_submit() end\nreturn slurm.SUCCESS\n", "pbs")
    options = SlurmOptions(partitions=["canary"])
    made = setup(options, now, user="slurm", uid=1, ready="x")
    text = "\n".join(steps(options, now, made))
    assert all(file.name in text for file in made)
    back = "\n".join(undo(options, now, made))
    for word in ("patch -R /etc/slurm/slurm.conf", "patch -R /etc/slurm/job_submit.lua", "rm /etc/slurm/adlro.lua"):
        assert word in back


def test_the_steps_compile_as_the_daemons_account_before_it_starts_and_undo_removes_its_folders() -> None:
    now, options = site("x=1\n"), SlurmOptions(partitions=["canary"])
    made = setup(options, now, user="ops", uid=1, ready="x", adlro="/opt/adlro/bin/adlro")
    lines = steps(options, now, made)
    (warm,) = (n for n, line in enumerate(lines) if "/opt/adlro/bin/adlro warm --config" in line)
    assert lines[warm].startswith("runuser -u ops -- env -C / XDG_CACHE_HOME=/var/cache/adlro ")
    assert warm < next(n for n, line in enumerate(lines) if "enable --now" in line)
    unit = next(file.text for file in made if file.name == "adlro.service")
    for line in ("CacheDirectory=adlro", "StateDirectory=adlro", "Environment=XDG_CACHE_HOME=/var/cache/adlro"):
        assert f"\n{line}\n" in unit
    assert undo(options, now, made)[-1].startswith("rm -r /etc/adlro /var/lib/adlro /var/cache/adlro ")


def test_a_sites_own_plugin_is_touched_when_only_ours_changes() -> None:
    """The controller looks at the time of job_submit.lua, not of the files that it loads."""
    theirs = 'function slurm_job_submit() end\npcall(dofile, "/etc/slurm/adlro.lua")\nreturn slurm.SUCCESS\n'
    options = SlurmOptions(partitions=["canary"])
    for text, is_touched in ((theirs, True), ("return slurm.SUCCESS\n", False), ("", False)):
        now = site("JobSubmitPlugins=lua\n", text, "lua")
        made = steps(options, now, setup(options, now, user="slurm", uid=1, ready="x"))
        assert any(line.startswith("touch /etc/slurm/job_submit.lua") for line in made) is is_touched


def test_undo_takes_the_plugin_out_of_slurm_conf_before_its_file_is_gone_and_then_gives_the_queue_back() -> None:
    options = SlurmOptions(partitions=["canary"])
    for conf, plugins, first in (("x=1\n", "", "patch -R"), ("JobSubmitPlugins=lua\n", "lua", "# take lua out")):
        now = site(conf, "", plugins)
        back = undo(options, now, setup(options, now, user="slurm", uid=1, ready="x"))
        assert back[0].startswith(first)
        order = [
            next(n for n, line in enumerate(back) if word in line)
            for word in ("restart", "rm /etc/slurm", "release-all")
        ]
        assert order == sorted(order)


def test_a_site_that_does_not_answer_gets_a_plugin_that_holds_nothing_and_is_told_so() -> None:
    options = SlurmOptions(partitions=["canary"])
    made = setup(options, SiteNow(), user="slurm", uid=None, ready="x")
    assert '["canary"] = {\n   },' in made[0].text
    assert "it leaves all jobs to Slurm" in notes_of(options, SiteNow(), made)[0]


def test_only_features_that_all_nodes_of_a_model_have_choose_models() -> None:
    nodes = [
        SlurmNode("a", 1, 1, (("v100", 1),), ("IDLE",), ("nvidia", "nvme"), ("p",)),
        SlurmNode("b", 1, 1, (("v100", 1),), ("IDLE",), ("nvidia",), ("p",)),
        SlurmNode("c", 1, 1, (("t4", 1),), ("IDLE",), ("nvidia", "small"), ("p",)),
    ]
    assert common_features(sites_of(nodes, naming_of(SlurmOptions()))[0]) == ["nvidia", "small"]


def test_partitions_that_share_a_model_but_not_its_nodes_are_told() -> None:
    nodes = [
        SlurmNode("a", 1, 1, (("v100", 1),), ("IDLE",), (), ("one", "all")),
        SlurmNode("b", 1, 1, (("v100", 1),), ("IDLE",), (), ("two", "all")),
        SlurmNode("c", 1, 1, (("t4", 1),), ("IDLE",), (), ("two", "all")),
    ]
    sites = sites_of(nodes, naming_of(SlurmOptions()))[0]
    lines = split_models(("one", "two", "all"), sites)
    assert [line.split(" has some of the nodes with ")[0] for line in lines] == ["one", "two"]
    assert "v100" in lines[0]
    assert "t4" not in lines[1]


def test_unknown_partitions_are_named_with_those_that_exist() -> None:
    assert unknown_partitions(("gpu", "nosuch"), ["gpu", "cpu"]) == "Slurm has no partition 'nosuch'; it has cpu, gpu."
    assert unknown_partitions(("gpu",), ["gpu"]) == ""
    assert unknown_partitions(("gpu",), []) == ""  # Slurm does not answer


# ---- GPU types -------------------------------------------------------------------------------------------------------


def test_an_unknown_gpu_type_is_told_with_the_line_for_our_config() -> None:
    (problem,) = sites_of([TURING], naming_of(SlurmOptions()))[1]
    assert "the GPU type 'turing' is not in the catalogue; its 4 GPUs are left out" in problem
    assert "under [slurm.types]: turing = " in problem
    assert "t4" in problem
    (problem,) = sites_of([SlurmNode("x", 1, 1, (("qqq", 1),), ("IDLE",))], naming_of(SlurmOptions()))[1]
    assert 'qqq = "MODEL"' in problem


def test_a_gpu_type_has_the_model_of_our_config(tmp_path: Path) -> None:
    for pair, node in (
        (("turing", "t4"), TURING),
        (("TURING", "t4"), TURING),
        (("", "t4"), SlurmNode("x", 1, 1, (("", 4),), ("IDLE",))),
        (("t4", "v100-pcie-16gb"), SlurmNode("x", 1, 1, (("t4_1", 4),), ("IDLE",))),  # ours counts first
    ):
        sites, problems = sites_of([node], naming_of(SlurmOptions(types=dict([pair]))))
        assert (list(sites[node.name].devices), problems) == ([pair[1]], [])
    (tmp_path / "c.toml").write_text('[slurm.types]\nturing = "t4"\n')
    assert load_config(tmp_path / "c.toml").slurm.types == {"turing": "t4"}


def test_a_model_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"\[slurm.types\]: .*'t44'.*Did you mean 't4'"):
        naming_of(SlurmOptions(types={"turing": "t44"}))


def test_ingest_takes_types_too(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("NodeName=turing0 CPUTot=16 RealMemory=64000 Gres=gpu:turing:4 State=IDLE Partitions=gpu\n")
    done = CliRunner().invoke(commands(["ingest"]), ["ingest", "--slurm", str(nodes)])
    assert "--types turing=MODEL" in done.output
    done = CliRunner().invoke(commands(["ingest"]), ["ingest", "--slurm", str(nodes), "--types", "turing=t4"])
    assert 'model = "t4", count = 4' in done.output
    done = CliRunner().invoke(commands(["ingest"]), ["ingest", "--slurm", str(nodes), "--types", "turing"])
    assert isinstance(done.exception, UsageError)


# ---- when the queue is given back ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "alive", "gives_back"),
    [
        (200, True, False),
        (503, True, True),  # it answers that it cannot schedule
        (503, False, True),
        (None, True, False),  # its API is overloaded, but it schedules
        (None, False, True),
    ],
)
def test_an_api_that_does_not_answer_is_no_reason_while_the_daemon_schedules(
    status: int | None, alive: bool, gives_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "status_of", lambda url, timeout_s=5.0: status)
    monkeypatch.setattr(slurm, "is_alive", lambda unit, within_s: alive)
    assert stays_silent("http://127.0.0.1:1/", 120, "adlro.service", lambda s: None) is gives_back
    assert stays_silent("http://127.0.0.1:1/", 120, "", lambda s: None) is (status != 200)


@pytest.mark.parametrize(
    ("state", "ago_s", "alive"),
    [("active", 3, True), ("active", 500, False), ("failed", 3, False), ("active", None, False)],
)
def test_a_unit_is_alive_while_systemd_hears_from_it(
    state: str, ago_s: float | None, alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = 0 if ago_s is None else int((time.monotonic() + 1e4 - ago_s) * 1e6)
    now = time.monotonic() + 1e4  # also on a machine that has just started
    said = f"ActiveState={state}\nWatchdogTimestampMonotonic={heard}\n"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, said, ""))
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert is_alive("adlro.service", 120) is alive


@pytest.mark.parametrize(
    ("ago_s", "sub_state", "restarts", "alive"),
    [
        (600, "start-pre", 0, True),  # after an upgrade, while `adlro warm` compiles
        (600, "start", 0, True),
        (1900, "start-pre", 0, False),
        (20, "start-pre", 3, False),  # it fails again and again
        (20, "auto-restart", 0, False),
        (None, "start-pre", 0, False),
    ],
)
def test_a_unit_that_starts_is_alive_for_half_an_hour(
    ago_s: float | None, sub_state: str, restarts: int, alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic() + 1e4
    began = 0 if ago_s is None else int((now - ago_s) * 1e6)
    said = (
        f"ActiveState=activating\nSubState={sub_state}\nNRestarts={restarts}\n"
        f"InactiveExitTimestampMonotonic={began}\nWatchdogTimestampMonotonic=0\n"
    )
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, said, ""))
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert is_alive("adlro.service", 120) is alive


def test_without_systemd_no_unit_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert not is_alive("adlro.service", 120)
