"""This machine as a cluster: from its drivers, from a declaration, from a file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from adlro.backends.local.machine import cores, machine_of, memory_gb, this_machine
from adlro.catalogue.clusters import load_cluster, parse_cluster
from adlro.catalogue.gpus import find_gpu, gpu_models
from adlro.core.errors import ConfigError, TelemetryError
from adlro.core.records import GpuModel, Gpus
from adlro.core.telemetry import GpuSeen, Readings
from adlro.ingest.telemetry.names import model_of
from adlro.ingest.telemetry.series import Collector

ONE_NODE = """
name = "desk"
[network]
kind = "none"
gb_s = 1
[[nodes]]
name = "desk"
gpu = "v100"
gpus = 2
cpus = 8
memory_gb = 64
"""


def model(name: str) -> GpuModel | None:
    """The catalogue's model."""
    return model_of(name, find_gpu)


def telling(*names: str) -> Callable[[], Readings]:
    """A driver that tells of these GPUs."""

    def look() -> Readings:
        collector = Collector("driver")
        for index, name in enumerate(names):
            collector.put(GpuSeen("here", index, f"uuid-{index}", name), "utilisation", 0.0, 1.0)
        return collector.readings(1.0)

    return look


def silent() -> Readings:
    """A driver that is not there."""
    raise TelemetryError("NVML: no NVIDIA driver answers on this machine.")


def test_gpus_are_grouped_by_model_and_keep_the_numbers_of_their_driver() -> None:
    nvidia = telling("Tesla V100-SXM2-16GB", "Tesla T4", "Tesla V100-SXM2-16GB")
    machine = this_machine(model, drivers=(nvidia, telling("AMD Instinct MI50")))
    [node] = machine.cluster.nodes
    assert node.gpus == (Gpus("v100-sxm2-16gb", 2), Gpus("t4", 1), Gpus("mi50", 1))
    assert machine.driver_numbers == (0, 2, 1, 0)
    assert (machine.has_gpus, machine.notes) == (True, ())
    assert set(machine.cluster.models) == {"v100-sxm2-16gb", "t4", "mi50"}
    assert node.cpus >= 1
    assert node.memory_gb > 0


def test_a_machine_without_drivers_has_no_gpus_and_says_why() -> None:
    machine = this_machine(model, drivers=(silent,))
    assert machine.cluster.gpu_count == 0
    assert not machine.has_gpus
    assert machine.notes == ("NVML: no NVIDIA driver answers on this machine.",)


def test_a_gpu_that_the_catalogue_does_not_have_is_named_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"'Tesla V1000' is not in the catalogue.*\[gpus.NAME\]"):
        this_machine(model, known=gpu_models(), drivers=(telling("Tesla V1000"),))


def test_declared_gpus_stand_in_and_no_driver_is_asked() -> None:
    def asked() -> Readings:
        raise AssertionError

    machine = this_machine(model, "v100:4, t4,v100:1", drivers=(asked,))
    assert machine.cluster.nodes[0].gpus == (Gpus("v100-sxm2-16gb", 5), Gpus("t4", 1))
    assert (machine.has_gpus, machine.driver_numbers) == (False, ())


@pytest.mark.parametrize(("text", "word"), [("v100:0", "from 1"), ("v100:x", "v100:4"), (",", "''"), ("q9:1", "'q9'")])
def test_a_declaration_that_means_nothing_is_refused_with_the_words_that_are_wrong(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match="--gpus") as raised:
        this_machine(model, text)
    assert word in str(raised.value)


def test_a_cluster_file_describes_this_machine_if_it_has_one_node() -> None:
    desk = parse_cluster(ONE_NODE, "desk.toml")
    assert not machine_of(desk, (silent,)).has_gpus
    assert machine_of(desk, (telling("Tesla T4", "Tesla T4"),)).has_gpus
    assert machine_of(desk, (silent,)).cluster is desk
    with pytest.raises(ConfigError, match="has 4 nodes; expected one"):
        machine_of(load_cluster("paper16"))


def test_a_control_group_bounds_cores_and_memory(tmp_path: Path) -> None:
    for folder in ("proc", "sys/fs/cgroup/cpu", "sys/fs/cgroup/memory"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(ConfigError, match="MemTotal"):
        memory_gb(tmp_path)
    (tmp_path / "proc/meminfo").write_text("MemFree: 1 kB\nMemTotal:       33554432 kB\n")
    free = cores(tmp_path)
    assert (free >= 1, memory_gb(tmp_path)) == (True, 32.0)
    (tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text(f"{16 << 30}\n")
    assert (cores(tmp_path), memory_gb(tmp_path)) == (0.5, 16.0)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{8 << 30}\n")
    assert memory_gb(tmp_path) == 8.0
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("25000 100000\n")
    assert cores(tmp_path) == 0.25
