"""Slurm's short lists of hosts: they mean what they mean to Slurm."""

import os
import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parts import program

from adlro.ingest.host_lists import hosts_in


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ""),
        ("volta0", "volta0"),
        ("volta[0-1],radeon0", "volta0 volta1 radeon0"),
        ("n[08-10,12]", "n08 n09 n10 n12"),
        ("volta[0-1,07]", "volta0 volta1 volta07"),
        ("rack[0-1]n[0-1]", "rack0n0 rack0n1 rack1n0 rack1n1"),
        ("rack[0-1]n[0-1],b", "rack0n0 rack0n1 rack1n0 rack1n1 b"),
        ("n[1,2][3,4]", "n13 n14 n23 n24"),
        ("r1n[1-2]-ib", "r1n1-ib r1n2-ib"),
        (" a , b,,", "a b"),
        ("[1-3]", "1 2 3"),
        ("n[099-101]", "n099 n100 n101"),
        ("a[1-2]b[1-2]c[1-2]", "a1b1c1 a1b1c2 a1b2c1 a1b2c2 a2b1c1 a2b1c2 a2b2c1 a2b2c2"),
    ],
)
def test_a_list_of_nodes_is_expanded(text: str, hosts: str) -> None:
    assert hosts_in(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text", ["n[x]", "n[3-1]", "n[]", "n[1-5:2]", "n[1-5/2]", "n[-1]", "n[1,]", "n[²]", "n[0-99999][0-99999]"]
)
def test_an_entry_that_slurm_refuses_stands_for_itself(text: str) -> None:
    assert hosts_in(text) == (text,)


@given(st.text(alphabet="ab[]0123-,:%² ", max_size=40))
def test_no_list_of_nodes_is_an_error(text: str) -> None:
    assert all(hosts_in(text))


def bracket(choose: random.Random) -> str:
    """A list of numbers and ranges in brackets, some of them with zeros in front."""
    pieces = []
    for _ in range(choose.randint(1, 3)):
        first, digits = choose.randrange(120), choose.choice([1, 2, 3, 4])
        last = first + choose.randrange(4)
        pieces.append(choose.choice([f"{first:0{digits}d}", f"{first:0{digits}d}-{last:0{digits}d}"]))
    return f"[{','.join(pieces)}]"


def expanded_by_slurm(text: str, folder: Path) -> list[str]:
    conf = folder / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=x CPUs=1\n")
    command = [program("scontrol"), "show", "hostnames", text]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "SLURM_CONF": str(conf)}
    )
    return done.stdout.split()


def test_lists_of_nodes_mean_what_they_mean_to_slurm(tmp_path: Path) -> None:
    choose = random.Random(7)
    entries = ["plain", "rack[0-1]n[0-1]", "n[08-11],n9"]
    entries += ["".join(f"{word}{bracket(choose)}" for word in choose.choice(["a", "ab", "r-"])) for _ in range(60)]
    text = ",".join(entries)
    assert list(hosts_in(text)) == expanded_by_slurm(text, tmp_path)


def test_three_brackets_mean_what_they_mean_to_slurm_in_another_order(tmp_path: Path) -> None:
    text = "a[1-2]b[08-10]c[1,3]"
    assert sorted(hosts_in(text)) == sorted(expanded_by_slurm(text, tmp_path))
