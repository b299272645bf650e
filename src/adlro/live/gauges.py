"""What telemetry reads of the GPUs of a live cluster beside their clocks: temperature, and bandwidth in use."""

from adlro.core.plan import Plan, gpu_numbers
from adlro.core.tables import FOREVER, View
from adlro.live.clocks import GpuFigures
from adlro.normalise.telemetry import THROTTLE_C


def set_gauges(view: View, plan: Plan, figures: GpuFigures) -> None:
    """Write into the view how far each GPU is below its limit, and how much of its memory bandwidth is left.

    A GPU that says nothing of one of them keeps what the view has: unknown, and all of it.
    """
    if not figures:
        return
    for s, site in enumerate(plan.sites):
        if not site.gpus:
            continue
        node = plan.cluster.nodes[int(site.node)].name
        vendor = plan.cluster.models[plan.models[int(site.model)]].vendor.lower()
        limit_c = THROTTLE_C.get(vendor, THROTTLE_C["nvidia"])
        for g, number in enumerate(gpu_numbers(plan, s, (1 << int(site.gpus)) - 1)):
            levels, row = figures.get(f"{node}/{number}", {}), view.gpus[int(site.first_gpu) + g]
            temperature, used = levels.get("temperature"), levels.get("bandwidth")
            row.headroom = FOREVER if temperature is None else limit_c * (1.0 - temperature)
            row.bandwidth = 1.0 if used is None else 1.0 - min(max(used, 0.0), 1.0)
    view.clock[0].metered = 1
