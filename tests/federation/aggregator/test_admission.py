"""No certificate and no energy gets in that honest rows could not have, and honest releases always do."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import power_law, rows_of

from fedpca import Aggregator, Moments, Privacy, PrivatePCA, Subspace, merge
from fedpca.errors import SummaryRejected
from fedpca.federation import Limits
from fedpca.privacy import StepSum
from fedpca.summaries.certificate import Certificate

pytestmark = pytest.mark.slow  # all of it together

PRIVACY = Privacy(2.0, 1e-5, 3.0, center=None, evaluate=False)


def release_of(seed=0, privacy=PRIVACY, n_rows=300, n_features=6, **changes):
    rows = power_law(np.random.default_rng(seed), n_rows, n_features)
    return replace(PrivatePCA(min(2, n_features), **privacy.settings).fit(rows).release(), **changes)


def releases_of(tables, privacy):
    """What owners release who take the private steps together, if there are any."""
    owners = [PrivatePCA(min(2, rows.shape[1]), **privacy.settings) for rows in tables]
    while privacy.needs_steps and not all(owner.is_prepared for owner in owners):
        pooled = StepSum.pooled([owner.step_sum(rows) for owner, rows in zip(owners, tables, strict=True)])
        for owner in owners:
            owner.advance(pooled)
    return [owner.partial_fit(rows).release() for owner, rows in zip(owners, tables, strict=True)]


def certified(release, **changes):
    return release.with_about(certificate=replace(release.certificate, **changes))


def federation(privacy=PRIVACY, **rules):
    """An aggregator with two honest children."""
    aggregator = Aggregator(2, privacy=privacy, **rules)
    for seed in range(2):
        aggregator.receive(f"honest {seed}", 1, release_of(seed, privacy))
    return aggregator


def refuse(aggregator, summary, match):
    """Refused with the reason, and the others have the model they had."""
    before = aggregator.model()
    with pytest.raises(SummaryRejected, match=match):
        aggregator.receive("evil", 1, summary)
    assert aggregator.model() is before
    assert "evil" in {event.child for event in aggregator.history if event.what == "rejected"}


# --- certificates ---

FORGED = {
    "mechanism": ({"mechanism": "magic"}, "mechanism is 'magic'"),
    "center": ({"center": "elsewhere"}, "center is 'elsewhere'"),
    "bound": ({"bound": 1e9}, "bound is 1e[+]09"),
    "no bound": ({"bound": None}, "bound is inf"),
    "huge edge": ({"noise_edge": 1e300}, "edge of its noise is 1e[+]300"),
    "no edge": ({"noise_edge": None}, "must state the edge"),
    "floating-point noise": ({"warnings": ("floating-point noise",)}, "weakened: floating-point noise"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_certificate_that_no_release_has_is_refused(what):
    changes, reason = FORGED[what]
    refuse(federation(), certified(release_of(5), **changes), reason)


def test_a_copied_stream_refuses_the_copier():
    aggregator = federation()
    copied = release_of(0)
    aggregator.receive("victim", 1, copied)
    refuse(aggregator, copied, "private stream .* is that of 'victim' already")
    refuse(aggregator, merge([copied, release_of(8)]), "is that of 'victim' already")
    assert aggregator.receive("victim", 2, copied)  # its own
    aggregator.withdraw("victim")
    assert aggregator.receive("another", 1, copied)  # nobody's now


def test_a_stolen_ledger_does_not_weaken_the_model():
    aggregator = federation()
    victim = release_of(0)
    aggregator.receive("victim", 1, victim)
    stolen = victim.certificate.ledger
    evil = certified(release_of(5), ledger=replace(stolen, spent=1e6, delta=0.9))
    refuse(aggregator, evil, "ledger is that of 'victim', too, and has spent 1e[+]06")
    honest = certified(release_of(6), ledger=stolen)
    assert aggregator.receive("the same owner", 1, honest)
    refuse(aggregator, evil, "has spent 1e[+]06")
    assert aggregator.model().certificate.epsilon == 2.0


def test_certificates_merge_however_long_their_texts_and_however_many_their_warnings():
    aggregator = Aggregator(2)
    for seed in range(3):
        texts = {"sampler": "x" * (1990 + seed), "warnings": tuple(f"{seed} {i}" for i in range(100))}
        release = certified(release_of(seed), **texts, noise_edge=1e300, mu=1e300)
        aggregator.receive(f"{seed}", 1, release)
    aggregator.model()
    assert aggregator.summary().certificate.noise_edge == 1e300
    assert len(aggregator.summary().certificate.warnings) == 100
    assert dict(aggregator.quarantined) == {}
    with pytest.raises(ValueError, match="at most 100 warnings"):
        replace(release.certificate, warnings=("x",) * 101)


def test_certificates_merge_in_any_tree():
    parts = [release_of(seed).certificate for seed in range(9)]
    parts[1] = replace(parts[1], ledger=parts[0].ledger)  # one owner
    moments = [release_of(0).with_about(certificate=part) for part in parts]
    flat = merge(moments).certificate
    nested = merge([merge(moments[:4]), moments[4], merge(moments[5:])]).certificate
    assert {flat.epsilon, flat.delta, flat.mu} == {nested.epsilon, nested.delta, nested.mu}
    assert flat.releases == nested.releases


# --- energy of clean summaries ---


@pytest.mark.parametrize(
    "scatter",
    [[[0, 1e12], [1e12, 0]], [[1.0, 0], [0, -1e-6]], [[1.0, 2.0], [2.0, 1.0]], [[-1.0, 0], [0, -1.0]]],
)
def test_clean_moments_are_positive_semidefinite(scatter, tmp_path):
    with pytest.raises(ValueError, match="positive semidefinite"):
        Moments(10, [0, 0], scatter)


@pytest.mark.parametrize("size", [1e-100, 1e-8, 1.0, 1e120])
def test_rounding_does_not_count_as_indefinite(size):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = size * (rng.normal(size=(7, 20)) + 1e5 * (seed % 2))
        moments = Moments.from_rows(rows)
        merge([moments, Moments.from_rows(2 * rows), moments])


def test_sums_of_accepted_moments_are_accepted():
    """At the tolerance, too: it grows with the energy."""
    low = -0.99e-8
    parts = [Moments(10, np.zeros(3), np.diag(diagonal)) for diagonal in ([1, 0, low], [0, 1, low])]
    merge(parts)


def test_two_children_cannot_overflow_together():
    aggregator = Aggregator()
    for child in "ab":
        with pytest.raises(SummaryRejected, match="too large to be merged with others"):
            aggregator.receive(child, 1, Moments(9, np.zeros(8), np.eye(8) * 1.2e299))
    largest = Moments(9, np.zeros(8), np.eye(8) * 2e267)
    for child in range(50):
        aggregator.receive(f"{child}", 1, largest)
    aggregator.receive("honest", 1, Moments.from_rows(rows_of(0)))
    aggregator.model()


def test_a_limit_on_the_length_of_rows_and_on_their_number():
    aggregator = Aggregator(3, limits=Limits(max_rows=100, max_rms=10.0))
    for seed in range(3):
        aggregator.receive(f"{seed}", 1, Subspace.from_rows(rows_of(seed)))
    for rows in (np.eye(8)[:2] * 1e100, rows_of(3) + 10, np.full((5, 8), 20.0)):
        for kind in (Subspace, Moments):
            with pytest.raises(
                SummaryRejected, match="root-mean-square length of its rows must be at most 10"
            ):
                aggregator.receive("long", 1, kind.from_rows(rows))
    with pytest.raises(SummaryRejected, match="at most 100, got 101"):
        aggregator.receive("many", 1, Subspace.from_rows(rows_of(3, 101)))


@pytest.mark.parametrize(
    "limit", [{"max_rms": 0}, {"max_rms": -1.0}, {"max_rows": "x"}, {"max_rms": np.nan}, {"least_rows": -1}]
)
def test_limits_are_numbers_above_zero(limit):
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(limit))} must be"):
        Limits(**limit)


# --- energy of private summaries ---


def attack(release, scatter, **changes):
    return replace(release, scatter=scatter, **changes)


def test_private_scatters_lie_between_the_noise_and_the_rows():
    aggregator = federation()
    u, v = np.eye(6)[:2]
    for scatter in (
        1e15 * (np.outer(u, u) - np.outer(v, v)),  # no trace
        -1e4 * np.outer(u, u),  # erases a component
        2 * 9 * 300 * np.outer(u, u) - 9 * 300 * np.outer(v, v),
    ):
        refuse(aggregator, attack(release_of(5), scatter), "its scatter has eigenvalues from")
    refuse(aggregator, attack(release_of(5), 1e4 * np.eye(6)), "more than 300 rows within bound=3")


def test_private_means_lie_where_clipped_rows_can_have_them():
    known = replace(PRIVACY, center=(1.0,) * 6)
    honest = release_of(5, known)
    aggregator = federation(known)
    far = {"mean": np.full(6, 1e9), "count": 10.0, "scatter": np.zeros((6, 6))}
    refuse(aggregator, replace(honest, **far), "from the public center")
    assert aggregator.receive("honest", 1, honest)
    near = replace(release_of(6, known), mean=np.full(6, -0.5))
    refuse(federation(known), near, "from the public center; at most bound=3")
    pairs = replace(PRIVACY, center="pairs")
    refuse(federation(pairs), replace(release_of(5, pairs), **far), "mean must be zero: differences of pairs")


def test_a_private_mean_may_be_anywhere_within_the_length_of_rows_that_is_accepted():
    """Nobody knows beforehand where a private center will be found."""
    found = replace(PRIVACY, center="private")
    aggregator = Aggregator(2, privacy=found, limits=Limits(max_rms=100.0))
    honest = [release_of(seed, found, n_rows=2000) for seed in range(3)]
    assert {release.certificate.center for release in honest} == {"private"}
    for seed in range(2):
        aggregator.receive(f"honest {seed}", 1, honest[seed])
    refuse(aggregator, replace(honest[2], mean=np.full(6, 1e9)), "root-mean-square length")
    assert aggregator.receive("honest", 1, replace(honest[2], mean=np.full(6, 10.0)))


HONEST = [
    PRIVACY,
    replace(PRIVACY, epsilon=0.25),
    replace(PRIVACY, center="private"),
    replace(PRIVACY, center="pairs"),
    replace(PRIVACY, center="pairs", adjacency="zero-out"),
    replace(PRIVACY, bound="sphere"),
    replace(PRIVACY, bound="sphere", center="pairs"),
    replace(PRIVACY, bound="private"),
    replace(PRIVACY, bound="private", center="private"),
    replace(PRIVACY, bound="private", center="private", evaluate=True),
    replace(PRIVACY, bound="private", center="private", mechanism="sketch"),
    replace(PRIVACY, center=(0.1,) * 6),
    replace(PRIVACY, releases=12),
    replace(PRIVACY, mechanism="sketch"),
    replace(PRIVACY, bound=0.01),
    replace(PRIVACY, epsilon=2.0, adjacency="zero-out"),
]


@pytest.mark.filterwarnings("ignore:n_components=")
@pytest.mark.parametrize("privacy", HONEST, ids=str)
@pytest.mark.parametrize("n_features", [1, 2, 6, 40])
@pytest.mark.parametrize("n_rows", [40, 2000])
def test_honest_releases_are_accepted(privacy, n_features, n_rows):
    if isinstance(privacy.center, tuple):
        privacy = replace(privacy, center=(0.1,) * n_features)
    accepted = replace(PRIVACY, adjacency=privacy.adjacency)  # as a run of Flower has it
    if isinstance(privacy.bound, str):
        accepted = replace(accepted, bound="private")
    aggregator, parent = Aggregator(privacy=accepted), Aggregator(privacy=accepted)
    tables = [power_law(np.random.default_rng(seed), n_rows, n_features) for seed in range(6)]
    for seed, release in enumerate(releases_of(tables, privacy)):
        assert aggregator.receive(f"{seed}", 1, release)
        assert aggregator.receive(f"{seed}, directions", 1, certified(release.subspace(), stream=f"{seed}"))
    assert parent.receive("region", 1, aggregator.summary())


def test_honest_streams_that_find_their_center_are_accepted():
    privacy = replace(PRIVACY, center="private")
    aggregator, parent = Aggregator(privacy=PRIVACY), Aggregator(privacy=PRIVACY)
    for seed in range(6):
        pca = PrivatePCA(2, **privacy.settings)
        for part in np.array_split(power_law(np.random.default_rng(seed), 3000, 6) + 2.0, 6):
            pca.partial_fit(part)
        assert aggregator.receive(f"{seed}", 1, pca.release())
    assert parent.receive("region", 1, aggregator.summary())


def test_a_release_with_far_more_noise_than_required_is_refused():
    refuse(
        federation(), release_of(5, replace(PRIVACY, epsilon=0.01)), "more than 10 times what epsilon=2 needs"
    )


def test_a_certificate_of_a_clean_federation_cannot_stop_it():
    aggregator = Aggregator(2)
    aggregator.receive("honest", 1, Moments.from_rows(rows_of(0)))
    odd = Certificate(
        private=True, epsilon=1.0, delta=0.5, mu=0.1, noise_edge=1e300, stream="x", warnings=["a"]
    )
    aggregator.receive("evil", 1, Moments.from_rows(rows_of(1)).with_about(certificate=odd))
    aggregator.record()
    aggregator.model()
    assert aggregator.model().certificate is None


def test_a_feature_that_a_child_does_not_know_is_no_energy():
    """Its mean there is 0, and the others' is far from that."""
    aggregator, far = Aggregator(2), np.array([0, 0, 0, 1e4])
    for seed in range(5):
        aggregator.receive(f"{seed}", 1, Moments.from_rows(rows_of(seed, n_features=4) + far))
    narrow = Moments.from_rows(rows_of(7, 10, n_features=4) * np.array([1, 1, 1, 0]))
    narrow = replace(narrow, observed=[10, 10, 10, 0])
    mixed = merge([narrow, Moments.from_rows(rows_of(8, n_features=4) + far)])
    for summary in (narrow, narrow.subspace(), mixed):
        assert aggregator.receive("narrow", aggregator.versions.get("narrow", 0) + 1, summary)
        assert aggregator.record()
        assert aggregator.history[-1].warning == ""
        found = aggregator.influence()["narrow"]
        assert found.direction_share < 5 * found.row_share
    only = Aggregator(2)
    only.receive("a", 1, narrow)  # nobody knows the feature yet
    assert only.receive("b", 1, Moments.from_rows(rows_of(1, n_features=4)))
    assert only.receive("c", 1, narrow.subspace())
    only.model()


@pytest.mark.parametrize("first", [0, 1, 2])
def test_private_children_merge_with_those_that_do_not_know_every_feature(first):
    scatter = np.diag([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    narrow = Moments(10, np.zeros(6), scatter, centered=False, observed=[10, 10, 10, 10, 10, 0])
    children = [narrow, release_of(0), Moments.from_rows(rows_of(1, n_features=6), center=False)]
    aggregator = Aggregator(2)
    for number in range(3):
        aggregator.receive(f"{number}", 1, children[(first + number) % 3])
    assert aggregator.model().count == 370
    assert aggregator.model().certificate is None
    assert dict(aggregator.quarantined) == {}
