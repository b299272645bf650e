"""Cluster files: those that ship, and what is refused in a user's own."""

import csv
import lzma
from collections import Counter
from pathlib import Path

import pytest

from adlro.catalogue.clusters import cluster_names, load_cluster, parse_cluster
from adlro.core.errors import CatalogueError, ConfigError
from adlro.core.records import Cluster, Gpus, Link

OPENB = Path(__file__).parents[2].parent / "shared/traces/alibaba_gpu_v2023/openb_node_list_all_node.csv.xz"

HEAD = 'name = "mine"\n[network]\nkind = "ethernet-25g"\ngb_s = 6.25\n'
OWN_GPU = '[gpus.x1]\ntitle = "X1"\nvendor = "X"\nmemory_gb = 8\nmemory_bandwidth_gb_s = 100\ntdp_w = 50\n'


def nodes(text: str) -> str:
    return f'{HEAD}[[nodes]]\nname = "n"\ncpus = 8\nmemory_gb = 64\n{text}\n'


AFFINITY = nodes('gpu = "t4"\ngpus = 1') + "[affinity]\n"


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text, "mine.toml")
    return str(caught.value)


def gpus_by_model(cluster: Cluster) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for node in cluster.nodes:
        for gpus in node.gpus:
            counts[gpus.model] += gpus.count
    return dict(counts)


