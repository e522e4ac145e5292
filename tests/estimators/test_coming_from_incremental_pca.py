"""What scikit-learn's own tests of IncrementalPCA check, checked of StreamingPCA; differences are asserted.

docs/coming-from/incremental-pca.md lists every difference.
"""

import inspect
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers import fit_in_batches
from scipy import sparse
from sklearn.datasets import load_iris, make_low_rank_matrix
from sklearn.decomposition import PCA, IncrementalPCA

from fedpca import StreamingPCA

IRIS = load_iris().data
PAGE = Path(__file__).parents[2] / "docs" / "coming-from" / "incremental-pca.md"
SEEDS = (0, 7, 42)
SPARSE = [sparse.csr_array, sparse.csc_array, sparse.lil_array, sparse.csr_matrix, sparse.csc_matrix]


def nearly_flat(seed, n_rows=50):
    """Spherical rows but for one thin direction, far from the origin."""
    return np.random.default_rng(seed).normal(size=(n_rows, 3)) * [1, 1e-5, 1] + [5, 4, 3]


def low_rank(n_rows, n_features, effective_rank, seed):
    return make_low_rank_matrix(
        n_rows, n_features, effective_rank=effective_rank, tail_strength=0.0, random_state=seed
    )


def fitted(rows, *args, **settings):
    """Rows of low rank give fewer components than asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return StreamingPCA(*args, **settings).fit(rows)


# --- the same ---


@pytest.mark.parametrize("container", [np.asarray, *SPARSE])
def test_explained_variance_covariance_and_precision(container):
    ours, theirs = StreamingPCA(2, batch_size=50), PCA(2).fit(IRIS)
    assert ours.fit_transform(container(IRIS)).shape == (150, 2)
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-10)
    for n_components in (1, 2, 4):
        ours = StreamingPCA(n_components, batch_size=50).fit(container(IRIS))
        product = ours.get_covariance() @ ours.get_precision()
        np.testing.assert_allclose(product, np.eye(4), atol=1e-12)
        np.testing.assert_allclose(
            ours.get_precision(), PCA(n_components).fit(IRIS).get_precision(), rtol=1e-8, atol=1e-8
        )


def test_the_precision_of_rows_on_a_line_is_the_pseudo_inverse():
    pca = StreamingPCA(1).fit(np.array([[2.0, 1.0], [-2.0, 1.0], [2.0, 1.0], [-2.0, 1.0]]))
    np.testing.assert_allclose(pca.get_precision(), [[3 / 16, 0], [0, 0]], atol=1e-15)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_near_a_cluster_projects_on_the_direction_of_the_cluster(seed):
    rng = np.random.default_rng(seed)
    rows = 0.1 * rng.normal(size=(100, 3))
    rows[:10] += [3, 4, 5]
    (scores,) = StreamingPCA(2).fit(rows).transform(0.1 * rng.normal(size=(1, 3)) + [3, 4, 5])
    assert abs(scores[0]) > 0.95 * np.linalg.norm(scores)


@pytest.mark.parametrize("seed", SEEDS)
def test_scores_can_be_inverted(seed):
    rows = nearly_flat(seed)
    pca = StreamingPCA(2, batch_size=10).fit(rows)
    np.testing.assert_allclose(pca.inverse_transform(pca.transform(rows)), rows, atol=1e-3)


def test_more_components_than_features_are_refused():
    with pytest.raises(ValueError, match=r"n_components must be at most the number of features, 3"):
        StreamingPCA(4).fit(np.array([[0, 1, 0], [1, 0, 0]]))


def test_as_many_rows_as_components_give_no_numerical_warning():
    rows = np.random.default_rng(0).normal(size=(5, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", RuntimeWarning)
        StreamingPCA(5).partial_fit(rows).transform(rows)
        StreamingPCA(5).fit(rows).transform(rows)


def test_another_number_of_features_is_refused():
    rng = np.random.default_rng(0)
    pca = StreamingPCA().fit(rng.normal(size=(100, 20)))
    with pytest.raises(ValueError, match="50 features"):
        pca.partial_fit(rng.normal(size=(100, 50)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_features", [3, 20])
def test_components_and_signs_do_not_depend_on_the_batch_size(seed, n_features):
    rows = np.random.default_rng(seed).normal(size=(100, n_features))
    fits = [StreamingPCA(batch_size=size).fit(rows).components_ for size in range(10, 90, 7)]
    for one, other in pairwise(fits):
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_batches_of_one_row_after_the_first():
    rows = nearly_flat(1)
    pca = StreamingPCA(3).partial_fit(rows[:3])
    for row in rows[3:]:
        pca.partial_fit(row[None])
    np.testing.assert_allclose(np.abs(pca.components_), np.abs(PCA(3).fit(rows).components_), atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_partial_fit_equals_fit(seed):
    rows = nearly_flat(seed)
    whole, streamed = StreamingPCA(2, batch_size=10).fit(rows), fit_in_batches(StreamingPCA(2), rows, 10)
    np.testing.assert_allclose(whole.components_, streamed.components_, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_scores_are_those_of_pca(seed):
    rng = np.random.default_rng(seed)
    for rows in (IRIS, rng.normal(size=(100, 3)) + 5 * rng.uniform(size=(1, 3))):
        ours = StreamingPCA(2, batch_size=25).fit_transform(rows)
        np.testing.assert_allclose(np.abs(ours), np.abs(PCA(2).fit_transform(rows)), atol=1e-9)


@pytest.mark.parametrize("n_components", [None, 99])
def test_variances_of_rows_of_low_rank(n_components):
    rows = low_rank(1000, 100, 10, 1999)
    ours, theirs = fitted(rows, n_components, batch_size=100), PCA(n_components).fit(rows)
    found = ours.n_components_
    for name in ("explained_variance_", "explained_variance_ratio_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name)[:found], atol=1e-10)
        np.testing.assert_allclose(getattr(theirs, name)[found:], 0, atol=1e-10)
    assert abs(ours.noise_variance_ - theirs.noise_variance_) < 1e-10


@pytest.mark.parametrize("seed", SEEDS)
def test_singular_values_are_the_lengths_of_the_scores(seed):
    rows = low_rank(1000, 100, 10, seed)
    pca = StreamingPCA(10, batch_size=150).fit(rows)
    scores = pca.transform(rows)
    np.testing.assert_allclose(pca.singular_values_, PCA(10).fit(rows).singular_values_, rtol=1e-9)
    np.testing.assert_allclose(pca.singular_values_, np.linalg.norm(scores, axis=0), rtol=1e-9)
    np.testing.assert_allclose(np.square(pca.singular_values_).sum(), np.linalg.norm(scores) ** 2, rtol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_given_singular_values_are_found(seed):
    theirs = PCA(3)
    scores = theirs.fit_transform(low_rank(100, 110, 3, seed))
    rows = scores / np.linalg.norm(scores, axis=0) * [3.142, 2.718, 1.0] @ theirs.components_
    pca = StreamingPCA(3, batch_size=100).fit(rows)
    np.testing.assert_allclose(pca.singular_values_, [3.142, 2.718, 1.0], rtol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_components", [None, 9])
def test_whitened_scores_are_those_of_pca_and_can_be_inverted(seed, n_components):
    rows = low_rank(1000, 10, 2, seed)
    ours = fitted(rows, n_components, whiten=True, batch_size=250)
    theirs = PCA(n_components, whiten=True).fit(rows)
    found = int(np.count_nonzero(theirs.explained_variance_ratio_ > 1e-12))  # the others are noise
    scores = ours.transform(rows)
    np.testing.assert_allclose(
        np.abs(scores[:, :found]), np.abs(theirs.transform(rows)[:, :found]), atol=1e-3
    )
    np.testing.assert_allclose(ours.inverse_transform(scores), rows, atol=1e-9)


def test_many_rows_in_large_batches():
    rows = np.random.default_rng(0).uniform(size=(500_000, 2))
    ours = StreamingPCA(2, batch_size=10_000).fit(rows)
    np.testing.assert_allclose(ours.singular_values_, PCA(2).fit(rows).singular_values_, rtol=1e-9)


def test_mean_and_variance_of_the_features_of_all_batches():
    rows = nearly_flat(3, 200)
    ours, theirs = (fit_in_batches(make(2), rows, 40) for make in (StreamingPCA, IncrementalPCA))
    for name in ("mean_", "var_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(ours.var_, rows.var(axis=0), rtol=1e-12, atol=1e-13)
    ours.var_[:] = 0  # a copy
    assert ours.var_.all()


# --- what differs ---


def test_batches_may_be_smaller_than_n_components_also_the_first():
    rows = np.random.default_rng(0).normal(size=(40, 6))
    with pytest.raises(ValueError, match="first partial_fit"):
        IncrementalPCA(3).partial_fit(rows[:2])
    assert StreamingPCA(3).partial_fit(rows[:2]).partial_fit(rows[2:]).n_components_ == 3


@pytest.mark.parametrize("container", SPARSE)
def test_sparse_rows_are_learned_in_partial_fit_too(container):
    streamed = fit_in_batches(StreamingPCA(2), sparse.csr_array(container(IRIS)), 50)
    np.testing.assert_allclose(streamed.components_, StreamingPCA(2).fit(IRIS).components_, atol=1e-10)
    with pytest.raises(TypeError, match="sparse"):
        IncrementalPCA(2).partial_fit(container(IRIS))


def test_components_without_variance_are_not_returned():
    rng = np.random.default_rng(1999)
    wide = rng.uniform(size=(10, 50))
    for make, expected in ((StreamingPCA, 9), (IncrementalPCA, 10)):  # 10 centered rows span 9 directions
        pca = make().partial_fit(wide)
        assert (pca.n_components_, *pca.components_.shape) == (expected, expected, 50)
    assert fitted(low_rank(1000, 100, 10, 1999)).n_components_ < 100
    tall = rng.uniform(size=(50, 10))
    pca = StreamingPCA().partial_fit(tall)
    assert pca.n_components_ == 10
    assert pca.partial_fit(tall).n_components_ == len(pca.components_) == 10


def test_fitted_attributes_are_read_only():
    pca = StreamingPCA(2).fit(IRIS)
    with pytest.raises(AttributeError):
        pca.n_samples_seen_ = 150.0
    assert pca.partial_fit(IRIS).n_samples_seen_ == 300


def test_scores_are_named_after_the_class():
    assert list(StreamingPCA(2).fit(IRIS).get_feature_names_out()) == ["streamingpca0", "streamingpca1"]


def test_var_is_known_to_the_exact_tracker_only():
    pca = StreamingPCA(2, tracker="nystrom").fit(IRIS)
    with pytest.raises(AttributeError, match="var_ is known only to the exact tracker"):
        _ = pca.var_
    with pytest.raises(AttributeError, match="var_ is learned by fit"):
        _ = StreamingPCA().var_


def test_nothing_else_is_missing_and_the_page_lists_what_is():
    ours, theirs = StreamingPCA(2).fit(IRIS), IncrementalPCA(2).fit(IRIS)
    missing = {name for name in dir(theirs) if not name.startswith("_") and not hasattr(ours, name)}
    missing |= set(theirs.get_params()) - set(ours.get_params())
    for method in ("fit", "partial_fit", "transform", "inverse_transform"):
        missing |= {
            name
            for name in inspect.signature(getattr(theirs, method)).parameters
            if name not in inspect.signature(getattr(ours, method)).parameters
        }
    assert missing == {"batch_size_", "copy", "check_input"}
    page = PAGE.read_text()
    assert all(name in page for name in missing)
