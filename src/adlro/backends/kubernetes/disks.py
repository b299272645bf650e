"""Disks: what a node has to attach for a pod, how many it can attach, and which disks two pods cannot share on a node.

A volume counts against the limit of its driver, and one of a plugin that is built into Kubernetes against the limit of
that plugin too. The rules are those of kube-scheduler's plugins NodeVolumeLimits and VolumeRestrictions.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from adlro.backends.kubernetes.client import Raw

_LIMIT: Final = "attachable-volumes-"
CSI_LIMIT: Final = _LIMIT + "csi-"
"""How the resources of a node begin that say how many volumes it can attach: of a plugin, of a driver."""

NO_DISK: Final = "node(s) had no available disk"
TOO_MANY_VOLUMES: Final = "node(s) exceed max volume count"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin that is built into Kubernetes, and the driver that takes its volumes over in newer versions."""

    id: str  # the field that names the disk
    limit: str
    driver: str
    most: int  # what kube-scheduler assumes of a node that names no limit


PLUGINS: Final[Mapping[str, Plugin]] = {
    "awsElasticBlockStore": Plugin("volumeID", _LIMIT + "aws-ebs", "ebs.csi.aws.com", 39),
    "gcePersistentDisk": Plugin("pdName", _LIMIT + "gce-pd", "pd.csi.storage.gke.io", 16),
    "azureDisk": Plugin("diskName", _LIMIT + "azure-disk", "disk.csi.azure.com", 16),
    "cinder": Plugin("volumeID", _LIMIT + "cinder", "cinder.csi.openstack.org", 256),
}
"""By the field of a pod or a volume that names the disk."""

_SHORT: Final = frozenset(each.driver for each in PLUGINS.values())
"""Drivers whose ids may be paths: their last word is the disk as the built-in plugin names it."""

_BY_LIMIT: Final = {each.limit: each for each in PLUGINS.values()}


@dataclass(frozen=True, slots=True)
class Attachment:
    """A volume that a node has to attach. Pods that share one need it once."""

    driver: str
    id: str
    limits: tuple[str, ...]
    """What it counts against."""


@dataclass(frozen=True, slots=True)
class SoleDisk:
    """A disk that a pod names itself: on one node pods share it only if all of them merely read it."""

    kind: str
    ids: frozenset[str]  # two are the same disk if they have one in common
    is_read_only: bool = False

    def clashes(self, other: "SoleDisk") -> bool:
        """Whether two pods with these disks cannot stand on one node."""
        is_same = self.kind == other.kind and not self.ids.isdisjoint(other.ids)
        return is_same and not (self.is_read_only and other.is_read_only)


def attachment_of(source: Mapping[str, Any]) -> Attachment | None:
    """What a node attaches for a volume, or for a volume of a pod; None if nothing that is limited."""
    for kind, plugin in PLUGINS.items():
        if (named := source.get(kind)) is not None:
            id = str(named.get(plugin.id, "")).rpartition("/")[2]
            return Attachment(plugin.driver, id, (plugin.limit, CSI_LIMIT + plugin.driver))
    if (csi := source.get("csi")) is None or "volumeHandle" not in csi:  # one without lives and dies with its pod
        return None
    driver, id = str(csi.get("driver", "")), str(csi["volumeHandle"])
    return Attachment(driver, id.rpartition("/")[2] if driver in _SHORT else id, (CSI_LIMIT + driver,))


def by_limit(attached: Iterable[Attachment]) -> Counter[str]:
    """How many different volumes count against each limit."""
    return Counter(
        limit for limit, _, _ in {(limit, each.driver, each.id) for each in attached for limit in each.limits}
    )


def sole_disks(volumes: Iterable[Mapping[str, Any]]) -> tuple[SoleDisk, ...]:
    """The disks of a pod's volumes that it may not share. Those behind claims are not meant: their access modes are."""
    found = []
    for each in volumes:
        if named := each.get("gcePersistentDisk"):
            found.append(SoleDisk("gce-pd", frozenset([str(named.get("pdName"))]), bool(named.get("readOnly"))))
        elif named := each.get("awsElasticBlockStore"):  # not even to read
            found.append(SoleDisk("aws-ebs", frozenset([str(named.get("volumeID")).rpartition("/")[2]])))
        elif named := each.get("iscsi"):
            found.append(SoleDisk("iscsi", frozenset([str(named.get("iqn"))]), bool(named.get("readOnly"))))
        elif named := each.get("rbd"):
            image = f"{named.get('pool') or 'rbd'}/{named.get('image')}"
            ids = frozenset(f"{monitor}/{image}" for monitor in named.get("monitors") or ())
            found.append(SoleDisk("rbd", ids, bool(named.get("readOnly"))))
    return tuple(found)


def driver_limits(raw: Raw) -> dict[str, int | None]:
    """By limit, how many volumes a CSINode says that its node can attach; None: the driver is there without a limit."""
    drivers = (raw.get("spec") or {}).get("drivers") or ()
    return {CSI_LIMIT + each.get("name", ""): (each.get("allocatable") or {}).get("count") for each in drivers}


def most_attached(limit: str, allocatable: Mapping[str, int], drivers: Mapping[str, int | None]) -> int | None:
    """How many volumes a node can attach that count against a limit; None: there is none."""
    said = drivers.get(limit)
    if said is None:
        said = allocatable.get(limit)
    plugin = _BY_LIMIT.get(limit)
    if said is None and plugin is not None and CSI_LIMIT + plugin.driver not in drivers:
        return plugin.most
    return said
