"""A Kubernetes cluster in the config."""

from typing import Final

from adlro.backends.kind import Kind, Opened, Site
from adlro.backends.kubernetes.options import KubernetesOptions


def open_kubernetes(options: KubernetesOptions, site: Site) -> Opened:
    """The cluster that the options name. Nothing is asked of it yet."""
    from adlro.backends.kubernetes.backend import kubernetes_backend

    return Opened(kubernetes_backend(options))


KUBERNETES: Final = Kind("kubernetes", "a Kubernetes cluster", KubernetesOptions, open_kubernetes)
