"""What a site may set about its Kubernetes: the table [kubernetes] of the daemon's config."""

from typing import Literal

from pydantic import Field

from adlro.core.toml import Schema


class PodFamilyTable(Schema):
    """[[kubernetes.families]]: pods that fit a pattern are of a family."""

    field: Literal["name", "owner", "namespace", "image"] = "owner"
    pattern: str = Field(min_length=1)
    family: str = Field(min_length=1)


class KubernetesOptions(Schema):
    """[kubernetes]: a Kubernetes cluster (docs/run-on-kubernetes.md)."""

    server: str = Field(
        default="",
        description='Address of the API server; "": the one of the pod\'s service account, else of the kubeconfig.',
    )
    kubeconfig: str = Field(default="", description='A kubeconfig file; "": $KUBECONFIG, else ~/.kube/config.')
    context: str = Field(default="", description='Context of the kubeconfig; "": its current one.')
    token_file: str = Field(default="", description="A file with the token for `server`, read again every minute.")
    ca_file: str = Field(default="", description="The certificate authority of `server`, a PEM file.")
    scheduler_name: str = Field(default="adlro", description="Pods with this schedulerName are placed by ADLRO.")
    families: list[PodFamilyTable] = Field(
        default=[], description="Tables {field, pattern, family}: the first pattern that matches sets a pod's family."
    )
    default_family: str = Field(default="learning", description="Family of a pod that nothing else gives one.")
    user_label: str = Field(
        default="", description='Label or annotation that names the user of a pod; "": the namespace is the user.'
    )
    products: dict[str, str] = Field(
        default={}, description='The GPU model of a product label that the catalogue does not know, as in A40 = "a40".'
    )
    cluster: str = Field(default="", description="A cluster file that describes links between GPUs and the network.")
    gang_timeout_s: float = Field(
        default=300.0, gt=0, description="A gang that is bound only in part for this long is evicted and waits again."
    )
    lease: str = Field(
        default="", description='NAMESPACE/NAME of the Lease by which replicas choose a leader; "": the store\'s lock.'
    )
    binders: int = Field(default=8, ge=1, le=64, description="Connections that bind pods at the same time.")
    timeout_s: float = Field(default=15.0, gt=0, le=600, description="Time limit of one request, in seconds.")
