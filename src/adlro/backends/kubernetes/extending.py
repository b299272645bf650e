"""The extender as a process of its own: a copy of the cluster, and the port that kube-scheduler asks."""

from collections.abc import Iterator
from contextlib import contextmanager

from adlro.backends.kubernetes.backend import FIRST_LIST_S, joined_of, pod_naming_of, products_of
from adlro.backends.kubernetes.binding import Binder
from adlro.backends.kubernetes.client import Api
from adlro.backends.kubernetes.credentials import door_of
from adlro.backends.kubernetes.extender import Extender, ExtenderServer
from adlro.backends.kubernetes.options import KubernetesOptions
from adlro.backends.kubernetes.pools import Dividing
from adlro.backends.kubernetes.reader import PodReader
from adlro.catalogue.speeds import for_every_family, speed_of
from adlro.core.errors import ConfigError


@contextmanager
def extending(options: KubernetesOptions, host: str, port: int, bind: bool = False) -> Iterator[str]:
    """An extender that answers until the end of the block; its address, HOST:PORT."""
    api, products = Api(door_of(options), options.timeout_s), products_of(options)
    reader = PodReader(api, pod_naming_of(options), Dividing(products, joined_of(options)))
    binder = Binder(api, options.binders) if bind else None
    extender = Extender(reader, products, for_every_family(speed_of), binder)
    try:
        server = ExtenderServer(extender.answer, host, port)
    except OSError as error:
        raise ConfigError(f"the extender cannot listen on {host}:{port}: {error.strerror}.") from None
    try:
        reader.start(FIRST_LIST_S)
        server.start()
        yield f"{server.address[0]}:{server.address[1]}"
    finally:
        server.close()
        reader.close()
        if binder is not None:
            binder.close()
        api.close()
