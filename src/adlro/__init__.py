"""ADLRO: learned scheduling for heterogeneous GPU clusters."""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

__version__ = "0.1.0"

REGISTRY: Final = "gymnasium.envs.registration"


def register_environments(registry: Any) -> None:
    """Tell Gymnasium by which name our environments are made; they are imported when one is."""
    registry.register(
        id="adlro/Cluster-v0",
        entry_point="adlro.learn.gym:ClusterEnv",
        vector_entry_point="adlro.learn.gym:ClusterVectorEnv",
    )


class WhenGymnasiumComes(MetaPathFinder):
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
