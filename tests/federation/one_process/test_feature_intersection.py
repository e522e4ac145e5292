"""Owners whose columns differ: what all have is merged, by name, and the rest is named and left out."""

import hashlib
import json
import logging
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers import assert_summarizes, bits, power_law, rows_of_clients, scatter_of
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.decomposition import PCA

import fedpca
from fedpca import (
    Aggregator,
    FederatedPCA,
    Moments,
    Privacy,
    PrivatePCA,
    StreamingPCA,
    Subspace,
    merge,
    merge_tree,
)
from fedpca.errors import SummaryRejected
from fedpca.federation.aggregator.store import FolderStore
from fedpca.federation.folder import collect, publish
from fedpca.summaries.about import About
from fedpca.summaries.certificate import noise_edge
from fedpca.summaries.features import intersect, select
from fedpca.trust.envelope import canonical

both_kinds = pytest.mark.parametrize("kind", [Subspace, Moments])
both_merges = pytest.mark.parametrize("join", [merge, merge_tree])
ignore_left_out = pytest.mark.filterwarnings("ignore:left out features:UserWarning")
ABC = Subspace.empty(3, about=About(("a", "b", "c")))


def frame(names, n_rows=60, seed=0):
    """Correlated rows with these columns; a column has the same size in every frame."""
    rng = np.random.default_rng(seed)
    sizes = [1.0 + ord(name[0]) - ord("a") for name in names]
    rows = (rng.normal(size=(n_rows, len(names))) + rng.normal(size=(n_rows, 1))) * sizes + seed
    return pd.DataFrame(rows, columns=list(names))


def pooled_columns(frames, names):
    return np.concatenate([each[list(names)].to_numpy() for each in frames])


def captured_warning(call):
    with pytest.warns(UserWarning, match="left out features") as caught:
        result = call()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    return result, str(caught[0].message)


# --- merge ---


@both_kinds
@both_merges
def test_what_all_have_is_merged_and_the_rest_is_named(kind, join):
    frames = [frame("abcd", 60, 1), frame("dbec", 40, 2), frame("cbad", 30, 3)]
    merged, text = captured_warning(
        lambda: join([kind.from_rows(each) for each in frames], features="intersection")
    )
    assert type(merged) is kind
    assert merged.feature_names == ("b", "c", "d")  # in the order of the first
    assert_summarizes(merged, [each[["b", "c", "d"]].to_numpy() for each in frames])
    shares = [1 - np.trace(np.cov(f[[*"bcd"]].T)) / np.trace(np.cov(f.T)) for f in frames]
    assert text == (
        f"left out features that not all have, of summary 0: a ({shares[0]:.1%} of its variance); of "
        f"summary 1: e ({shares[1]:.1%} of its variance); of summary 2: a ({shares[2]:.1%} of its variance)."
    )


