"""A live Slurm's nodes and jobs, in the texts and the JSON of two versions."""

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.backends.slurm.parse import cluster_toml, node_records, read_nodes
from adlro.backends.slurm.parse_jobs import job_of, read_jobs
from adlro.catalogue.clusters import parse_cluster
from adlro.catalogue.gpus import find_gpu
from adlro.cli.app import run
from adlro.core.errors import TelemetryError
from adlro.core.records import GpuModel, Gpus
from adlro.ingest.host_lists import gpus_in
from adlro.ingest.telemetry.names import model_of

SCONTROL = """\
NodeName=volta0 Arch=x86_64 CoresPerSocket=16
   CPUAlloc=1 CPUEfctv=16 CPUTot=16 CPULoad=0.76
   AvailableFeatures=nvidia,volta
   ActiveFeatures=nvidia,volta
   Gres=gpu:v100:4(S:0-1)
   NodeAddr=127.0.0.1 NodeHostName=vm Version=22.05.8
   OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC x=1
   RealMemory=64000 AllocMem=1000 FreeMem=15003 Sockets=1 Boards=1
   State=MIXED+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu,debug
   BootTime=2026-11-15T06:01:25 SlurmdStartTime=2026-11-15T06:51:28
   CfgTRES=cpu=16,mem=62.50G,billing=16
   Reason=bad fan [root@2026-11-15T07:00:00]

NodeName=cpu0 Arch=x86_64 CoresPerSocket=8
   CPUAlloc=0 CPUTot=32 CPULoad=0.00
   AvailableFeatures=(null)
   Gres=(null)
   RealMemory=128000 AllocMem=0
   State=IDLE ThreadsPerCore=2
   Partitions=cpu
"""


def model(name: str) -> GpuModel | None:
    return model_of(name, find_gpu)


def number(value: float | None, generation: str) -> Any:
    """A number as the two generations write it."""
    if generation == "22.05":
        return value
    return {"set": value is not None, "infinite": False, "number": value or 0}


def nodes_json(generation: str, **changed: Any) -> str:
    """Nodes as `sinfo --json` of 22.05 and `scontrol show nodes --json` of 24.11 write them."""
    old = generation == "22.05"
    node = {
        "name": "radeon0",
        "cpus": 16,
        "real_memory": 64000,
        "gres": "gpu:mi50:4",
        "state": "idle" if old else ["IDLE", "DRAIN"],
        "features": "amd,mi50" if old else ["amd", "mi50"],
        "partitions": ["gpu"],
        **({"state_flags": ["DRAIN"]} if old else {}),
        **changed,
    }
    return json.dumps({"nodes": [node], "errors": []})


def jobs_json(generation: str) -> str:
    """Jobs as `squeue --json` of the two generations writes them."""
    old = generation == "22.05"
    job = {
        "job_id": 3,
        "user_name": "ada",
        "name": "train.sh",
        "job_state": "RUNNING" if old else ["RUNNING"],
        "partition": "gpu",
        "node_count": number(2, generation),
        "cpus": number(8, generation),
        "memory_per_cpu": number(1000, generation),
        "memory_per_node": number(None, generation),
        "tres_per_node": "gres:gpu:v100:2" if old else "gres/gpu:v100:2",
        "tres_per_job": "",
        "time_limit": number(60, generation),
        "submit_time": number(1_794_725_505, generation),
        "start_time": number(0, generation),
        "nodes": "volta[0-1]",
        "priority": number(4_294_901_758, generation),
    }
    return json.dumps({"jobs": [job], "errors": []})


def test_the_text_of_scontrol_becomes_nodes() -> None:
    volta, cpu = read_nodes(SCONTROL, "test")
    assert (volta.name, volta.cpus, volta.memory_mib) == ("volta0", 16.0, 64000.0)
    assert volta.gres == (("v100", 4),)
    assert (volta.state, volta.is_up) == (("MIXED", "DRAIN"), False)
    assert volta.partitions == ("gpu", "debug")
    assert (cpu.gres, cpu.features, cpu.is_up) == ((), (), True)


@pytest.mark.parametrize("generation", ["22.05", "24.11"])
def test_the_json_of_both_generations_becomes_the_same_nodes(generation: str) -> None:
    (node,) = read_nodes(nodes_json(generation), "test")
    assert (node.name, node.gres, node.cpus, node.memory_mib) == ("radeon0", (("mi50", 4),), 16.0, 64000.0)
    assert node.state == ("IDLE", "DRAIN")
    assert node.features == ("amd", "mi50")
    assert not node.is_up


def test_lines_of_sinfo_become_nodes_and_a_node_in_two_partitions_is_one() -> None:
    text = "volta0|16|64000|gpu:v100:4|mixed|nvidia,volta|gpu\nvolta0|16|64000|gpu:v100:4|mixed|nvidia|debug\n"
    text += "cpu0|32+|128000|(null)|down*|(null)|cpu\n"
    volta, cpu = read_nodes(text, "test")
    assert (volta.gres, volta.is_up) == ((("v100", 4),), True)
    assert (cpu.cpus, cpu.gres, cpu.is_up) == (32.0, (), False)


def test_nodes_become_our_records_and_a_cluster_file_that_we_read() -> None:
    nodes, problems = node_records(read_nodes(SCONTROL, "test"), model)
    assert problems == []
    assert nodes[0].gpus == (Gpus("v100-sxm2-16gb", 4),)
    assert nodes[0].memory_gb == pytest.approx(64000 * 1.048576 / 1000)
    cluster = parse_cluster(cluster_toml(nodes), "test.toml")
    assert [(node.name, node.gpus) for node in cluster.nodes] == [(node.name, node.gpus) for node in nodes]


