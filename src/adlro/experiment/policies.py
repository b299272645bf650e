"""Policies from anything that a user may give: a name, a file, a checkpoint, a function, or a Policy."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

from adlro.core.errors import UsageError
from adlro.core.policy import Policy
from adlro.decide.catalogue import CHECKPOINT, find_policy, policy_of
from adlro.decide.catalogue import policies as catalogue
from adlro.experiment.conditions import EVERY_POLICY

PolicyLike: TypeAlias = str | Path | Policy | Callable[..., Any]


def policy(source: PolicyLike, *, name: str | None = None) -> Policy:
    """A policy from a name, `path.py:function`, a checkpoint (`FILE.safetensors`), or a function.

    A function is `choose(view)` or `score(job, site, pair, now)`, plain or `@adlro.compiled`. `name` is what results
    call the policy; by default the name of the function or file.
    """
    if isinstance(source, Policy):
        found = source
    elif isinstance(source, str | Path):
        found = find_policy(str(source))
    elif callable(source):
        own = getattr(source, "__name__", type(source).__name__)
        found = policy_of(source, name or own, f"the policy '{name or own}'")
    else:
        raise UsageError(
            f"a policy is {source!r}; expected a name (`adlro policies` lists them), a function, path.py:function, or "
            f"a checkpoint that ends in {CHECKPOINT}."
        )
    return found if name is None else replace(found, name=name)


def find_policies(sources: PolicyLike | Iterable[PolicyLike]) -> list[Policy]:
    """Several policies, each once, in this order; a text may hold names separated by commas, or 'all'."""
    given = [sources] if isinstance(sources, str | Path | Policy) or callable(sources) else list(sources)
    words = [part for each in given for part in (names_in(each) if isinstance(each, str) else [each])]
    if not words:
        raise UsageError(f"--policies is {sources!r}; expected names separated by commas, as in fcfs,sjf.")
    words = list(dict.fromkeys(words))
    stems = Counter(Path(word).stem for word in words if is_checkpoint(word))
    found: dict[str, Policy] = {}
    for word in words:
        for each in catalogue() if word == EVERY_POLICY else [policy(word)]:
            chosen = each
            if is_checkpoint(word) and stems[Path(word).stem] > 1:  # best of several trainings
                chosen = replace(each, name=f"{Path(word).absolute().parent.name}/{each.name}")
            if found.setdefault(chosen.name, chosen) is not chosen:
                raise UsageError(f"--policies: two policies are called '{chosen.name}'. Rename your function or file.")
    return list(found.values())


def names_in(text: str) -> Sequence[str]:
    """The names of a list with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def is_checkpoint(source: PolicyLike) -> "TypeGuard[str | Path]":
    """Whether this names a checkpoint."""
    return isinstance(source, str | Path) and str(source).endswith(CHECKPOINT)
