"""The training loop: what it depends on, how it goes on after a kill, how it stops when numbers go wrong."""

import json
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.learn.small import SMALL, small_config, small_training, small_worlds, trained, world_file

from adlro.cli.app import run
from adlro.core.errors import ConfigError, UsageError
from adlro.decide.checkpoint import Arrays, read_arrays, read_weights, with_stops
from adlro.learn.train import run as train
from adlro.learn.train.checkpoint import write_checkpoint
from adlro.learn.train.config import FIELDS, TrainConfig, altered, expected, with_settings
from adlro.learn.train.evaluate import make_exam, play_evaluation
from adlro.learn.train.loop import check_clusters, greedy, rounds
from adlro.learn.train.network import prior_of
from adlro.learn.train.presets import PRESET_NAMES, find_preset
from adlro.learn.train.update import DivergedError

ROOT = Path(__file__).resolve().parents[3]


def same(one: Arrays, other: Arrays) -> bool:
    """Whether two networks are equal to the last bit."""
    return all(np.array_equal(one[name], other[name]) for name in one)


def words_for(folder: Path, **values: object) -> list[str]:
    """The words of the small command line for a small training."""
    settings = [f"--set={name}={json.dumps(value)}" for name, value in (SMALL | values).items()]
    return ["--worlds", str(world_file(folder)), "--device", "cpu", "--threads", "2", *settings]


def test_the_same_seed_gives_the_same_network_whatever_the_number_of_threads() -> None:
    one, other = (trained(small_training(threads=threads, steps=200)) for threads in (1, 3))
    assert same(one, other)
    assert not same(one, trained(small_training(steps=200, seed=1)))


def test_training_changes_the_network() -> None:
    training = small_training(steps=300)
    before = training.preset.arrays_of(training.learner.average)
    after = trained(training)
    assert training.learner.updates > 20
    assert all(not np.array_equal(before[name], after[name]) for name in ("row", "own", "advantage", "value"))


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_both_presets_go_through_the_same_loop(name: str) -> None:
    training = small_training(name, episodes=20, horizon=2, evaluate_every=20)
    records = list(rounds(training))
    assert training.episodes >= 20
    assert records[-1].is_last
    assert records[-1].marks is not None
    assert all(np.isfinite(array).all() for array in training.preset.arrays_of(training.learner.average).values())


def test_a_network_that_trusts_the_rule_and_has_learnt_nothing_plays_like_it() -> None:
    training = small_training(steps=1, exam_jobs=40, trust=1.0)
    marks = play_evaluation(training.preset, training.exam, greedy(training), 2)
    assert marks.against_rule == pytest.approx(1.0, abs=1e-6)


def test_the_rule_reaches_the_same_by_its_prior_as_by_its_compiled_policy() -> None:
    preset = find_preset("adlro")
    exam = make_exam(preset, small_config(preset, steps=1, exam_jobs=40), small_worlds(), None, 1)

    def by_prior(batch: Any) -> Any:
        sights = tuple(torch.from_numpy(each) for each in batch.seen)
        return prior_of(sights).masked_fill(sights[-1] == 0, -1e9).argmax(1).numpy()

    marks = play_evaluation(preset, exam, by_prior, 1)
    assert marks.by_sheet == {name: pytest.approx(1.0, abs=1e-6) for name in marks.by_sheet}
    assert marks.against_picky != pytest.approx(1.0, abs=1e-3)


