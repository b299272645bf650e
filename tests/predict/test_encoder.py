"""Hypervectors: what is bound can be unbound, near numbers are alike, and nothing depends on the run."""

import numpy as np
import pytest
from tests.predict.past import jobs_of

from adlro.predict import encoder
from adlro.predict.encoder import (
    bind,
    bundle,
    circle,
    decode_state,
    encode_jobs,
    encode_state,
    item,
    levels,
    similarity,
)
from adlro.predict.following import tokens_in_name, traits_of

FIRST_OF_ANN = [1, 1, -1, -1, -1, 1, 1, 1, 1, 1, 1, 1]
MODELS = ("v100-sxm2-16gb", "a100-sxm4-80gb", "mi250x", "t4", "l40s")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("utilisation", "priority"), [(0.0, 1.0), (0.3, 0.25), (1.0, 0.5), (0.7, 0.0)])
def test_the_state_of_a_gpu_comes_back_as_it_was_encoded(model: str, utilisation: float, priority: float) -> None:
    vector = encode_state(model, utilisation, priority)
    found, used, important = decode_state(vector, MODELS)
    assert found == model
    assert used == pytest.approx(utilisation, abs=0.1001)  # a neighbour on the scale is mostly the same vector
    assert important == pytest.approx(priority, abs=0.2501)


def test_the_model_comes_back_though_five_more_facts_are_in_the_vector() -> None:
    more = {f"fact {number}": f"value {number}" for number in range(5)}
    assert all(decode_state(encode_state(model, 0.5, 0.5, more), MODELS)[0] == model for model in MODELS)


def test_binding_twice_undoes_it_and_a_bound_pair_is_like_neither() -> None:
    role, filler = item("role"), item("filler")
    assert (bind(bind(role, filler), role) == filler).all()
    assert abs(similarity(bind(role, filler), np.array([role, filler]))).max() < 0.15


def test_a_bundle_is_like_each_of_its_parts_and_unlike_others() -> None:
    parts = np.array([item(word) for word in ("a", "b", "c", "d")])
    whole = bundle(parts)
    assert set(np.unique(whole)) == {-1, 1}
    assert similarity(whole, parts).min() > 0.25
    assert abs(similarity(whole, np.array([item("e")]))[0]) < 0.15


def test_levels_are_the_less_alike_the_further_apart_they_are() -> None:
    alike = similarity(levels("x")[0], levels("x"))
    assert (np.diff(alike) <= 0).all()
    assert alike[0] == 1.0
    assert abs(alike[-1]) < 0.15


def test_the_last_hour_is_as_near_to_the_first_as_the_second_is() -> None:
    alike = similarity(circle("hour", 24)[0], circle("hour", 24))
    assert alike[23] == pytest.approx(alike[1], abs=0.05)
    assert alike[12] == pytest.approx(0.0, abs=0.15)
    assert alike.argmin() in (11, 12, 13)


def test_fillers_come_back_surely_from_few_pairs_and_rarely_from_very_many() -> None:
    few, some, many = (encoder.unbinding_accuracy(pairs, 256, trials=20) for pairs in (2, 16, 256))
    assert few == 1.0
    assert few > some > many
    assert encoder.unbinding_accuracy(16, 1024, trials=20) > some


def test_jobs_that_differ_only_in_the_hour_are_more_alike_than_jobs_of_two_users() -> None:
    traits = traits_of(jobs_of(3))
    traits[:] = traits[0]
    traits["submit"] = (0.0, 3 * 3600.0, 0.0)
    traits["user"][2] = 99
    bits = [np.unpackbits(row.view(np.uint8)) for row in encode_jobs(traits)]
    assert np.count_nonzero(bits[0] != bits[1]) < np.count_nonzero(bits[0] != bits[2])


def test_jobs_whose_names_share_words_are_more_alike_than_jobs_whose_names_share_none() -> None:
    traits = traits_of(jobs_of(3))
    traits[:] = traits[0]
    traits["name"] = (1, 2, 3)
    for row, name in enumerate(("train-bert-1", "train_bert_2", "render")):
        traits["tokens"][row] = tokens_in_name(name)
    bits = [np.unpackbits(row.view(np.uint8)) for row in encode_jobs(traits)]
    assert np.count_nonzero(bits[0] != bits[1]) < np.count_nonzero(bits[0] != bits[2])


def test_the_words_of_a_name_are_found_whatever_stands_between_them() -> None:
    assert tokens_in_name("Train-bert_2") == tokens_in_name("train bert 2")
    assert len(set(tokens_in_name("train-bert-2")) - {0}) == 3
    assert tokens_in_name("") == [0] * 4


def test_the_vector_of_a_text_is_the_same_on_every_machine() -> None:
    assert item("ann")[:12].tolist() == FIRST_OF_ANN


def test_our_operations_are_those_of_torch_hd() -> None:
    torchhd = pytest.importorskip("torchhd")
    torch = pytest.importorskip("torch")
    ours = [item(word) for word in "abc"]
    theirs = [encoder.as_torch_hd(one) for one in ours]
    assert (torchhd.bind(theirs[0], theirs[1]).numpy() == bind(ours[0], ours[1])).all()
    assert (np.sign(torchhd.multibundle(torch.stack(theirs)).numpy()) == bundle(np.array(ours))).all()
    alike = torchhd.cosine_similarity(theirs[0], torch.stack(theirs)).numpy()
    np.testing.assert_allclose(alike, similarity(ours[0], np.array(ours)), atol=1e-6)


def test_a_job_is_the_bundle_that_torch_hd_makes_of_its_bound_pairs() -> None:
    torchhd = pytest.importorskip("torchhd")
    torch = pytest.importorskip("torch")
    traits = traits_of(jobs_of(5))
    traits["tokens"][1] = tokens_in_name("train")
    book = encoder.codebook()
    for row, words in zip(traits, encode_jobs(traits), strict=True):
        pairs = []
        for place, (role, weight) in enumerate(encoder.WEIGHTS.items()):
            key = encoder.as_torch_hd(item(f"role {role}"))
            if role == "word":
                fillers = [encoder.numbered_item(token) for token in row.tokens if token]
            elif place < encoder.ITEMS:
                fillers = [encoder.numbered_item(encoder.filler(row, place))]
            else:
                scale = place - encoder.ITEMS
                fillers = [encoder.unpacked(book.scales[scale, encoder.step_on(row, scale)])]
            pairs += [torchhd.bind(key, encoder.as_torch_hd(one)) for one in fillers for _ in range(weight)]
        total = torchhd.multibundle(torch.stack(pairs)).numpy()
        expected = np.where(total == 0, item("coin"), np.sign(total))
        assert (encoder.unpacked(words) == expected).all()


def test_items_of_near_numbers_have_nothing_in_common() -> None:
    items = np.array([encoder.numbered_item(number) for number in (0, 1, 2, 3, 3600, 7200, 2**63, 2**64 - 1)])
    alike = np.array([similarity(one, items) for one in items]) - np.eye(len(items))
    assert abs(alike).max() < 0.15
    assert abs(items.mean(axis=1)).max() < 0.1


def test_packed_vectors_come_back() -> None:
    vectors = np.array([item("a"), item("b")])
    assert (encoder.unpacked(encoder.packed_bits(vectors)) == vectors).all()
