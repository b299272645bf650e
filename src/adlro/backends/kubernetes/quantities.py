"""Kubernetes' quantities ("500m", "4Gi") as whole numbers, and what a pod asks for in all."""

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

CPU: Final = "cpu"
RAM: Final = "memory"
PODS: Final = "pods"

ResourceAmounts = Mapping[str, int]
"""By resource: CPU in thousandths of a core, memory in bytes, all else in its own unit."""

_UNITS: Final = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15),
    "E": Decimal(10**18), "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip


class QuantityError(ValueError):
    """A text that is not a quantity."""


@lru_cache(maxsize=4096)
def amount(text: str, resource: str = "") -> int:
    """A quantity in the unit of `ResourceAmounts`, rounded up. Raises QuantityError."""
    number = text.strip()
    unit = number.lstrip("+-0123456789.")
    if unit[:1] in ("e", "E") and unit[1:].lstrip("+-").isdigit():
        unit = ""
    digits = number[: len(number) - len(unit)] if unit else number
    try:
        value = Decimal(digits) * _UNITS[unit] * (1000 if resource == CPU else 1)
        return int(value.to_integral_value(ROUND_CEILING))
    except (InvalidOperation, KeyError, OverflowError, ValueError):
        raise QuantityError(
            f"{resource or 'the amount'} is '{text}'; expected a quantity such as 500m or 4Gi"
        ) from None


def amounts(table: Mapping[str, Any] | None) -> dict[str, int]:
    """A table of quantities."""
    return {name: amount(str(text), name) for name, text in (table or {}).items()}


def asked_by_container(container: Mapping[str, Any]) -> dict[str, int]:
    """What one container asks for. A limit without a request counts as the request."""
    resources = container.get("resources") or {}
    return amounts(resources.get("limits")) | amounts(resources.get("requests"))


def asked_by_pod(spec: Mapping[str, Any]) -> dict[str, int]:
    """What a pod asks for: its containers and sidecars together, or the largest step of its start; and its overhead."""
    running = _sum(asked_by_container(each) for each in spec.get("containers") or ())
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for each in spec.get("initContainers") or ():
        own = asked_by_container(each)
        if each.get("restartPolicy") == "Always":  # it stays beside the containers
            sidecars = _sum([sidecars, own])
            step = sidecars
        else:
            step = _sum([sidecars, own])
        peak = {name: max(peak.get(name, 0), step.get(name, 0)) for name in peak.keys() | step.keys()}
    running = _sum([running, sidecars])
    whole = {name: max(running.get(name, 0), peak.get(name, 0)) for name in running.keys() | peak.keys()}
    whole = _sum([whole, amounts(spec.get("overhead"))])
    return {name: value for name, value in whole.items() if value} | {PODS: 1}


def _sum(tables: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for table in tables:
        for name, value in table.items():
            total[name] = total.get(name, 0) + value
    return total
