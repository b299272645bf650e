"""From labels of nodes to GPU models: whatever the labels say, there is a model, and a note if it is a guess."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.backends.kubernetes.backend import products_of
from adlro.backends.kubernetes.nodes import MEMORY_LABELS, PRODUCT_LABELS, UNKNOWN_GPU, NodeFacts
from adlro.backends.kubernetes.options import KubernetesOptions

PRODUCTS = products_of(KubernetesOptions())
NVIDIA = "nvidia.com/gpu"


def found(labels: dict[str, str], resource: str = NVIDIA) -> tuple[str, str]:
    """The model of a node with these labels, and the note."""
    model, note = PRODUCTS.of(NodeFacts("n", labels, (), {resource: 4}))
    return model.name, note


@pytest.mark.parametrize(
    ("product", "memory", "model"),
    [
        ("NVIDIA-A100-SXM4-80GB", "81920", "a100-sxm4-80gb"),
        ("NVIDIA-A100-SXM4-80GB-SHARED", "81920", "a100-sxm4-80gb"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "9856", "a100-sxm4-80gb"),
        ("NVIDIA-H100-80GB-HBM3", "81559", "h100-sxm5-80gb"),
        ("NVIDIA-L4", "23034", "l4"),
        ("Tesla-T4", "", "t4"),
    ],
)
def test_products_of_nvidias_feature_discovery_have_their_model(product: str, memory: str, model: str) -> None:
    assert found({"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": memory}) == (model, "")


@pytest.mark.parametrize(
    ("label", "product", "memory", "model"),
    [
        ("cloud.google.com/gke-accelerator", "nvidia-tesla-t4", "", "t4"),
        ("cloud.google.com/gke-accelerator", "nvidia-a100-80gb", "", "a100-sxm4-80gb"),
        ("karpenter.k8s.aws/instance-gpu-name", "a100", "40960", "a100-sxm4-40gb"),
        ("karpenter.k8s.aws/instance-gpu-name", "a100", "81920", "a100-sxm4-80gb"),
        ("eks.amazonaws.com/instance-gpu-name", "v100", "32768", "v100-sxm2-32gb"),
    ],
)
def test_labels_that_managed_clusters_set_by_themselves_name_a_model(
    label: str, product: str, memory: str, model: str
) -> None:
    where = {"karpenter": "karpenter.k8s.aws/instance-gpu-memory", "eks": "eks.amazonaws.com/instance-gpu-memory"}
    labels = {label: product} | ({where[label.partition(".")[0]]: memory} if memory else {})
    assert found(labels) == (model, "")


def test_the_label_of_feature_discovery_counts_before_that_of_the_cloud() -> None:
    labels = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4", "nvidia.com/gpu.product": "NVIDIA-L4"}
    assert found(labels)[0] == "l4"


@given(
    labels=st.dictionaries(
        st.sampled_from([name for names in PRODUCT_LABELS.values() for name in names] + list(MEMORY_LABELS)),
        st.text(max_size=63),
    ),
    resource=st.sampled_from([*PRODUCT_LABELS]),
)
def test_no_label_makes_it_crash_and_what_is_unknown_has_a_note(labels: dict[str, str], resource: str) -> None:
    model, note = found(labels, resource)
    assert model
    assert (model == UNKNOWN_GPU) <= ("[kubernetes.products]" in note)
