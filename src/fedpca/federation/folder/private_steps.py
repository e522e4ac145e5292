"""Private steps through a shared folder: owners find center, bound and scale together, and then release.

One of them, or whoever reads the folder, begins with `open_steps`, and publishes the sum of every step with
`pool_step`. All of it is public: noisy sums, and what follows from them. Every owner calls `take_step` until
it has released; then `collect` merges the releases. Messages and rules are those of Flower's private steps.
"""

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedpca.federation.aggregator.message import Message
from fedpca.federation.aggregator.owner_sum import Features, OwnerSum
from fedpca.federation.flower.exchanges import Published, shared_model
from fedpca.federation.flower.member import check_settings, run_settings, to_request
from fedpca.federation.folder.exchange import (
    PUBLISHED,
    SUMMARY,
    contents_of,
    create,
    listed,
    name_of,
    read_checked,
)
from fedpca.federation.folder.storage import Entry, SkippedFile, Storage, open_storage
from fedpca.privacy import StepSum
from fedpca.privacy.model import PrivateModel
from fedpca.privacy.sums import Sum
from fedpca.summaries import validation
from fedpca.trust.roster import Roster, require_roster

if TYPE_CHECKING:
    from fedpca.federation.flower.node import Node

_log = logging.getLogger("fedpca.federation")
_STEPS = "steps"  # the name of what is published, whose version is the number of sums


@dataclass(frozen=True)
class PooledStep:
    """A private step that was published.

    Attributes:
        step: its name; "" if there is none left to take.
        owners: who took it.
        skipped: files of sums that do not count.
    """

    step: str
    owners: tuple[str, ...]
    skipped: tuple[SkippedFile, ...]


def open_steps(
    folder: str | os.PathLike[str], settings: Mapping[str, Any], *, roster: Roster | None = None
) -> str:
    """Begin private steps in a shared folder: write down what all owners share.

    Args:
        folder: as for `publish`.
        settings: `rank`, `center`, `scale` ("std" or "none"), `epsilon` and `delta`, which every owner must
            have, and `bound` and `adjacency`, as rosters spell them.
        roster: of the study; None: senders are not verified.

    Returns:
        The path of the file.
    """
    request = run_settings(settings)
    if "epsilon" not in request:
        raise ValueError("settings must have epsilon and delta: without them nothing is found privately.")
    require_roster(roster)
    if roster is not None:
        check_settings(roster, request)
        request |= to_request(roster)
    published = Published(facts={"request": request, "owners": {}})
    return create(open_storage(folder), name_of(_STEPS, 0, PUBLISHED), published.encode(), None)


def take_step(folder: str | os.PathLike[str], node: "Node", *, max_bytes: int = 2**30) -> str:
    """Do what an owner owes now: write its noisy sum of the next step, or its release, to a shared folder.

    What has left is kept by the node, and written again unchanged: nothing is spent twice.

    Args:
        folder: as for `publish`.
        node: the owner, with its rows, its state folder and its privacy.
        max_bytes: a larger file is refused unread.

    Returns:
        The path of the file; "" if the others take this step without it.

    Raises:
        NodeError: the node takes no part, before anything is read or spent, and why.
        ValueError: nobody has begun.
    """
    storage = open_storage(folder)
    published = _newest(storage, max_bytes)
    reply = node.reply(published.facts["request"], replace(published, facts={}))
    if reply.kind == "waits":
        _log.info("%s: step %d is taken without %r", folder, len(published.sums), node.client)
        return ""
    kind = SUMMARY if reply.kind == "release" else _kind(len(published.sums))
    signer = None if node.membership is None else node.membership.signer
    return create(storage, name_of(node.client, node.version, kind), reply.contents, signer)


