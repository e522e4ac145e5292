"""The pairs of worlds of an audit: where a row would show most.

As a step costs little, little can be seen of it. So each is also looked at alone, at an epsilon so large that
it costs what the whole did before.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

import numpy as np

from fedpca._typing import Array
from fedpca.auditing.run import EVALUATION, RELEASE, ROWS, Case, Owners, Run, Scale
from fedpca.privacy.calibration import epsilon_of
from fedpca.privacy.model import Taken
from fedpca.privacy.settings import Privacy
from fedpca.privacy.tracker import PrivateTracker

_OUTLIER = 8.0
_LONG, _SHORTER = 1.43 * 2.0**13, 1.43 * 2.0**9
_MANY, _FEW = 10**6, 5  # rows of other owners
_SPHERE = 0.02  # sqrt(d) / (mu n) with rows enough for a center, not for a length
_NEAR = 0  # a power of two: how far from the origin rows are
_LOUD = 16.0  # where the ledger was debited nothing
_WITHIN = 0.99


def cases(privacy: Privacy, scale: Scale, d: int) -> Iterator[Case]:
    """All pairs of worlds, each with the blocks that were not seen before, each of them alone."""
    finds = privacy.needs_steps or scale is not None
    known = set()
    for case in _cases_of_steps(privacy, scale, d) if finds else _cases_of_release(privacy, d):
        yield case
        run = Run(case, case.ours)
        for block in run.blocks:
            if block.name != RELEASE and block.name not in known:
                known.add(block.name)
                yield _louder(_alone(case, block.name, run))
    if finds:
        yield from _cases_of_stream(privacy, scale, d)


def _louder(alone: Case) -> Case:
    """The same at an epsilon so large that what is looked at costs what the whole did before."""
    privacy = alone.privacy
    promised = next(block.promised for block in Run(alone, alone.ours).blocks if block.name == alone.only)
    mu = privacy.mu * (privacy.mu / promised if promised else _LOUD)
    return replace(alone, privacy=replace(privacy, epsilon=epsilon_of(mu, privacy.delta)))


def _alone(case: Case, block: str, run: "Run") -> Case:
    """The worlds that show most in one block of a run."""
    alone, (one, other), owners = case, case.look, case.owners
    if block in ("scales", "spread"):
        alone = _case("", case.privacy, _LONG * one, _SHORTER * other, pairs=True)
    elif block == "mean":
        alone, owners = case.opposite(), Owners(_MANY, far=_NEAR)  # which takes one step
    elif block.startswith(EVALUATION):  # one row beyond the radius, one within it
        radius = run.radius * (sqrt(2) if run.pairs else 1.0)
        alone = _case("", case.privacy, _LONG * radius * one, _WITHIN * radius * other, pairs=run.pairs)
    return replace(alone, name=f"{block} alone", scale=case.scale, owners=owners, only=block)


def _cases_of_release(privacy: Privacy, d: int) -> Iterator[Case]:
    unit = np.eye(d)
    plus, minus = (unit[0] + unit[1]) / sqrt(2), (unit[0] - unit[1]) / sqrt(2)
    pairs = privacy.center == "pairs"
    length = (1.0 if isinstance(privacy.bound, str) else privacy.bound) * (sqrt(2) if pairs else 1.0)
    yield _case("diagonal", privacy, length * unit[0], length * unit[1], pairs=pairs)
    yield _case("off the diagonal", privacy, length * plus, length * minus, pairs=pairs)
    outlier = _case("", privacy, _OUTLIER * length * unit[0], length * unit[1], pairs=pairs)
    theirs = outlier.theirs if pairs else np.full(d, np.nan)
    yield replace(outlier, name=f"outlier, {_OUTLIER:g} times the bound", theirs=theirs)


def _cases_of_steps(privacy: Privacy, scale: Scale, d: int) -> Iterator[Case]:
    """The paths that other owners can lead along, those first that stay the same at any epsilon."""
    paths = {"many rows": Owners(_MANY)}
    if privacy.center == "private":
        paths["no center"] = Owners(_MANY, far=None)
    if privacy.bound == "private" and scale is None:
        paths["fewer rows"] = Owners(round(sqrt(d) / (privacy.mu * _SPHERE)), far=_NEAR)
    if privacy.center == "private" and scale is None:
        paths["few rows"] = Owners(_FEW)
    one, other = _dense_directions(d)
    for name, owners in paths.items():
        pairs = privacy.center == "pairs" or name in ("no center", "few rows")
        case = _case(name, privacy, _LONG * one, _SHORTER * other, pairs=pairs)
        yield replace(case, scale=scale, owners=owners)


def _cases_of_stream(privacy: Privacy, scale: Scale, d: int) -> Iterator[Case]:
    """A row in every step of a stream, and one in the release."""
    usual, steps, pairs = _usual_stream(privacy, scale, d)
    one, other = _dense_directions(d)
    case = _case("", privacy, _LONG * one, _SHORTER * other, pairs=pairs, shift=_shift(privacy))
    rest = case.others if pairs else np.full_like(case.others, np.nan)  # nothing is exactly at the center
    case = replace(case, scale=scale, others=np.concatenate([usual, rest]))
    start, names = 0, set()
    for step, summed in steps:
        if step.name not in names:
            names.add(step.name)
            of_step = replace(case, name=f"stream, {step.name}", index=start, step=step)
            yield of_step.opposite() if step.name == "mean" else of_step
        start += summed.n_rows
    yield replace(case, name=f"stream, {RELEASE}", index=len(case.others))


def _usual_stream(privacy: Privacy, scale: Scale, d: int) -> tuple[Array, list[Taken], bool]:
    """As many usual rows as the steps of a stream take, these steps, and whether pairs are released then."""
    tracker = PrivateTracker(d, None, replace(privacy, insecure_seed_for_tests=0), scale=scale)
    public, rng, parts = privacy.public_center(d), np.random.default_rng(0), []
    while tracker.clipping is None:
        parts.append(rng.normal(size=(ROWS, d)) + (_shift(privacy) if public is None else public))
        tracker.update(parts[-1:], ROWS)
    assert tracker.model is not None
    taken = sum(summed.n_rows for _, summed in tracker.model.taken)
    return np.concatenate(parts)[:taken], tracker.model.taken, tracker.clipping.pairs


def _shift(privacy: Privacy) -> float:
    """Where the rows of a stream are about, if that is to be found."""
    return 2.0 if privacy.center == "private" else 0.0


def _case(name: str, privacy: Privacy, one: Array, other: Array, *, pairs: bool, shift: float = 0.0) -> Case:
    """Worlds whose row shows as `one` or `other`: about the center, or in the difference from its partner.

    A row that is taken out has no entry that is observed, and so lies at the center of every step. In a pair
    it lies at the origin, and leaves its partner there.
    """
    d = len(one)
    public = privacy.public_center(d)
    center = np.full(d, shift) if public is None else public
    if pairs:
        partner = -other
        ours, theirs = partner + one, np.zeros(d)
    else:
        partner = center
        taken_out = privacy.adjacency == "zero-out"
        ours, theirs = center + one, np.full(d, np.nan) if taken_out else center + other
    look = np.array([one / np.linalg.norm(one), other / np.linalg.norm(other)])
    others = np.repeat(partner[None], ROWS - 1, axis=0)
    return Case(name, privacy, None, ours, theirs, others, look, center, partner)


def _dense_directions(d: int) -> Array:
    """Two orthogonal directions, shape (2, d), that show in every feature."""
    other = np.append(np.ones(d - 1), 1.0 - d)
    return np.array([np.ones(d) / sqrt(d), other / np.linalg.norm(other)])
