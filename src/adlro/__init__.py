"""ADLRO: learned scheduling for heterogeneous GPU clusters.

`adlro.compare`, `adlro.simulate` and `adlro.train` do what the commands do; docs/python.md describes every name. They
are imported when they are first used, so that `import adlro` stays fast.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

__version__ = "0.2.0"

if TYPE_CHECKING:
    from adlro.core.compiled import compiled
    from adlro.core.errors import AdlroError
    from adlro.core.policy import NEVER, Policy, starting, stopping, waiting
    from adlro.core.records import Cluster, Disturbance
    from adlro.core.tables import Choice, View
    from adlro.decide.choosing import Pair, legal_pairs
    from adlro.experiment.compare import Comparison
    from adlro.experiment.policies import policy
    from adlro.experiment.public import cluster, compare, nodes, simulate, trace
    from adlro.experiment.simulation import Simulation
    from adlro.experiment.sweep import Sweep, sweep
    from adlro.experiment.training import Training, train

CALLS: Final = {
    "cluster": "adlro.experiment.public",
    "compare": "adlro.experiment.public",
    "nodes": "adlro.experiment.public",
    "policy": "adlro.experiment.policies",
    "simulate": "adlro.experiment.public",
    "sweep": "adlro.experiment.sweep",
    "trace": "adlro.experiment.public",
    "train": "adlro.experiment.training",
}
"""The functions that do something, and where they are."""

WORDS: Final = {
    "AdlroError": "adlro.core.errors",
    "Choice": "adlro.core.tables",
    "Cluster": "adlro.core.records",
    "Comparison": "adlro.experiment.compare",
    "Disturbance": "adlro.core.records",
    "NEVER": "adlro.core.policy",
    "Pair": "adlro.decide.choosing",
    "Policy": "adlro.core.policy",
    "Simulation": "adlro.experiment.simulation",
    "Sweep": "adlro.experiment.sweep",
    "Training": "adlro.experiment.training",
    "View": "adlro.core.tables",
    "compiled": "adlro.core.compiled",
    "legal_pairs": "adlro.decide.choosing",
    "starting": "adlro.core.policy",
    "stopping": "adlro.core.policy",
    "waiting": "adlro.core.policy",
}
"""The words in which policies are written and results are told, and where they are."""

__all__ = [
    "NEVER",
    "AdlroError",
    "Choice",
    "Cluster",
    "Comparison",
    "Disturbance",
    "Pair",
    "Policy",
    "Simulation",
    "Sweep",
    "Training",
    "View",
    "__version__",
    "cluster",
    "compare",
    "compiled",
    "legal_pairs",
    "nodes",
    "policy",
    "simulate",
    "starting",
    "stopping",
    "sweep",
    "trace",
    "train",
    "waiting",
]


if not TYPE_CHECKING:  # type checkers see the imports above; this would let them pass any name

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name in CALLS:
            from adlro.experiment.python_words import in_python_words

            found = in_python_words(getattr(import_module(CALLS[name]), name))
        elif name in WORDS:
            found = getattr(import_module(WORDS[name]), name)
        else:
            raise AttributeError(f"module 'adlro' has no attribute {name!r}")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted({*globals(), *__all__})


REGISTRY: Final = "gymnasium.envs.registration"


def register_environments(registry: Any) -> None:
    """Tell Gymnasium by which name our environments are made; they are imported when one is."""
    registry.register(
        id="adlro/Cluster-v0",
        entry_point="adlro.learn.gym:ClusterEnv",
        vector_entry_point="adlro.learn.gym:ClusterVectorEnv",
    )
    registry.register(id="adlro/Paper-v0", entry_point="adlro.learn.paper_gym:PaperEnv")


class WhenGymnasiumComes:
    """Registers the environments once Gymnasium is imported: to import it here would slow down every start."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Step aside for the others to find the module, and register as soon as it has been loaded."""
        if name != REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                register_environments(module)

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


if REGISTRY in sys.modules:
    register_environments(sys.modules[REGISTRY])
else:
    sys.meta_path.insert(0, WhenGymnasiumComes())
