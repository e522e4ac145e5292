"""plan: what to expect of private components and, with secure sums, what these save and cost."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import log2, sqrt
from typing import Literal, NamedTuple

import numpy as np

from fedpca.privacy.clipping import MAX_ROWS
from fedpca.privacy.evaluation import Energies
from fedpca.privacy.mechanisms import build
from fedpca.privacy.planning import Plan, plan_release, rounded
from fedpca.privacy.rules import warn_of_weak_settings
from fedpca.privacy.search import Found
from fedpca.privacy.search_plan import Outlook, expected
from fedpca.privacy.settings import Privacy
from fedpca.privacy.sums import Sum
from fedpca.secure.fit import PrivateFit
from fedpca.secure.noise_shares import Levels
from fedpca.secure.settings import SecureSums, Terms
from fedpca.summaries import validation
from fedpca.summaries.subspace import Subspace

_TAIL = 10.0  # standard deviations, by which noise never exceeds what is expected
_WORD_BITS = 63
_VISITS = 3  # for keys, shares and the agreement; and as many per sum: masked, signed, opened

# Bytes of messages: of an owner's with its signature, of a coordinator's; and of what they list.
_OWNERS, _COORDINATORS = 370, 200
_KEYS, _DIGEST, _HEX_SHARE, _SHARE, _COMMITMENT = 226, 72, 73, 33, 32

# Of one core of a server of 2024, by `python -m benchmarks.secure`.
_MASKED = 3.0e9  # bytes per second
_DRAWN = 15.0e6  # entries of noise
_HASHED = 1.5e9  # bytes
_READ = 7e7  # bytes of keys and shares, read again at every visit
_EXCHANGE, _VERIFY, _HASH = 1e-4, 1.5e-4, 2e-6  # seconds: of a shared key, of a message, of a share
_MULTIPLY = 2e-7  # of two numbers of a field


class Costs(NamedTuple):
    """What a study takes, all sums together.

    Attributes:
        sent, received: bytes.
        seconds: of one core, on a server of 2024, the work on rows apart.
    """

    sent: int
    received: int
    seconds: float


@dataclass(frozen=True, repr=False)
class SecurePlan(Plan):
    """What a private release by secure sums would be like: a `Plan` for all owners present, and these.

    Attributes:
        owners: how many there are.
        least, colluding, threshold: the terms of the study.
        noise: the variance of the noise in a sum of all owners, in units of that of one pool of all rows.
        noise_of_least: the same of a sum with the fewest owners.
        rows_needed_by_least: `rows_needed` if no more than these take part.
        rows_needed_alone: `rows_needed` without secure sums, where every owner adds all of its own noise.
        sums: names of the sums to expect.
        most_sums: how many there can be; keys are made for all of them.
        visits: how often an owner has to act.
        bits: of the largest integer that a sum can have; more than 63 would wrap around, and are refused.
        owner: what it takes an owner.
        coordinator: what it takes the coordinator, who sends every owner what it needs. In a shared folder
            owners fetch it.
    """

    owners: int
    least: int
    colluding: int
    threshold: int
    noise: float
    noise_of_least: float
    rows_needed_by_least: int
    rows_needed_alone: int
    sums: tuple[str, ...]
    most_sums: int
    visits: int
    bits: float
    owner: Costs
    coordinator: Costs

    def _facts(self) -> list[str]:
        return [
            *super()._facts(),
            f"rows_needed_by_least={self.rows_needed_by_least:,}, "
            f"rows_needed_alone={self.rows_needed_alone:,}",
            f"noise={self.noise:.3g}, noise_of_least={self.noise_of_least:.3g}, "
            f"sums={len(self.sums)}, visits={self.visits}",
            *(
                f"{name}: {costs.sent / 1e6:.1f} MB sent, {costs.received / 1e6:.1f} received, "
                f"{costs.seconds:.1f} s"
                for name, costs in (("owner", self.owner), ("coordinator", self.coordinator))
            ),
        ]


def plan(
    privacy: Privacy,
    n_features: int,
    n_rows: int | None = None,
    spectrum: Sequence[float] | None = None,
    *,
    n_components: int = 1,
    owners: int = 1,
    typical: float | None = None,
    scale: Literal["std"] | None = None,
    secure: SecureSums | None = None,
) -> Plan:
    """What to expect of private components, from public knowledge alone; nothing is spent.

    Warns where `StreamingPCA.fit` would: of an epsilon or a delta that promises little.

    Args:
        privacy: the settings.
        n_features: how many features there are, d.
        n_rows: how many rows there will be, of all owners together; None if not known.
        spectrum: variances along the leading directions, at least `n_components` of them, as public data or
            experience suggest; never taken from the private rows. What exceeds bound² in total is clipped.
            Without a public bound they are shares of the total variance, or all variances there are. By
            default they fall as 1, 1/2, 1/3, ...
        n_components: how many components are wanted.
        owners: how many will release and be merged: each adds noise of its own, unless sums are secure.
        typical: instead of a spectrum, the typical length of a row about the center, its root mean square;
            0.7 times the bound by default. Rows much shorter than the bound drown in its noise.
        scale: "std" if features will be scaled, which is found privately as well; the spectrum is then that
            of scaled features.
        secure: the terms of secure sums over the owners, 3 or more, for a `SecurePlan`: what they save and
            cost.

    >>> plan(Privacy(epsilon=1.0, delta=1e-5), n_features=784, n_rows=400)  # doctest: +ELLIPSIS
    Plan(mu=0.2681, sigma=5.413, noise_edge=428.7,
         rows_needed=2,839, rows=400, found=0, affinity=0.00, captured=0.03, memory=14.8 MB)
    With 400 rows and 784 features nothing will survive the noise, if variances fall ...
    About 2,800 rows are needed for 1 component.
    A larger epsilon or fewer features need fewer.
    """
    owners = validation.integer(owners, "owners", at_least=1)
    if secure is not None and not isinstance(secure, SecureSums):
        raise TypeError(f"secure must be a SecureSums or None, got {secure!r:.80}.")

    def planned(noise: float, rows: int | None) -> Plan:
        return plan_release(
            privacy,
            n_features,
            rows,
            spectrum,
            n_components=n_components,
            noise=noise,
            typical=typical,
            scale=scale,
        )

    alone = planned(owners, n_rows if secure is None else None)
    warn_of_weak_settings(privacy.epsilon, privacy.delta, n_rows or 0, stacklevel=2)
    if secure is None:
        return alone
    terms = secure.terms([f"{number}" for number in range(owners)])
    levels = Levels.of(terms, owners)
    noise, noise_of_least = (levels.variance(present, present) for present in (owners, terms.least))
    together, by_least = planned(noise, n_rows), planned(noise_of_least, None)
    fit = PrivateFit(privacy, n_features, n_components, scale=scale)
    rows = min(together.rows_needed if n_rows is None else n_rows, MAX_ROWS)
    outlook = expected(privacy, n_features, n_components, rows, noise, finds_scale=scale is not None)
    sums = expected_sums(privacy, n_features, n_components, outlook)
    of_plan = {field.name: getattr(together, field.name) for field in fields(together)}
    return SecurePlan(
        **of_plan | {"advice": _advice(together, by_least, alone, terms)},
        owners=owners,
        least=terms.least,
        colluding=terms.colluding,
        threshold=terms.threshold,
        noise=noise,
        noise_of_least=noise_of_least,
        rows_needed_by_least=by_least.rows_needed,
        rows_needed_alone=alone.rows_needed,
        sums=tuple(each.name for each in sums),
        most_sums=fit.most_sums,
        visits=_VISITS * (1 + len(sums)),
        bits=_bits(sums, rows, levels),
        owner=_owner_costs(terms, levels, sums, fit.most_sums),
        coordinator=_coordinator_costs(terms, levels, sums, fit.most_sums),
    )


def expected_sums(privacy: Privacy, n_features: int, rank: int, outlook: Outlook) -> list[Sum]:
    """All sums of a study, as a `PrivateModel` has them."""
    clipping, adjacency = outlook.clipping, privacy.adjacency
    mu = privacy.mu * sqrt(1 - privacy.evaluation_share)
    found = [step.announced(mu * sqrt(step.share), adjacency, clipping) for step in outlook.steps]
    mechanism = build(privacy, clipping, n_features, mu=outlook.mu, joint=outlook.joint, rank=rank)
    found.append(mechanism.announced())
    if outlook.evaluates:
        directions = Subspace(np.eye(rank, n_features), np.ones(rank), np.zeros(n_features), 1.0, float(rank))
        found.append(Energies(privacy, Found(clipping, 1.0)).sum(directions))
    return found


def _bits(sums: list[Sum], rows: int, levels: Levels) -> float:
    """Of the largest integer in any sum, noise included."""
    spread = _TAIL * sqrt(max(levels.variance(size, size) for size in levels.sizes))
    bits = max(
        levels.shift(block.sd) + log2(rows * block.largest + spread * block.sd)
        for each in sums
        for block in each.blocks
    )
    if bits >= _WORD_BITS:
        raise ValueError(
            f"sums of {rows:,} rows and their noise must stay below 2^63, and reach 2^{bits:.0f}; "
            "raise epsilon."
        )
    return bits


def _owner_costs(terms: Terms, levels: Levels, sums: list[Sum], most_sums: int) -> Costs:
    members, others, n_sums = terms.n_members, terms.n_members - 1, len(sums)
    words = sum(each.length for each in sums)
    keys = _OWNERS + _KEYS * most_sums
    sealed, commitments = 2 * (2 * _SHARE * most_sums + 16), 2 * _COMMITMENT * most_sums * members
    dealt = keys + _OWNERS + others * sealed + commitments
    opened = _OWNERS + _HEX_SHARE * (members + 1)
    sent = dealt + _OWNERS + n_sums * (2 * _OWNERS + opened) + 8 * words
    listed = _COORDINATORS + _DIGEST * members
    received = (
        others * (dealt + _OWNERS * (1 + n_sums))
        + (3 + n_sums) * listed
        + 2 * n_sums * _COORDINATORS
        + 8 * words
    )
    seconds = (
        words * len(levels.sizes) / _DRAWN
        + 8 * words * members / _MASKED
        + 3 * 8 * words / _HASHED
        + (_VISITS * (1 + n_sums) - 2) * others * dealt / _READ
        + 2 * most_sums * members * terms.threshold * _MULTIPLY
        + others * (3 * _VISITS * (1 + n_sums) + n_sums) * _VERIFY
        + others * (2 + n_sums) * _EXCHANGE
        + 4 * most_sums * members * _HASH
    )
    return Costs(sent, received, seconds)


def _coordinator_costs(terms: Terms, levels: Levels, sums: list[Sum], most_sums: int) -> Costs:
    members, owner = terms.n_members, _owner_costs(terms, levels, sums, most_sums)
    n_sums, words = len(sums), sum(each.length for each in sums)
    verified = members * (3 + 3 * n_sums) * _VERIFY
    combined = n_sums * members * (terms.threshold * _MULTIPLY + members * _HASH)
    seconds = (
        members * words * (len(levels.sizes) - 1) / _DRAWN
        + 8 * words * members / _MASKED
        + members * owner.sent / _HASHED
        + verified
        + combined
    )
    return Costs(members * owner.received, members * owner.sent, seconds)


def _advice(together: Plan, by_least: Plan, alone: Plan, terms: Terms) -> str:
    return (
        f"{together.advice}\n"
        f"Secure sums need about {rounded(together.rows_needed):,} rows if all {terms.n_members} owners take "
        f"part, {rounded(by_least.rows_needed):,} if {terms.least} do; without secure sums it is "
        f"{rounded(alone.rows_needed):,}.\n"
        "They exclude robust merging: a lie cannot be seen in a sum."
    )