@both_kinds
@both_merges
def test_the_same_columns_in_another_order_just_merge(kind, join):
    frames = [frame("abcd", 60, 1), frame("dbac", 40, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merged = join([kind.from_rows(each) for each in frames], features="intersection")
        same = [kind.from_rows(frames[0]), kind.from_rows(frames[1][[*"abcd"]])]
        assert select(same[0], same[0].feature_names) is same[0]
        assert bits(join(same, features="intersection")) == bits(join(same))
    assert merged.feature_names == ("a", "b", "c", "d")
    assert_summarizes(merged, [each[[*"abcd"]].to_numpy() for each in frames])


@ignore_left_out
@given(
    tables=rows_of_clients(),
    center=st.booleans(),
    moments=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_any_columns_of_awkward_rows(tables, center, moments, random):
    """Every owner has some of the columns, in some order, and all have the first."""
    n_features = tables[0].shape[1]
    summaries, common = [], set(range(n_features))
    for table in tables:
        others = random.sample(range(1, n_features), random.randint(0, n_features - 1))
        columns = [0, *others]
        random.shuffle(columns)
        common &= set(columns)
        kind = Moments if moments else Subspace
        summary = kind.from_rows(table[:, columns], center=center)
        summaries.append(summary.with_about(names=[f"c{column}" for column in columns]))
    merged = merge(summaries, features="intersection")
    kept = [int(name[1:]) for name in merged.feature_names]
    assert set(kept) == common
    rows = np.concatenate([table[:, kept] for table in tables])
    mean = rows.mean(axis=0) if center and len(rows) else np.zeros(len(kept))
    scatter = (rows - mean).T @ (rows - mean)
    energy = sum(float((table**2).sum()) for table in tables)  # rounding is that of what was left out, too
    assert merged.count == len(rows)
    np.testing.assert_allclose(merged.mean, mean, atol=1e-9 * np.sqrt(energy / max(len(rows), 1)))
    np.testing.assert_allclose(scatter_of(merged), scatter, atol=1e-9 * energy)
    assert merged.total == pytest.approx(np.trace(scatter), rel=1e-9, abs=1e-9 * energy)


def test_a_truncated_subspace_keeps_what_it_knows_of_the_features(rng):
    rows = pd.DataFrame(power_law(rng, 200, 12), columns=[f"c{i}" for i in range(12)])
    summary, names = Subspace.from_rows(rows, 4), ("c7", "c1", "c3", "c9", "c0", "c10")
    columns = [int(name[1:]) for name in names]
    part = select(summary, names)
    np.testing.assert_allclose(scatter_of(part), scatter_of(summary)[np.ix_(columns, columns)], atol=1e-12)
    exact = Subspace.from_rows(rows[list(names)])
    assert np.linalg.eigvalsh(scatter_of(exact) - scatter_of(part)).min() > -1e-9  # never more than the truth
    kept = float(part.singular_values @ part.singular_values)
    assert part.total == pytest.approx(kept + summary.discarded / 2)  # 6 of 12 features
    assert part.total == pytest.approx(exact.total, rel=0.1)


@both_kinds
def test_a_direction_of_left_out_features_alone_is_gone(kind):
    names = ("a", "b")
    rows = np.zeros((40, 2), dtype=np.float32)
    rows[:, 1] = np.arange(40)
    (part, _), (lost, _) = intersect(
        [
            kind.from_rows(pd.DataFrame(rows, columns=names)),
            kind.from_rows(pd.DataFrame(rows[:, :1], columns=["a"])),
        ],
        ["north", "south"],
    )
    assert part.subspace().rank == 0
    assert part.total == 0
    assert (lost.features, lost.share) == (("b",), 1.0)
    assert str(lost) == "b (100.0% of its variance)"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_small_features_beside_large_ones_that_are_left_out(rng, dtype):
    """What rounding of the large ones leaves among the small is no direction, nor a negative variance."""
    rows = pd.DataFrame((rng.normal(size=(300, 6)) * [1e6, 1, 1, 1, 1, 1]).astype(dtype), columns=[*"abcdef"])
    expected = np.linalg.svd((rows - rows.mean()).to_numpy(float)[:, 1:], compute_uv=False)
    for fitted in (Subspace.from_rows(rows), Moments.from_rows(rows), StreamingPCA().fit(rows).summary_):
        part = select(fitted, tuple("bcdef")).subspace()
        np.testing.assert_allclose(part.singular_values, expected, rtol=0.2 if dtype == np.float32 else 1e-7)


def test_rounding_of_what_is_left_out_is_no_direction(rng):
    """Components in float32 have errors of 1e-7 of the largest direction, and the others have one."""
    rows = np.concatenate([1e3 * rng.normal(size=(300, 5)), rng.normal(size=(300, 1)) * [1, 3.3]], axis=1)
    rows = pd.DataFrame(rows.astype(np.float32), columns=[*"abcdefg"])
    assert select(Subspace.from_rows(rows), ("f", "g")).rank == 1
    indefinite = Moments(
        9, np.zeros(3), np.diag([1e12, 1.0, -1e-5]), about=About(tuple("abc"))
    )  # within rounding
    np.testing.assert_allclose(select(indefinite, ("b", "c")).scatter, np.diag([1.0, 0.0]))


def test_an_owner_without_rows_changes_nothing():
    rows = Subspace.from_rows(frame("abc"))
    with pytest.warns(UserWarning, match=r"summary 1: d \(0.0% of its variance\)"):
        merged = merge([rows, Subspace.empty(4, about=About(tuple("cdab")))], features="intersection")
    np.testing.assert_allclose(merged.singular_values, rows.singular_values)
    assert merged.feature_names == ("a", "b", "c")


@both_kinds
@ignore_left_out
def test_features_that_some_rows_do_not_know(kind, rng):
    """Leaving features out and pooling rows that know different ones commute."""
    rows = {name: frame("abcd", 50, seed) for seed, name in enumerate(("all", "no b", "no d"))}
    rows["no b"]["b"] = np.nan
    rows["no d"]["d"] = np.nan
    fitted = {name: StreamingPCA().partial_fit(each).summary_ for name, each in rows.items()}
    if kind is Subspace:
        fitted = {name: summary.subspace() for name, summary in fitted.items()}
    whole, narrow = merge(fitted.values()), kind.from_rows(frame("cab", 30, 9))
    assert len(whole.parts) == 3
    merged = merge([whole, narrow], features="intersection")
    before = [kind.from_rows(each[[*"abc"]]) for name, each in rows.items() if name != "no b"]
    unknown = StreamingPCA().partial_fit(rows["no b"][[*"abc"]]).summary_
    unknown = unknown.subspace() if kind is Subspace else unknown
    expected = merge([*before, unknown, kind.from_rows(frame("cab", 30, 9)[[*"abc"]])])
    assert len(merged.parts) == len(expected.parts) == 2
    np.testing.assert_allclose(merged.observed, expected.observed)
    np.testing.assert_allclose(merged.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(scatter_of(merged), scatter_of(expected), atol=1e-9)
    only_known = select(whole, ("a", "c"))  # now all rows know all features
    assert (only_known.observed, only_known.parts) == (None, ())
    assert_summarizes(only_known, [each[["a", "c"]].to_numpy() for each in rows.values()])
    of_few = select(whole, ("b",))
    assert of_few.count == 150
    np.testing.assert_allclose(of_few.observed, [100])


@both_kinds
@ignore_left_out
def test_the_result_is_a_model_like_any_other(kind, tmp_path):
    merged = merge([kind.from_rows(frame("abcd")), kind.from_rows(frame("dcbx"))], features="intersection")
    merged.save(tmp_path / "model")
    assert fedpca.load(tmp_path / "model") == merged
    rows = frame("bcd")
    assert merged.subspace().project(rows).shape == (60, 3)
    pca = StreamingPCA(2).merge(merged)
    assert list(pca.feature_names_in_) == ["b", "c", "d"]
    assert merge([merged, kind.from_rows(rows)]).count == 180


@ignore_left_out
def test_ranks_and_forgetting_are_those_of_what_remains():
    parts = [Moments.from_rows(frame("abcd", seed=1)), Moments.from_rows(frame("dcbx", seed=2))]
    common = [Moments.from_rows(frame("abcd", seed=1)[[*"bcd"]]), select(parts[1], tuple("bcd"))]
    assert merge(parts, 2, forget=0.5, features="intersection") == merge(common, 2, forget=0.5)
    with pytest.raises(ValueError, match="rank must be at most the number of features, 3, got rank=4"):
        merge(parts, 4, features="intersection")


# --- what is said ---


def test_a_refusal_names_what_differs_and_the_remedy():
    one, other = (Moments.from_rows(frame(names)) for names in ("abcdefg", "az"))
    with pytest.raises(ValueError, match="features='intersection'") as refused:
        merge([one, other])
    assert str(refused.value) == (
        "summaries must have the same features: only one has 'b', 'c', 'd', 'e' and 2 more, and only another "
        "'z'; select the same columns, or leave out what not all have with features='intersection'."
    )
    with pytest.raises(ValueError, match=r"and only another 'x'; select the same columns\.$"):
        merge([Moments.from_rows(frame("a")), Moments.from_rows(frame("x"))])  # have nothing in common
    with pytest.raises(ValueError, match="only one has 'b', 'c'; select"):
        merge([Moments.from_rows(frame("abc")), Moments.from_rows(frame("a"))])
    with pytest.raises(ValueError, match="got 2 and 3; select the same columns, or name them and leave out"):
        merge([Moments.from_rows(np.eye(2)), Moments.from_rows(np.eye(3))])
    with pytest.raises(ValueError, match="got 2 and 3, some of them twice"):
        merge(
            [Moments.from_rows(np.eye(n)).with_about(names=[*names]) for n, names in ((2, "ab"), (3, "aba"))]
        )
    with pytest.raises(
        ValueError, match=r"or leave out what not all have with fedpca.merge\(\.\.\., features"
    ):
        StreamingPCA(1).fit(frame("abc")).merge(other)


def test_long_lists_are_cut():
    many = Moments.from_rows(frame([f"a{i}" for i in range(30)]))
    owners = [many, *(Moments.from_rows(frame(["a0", f"z{i}"])) for i in range(9))]
    _, text = captured_warning(lambda: merge(owners, features="intersection"))
    assert "of summary 0: a1, a2, a3, a4 and 25 more (9" in text
    assert text.endswith("; and of 6 more.")
    assert len(text) < 400


@pytest.mark.parametrize(
    ("summaries", "error", "match"),
    [
        ([np.eye(2), np.eye(2)], ValueError, "matched by name, and those of summary 0 have none"),
        ([frame("ab"), np.eye(2)], ValueError, "those of summary 1 have none; fit rows whose columns have"),
        ([frame("ab"), frame("abb")], ValueError, "summary 1 has 'b' twice; rename one of them"),
        (
            [frame("ab"), frame("ba"), frame("cd")],
            ValueError,
            "no feature is in all summaries: summary 2 has",
        ),
        (
            [frame("ab"), frame("bc"), frame("ca")],
            ValueError,
            "summary 2 has 'c', 'a', and none of those that",
        ),
    ],
)
@both_merges
def test_what_cannot_be_matched_is_one_error(join, summaries, error, match):
    summaries = [
        Moments.from_rows(rows.to_numpy()).with_about(names=rows.columns)
        if isinstance(rows, pd.DataFrame)
        else Moments.from_rows(rows)
        for rows in summaries
    ]
    with pytest.raises(error, match=match):
        join(summaries, features="intersection")


@pytest.mark.parametrize("features", ["union", None, True, ["a"]])
def test_a_rule_that_is_none(features):
    part = Moments.from_rows(frame("ab"))
    for call in (
        lambda: merge([part], features=features),
        lambda: merge_tree([part], features=features),
        lambda: Aggregator(features=features),
        lambda: FederatedPCA(features=features).fit_clients({"a": frame("ab")}),
    ):
        with pytest.raises(ValueError, match="features must be 'same' or 'intersection', got features="):
            call()
    with pytest.raises(ValueError, match="at least one summary, got none"):
        merge([], features="intersection")
    with pytest.raises(TypeError, match="only Subspace and Moments merge, got DataFrame"):
        merge([frame("ab")], features="intersection")


# --- private releases ---


def release(rows, rank=None, **settings):
    given = {"epsilon": 1.0, "delta": 1e-6, "bound": 3.0, "center": None, "evaluate": False} | settings
    privacy = Privacy(**given)
    return PrivatePCA(rank, **privacy.settings).fit(rows).release()


def test_the_edge_of_the_noise_is_that_of_the_features_that_remain():
    """Against the spectrum of the release of zeros, and the edge of a release of these features alone."""
    names = [f"c{i}" for i in range(200)]
    zeros = pd.DataFrame(np.zeros((50, 200)), columns=names)
    kept = tuple(names[::4])
    whole = release(zeros, insecure_seed_for_tests=0)
    part = select(whole, kept)
    assert noise_edge(part.certificate) == pytest.approx(noise_edge(whole.certificate) / 2)
    assert part.certificate.n_features == 50
    assert np.abs(np.linalg.eigvalsh(part.scatter)).max() == pytest.approx(
        noise_edge(part.certificate), rel=0.15
    )
    of_kept = release(zeros[list(kept)])
    assert noise_edge(part.certificate) == pytest.approx(noise_edge(of_kept.certificate))
    assert replace(part.certificate, noise_edge=None, n_features=None) == replace(
        whole.certificate, noise_edge=None, n_features=None
    )  # post-processing: the same promise


@ignore_left_out
def test_private_releases_of_different_columns_merge(rng):
    rows = pd.DataFrame(power_law(rng, 40_000, 12, mean_size=0.0), columns=[f"c{i}" for i in range(12)])
    common = [f"c{i}" for i in range(9)]
    north, south = rows[:20_000][[*common, "c9"]], rows[20_000:][["c11", *common[::-1]]]
    releases = [release(north, 3, epsilon=4.0), release(south, 3, epsilon=4.0)]
    merged = merge(releases, 3, features="intersection")
    assert merged.certificate.private
    assert (merged.certificate.epsilon, merged.certificate.merged) == (4.0, 2)
    expected = np.hypot(*(np.sqrt(9 / each.n_features) * noise_edge(each.certificate) for each in releases))
    assert noise_edge(merged.certificate) == pytest.approx(expected)
    exact = Subspace.from_rows(rows[common], 3, center=False)
    assert fedpca.metrics.affinity(merged, exact) > 0.95


@pytest.mark.parametrize("directions", [False, True])
def test_noise_in_what_remains_is_not_a_direction(rng, directions):
    """A strong direction of the columns that are left out has noise in the others, and none of it rises."""
    rows = rng.normal(size=(4000, 60)) * 0.01
    rows[:, :3] += rng.normal(size=(4000, 1))
    table = pd.DataFrame(rows, columns=[f"c{i}" for i in range(60)])
    shown = 0
    for seed in range(60):
        released = release(table, 2, epsilon=2.0, insecure_seed_for_tests=seed)
        edge = noise_edge(released.certificate) / np.sqrt(2)  # of half of the features
        if directions:
            released = released.subspace()
            assert released.rank > 0
        part = select(released, tuple(table.columns[30:])).subspace()
        view = fedpca.summaries.view.SummaryView(part, None, "auto", float)
        assert view.n_components() <= part.rank <= 1
        assert (part.singular_values**2 < 1.2 * edge).all()
        shown += part.rank > 0
    assert shown <= 16  # the largest eigenvalue of noise alone is above its edge once in six (Tracy, Widom)


def test_a_private_subspace_that_does_not_state_its_noise_is_refused():
    rows = pd.DataFrame(power_law(np.random.default_rng(0), 3000, 40), columns=[f"c{i}" for i in range(40)])
    sketch = release(rows, 2, mechanism="sketch", epsilon=8.0)
    assert sketch.certificate.noise_edge is None
    with pytest.raises(ValueError, match="summary 0: features of a private subspace cannot be left out"):
        merge([sketch, release(rows[["c0", "c1"]])], features="intersection")
    turned = select(sketch, tuple(rows.columns[::-1]))  # nothing is left out
    np.testing.assert_array_equal(turned.components, sketch.components[:, ::-1])


# --- an aggregator ---


def test_an_aggregator_has_the_features_that_are_expected():
    frames = {"north": frame("abcd", 60, 1), "south": frame("cba", 40, 2), "west": frame("xcyba", 30, 3)}
    aggregator = Aggregator(expected=ABC, features="intersection")
    for name, rows in frames.items():
        assert aggregator.receive(name, 1, Moments.from_rows(rows))
    assert_summarizes(aggregator.summary(), [rows[[*"abc"]].to_numpy() for rows in frames.values()])
    assert aggregator.model().feature_names == ("a", "b", "c")
    said = {name: child.left_out for name, child in aggregator.children.items()}
    assert said["south"] == ""
    for name, lost in (("north", "d"), ("west", "x, y")):
        rows = frames[name]
        share = 1 - rows[[*"abc"]].var().sum() / rows.var().sum()
        assert said[name] == f"{lost} ({share:.1%} of its variance)"
    assert {event.child: event.left_out for event in aggregator.history} == said
    assert aggregator.withdraw("north")
    assert aggregator.model().count == 70
    assert aggregator.history[-1].left_out == ""


def test_no_child_shrinks_the_model(caplog):
    aggregator = Aggregator(expected=ABC, features="intersection")
    aggregator.receive("north", 1, Subspace.from_rows(frame("abcd")))
    for summary, reason in (
        (Subspace.from_rows(frame("a")), "must have all expected features, and lacks 'b', 'c'; fit them"),
        (Subspace.from_rows(frame("xyz")), "lacks 'a', 'b', 'c'"),
        (Subspace.from_rows(frame("abc").to_numpy()), "matched by name, and those of the summary have none"),
        (Subspace.from_rows(np.eye(4)).with_about(names=[*"abca"]), "the summary has 'a' twice"),
        (Subspace.from_rows(frame("abcd"), center=False), "centered and uncentered"),
    ):
        with pytest.raises(SummaryRejected, match=reason):
            aggregator.receive("mallory", 1, summary)
        assert aggregator.history[-1].what == "rejected"
    assert aggregator.model().feature_names == ("a", "b", "c")
    assert list(aggregator.children) == ["north"]


@pytest.mark.parametrize("expected", [None, Subspace.empty(3), Subspace.empty(2, about=About(("a", "a")))])
def test_an_intersection_needs_expected_names(expected):
    with pytest.raises(ValueError, match=r"needs expected= with the names|expected has 'a' twice"):
        Aggregator(features="intersection", expected=expected)


def test_a_restart_gives_the_same_bits_and_says_the_same(tmp_path, caplog):
    caplog.set_level(logging.INFO, "fedpca.federation")
    settings = {"rank": 2, "expected": ABC, "features": "intersection"}
    with Aggregator(store=tmp_path, **settings) as aggregator:
        aggregator.receive("north", 1, Subspace.from_rows(frame("abcd", 60, 1)))
        aggregator.receive("south", 1, Moments.from_rows(frame("cba", 40, 2)))
        aggregator.receive("west", 1, Moments.from_rows(frame("cbax", 20, 3)))
        aggregator.withdraw("west")
        model, children = aggregator.model(), aggregator.children
    assert "left out of 'north': d (" in caplog.text
    again = Aggregator(store=tmp_path, **settings)
    assert bits(again.model()) == bits(model)
    assert again.children == children
    assert again.children["north"].left_out.startswith("d (")
    assert FolderStore(tmp_path).states()["north"].message.summary.n_features == 3  # the rest is not kept
    plain = Aggregator(2, store=tmp_path)
    assert (bits(plain.model()), plain.quarantined) == (bits(model), {})


def test_a_store_of_wider_states_may_be_opened(tmp_path):
    with Aggregator(store=tmp_path) as before:
        for seed, name in enumerate(("north", "south")):
            before.receive(name, 1, Moments.from_rows(frame("dcba", 30, seed)))
    after = Aggregator(store=tmp_path, expected=ABC, features="intersection")
    assert after.model().feature_names == ("a", "b", "c")
    assert after.children["south"].left_out.startswith("d (")
    wider = Aggregator(
        store=tmp_path, expected=Subspace.empty(2, about=About(("a", "z"))), features="intersection"
    )
    assert set(wider.quarantined) == {"north", "south"}
    assert "lacks 'z'" in wider.quarantined["north"]


@pytest.mark.parametrize("left_out", [3, ["a"], None])
def test_a_forged_state_is_quarantined(tmp_path, left_out):
    with Aggregator(store=tmp_path, expected=ABC, features="intersection") as aggregator:
        aggregator.receive("north", 1, Subspace.from_rows(frame("abcd")))
    [path] = tmp_path.glob("*.state")
    line, message = path.read_bytes().split(b"\n", 1)
    facts = json.loads(line) | {"left_out": left_out}
    del facts["hash"]
    line = canonical(facts | {"hash": hashlib.sha256(canonical(facts)).hexdigest()})
    path.write_bytes(line + b"\n" + message)
    assert "left_out must be a string" in Aggregator(store=tmp_path).quarantined["north"]


def test_a_shared_folder_of_different_columns(tmp_path):
    frames = {"north": frame("abcd", 60, 1), "south": frame("cba", 40, 2), "narrow": frame("ab", 9, 3)}
    for name, rows in frames.items():
        publish(tmp_path, name, 1, StreamingPCA(2).fit(rows).summary_)
    aggregator = Aggregator(2, expected=ABC, features="intersection")
    [skipped] = collect(tmp_path, aggregator)
    assert skipped.file == "narrow.1.safetensors"
    assert "lacks 'c'" in skipped.reason
    assert aggregator.model().count == 100
    other_order = Aggregator(2, expected=ABC, features="intersection")
    for name in ("south", "north"):
        other_order.receive(name, 1, StreamingPCA(2).fit(frames[name]).summary_)
    assert bits(other_order.model()) == bits(aggregator.model())
    parent = Aggregator(2, expected=Subspace.empty(2, about=About(("c", "a"))), features="intersection")
    parent.receive("region", aggregator.version, aggregator.summary())
    assert parent.model().feature_names == ("c", "a")
    np.testing.assert_allclose(
        parent.model().singular_values,
        np.linalg.svd((rows := pooled_columns([frames["north"], frames["south"]], "ca")) - rows.mean(axis=0))[
            1
        ],
    )


def test_a_private_aggregator_checks_what_it_merges(rng):
    privacy = Privacy(1.0, 1e-6, 3.0, center=None, evaluate=False)
    rows = pd.DataFrame(rng.normal(size=(4000, 40)) / 6, columns=[f"c{i}" for i in range(40)])
    expected = Subspace.empty(5, centered=False, about=About(tuple(rows.columns[:5])))
    aggregator = Aggregator(expected=expected, features="intersection", privacy=privacy)
    aggregator.receive("north", 1, PrivatePCA(**privacy.settings).fit(rows).release())
    aggregator.receive("south", 1, PrivatePCA(**privacy.settings).fit(rows[rows.columns[:7]]).release())
    merged = aggregator.summary()
    assert merged.certificate.merged == 2
    assert noise_edge(merged.certificate) == pytest.approx(
        np.sqrt(2) * noise_edge(release(rows[rows.columns[:5]]).certificate)
    )
    with pytest.raises(SummaryRejected, match="no privacy certificate"):
        aggregator.receive("clean", 1, Subspace.from_rows(rows, center=False))
    parent = Aggregator(privacy=privacy)
    assert parent.receive("region", aggregator.version, merged)


# --- a federation in one process ---


def test_a_federation_of_clients_with_different_columns():
    frames = {
        "a north": frame("dabc", 60, 1), "b south": frame("cbad", 40, 2), "c west": frame("xdcb", 30, 3),
    }  # fmt: skip
    clients = frames | {"c west": [frames["c west"][:10], frames["c west"][10:]]}
    pca, text = captured_warning(lambda: FederatedPCA(2, features="intersection").fit_clients(clients))
    assert list(pca.feature_names_in_) == ["d", "b", "c"]
    pooled = pooled_columns(frames.values(), "dbc")
    truth = PCA(2).fit(pooled)
    np.testing.assert_allclose(pca.explained_variance_, truth.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(np.abs(pca.components_ @ truth.components_.T), np.eye(2), atol=1e-10)
    np.testing.assert_allclose(pca.mean_, pooled.mean(axis=0))
    assert "of 'a north': a (" in text
    assert "of 'c west': x (" in text
    for name, lost in (("a north", "a"), ("b south", "a"), ("c west", "x")):
        rows = frames[name]
        share = rows[lost].var() / rows.var().sum()
        assert pca.contributions_[name].left_out == f"{lost} ({share:.1%} of its variance)"
    assert pca.transform(frames["a north"][["d", "b", "c"]]).shape == (60, 2)
    assert clone(pca).get_params()["features"] == "intersection"
    same = FederatedPCA(2, features="intersection").fit_clients({"a": frame("ab"), "b": frame("ba")})
    assert {given.left_out for given in same.contributions_.values()} == {""}


def test_clients_that_cannot_be_matched():
    clients = {"a": frame("abc"), "b": frame("bcd"), "nameless": frame("abc").to_numpy()}
    with pytest.warns(UserWarning, match="left out (1 of 3 clients|features)") as caught:
        pca = FederatedPCA(2, features="intersection").fit_clients(clients)
    assert sum(
        "left out 1 of 3 clients: {'nameless': 'features are matched" in str(w.message) for w in caught
    )
    assert "have none" in pca.contributions_["nameless"].problem
    assert pca.n_samples_seen_ == 120
    with pytest.raises(ValueError, match="no feature is in all summaries: 'z' has 'x', 'y'"):
        FederatedPCA(1, features="intersection").fit_clients({"a": frame("ab"), "z": frame("xy")})
    with pytest.raises(ValueError, match=r"no client could contribute: .*matched by name"):
        FederatedPCA(1, features="intersection").fit_clients({"a": np.eye(3), "z": np.eye(2)})
    with pytest.warns(UserWarning, match="what not all have with features='intersection'"):
        FederatedPCA(1).fit_clients({"a": frame("ab"), "b": frame("ab"), "z": frame("xb")})


@ignore_left_out
def test_private_clients_of_different_columns_do_not_mix_their_centers(rng):
    """Centers are shared by those with the same columns: others have other columns at the same places."""
    rows = pd.DataFrame(power_law(rng, 30_000, 5, mean_size=0.0) / 2, columns=[*"abcde"])
    rows += [0.0, 1.0, 2.0, 3.0, 4.0]
    clients = {"x": rows[:15_000][[*"abcd"]], "y": rows[15_000:][[*"edcb"]]}
    privacy = Privacy(4.0, 1e-6, 3.0, center="private")
    pca = FederatedPCA(2, privacy=privacy, features="intersection").fit_clients(clients)
    assert list(pca.feature_names_in_) == ["b", "c", "d"]
    np.testing.assert_allclose(pca.mean_, [1, 2, 3], atol=0.1)
    assert fedpca.metrics.affinity(pca, Subspace.from_rows(rows[[*"bcd"]], 2)) > 0.9
    streams = {name: iter([each[:8000], each[8000:]]) for name, each in clients.items()}
    privacy = Privacy(4.0, 1e-6, 6.0, center=None)
    streamed = FederatedPCA(2, privacy=privacy, features="intersection", center=False).fit_clients(streams)
    assert streamed.model_.certificate.merged == 2


# --- the command line, and reports ---


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frames = {"north": frame("abcd", 60, 1), "south": frame("dxcb", 40, 2)}
    for name, rows in frames.items():
        StreamingPCA(2).fit(rows).summary_.save(f"{name}.safetensors")
        rows.to_csv(f"{name}.csv", index=False)
    return frames


def run(*arguments):
    from command_line import invoke

    return invoke(list(arguments))


def test_the_command_line_merges_what_all_have(models):
    files = ["north.safetensors", "south.safetensors"]
    failed = run("merge", *files, "-o", "both.safetensors")
    assert failed.exit_code == 1
    assert failed.stderr == (
        "fedpca: error: summaries must have the same features: only one has 'a', and only another 'x'; "
        "select the same columns, or leave out what not all have with --features intersection.\n"
    )
    shares = [models["north"]["a"], models["south"]["x"]]
    shares = [each.var() / rows.var().sum() for each, rows in zip(shares, models.values(), strict=True)]
    done = run("merge", *files, "-o", "both.safetensors", "--features", "intersection")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1:] == [
        f"left out of north.safetensors: a ({shares[0]:.1%} of its variance)",
        f"left out of south.safetensors: x ({shares[1]:.1%} of its variance)",
    ]
    merged = fedpca.load("both.safetensors")
    assert merged.feature_names == ("b", "c", "d")
    assert_summarizes(merged, [rows[[*"bcd"]].to_numpy() for rows in models.values()])
    as_json = run(
        "merge", *files, "-o", "both.safetensors", "--features", "intersection", "--json", "--force"
    )
    assert json.loads(as_json.stdout)["left_out"] == {
        "north.safetensors": {"features": ["a"], "variance_share": pytest.approx(shares[0])},
        "south.safetensors": {"features": ["x"], "variance_share": pytest.approx(shares[1])},
    }
    assert run("transform", "both.safetensors", "north.csv", "-o", "scores.csv").exit_code == 0
    scores = np.loadtxt("scores.csv", delimiter=",", skiprows=1)
    expected = merged.subspace().project(models["north"][[*"bcd"]])[:, : scores.shape[1]]
    np.testing.assert_allclose(scores, expected, atol=1e-9)
    same = run("merge", "north.safetensors", "-o", "same.safetensors", "--json")
    assert json.loads(same.stdout)["left_out"] == {}


def test_the_command_line_refuses_what_cannot_be_matched(models):
    Moments.from_rows(np.eye(3)).save("nameless.safetensors")
    Moments.from_rows(frame("yz")).save("other.safetensors")
    for file, match in (
        (
            "nameless.safetensors",
            "those of nameless.safetensors have none; fit rows whose columns have names.",
        ),
        ("other.safetensors", "no feature is in all summaries: other.safetensors has 'y', 'z', and none"),
    ):
        failed = run(
            "merge", "north.safetensors", file, "-o", "out.safetensors", "--features", "intersection"
        )
        assert failed.exit_code == 1
        assert match in failed.stderr
        assert failed.stderr.count("\n") == 1
    assert run("merge", "north.safetensors", "-o", "x.safetensors", "--features", "union").exit_code == 2


@pytest.mark.slow
@ignore_left_out
def test_a_report_says_what_was_left_out(tmp_path):
    from fedpca.report.run import load_run

    aggregator = Aggregator(store=tmp_path, expected=ABC, features="intersection")
    aggregator.receive("north", 1, Subspace.from_rows(frame("abcd")))
    aggregator.receive("south", 1, Subspace.from_rows(frame("abc")))
    said = {"north": aggregator.children["north"].left_out}
    assert load_run(aggregator).left_out == load_run(tmp_path).left_out == said
    pca = FederatedPCA(2, features="intersection").fit_clients({"a": frame("abc"), "b": frame("ab")})
    assert load_run(pca).left_out == {"a": pca.contributions_["a"].left_out}
    pytest.importorskip("matplotlib", reason="the report extra")
    from fedpca.report.federation import contributions

    section = contributions(load_run(aggregator))
    numbers = section.items[0].numbers
    assert numbers.head[-1] == "features left out"
    assert [line[-1] for line in numbers.lines] == [said["north"], ""]
