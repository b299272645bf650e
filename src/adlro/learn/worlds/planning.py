"""Runs of `plan` with corrections, played to their end in compiled code: what the corrections are trained on."""

from adlro.core.compiled import compiled_allocating
from adlro.core.engine import (
    DECIDE,
    OVER,
    Truth,
    advance_with,
    apply,
    is_asked,
    log_is_full,
    undisturbed,
    unheated,
)
from adlro.core.tables import View
from adlro.decide.rules.corrections import Corrector
from adlro.decide.rules.plan import plan_with


@compiled_allocating
def play_plan(view: View, truth: Truth, corrector: Corrector) -> bool:
    """Play a run to its end; False if the log is full before."""
    while True:
        status = advance_with(view, truth, undisturbed, unheated)
        if status != DECIDE:
            return status == OVER
        while is_asked(truth):
            if log_is_full(view, truth):
                return False
            apply(view, truth, plan_with(view, corrector))