@pytest.mark.parametrize("name", cluster_names())
def test_a_shipped_cluster_loads_under_its_own_name_and_says_what_it_is(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.summary
    assert set(cluster.models) == set(gpus_by_model(cluster))


def test_paper16_has_eight_volta_four_turing_and_four_radeon_in_this_order() -> None:
    cluster = load_cluster("paper16")
    assert [(node.name, node.gpus) for node in cluster.nodes] == [
        ("volta0", (Gpus("v100-sxm2-16gb", 4),)),
        ("volta1", (Gpus("v100-sxm2-16gb", 4),)),
        ("turing", (Gpus("t4", 4),)),
        ("radeon", (Gpus("mi50", 4),)),
    ]
    assert [node.link for node in cluster.nodes[1:]] == [Link("nvlink", 300), Link("pcie", 32), Link("xgmi", 200)]


def test_gavel108_has_36_of_each() -> None:
    assert gpus_by_model(load_cluster("gavel108")) == {"v100-sxm2-16gb": 36, "p100-pcie-16gb": 36, "k80": 36}


def test_sia64_has_64_gpus_of_three_models() -> None:
    assert gpus_by_model(load_cluster("sia64")) == {"t4": 24, "rtx-2080-ti": 24, "a100-sxm4-40gb": 16}


def test_openb_has_1523_nodes_and_6212_gpus() -> None:
    cluster = load_cluster("openb")
    assert (len(cluster.nodes), cluster.gpu_count) == (1523, 6212)
    assert sum(not node.gpus for node in cluster.nodes) == 310
    assert "undisclosed" in cluster.models["g2"].title


@pytest.mark.skipif(not OPENB.exists(), reason="the node list is not beside this repository")
def test_openb_has_the_nodes_of_the_published_list() -> None:
    with lzma.open(OPENB, "rt") as file:
        listed = Counter(
            (float(row["cpu_milli"]) / 1000, float(row["memory_mib"]) / 1024, int(row["gpu"]))
            for row in csv.DictReader(file)
        )
    shipped = Counter(
        (node.cpus, node.memory_gb, sum(gpus.count for gpus in node.gpus)) for node in load_cluster("openb").nodes
    )
    assert shipped == listed


def test_a_cluster_of_ones_own_is_read_from_a_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(nodes('gpu = "T4"\ngpus = 2'))
    assert load_cluster(str(path)).gpu_count == 2


def test_several_nodes_are_numbered_and_a_single_one_is_not() -> None:
    assert [node.name for node in parse_cluster(nodes("count = 3"), "x").nodes] == ["n0", "n1", "n2"]
    assert [node.name for node in parse_cluster(nodes(""), "x").nodes] == ["n"]


def test_a_node_may_hold_several_models_and_the_slower_link_counts() -> None:
    text = nodes('gpus = [{ model = "t4", count = 2 }, { model = "a10", count = 1 }]')
    (node,) = parse_cluster(text, "x").nodes
    assert node.gpus == (Gpus("t4", 2), Gpus("a10", 1))
    assert node.link == Link("pcie", 32)


def test_two_entries_of_one_model_on_a_node_are_one_site() -> None:
    (node,) = parse_cluster(
        nodes('gpus = [{ model = "v100", count = 2 }, { model = "V100M16", count = 1 }]'), "x"
    ).nodes
    assert node.gpus == (Gpus("v100-sxm2-16gb", 3),)


def test_a_node_may_have_no_gpus() -> None:
    assert parse_cluster(nodes("gpus = 0"), "x").nodes[0].gpus == ()


def test_a_gpu_of_ones_own_is_described_in_the_file() -> None:
    cluster = parse_cluster(nodes('gpu = "x1"\ngpus = 1') + OWN_GPU + "fp32_tflops = 2\n", "x")
    assert cluster.models["x1"].fp32_tflops == 2
    assert cluster.nodes[0].link == Link("pcie", 32)


def test_a_link_bandwidth_that_is_given_counts() -> None:
    cluster = parse_cluster(nodes('gpu = "t4"\ngpus = 1\nlink = "nvlink"\nlink_gb_s = 50'), "x")
    assert cluster.nodes[0].link == Link("nvlink", 50)


def test_a_map_from_families_to_models_may_use_any_of_their_names() -> None:
    text = nodes('gpus = [{ model = "t4", count = 1 }, { model = "v100", count = 1 }, { model = "x1", count = 1 }]')
    text += OWN_GPU + 'fp32_tflops = 2\n[affinity]\nData = ["X1", "T4"]\n"gpt_pmp" = ["V100", "v100-sxm2-16gb"]\n'
    assert parse_cluster(text, "x").affinity == {"data": ("x1", "t4"), "sia/gpt-pmp": ("v100-sxm2-16gb",)}


def test_a_cluster_without_a_map_has_none() -> None:
    assert parse_cluster(nodes('gpu = "t4"\ngpus = 1'), "x").affinity == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (nodes('gpu = "t4"\ngpus = 65'), "'nodes[0].gpus': 65 GPUs; expected a whole number from 1 to 64"),
        (nodes('gpu = "t4"\ngpus = 0'), "'nodes[0].gpus': 0 GPUs; expected a whole number from 1 to 64"),
        (nodes("gpus = 4"), "'nodes[0].gpus': 4 GPUs without a model; add gpu"),
        (nodes('gpu = "t4"'), "'gpu' needs gpus = N, a number"),
        (nodes('gpu = "t4"\ngpus = [{ model = "a10", count = 1 }]'), "'gpu' needs gpus = N, a number"),
        (
            nodes('gpus = [{ model = "v100", count = 40 }, { model = "V100M16", count = 40 }]'),
            "has 80 GPUs of the model",
        ),
        (nodes('gpu = "mi500"\ngpus = 1'), "there is no GPU model 'mi500' in the catalogue. Did you mean 'mi50'?"),
        (nodes('gpus = [{ model = "t4", cuont = 1 }]'), "Did you mean 'count'?"),
        (
            nodes('gpu = "t4"\ngpus = 2\nlink = "nvlink"'),
            "the datasheet of T4 has no link but PCIe; write link",
        ),
        (nodes('gpu = "mi50"\ngpus = 2\nlink = "nvlink"'), "has a link of type xGMI bridge; write link"),
        (nodes('gpu = "mi300a"\ngpus = 2\nlink = "xgmi"'), "a link of type xGMI of unknown bandwidth; write link"),
        (nodes('link = "nvlnk"'), "expected 'nvlink' or 'xgmi' or 'pcie'. Did you mean 'nvlink'?"),
        (
            nodes("cpus = 0").replace("cpus = 8\n", ""),
            "'nodes[0].cpus' is 0; expected a number above 0 and up to 100000.",
        ),
        (nodes("count = 2") + '[[nodes]]\nname = "n1"\ncpus = 1\nmemory_gb = 1', "2 nodes are called 'n1'"),
        (nodes('gpu = "x1"\ngpus = 1') + OWN_GPU, "'gpus.x1.fp32_tflops' is missing"),
        (
            nodes("") + OWN_GPU.replace("x1", "t4") + "fp32_tflops = 1",
            "the name 't4' of 'gpus.t4' belongs to the model 't4'",
        ),
        (nodes("").replace("gb_s = 6.25", "gb_s = -1"), "'network.gb_s' is -1; expected a number above 0."),
        (AFFINITY + 'data = ["a10"]', "'affinity.data' names 'a10', which no node has; expected some of t4."),
        (AFFINITY + "data = []", "'affinity.data' is empty; expected some of t4."),
        (
            AFFINITY + 'data = ["t44"]',
            "'affinity.data': there is no GPU model 't44' in the catalogue. Did you mean 't4'?",
        ),
        (AFFINITY + 'date = ["t4"]', "'affinity.date': there is no family 'date'. Did you mean 'data'?"),
        (AFFINITY + 'data = "t4"', "'affinity.data' is 't4'; expected a valid list."),
        (
            AFFINITY + 'data = ["t4"]\nDATA = ["t4"]',
            "'affinity.DATA' is the family 'data', which is already in the table",
        ),
        ('name = "x"\nnodes = []\n[network]\nkind = "x"\ngb_s = 1', "'nodes' is a list; expected at least 1 in it."),
    ],
)
def test_an_impossible_cluster_is_refused_with_what_to_write(text: str, expected: str) -> None:
    found = refusal(text)
    assert found.startswith("mine.toml: ")
    assert expected in found
    assert "\n" not in found


def test_the_example_in_the_documentation_is_right() -> None:
    text = (Path(__file__).parents[2] / "docs/catalogue.md").read_text(encoding="utf-8")
    cluster = parse_cluster(text.split("```toml\n")[1].split("```")[0], "catalogue.md")
    assert [node.name for node in cluster.nodes] == ["volta0", "volta1", "mixed", "login"]
    assert cluster.gpu_count == 11


def test_an_unknown_name_gets_the_nearest_and_the_list() -> None:
    with pytest.raises(
        CatalogueError, match=r"no cluster 'paper61'\. Did you mean 'paper16'\? Clusters that ship: gavel108,"
    ):
        load_cluster("paper61")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"cannot read the cluster file '.*none\.toml': No such file"):
        load_cluster(str(tmp_path / "none.toml"))
