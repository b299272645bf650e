"""Every back end by name. A new one needs its folder, a line here, and a section in docs/backends.md."""

from collections.abc import Mapping
from typing import Any, Final

from adlro.backends.kind import Kind
from adlro.backends.kubernetes.kind import KUBERNETES
from adlro.backends.local.kind import LOCAL
from adlro.backends.shadow.kind import SHADOW
from adlro.backends.simulated.kind import SIMULATED
from adlro.backends.slurm.kind import SLURM

BACKENDS: Final[Mapping[str, Kind[Any]]] = {kind.name: kind for kind in (SIMULATED, LOCAL, SLURM, KUBERNETES, SHADOW)}
