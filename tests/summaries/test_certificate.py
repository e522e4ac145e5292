"""Certificates: checked where they are made, the same after a trip through JSON, merged by the costs."""

import json
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedpca
from fedpca import ModelFileError, Moments, PrivatePCA, Subspace, load
from fedpca.summaries import model_file
from fedpca.summaries.about import About
from fedpca.summaries.certificate import Certificate, LedgerState, Secured, SecureSum
from fedpca.summaries.certificate_merging import combine

CERTIFICATE = Certificate(
    private=True, epsilon=1.0, delta=1e-5, mu=0.25, adjacency="replace-one", mechanism="gram", bound=3.0,
    noise_edge=2.0, records=10, stream="a", ledger=LedgerState("x", "in a file", 2.0, 1e-5, 1.0),
)  # fmt: skip


def through_json(certificate):
    return Certificate.from_json(json.loads(json.dumps(certificate.to_json())))


def merged():
    others = [replace(CERTIFICATE, stream=name, ledger=replace(CERTIFICATE.ledger, id=name)) for name in "bc"]
    return combine([CERTIFICATE, *others], summed=True)


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


@pytest.mark.slow
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
    Moments(10.0, [0.0], [[1.0]], about=About(certificate=certificate)).subspace()


def test_certificates_are_kept_by_post_processing():
    rows = np.random.default_rng(0).normal(size=(99, 4))
    release = (
        PrivatePCA(2, epsilon=1.0, delta=1e-4, bound=3.0, center=None, evaluate=False).fit(rows).release()
    )
    subspace = release.subspace()
    for derived in (
        subspace, release.subspace(2), release.with_about(names=[*"abcd"]),
        subspace.with_about(names=[*"abcd"]), subspace.truncate(1),
        subspace.astype(np.float32), subspace.with_fixed_signs(),
    ):  # fmt: skip
        assert derived.certificate == release.certificate
    half = subspace.scaled(0.5).certificate
    assert half.noise_edge == pytest.approx(release.certificate.noise_edge / 4)


@pytest.mark.parametrize("merge", [fedpca.merge, fedpca.merge_tree])
def test_a_merge_with_an_exact_summary_says_that_it_has_no_certificate(merge):
    rows = np.random.default_rng(0).normal(size=(300, 3))
    exact = Moments.from_rows(rows)
    private = exact.with_about(certificate=CERTIFICATE)
    with pytest.warns(UserWarning, match="the merge has no certificate: 1 of 2 summaries have one"):
        assert merge([private, exact]).certificate is None
    assert merge([exact, exact]).certificate is None


def test_moments_and_subspaces_agree_as_values(tmp_path):
    """What one of them takes, saves and compares, the other does, too."""
    for summary in (
        Moments(3, [0.0], [[2.0]], centered=np.bool_(True)),
        Subspace([[1.0]], [1.0], [0.0], 3, 2.0, centered=np.bool_(True)),
    ):
        assert summary.centered is True
        summary.save(tmp_path / "model")
        assert load(tmp_path / "model") == summary
        assert summary != summary.with_about(names=["x"])
        assert summary.with_about(names=["x"]).feature_names == ("x",)


SECURED = Secured(
    study="study-1",
    members=("a", "b", "c", "d", "e"),
    least=4,
    colluding=1,
    threshold=4,
    sums=(
        SecureSum("mean", ("a", "b", "c", "d"), 400, 4 / 3),
        SecureSum("gram", ("a", "c", "d", "e"), 410, 4 / 3),
    ),
    sigma=5.0,
    aliasing=1e-60,
    promise="holds against the coordinator together with any 1 of the 5 members",
)


class TestSecured:
    def test_it_survives_json(self):
        certificate = CERTIFICATE.secured(SECURED, session="5" * 64, time="2026-01-01T00:00:00+00:00")
        assert certificate.stream == certificate.release == "5" * 64
        again = through_json(certificate)
        assert again == certificate
        assert again.secure.sums[1].owners == ("a", "c", "d", "e")

    def test_aliasing_is_part_of_delta(self):
        plain, term = CERTIFICATE, replace(SECURED, aliasing=1e-3)
        assert plain.secured(term, session="x", time="now").delta == pytest.approx(plain.delta + 1e-3)

    def test_a_merge_keeps_who_took_part_with_each_release(self):
        one = replace(CERTIFICATE, ledger=None).secured(SECURED, session="x", time="now")
        merged = combine([one, replace(CERTIFICATE, stream="other")], summed=True)
        assert merged.secure is None
        assert [release.secure for release in merged.releases] == [SECURED, None]
        assert Certificate.from_json(merged.to_json()) == merged

    def test_it_says_who_took_part(self):
        assert SECURED.took_part == ("a", "b", "c", "d", "e")
        assert "5 of 5 owners took part, at least 4 in every sum" in SECURED.describe()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"members": ("a", "b")}, "3 to"),
            ({"members": ("a", "a", "b", "c", "d")}, "different ids"),
            ({"members": [1, 2, 3]}, "members must be a string"),
            ({"least": 6}, "least <= members"),
            ({"least": 3}, "threshold <= least"),
            ({"threshold": 3}, r"members \+ colluding"),
            ({"colluding": 0}, "1 <= colluding"),
            ({"sums": ()}, "1 to"),
            ({"sums": (SecureSum("gram", ("a", "b", "c"), 9, 1.5),)}, "at least 4"),
            ({"sums": (SecureSum("gram", ("a", "b", "c", "c"), 9, 1.5),)}, "at least 4"),
            ({"sums": (SecureSum("gram", ("a", "b", "c", "x"), 9, 1.5),)}, "at least 4"),
            ({"sums": (SecureSum("gram", ("a", "b", "c", "d"), 9, 0.9),)}, "all of its noise"),
            ({"aliasing": 2.0}, "aliasing must be"),
            ({"promise": "x" * 3000}, "promise must be"),
        ],
    )
    def test_what_no_secure_sum_has_is_refused(self, changes, message):
        with pytest.raises(ValueError, match=message):
            replace(SECURED, **changes)

    @pytest.mark.parametrize(
        "contents", [5, {"study": "x"}, {**SECURED.to_json(), "sums": 5}, {**SECURED.to_json(), "sums": [5]}]
    )
    def test_what_is_no_record_is_refused(self, contents):
        with pytest.raises(ValueError, match=r"must be|incomplete"):
            Certificate.from_json({**CERTIFICATE.to_json(), "secure": contents})
