"""Names and users that are noisy signatures of families."""

from dataclasses import replace

import numpy as np

from adlro.experiment.instance import load_jobs
from adlro.ingest.signatures import SIGNATURE_NOISE, with_signatures


def test_signatures_change_nothing_about_the_jobs_but_users_and_names() -> None:
    jobs = load_jobs("gavel", 0, 200)
    made = with_signatures(jobs, 0)
    for column in jobs.table.dtype.names or ():
        if column not in ("user", "group"):
            assert np.array_equal(made.table[column], jobs.table[column])
    assert np.array_equal(made.work, jobs.work)
    assert made.families == jobs.families


def test_the_same_seed_gives_the_same_names_and_another_seed_others() -> None:
    jobs = load_jobs("gavel", 0, 200)
    assert with_signatures(jobs, 3).names == with_signatures(jobs, 3).names
    assert with_signatures(jobs, 3).names != with_signatures(jobs, 4).names


def test_without_noise_users_who_write_the_word_of_a_family_always_do() -> None:
    jobs = load_jobs("sia-philly", 1, 300)
    made = with_signatures(jobs, 1, noise=0.0)
    named = [made.names[group] for group in made.table["group"]]
    family = [jobs.families[number].split("/")[1] for number in jobs.table["family"]]
    others = {each.split("/")[1] for each in jobs.families}
    assert any(own in name for own, name in zip(family, named, strict=True))
    assert not any(other in name for own, name in zip(family, named, strict=True) for other in others - {own})


def test_some_names_mislead_with_noise() -> None:
    jobs = load_jobs("sia-philly", 1, 300)
    made = with_signatures(jobs, 1, noise=SIGNATURE_NOISE)
    plain = with_signatures(replace(jobs), 1, noise=0.0)
    assert [made.names[g] for g in made.table["group"]] != [plain.names[g] for g in plain.table["group"]]
    assert not any(family in name for family in jobs.families for name in made.names)