def test_a_type_for_each_device_is_one_model_and_a_feature_helps_where_the_type_does_not() -> None:
    gres = "gpu:v100_0:1,gpu:v100_1:1"
    (typed,), _ = node_records(read_nodes(nodes_json("24.11", gres=gres, features=[]), "test"), model)
    assert typed.gpus == (Gpus("v100-sxm2-16gb", 2),)
    (untyped,), _ = node_records(read_nodes(nodes_json("24.11", gres="gpu:4"), "test"), model)
    assert untyped.gpus == (Gpus("mi50", 4),)


def test_a_type_that_the_catalogue_does_not_have_is_told() -> None:
    nodes, problems = node_records(read_nodes(nodes_json("22.05", gres="gpu:voodoo:2", features=""), "test"), model)
    assert nodes[0].gpus == ()
    assert len(problems) == 1
    assert "'voodoo' is not in the catalogue" in problems[0]


def test_a_controller_that_is_down_is_an_error_and_not_an_empty_cluster() -> None:
    text = json.dumps({"nodes": [], "errors": [{"error": "Unable to contact slurm controller", "error_number": 1}]})
    with pytest.raises(TelemetryError, match="Unable to contact slurm controller"):
        read_nodes(text, "test")
    with pytest.raises(TelemetryError, match="Slurm reports an error"):
        read_jobs(text.replace("nodes", "jobs"), "test")


@pytest.mark.parametrize("generation", ["22.05", "24.11"])
def test_the_json_of_both_generations_becomes_the_same_jobs(generation: str) -> None:
    (job,) = read_jobs(jobs_json(generation), "test")
    assert (job.id, job.user, job.state, job.nodes) == ("3", "ada", "RUNNING", 2)
    assert job.gres == (("v100", 4),)
    assert (job.memory_mib, job.limit_s, job.submit_unix, job.start_unix) == (8000.0, 3600.0, 1_794_725_505.0, None)
    ours = job_of(job, model, "learning")
    assert (ours.gpus, set(ours.models), ours.limit_s, ours.cpus) == (4, {"v100-sxm2-16gb"}, 3600.0, 8.0)
    assert math.isnan(ours.work)
    assert 0.9 < ours.priority <= 1.0


def test_lines_of_squeue_become_jobs_even_if_a_name_has_bars_in_it() -> None:
    line = "7|ada|a|b|PENDING|gpu|2|8|4G|gres/gpu:2|1-02:00:00|2026-11-15T06:51:29|N/A||4294901757\n"
    (job,) = read_jobs(line, "test")
    assert (job.name, job.state, job.gres, job.memory_mib) == ("a|b", "PENDING", (("", 4),), 8192.0)
    assert (job.limit_s, job.start_unix) == (93_600.0, None)
    assert read_jobs(line.replace("1-02:00:00", "UNLIMITED"), "test")[0].limit_s is None


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("gpu:v100:4", (("v100", 4),)),
        ("gpu:2", (("", 2),)),
        ("gres:gpu:2", (("", 2),)),
        ("gres/gpu:v100:2", (("v100", 2),)),
        ("gres/gpu=2", (("", 2),)),
        ("gpu:a100:2(IDX:0-1),gpu:t4:1(S:0)", (("a100", 2), ("t4", 1))),
        ("craynetwork:4,gpu:tesla:1", (("tesla", 1),)),
        ("(null)", ()),
        ("", ()),
    ],
)
def test_gpus_are_found_in_lists_of_generic_resources(gres: str, found: tuple[tuple[str, int], ...]) -> None:
    assert gpus_in(gres) == found


@pytest.mark.parametrize("text", ["", "hello", "{", '{"nodes": 3}', '{"nodes": [3]}', '{"sinfo": []}', "NodeName=x"])
def test_what_is_no_output_of_slurm_is_one_clear_line(text: str) -> None:
    with pytest.raises(TelemetryError, match="test"):
        read_nodes(text, "test")


@given(st.text(max_size=80))
def test_no_text_makes_it_crash(text: str) -> None:
    for read, start in ((read_nodes, "NodeName=a "), (read_nodes, ""), (read_jobs, "1|")):
        with suppress(TelemetryError):
            read(start + text, "test")


def test_the_command_prints_a_cluster_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nodes.txt"
    path.write_text(SCONTROL)
    assert run(["ingest", "--slurm", str(path)]) == 0
    assert parse_cluster(capsys.readouterr().out, "test.toml").gpu_count == 4
    assert run(["ingest", "--slurm", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slurm_nodes"][0]["gres"] == [["v100", 4]]


SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "slurm" / "samples"


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the outputs of real Slurms are not beside the repository")
def test_outputs_of_real_slurms_of_both_generations_are_read() -> None:
    for nodes_file, jobs_file in (
        ("22.05/sinfo.json", "22.05/squeue.json"),
        ("24.11/scontrol-show-nodes.json", "24.11/squeue.json"),
    ):
        nodes = {node.name: node for node in read_nodes((SAMPLES / nodes_file).read_text(), nodes_file)}
        assert nodes["volta0"].gres == (("v100", 4),)
        assert nodes["volta0"].memory_mib == 64000.0
        jobs = read_jobs((SAMPLES / jobs_file).read_text(), jobs_file)
        assert jobs[0].gres == (("", 2),)
        assert (jobs[0].state, jobs[0].limit_s) == ("PENDING", None)
    with pytest.raises(TelemetryError, match="scontrol show nodes --json"):
        read_nodes((SAMPLES / "24.11/sinfo.json").read_text(), "sinfo.json")
