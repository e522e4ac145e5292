"""Membership: what an aggregator with a roster accepts, from whom, and on which settings."""

from collections.abc import Callable, Iterable, Mapping

from fedpca.errors import OutdatedRoster, SignatureError
from fedpca.federation.aggregator.admission import check_private
from fedpca.federation.aggregator.message import Message
from fedpca.federation.aggregator.store import State
from fedpca.privacy import Privacy
from fedpca.summaries.about import About
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.trust.agreement import PROMISE, of_privacy, of_rows, of_summary, require_agreed
from fedpca.trust.envelope import Signature
from fedpca.trust.roster import Roster


def agreed(
    roster: Roster, rank: int | None, expected: Summary | None, privacy: Privacy | None
) -> tuple[int | None, Summary | None, Privacy | None]:
    """What members agreed on, or else what is given; ValueError where the two differ.

    Names of features are those to expect. Whatever else members agreed on, `check_agreed` checks.
    """
    settings = roster.settings
    if expected is None and "features" in settings:
        names = tuple(settings["features"])
        expected = Subspace.empty(len(names), centered=settings.get("center", True), about=About(names))
    if rank is not None:
        require(roster, {"rank": rank})
    if privacy is not None:
        stated = of_privacy(privacy)
        require(roster, {name: stated[name] for name in PROMISE})
    return settings.get("rank", rank), expected, privacy or Privacy.agreed(settings)


def require(roster: Roster, found: Mapping[str, object]) -> None:
    """Refuse settings that are not those of the roster."""
    remedy = "take what the roster says, or agree on another roster"
    require_agreed(roster.settings, found, f"the roster of study {roster.study!r:.80}", remedy)


def not_heard_from(roster: Roster, states: Mapping[str, State]) -> tuple[str, ...]:
    """Members without a summary."""
    heard = {child for child, state in states.items() if state.message.summary is not None}
    return tuple(member for member in roster.members if member not in heard)


def check_received(
    roster: Roster,
    known: State | None,
    message: Message,
    of_model: Callable[[Summary], tuple[Summary, object]],
) -> None:
    """Refuse a message that its child has not signed, or that contradicts what is known of the child.

    `of_model` gives what is kept of a summary.
    """
    roster.check_signature(message.signature, message.child)
    if known is not None and known.quarantined and not _is_of(known.signed_by, message.signature):
        known = None  # what was signed with a key that the child no longer has binds nobody
    latest = None if known is None else known.message
    if latest is None or message.version > latest.version:
        return
    if message.version < latest.version:
        raise SignatureError(
            f"rolled back: version {latest.version} of {latest.child!r:.80} is known, and this is version "
            f"{message.version}; send the newest."
        )
    assert message.summary is not None
    if latest.summary is not None and latest.summary != of_model(message.summary)[0]:
        raise SignatureError(
            f"equivocation: {latest.child!r:.80} has signed two different summaries as version "
            f"{latest.version}, and the first counts; send what changed as a newer version."
        )


def _is_of(old: Signature | None, new: Signature | None) -> bool:
    """Whether both are of one key; of a state that could not be read nobody knows."""
    return old is None or (new is not None and old.key == new.key)


def check_still_signed(known: State, message: Message) -> None:
    """Refuse, where there is no roster, a message that the key has not signed that signed the one before."""
    before, now = known.signed_by, message.signature
    if before is None:
        return
    if now is None or not _is_of(before, now) or not now.holds():
        child = known.message.child
        raise SignatureError(
            f"the message must be signed with the key that {child!r:.80} signed with before, "
            f"{before.key.text}; open the store with the roster of study {before.study!r:.80}, or, if it no "
            f"longer signs, withdraw({child!r:.80}) first."
        )


def check_store(roster: Roster, states: Iterable[State], last: str) -> None:
    """Refuse a store that is not at fault, but mistaken: before anything in it is set aside.

    In one all was signed for other studies; in another something under a roster that is newer than this one,
    or its writer had a newer one last, of which fewer may be members.
    """
    states = list(states)
    signatures = [state.signed_by for state in states if state.message.summary is not None]
    studies = {None if found is None else found.study for found in signatures}
    if studies and studies.isdisjoint({roster.study, None}):
        raise SignatureError(
            f"the store must be of study {roster.study!r:.80}, and is of {min(filter(None, studies))!r:.80}; "
            "give each study a store of its own."
        )
    known = {roster.hash, *roster.predecessors}
    for state in states:
        found = state.signed_by
        if found is None or found.study != roster.study or found.roster in known:
            continue
        if found.holds():
            raise OutdatedRoster(
                f"the store has a message of {state.message.child!r:.80}, signed under the roster "
                f"{found.roster[:19]}..., which is neither this one ({roster.hash[:19]}...) nor one before "
                "it; get the newest roster."
            )
    if last and last not in known:
        raise OutdatedRoster(
            f"the store was written under the roster {last[:19]}..., which is neither this one "
            f"({roster.hash[:19]}...) nor one before it; get the newest roster."
        )


def check_kept(roster: Roster, state: State, *, reduced: bool) -> None:
    """Refuse a state in a store that its child has not signed as the roster requires.

    Where summaries may be reduced to the features of the model, who signed such a one is checked, and not
    what: the bytes that were signed are gone.
    """
    signature = state.signed_by if reduced else state.message.signature
    roster.check_signature(signature, state.message.child)


def signers(roster: Roster, files: Mapping[str, bytes]) -> dict[str, str]:
    """Which member has signed each model file, by the file's name; refuses two files of one member."""
    found: dict[str, str] = {}
    for name, contents in files.items():
        member = roster.member_of(roster.check(contents, name=name).key).id
        if other := next((known for known, owner in found.items() if owner == member), None):
            raise SignatureError(
                f"each member must have one model, and {member!r:.80} has signed {other} and {name}; merge "
                "the newest."
            )
        found[name] = member
    return found


def check_member(roster: Roster, child: str, summary: Summary, name: str) -> None:
    """Refuse the summary in a member's model file that is not what members agreed on."""
    privacy = agreed(roster, None, None, None)[2]
    try:
        check_agreed(roster, child, summary)
        if privacy is not None:
            check_private(summary, privacy)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def check_agreed(roster: Roster, child: str, summary: Summary) -> None:
    """Refuse a summary that is not what members agreed on, or of more rows than its owner declared."""
    check_declared(roster, child, summary.count)
    found = of_summary(summary)
    if isinstance(roster.settings.get("bound"), str):  # of how it was found; the certificate has the number
        found.pop("bound", None)
    require(roster, found)


def check_agreed_rows(roster: Roster, message: Message) -> None:
    """Refuse a scaling or sum of other features, or of more rows than its owner declared."""
    check_declared(roster, message.child, message.n_rows)
    require(roster, of_rows(*message.features))


def check_declared(roster: Roster, child: str, count: float) -> None:
    """Refuse more rows than a member declared."""
    rows = roster.members[child].rows
    if rows is not None and count > rows:
        raise ValueError(
            f"{child!r:.80} declared {rows} rows in the roster, and this is of {count:g}; declare them "
            "first, in a new roster."
        )
