"""`adlro-plan`: `plan` with numbers that a network corrects for each job (`rules/corrections.py`).

On clusters of one GPU model, on those that are larger than the clusters of the training, and where a restart costs more
than ten minutes, it is `plan`.

The weights that ship are constants of the compiled code. So this policy is one compiled function, which look-ahead can
play forward. `core/code_cache.py` counts the checkpoint as source.
"""

from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np

from adlro.core.calling import quick_call
from adlro.core.compiled import compiled, compiled_allocating
from adlro.core.errors import CheckpointError
from adlro.core.policy import Choose, Policy
from adlro.core.tables import Choice, View
from adlro.decide.checkpoint import Arrays, read_arrays
from adlro.decide.rules.corrections import INPUTS, OUTPUTS, Corrector, models_of
from adlro.decide.rules.plan import plan, plan_with

PLAN: Final = "plan"
"""The preset of such a network, in its provenance."""

LEARNT_GPUS: Final = 256
"""GPUs of the largest clusters on which the networks were trained, this one and the one that stops jobs. Beyond that,
`plan` alone is better."""


DEAR_S: Final = 600.0
"""If a restart costs more seconds than this, `plan` alone is better."""


def corrector_of(arrays: Arrays, where: str) -> Corrector:
    """The weights in these arrays of a checkpoint."""
    hidden = arrays["second"].shape[0] if "second" in arrays else 0
    for name, shape in (("first", (len(INPUTS), hidden)), ("second", (hidden, OUTPUTS)), ("slower", (1,))):
        if name not in arrays:
            raise CheckpointError(f"{where}: '{name}' is missing; expected a checkpoint of the preset '{PLAN}'.")
        if arrays[name].shape != shape:
            raise CheckpointError(f"{where}: '{name}' has the shape {arrays[name].shape}; expected {shape}.")
    first, second = (np.ascontiguousarray(arrays[name], np.float64) for name in ("first", "second"))
    return Corrector(first, second, float(arrays["slower"][0]))


def shipped_corrector() -> Corrector:
    """The weights that ship."""
    path = Path(str(resources.files("adlro.decide").joinpath("checkpoints", "adlro-plan.safetensors")))
    return corrector_of(read_arrays(path)[0], str(path))


_FIRST, _SECOND, _SLOWER = shipped_corrector()


@compiled
def is_learnt(view: View) -> bool:
    """Whether the corrections are good here."""
    return models_of(view) > 1 and len(view.gpus) <= LEARNT_GPUS and view.clock[0].restart <= DEAR_S


@compiled_allocating
def plan_where_learnt(view: View, corrector: Corrector) -> Choice:
    """`plan` with corrections where they are good; `plan` elsewhere."""
    return plan_with(view, corrector) if is_learnt(view) else plan(view)


@compiled_allocating
def corrected_plan(view: View) -> Choice:
    """The same with the weights that ship."""
    return plan_where_learnt(view, Corrector(_FIRST, _SECOND, _SLOWER))


def corrected_policy(corrector: Corrector, path: Path) -> Policy:
    """The policy of a user's own network that corrects `plan`, named after its file."""

    def make(view: View, seed: int) -> Choose:
        own = quick_call(plan_where_learnt, view, corrector)
        return lambda shown: own() if shown is view else plan_where_learnt(shown, corrector)

    summary = f"plan with numbers that the network of {path.name} corrects"
    return Policy(path.stem, summary, make=make, preemptive=True, heeds_marks=True, needs=("estimate",), weighs=True)


POLICIES: Final = (
    Policy(
        "adlro-plan",
        "plan with numbers that a network corrects for each job; plan itself on clusters of one GPU model",
        choose=corrected_plan,
        preemptive=True,
        heeds_marks=True,
        needs=("estimate",),
        weighs=True,
    ),
)
