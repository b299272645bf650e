"""A Kubernetes cluster in the config."""

from typing import Final

from adlro.backends.kind import Kind, Opened, Site
from adlro.backends.kubernetes.options import KubernetesOptions
from adlro.core.ports import Leadership


def open_kubernetes(options: KubernetesOptions, site: Site) -> Opened:
    """The cluster that the options name. Nothing is asked of it yet."""
    from adlro.backends.kubernetes.backend import kubernetes_backend

    return Opened(kubernetes_backend(options))


def lease_of(options: KubernetesOptions) -> Leadership | None:
    """The Lease that the options name."""
    if not options.lease:
        return None
    from adlro.backends.kubernetes.client import Api
    from adlro.backends.kubernetes.credentials import door_of
    from adlro.backends.kubernetes.leading import LabelledLead, own_pod
    from adlro.backends.kubernetes.lease import LeaseLock

    namespace, _, name = options.lease.rpartition("/")
    server = door_of(options)
    lock = LeaseLock(Api(server, options.timeout_s), namespace or server.namespace, name)
    pod = own_pod()
    return LabelledLead(lock, Api(server, options.timeout_s), pod) if pod else lock


KUBERNETES: Final = Kind(
    "kubernetes", "a Kubernetes cluster", KubernetesOptions, open_kubernetes, leadership=lease_of
)  # fmt: skip