KILLED_ITSELF = """
import os, signal, sys
from adlro.learn.train import state
from adlro.learn.train.run import main

write, times = state.write_state, []


def write_then_end(*told):
    write(*told)
    times.append(1)
    if len(times) == 2:
        os.kill(os.getpid(), signal.SIGKILL)


state.write_state = write_then_end
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("stops", [0.0, 0.75])
def test_a_training_killed_and_resumed_ends_like_one_unbroken(tmp_path: Path, stops: float) -> None:
    folder, whole = tmp_path / "broken", tmp_path / "whole"
    words = words_for(tmp_path, stops=stops, steps=2400, report_every=20, checkpoint_every=20, evaluate_every=100)
    ended = subprocess.run(
        [sys.executable, "-c", KILLED_ITSELF, *words, "--out", str(folder)], capture_output=True, text=True
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    kept = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["round"]
    assert train.main(["--resume", str(folder), "--device", "cpu", "--threads", "1"]) == 0
    assert train.main([*words, "--out", str(whole)]) == 0
    assert 20 <= kept < 300
    assert same(read_arrays(folder / "last.safetensors")[0], read_arrays(whole / "last.safetensors")[0])
    numbers = [json.loads(line)["round"] for line in (folder / "log.jsonl").read_text().splitlines()]
    assert all(later - sooner <= 20 for sooner, later in pairwise(numbers))


def test_what_a_killed_write_left_beside_the_state_is_ignored(tmp_path: Path) -> None:
    words = words_for(tmp_path, steps=200, report_every=20, checkpoint_every=10)
    assert train.main([*words, "--out", str(tmp_path / "a")]) == 0
    (tmp_path / "a" / "state.safetensors.new").write_bytes(b"half")
    assert train.main(["--resume", str(tmp_path / "a"), "--device", "cpu"]) == 0


def test_a_training_may_begin_with_a_network_of_another_shape_than_its_config_says(tmp_path: Path) -> None:
    words = words_for(tmp_path, steps=400)
    assert train.main([*words, "--out", str(tmp_path / "one"), "--set=channels=12", "--set=layers=1"]) == 0
    one = tmp_path / "one" / "last.safetensors"
    still = words_for(tmp_path, steps=1, updates=0)
    assert train.main([*still, "--from", str(one), "--out", str(tmp_path / "two")]) == 0
    arrays, told = read_arrays(tmp_path / "two" / "last.safetensors")
    assert same(arrays, read_arrays(one)[0])
    assert (told["config"]["channels"], told["config"]["layers"]) == (12, 1)
    assert told["from"]["steps"] == 400
    resumed = train.read_setup(tmp_path / "two").start
    assert resumed is not None
    assert same(resumed.arrays, arrays)


def test_a_training_that_stops_jobs_may_begin_with_a_network_that_does_not_but_not_the_reverse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*words_for(tmp_path, steps=200), "--out", str(tmp_path / "one")]) == 0
    one, two = tmp_path / "one" / "last.safetensors", tmp_path / "two" / "last.safetensors"
    still = words_for(tmp_path, steps=1, updates=0, stops=0.5, boldness=0.25)
    assert train.main([*still, "--from", str(one), "--out", str(tmp_path / "two")]) == 0
    assert same(read_arrays(two)[0], with_stops(read_arrays(one)[0], 0.25))
    back = words_for(tmp_path, steps=1)
    assert train.main([*back, "--from", str(two), "--out", str(tmp_path / "three")]) == 1
    assert "its network may stop jobs; expected a training with such episodes" in capsys.readouterr().err


def test_a_checkpoint_without_its_arrays_or_its_config_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "odd.safetensors", {"row": np.zeros(3, np.float32)}, {"preset": "adlro", "config": 7})
    words = words_for(tmp_path, steps=1)
    assert train.main([*words, "--from", str(tmp_path / "odd.safetensors"), "--out", str(tmp_path / "out")]) == 1
    assert "arrays are missing or have another shape. Was" in capsys.readouterr().err.splitlines()[-1]


def test_exploding_numbers_stop_the_training_and_leave_the_best_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words_for(tmp_path, steps=4000, rate=1e12, rate_warm_up=0, clip=0.0, report_every=2, evaluate_every=2)
    assert train.main([*words, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert "training diverged in round" in said[-1]
    assert read_weights(tmp_path / "out" / "best.safetensors")[1]["steps"] < 4000


def test_weights_that_are_no_numbers_stop_the_training() -> None:
    training = small_training(steps=400)
    with torch.no_grad():
        next(training.learner.network.parameters()).fill_(float("nan"))
    with pytest.raises(DivergedError, match="diverged"):
        list(rounds(training))


def test_a_policy_far_worse_than_the_rule_stops_the_training() -> None:
    training = small_training(steps=100, evaluate_every=5, worst=0.5)
    with pytest.raises(DivergedError, match=r"1\.\d\d times those of eft-reserving, above 0\.5"):
        list(rounds(training))


def test_the_log_has_a_line_for_each_record(tmp_path: Path) -> None:
    assert train.main([*words_for(tmp_path, steps=160, evaluate_every=10), "--out", str(tmp_path / "out")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [5, 10, 15, 20, 21]  # steps count when the next turn begins
    assert [line["marks"] is not None for line in lines] == [False, True, False, True, True]


@pytest.mark.parametrize("weight", ["0", "1", "-0.5", "1.5"])
def test_the_papers_weight_of_idle_time_lies_between_0_and_1(weight: str) -> None:
    with pytest.raises(ConfigError, match=r"'idle_weight' is .*; expected a number above 0 and below 1"):
        with_settings(find_preset("paper").config, [f"idle_weight={weight}"])


def test_the_paper_preset_is_q_learning_without_a_rule_and_with_the_papers_optimiser() -> None:
    config = find_preset("paper").config
    assert (config.dueling, config.trust, config.shaped) == (False, 0.0, False)
    assert (config.double, config.horizon) == (True, 8)  # docs/paper-preset.md says why
    assert (config.rate, config.rate_end, config.episodes) == (1e-4, 0.1, 1_000_000)
    assert find_preset("paper").prior is None


def test_a_wrong_option_is_told_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"x: unknown option 'chanels'\. Did you mean 'channels'\?"):
        altered(TrainConfig(), {"chanels": 3}, "x")
    with pytest.raises(ConfigError, match=r"x: 'channels' is 2\.5; expected a whole number from 1 to 1024"):
        altered(TrainConfig(), {"channels": 2.5}, "x")
    with pytest.raises(ConfigError, match="9 environments cannot be divided into 2 equal groups"):
        altered(TrainConfig(), {"environments": 9}, "x")
    with pytest.raises(ConfigError, match="x: memory is 13; expected 14 or more, 2 beyond horizon and warm_up"):
        altered(TrainConfig(), {"memory": 13}, "x")
    with pytest.raises(ConfigError, match=r"x: 'minutes' is 10+; expected a number from 0"):
        altered(TrainConfig(), {"minutes": 10**400}, "x")
    with pytest.raises(UsageError, match="expected key=value"):
        with_settings(TrainConfig(), ["channels"])


def test_the_command_trains_on_one_cluster_and_tells_what_came_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"--set={name}={json.dumps(value)}" for name, value in SMALL.items() if name != "steps"]
    words = ["train", "--cluster", "paper16", "--steps", "80", "--seeds", "2", "--tensorboard", "--device", "cpu"]
    assert run([*words, *settings, "--out", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)["trainings"]
    assert [each["seed"] for each in found] == [0, 1]
    assert [Path(each["best"]).parent.name for each in found] == ["seed-0", "seed-1"]
    assert read_weights(Path(found[0]["best"]))[1]["config"]["channels"] == 8
    assert "against sjf-picky" in said.err
    assert list((tmp_path / "seed-0" / "tensorboard").iterdir())
    assert run([*words, *settings, "--out", str(tmp_path)]) == 2  # nothing is written over
    assert "seed-0' contains a training" in capsys.readouterr().err
    compared = ",".join(each["best"] for each in found)
    assert run(["compare", "--policies", compared, "--seeds", "1", "--jobs", "5", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["policies"]) == ["seed-0/best", "seed-1/best"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--preset", "other"], "no preset 'other'; expected adlro or paper"),
        (["--device", "tpu"], "--device is 'tpu'; expected auto, cpu or cuda"),
        (["--resume", "nowhere", "--steps", "5"], "--steps cannot be used with --resume"),
        (["--resume", "nowhere"], "no training in 'nowhere'"),
        (["--worlds", "a.npz", "--cluster", "paper16"], "--worlds and --cluster exclude each other"),
        (["--minutes", "0", "--cluster", "paper16"], "the training has no limit"),
        (["--resume", "nowhere", "--seed", "3"], "--seed cannot be used with --resume"),
        (["--resume", "nowhere", "--workload", "gavel"], "--workload cannot be used with --resume"),
        (["--workload", "gavel"], "--workload needs --cluster"),
        (
            ["--onnx", "nowhere/network.onnx"],
            "--onnx: cannot write 'nowhere/network.onnx'; expected a file",
        ),
        (["--from", "adlro", "--set", "channels=128"], "--set channels cannot be used with --from"),
        (["--seed", "4999", "--quick"], "--seed 4999: with 24 worlds it overlaps with the seeds of the evaluation"),
    ],
)
def test_a_wrong_word_is_told_in_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *words]) == 2
    assert told in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--from", "nowhere", "--quick"], "nowhere: no such file; expected a checkpoint"),
        (["--from", "adlro", "--preset", "paper"], "its preset is 'adlro'; expected 'paper'"),
        (
            [
                "--cluster",
                "paper16",
                "--quick",
                "--set=channels=1024",
                "--set=exam_environments=1",
                "--set=exam_jobs=8",
            ],
            "preset adlro: a checkpoint would have",
        ),
    ],
)
def test_a_checkpoint_that_nothing_can_begin_with_is_told_in_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", *words]) == 1
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_a_new_training_leaves_nothing_of_the_one_before_it_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert train.main([*words_for(tmp_path, steps=160), "--out", str(folder)]) == 0
    assert (folder / "best.safetensors").exists()
    setup = train.read_setup(folder)
    (folder / "exam-random.npz").touch()
    train.write_setup(setup, folder)
    left = {path.name for path in folder.iterdir()}
    assert left == {"training.json", "worlds.npz", "exam-fixed.npz"}


def test_a_network_for_one_size_is_not_evaluated_on_another() -> None:
    few, many = (cast(Any, SimpleNamespace(info=np.rec.array([(n,)], dtype=[("gpus", "i4")]))) for n in (16, 48))
    exam = (cast(Any, SimpleNamespace(worlds=few)),)
    check_clusters(find_preset("paper"), few, exam)
    check_clusters(find_preset("adlro"), many, exam)
    with pytest.raises(ConfigError, match="paper: worlds with 48 GPUs to learn in, and with 16 to be evaluated in"):
        check_clusters(find_preset("paper"), many, exam)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--threads", "0"], "--threads must be at least 1"),
        (["--worlds", "nowhere.npz"], "No such file"),
        ([], "--worlds"),
    ],
)
def test_the_small_command_line_tells_mistakes_in_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*words, "--device", "cpu"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("adlro: ")
    assert told in line


def test_a_folder_without_a_training_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no training in"):
        train.read_setup(tmp_path)


def test_the_document_has_every_option_with_its_default() -> None:
    text = (ROOT / "docs" / "training.md").read_text()
    rows = [
        f"| `{name}` | {json.dumps(each.default)} | {each.metadata['help']} | {expected(name)} |"
        for name, each in FIELDS.items()
    ]
    assert [row for row in rows if row not in text] == []
