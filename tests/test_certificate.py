"""Certificates: checked where they are made, the same after a trip through JSON, merged by the costs."""

import json
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpca import ModelFileError, Moments, Privacy, StreamingPCA, Subspace, load
from fedpca.summaries import model_file
from fedpca.summaries.certificate import Certificate, LedgerState, combine

CERTIFICATE = Certificate(
    private=True, epsilon=1.0, delta=1e-5, mu=0.25, adjacency="replace-one", mechanism="gram", bound=3.0,
    noise_edge=2.0, records=10, stream="a", ledger=LedgerState("x", "in a file", 2.0, 1e-5, 1.0),
)  # fmt: skip


def through_json(certificate):
    return Certificate.from_json(json.loads(json.dumps(certificate.to_json())))


def merged():
    others = [replace(CERTIFICATE, stream=name, ledger=replace(CERTIFICATE.ledger, id=name)) for name in "bc"]
    return combine([CERTIFICATE, *others], [1.0, 1.0, 1.0], summed=True)


@pytest.mark.parametrize("make", [lambda: CERTIFICATE, merged])
def test_json_brings_back_the_same_certificate(make):
    assert through_json(make()) == make()


def test_what_is_not_stated_is_left_out_and_null_means_the_same():
    stated = CERTIFICATE.to_json()
    assert "sigma" not in stated
    assert Certificate.from_json(stated | {"sigma": None}) == CERTIFICATE


def test_a_certificate_is_frozen():
    with pytest.raises(FrozenInstanceError):
        CERTIFICATE.epsilon = 0.0


BAD = [
    {"epsilon": float("nan")}, {"epsilon": float("inf")}, {"epsilon": -1.0}, {"epsilon": 10**400},
    {"epsilon": "1"}, {"epsilon": True}, {"epsilon": None}, {"delta": 1.5}, {"mu": None}, {"mu": [1.0]},
    {"private": 1},
    {"private": "yes"}, {"warnings": 5}, {"warnings": ["a", 5]}, {"warnings": "text"}, {"stream": ["x"]},
    {"unit": 5}, {"sampler": "x" * 10_000}, {"noise_edge": 1e301}, {"noise_edge": {}}, {"bound": "3"},
    {"bound": [3.0, "x"]}, {"records": 1.5}, {"records": -1}, {"records": 10**30}, {"ledger": 5},
    {"ledger": {}},
    {"ledger": CERTIFICATE.ledger.to_json() | {"spent": "x"}}, {"releases": 7}, {"releases": "abc"},
    {"releases": [{}]}, {"releases": []}, {"merged": 2}, {"merged": "1"}, {"format": "other"}, {"x": 1},
]  # fmt: skip


@pytest.mark.parametrize("change", BAD, ids=str)
def test_what_cannot_be_a_certificate_is_refused_in_one_line(change):
    with pytest.raises(ValueError, match=r"^[^\n]{10,300}$"):
        Certificate.from_json(CERTIFICATE.to_json() | change)


@pytest.mark.parametrize("change", BAD, ids=str)
def test_a_file_with_such_a_certificate_is_not_a_model_file(change, tmp_path):
    summary = Subspace.from_rows(np.eye(3))
    metadata = summary.metadata | {"certificate": CERTIFICATE.to_json() | change}
    try:
        contents = model_file.encode(summary.kind, summary.arrays, metadata)
    except ValueError:  # NaN and infinity are not JSON
        return
    (tmp_path / "model").write_bytes(contents)
    with pytest.raises(ModelFileError):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0.5},
        {"mu": 0.01},
        {"delta": 1e-9},
        {"merged": 10**6},
        {"releases": merged().to_json()["releases"][:2]},
        {"releases": 2 * merged().to_json()["releases"]},
        {"releases": [part | {"epsilon": 1e9} for part in merged().to_json()["releases"]]},
    ],
)
def test_a_merge_promises_no_more_than_its_releases(change):
    with pytest.raises(ValueError, match=r"follow from the releases|as many releases|merged twice"):
        Certificate.from_json(merged().to_json() | change)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from([*CERTIFICATE.to_json(), "releases", "merged", "sigma", "new"]),
)
def test_any_value_of_any_key_is_taken_or_one_value_error(value, key):
    try:
        certificate = Certificate.from_json(CERTIFICATE.to_json() | {key: value})
    except ValueError:
        return
    assert through_json(certificate) == certificate
    Moments(10.0, [0.0], [[1.0]], certificate=certificate).subspace()


def test_certificates_are_kept_by_post_processing():
    rows = np.random.default_rng(0).normal(size=(99, 4))
    release = (
        StreamingPCA(2, privacy=Privacy(1.0, 1e-4, 3.0, center=None, evaluate=False)).fit(rows).release()
    )
    subspace = release.subspace()
    for derived in (
        subspace, release.subspace(2), release.with_names([*"abcd"]), subspace.with_names([*"abcd"]),
        subspace.truncate(1), subspace.astype(np.float32), subspace.with_fixed_signs(),
    ):  # fmt: skip
        assert derived.certificate == release.certificate
    half = subspace.scaled(0.5).certificate
    assert half.noise_edge == pytest.approx(release.certificate.noise_edge / 4)


def test_summaries_take_certificates_only():
    with pytest.raises(TypeError, match="certificate must be a Certificate or None, got dict"):
        Subspace(np.eye(2), [1.0, 1.0], [0.0, 0.0], 3, 2.0, certificate={"private": True})


def test_moments_and_subspaces_agree_as_values(tmp_path):
    """What one of them takes, saves and compares, the other does, too."""
    for summary in (
        Moments(3, [0.0], [[2.0]], centered=np.bool_(True)),
        Subspace([[1.0]], [1.0], [0.0], 3, 2.0, centered=np.bool_(True)),
    ):
        assert summary.centered is True
        summary.save(tmp_path / "model")
        assert load(tmp_path / "model") == summary
        assert summary != summary.with_names(["x"])
        assert summary.with_names(["x"]).feature_names == ("x",)
        with pytest.raises(ValueError, match="name every feature"):
            summary.with_names(["x", "y"])
