"""GPU names of drivers → models of the catalogue."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from adlro.core.errors import CatalogueError
from adlro.core.records import GpuModel

Find = Callable[[str], GpuModel]
"""The model of a name of the catalogue, or CatalogueError; who composes the stages passes it in."""

_MAKERS: Final = re.compile(
    r"^(?:nvidia|amd|intel|advanced micro devices|tesla|geforce|radeon(?= instinct)|\s|,|inc\.?)+\s+", re.I
)
_NOISE: Final = re.compile(r"\b(?:oam|hbm\d?e?|graphics|accelerator|gpu|ib)\b|[()\[\]/]", re.I)
_SPELLINGS: Final = (("sxm5", "sxm"), ("sxm", "sxm5"), ("sxm3", "sxm2"))
"""Other spellings of form factors: drivers leave the number out, or add one that the catalogue does not have."""

_WITH_FORM: Final = {
    "a100 80gb pcie": "a100-pcie-80gb",
    "instinct mi250x mi250": "mi250x",
    "h100 80gb": "h100-sxm5-80gb",
    "h200": "h200-sxm-141gb",
    "v100-dgxs-16gb": "v100-sxm2-16gb",
    "v100-dgxs-32gb": "v100-sxm2-32gb",
    "v100-sxm3-32gb": "v100-sxm2-32gb",
    "rtx 6000 ada generation": "rtx-6000-ada",
    "p100-sxm2-16gb": "p100-sxm2",
    "k80": "k80",
    "m40": "m40-12gb",
}
"""What drivers call models whose form factor or generation they say otherwise, without the maker."""


def spellings(name: str) -> Iterator[str]:
    """The names under which the catalogue may have a driver's GPU `name`, the likeliest first."""
    yield name
    bare = " ".join(name.split())
    while (shorter := _MAKERS.sub("", bare)) != bare:
        bare = shorter
    yield bare
    plain = " ".join(_NOISE.sub(" ", bare).split())
    for word in (bare, plain):
        known = _WITH_FORM.get(word.lower())
        if known:
            yield known
        for form in (word, word.replace(" ", "-"), word.replace("-", " ")):
            yield form
            yield f"instinct {form}"
            for old, new in _SPELLINGS:
                yield re.sub(rf"\b{old}\b", new, form, flags=re.I)


def model_of(name: str, find: Find) -> GpuModel | None:
    """The model for a driver's GPU name; None if the catalogue has none."""
    for word in dict.fromkeys(spellings(name)):
        if word.strip():
            try:
                return find(word)
            except CatalogueError:
                continue
    return None


def near_models(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known models with the most similar names."""
    bare = list(spellings(name))[1].lower()
    ranked = sorted((-_likeness(bare, model), model) for model in known)
    return [model for score, model in ranked if score < -0.5][:3]


def explain_unknown(name: str, known: Iterable[str]) -> str:
    """One line about a name that the catalogue does not have: the nearest models, and how to add it."""
    near = near_models(name, known)
    guess = f" Nearest: {', '.join(near)}." if near else ""
    return (
        f"the GPU '{name}' is not in the catalogue, so its figures have no ranges.{guess} "
        "Add it: a [gpus.NAME] table with this name among its aliases, in the cluster file (--cluster)."
    )


def _likeness(bare: str, model: str) -> float:
    """How similar two names are: their first words decide, then the whole."""
    first = max(_ratio(word, part) for word in bare.split()[:2] or [""] for part in model.split("-")[:2])
    return first + 0.1 * _ratio(bare, model)


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