def pool_step(
    folder: str | os.PathLike[str],
    *,
    least: int = 2,
    roster: Roster | None = None,
    max_bytes: int = 2**30,
) -> PooledStep:
    """Publish the sum of the next private step, of all owners whose sums are there: the others miss it.

    The first step counts rows; who misses it releases with what the others find. No sum can make it fail; a
    file in the place of what it publishes is an error.

    Args:
        folder: as for `publish`.
        least: the fewest owners of a step.
        roster: only what its members have signed counts. None: senders are not verified.
        max_bytes: larger files are skipped unread.

    Raises:
        ValueError: too few have taken the step.
    """
    storage = open_storage(folder)
    published = _newest(storage, max_bytes)
    run, facts, number = run_settings(published.facts["request"]), published.facts, len(published.sums)
    features, model = None, None
    if number:
        features = _features(facts["features"])
        model = shared_model(run, features, published)
        if model.step is None:
            return PooledStep("", (), ())
    found: dict[str, Message] = {}
    skipped: list[SkippedFile] = []
    for _, versions in listed(storage, max_bytes).of(_kind(number)):
        for _, entry in versions:
            try:
                message = read_checked(storage, entry, _kind(number), max_bytes, roster)
                _check(message, features, model, facts["owners"])
                found[message.child] = message
                break
            except Exception as error:  # anyone may have written the file: no fault of it may stop the others
                skipped.append(entry.skipped(str(error) or type(error).__name__))
    if features is None and found:
        features = Counter(message.features for message in found.values()).most_common(1)[0][0]
        found = {child: message for child, message in found.items() if message.features == features}
        _log.info("%s: %d owners have the features of most", folder, len(found))
    if len(found) < max(validation.integer(least, "least", at_least=1), 1):
        reasons = "".join(f" {item.file}: {item.reason}" for item in skipped)
        raise ValueError(f"{len(found)} of {least} owners have taken step {number}; wait for more.{reasons}")
    assert features is not None
    published = replace(published, rank=published.rank or run["rank"])
    model = model or shared_model(run, features, published)
    pooled = StepSum.pooled([message.of(OwnerSum).own for _, message in sorted(found.items())])
    model.add_pooled(pooled, paid=False)
    owners = facts["owners"] or {child: [each.version, each.n_rows] for child, each in found.items()}
    published = replace(
        published.with_sum(pooled), facts=facts | {"features": list(features), "owners": owners}
    )
    create(storage, name_of(_STEPS, number + 1, PUBLISHED), published.encode(), None)
    return PooledStep(pooled.step, tuple(sorted(found)), tuple(skipped))


def _check(
    message: Message, features: Features | None, model: PrivateModel | None, owners: Mapping[str, Any]
) -> None:
    """Refuse a sum that cannot be one of the next step, or is of other rows than those of the first."""
    own = message.of(OwnerSum).own
    if model is None:
        Sum("rows", (), 0.0).check_own(own)
        return
    if message.features != features:
        raise ValueError("its features are not those of the other owners; select the same.")
    if owners.get(message.child) != [message.version, message.n_rows]:
        raise ValueError("it must be of the version and of the rows that took the first step.")
    model.check_own(own)


def _newest(storage: Storage, max_bytes: int) -> Published:
    """What was published last; files that cannot have been published do not count."""
    files: dict[str, list[tuple[int, Entry]]] = dict(listed(storage, max_bytes).of(PUBLISHED))
    reasons = ""
    for number, entry in files.get(_STEPS, []):
        try:
            published = Published.decode(contents_of(storage, entry.name, max_bytes), entry.name)
            _check_facts(published, number)
            return published
        except OSError:  # of the storage: it may be there a moment later
            raise
        except Exception as error:  # anyone may have written the file: no fault of it may stop the others
            _log.warning("%s does not count: %s", entry.shown, error)
            reasons += f" {entry.shown}: {str(error) or type(error).__name__}"
    raise ValueError(f"there are no private steps in {storage.path('')}; begin with open_steps.{reasons}")


def _check_facts(published: Published, number: int) -> None:
    """Refuse what neither `open_steps` nor `pool_step` has written under this number."""
    facts = published.facts
    if len(published.sums) != number:
        raise ValueError(f"renamed: it has {len(published.sums)} sums.")
    owners, request = facts["owners"], facts["request"]
    if not isinstance(owners, dict) or not isinstance(request, dict):
        raise TypeError("owners and request must be tables.")
    run = run_settings(request)
    if published.rank != (run["rank"] if number else 0):
        raise ValueError(f"its steps must be planned for the rank of the run, got {published.rank}.")
    if number:
        shared_model(run, _features(facts["features"]), published)  # raises if sums do not fit


def _features(stated: Sequence[Any]) -> Features:
    n_features, names = stated
    n_features = validation.integer(n_features, "n_features", at_least=1)
    return n_features, validation.feature_names(names, n_features)


def _kind(number: int) -> str:
    return f".sum-{number:02}"
