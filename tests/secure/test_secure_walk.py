"""All that a lying coordinator can do to four owners of whom one lies, walked through to the end.

The owners are those of the library, restarted at each visit with what they have kept. The coordinator shows
each of them, in any order and as often as it likes, any set of members, any announcement and any set of
those present, with the signatures that exist; the owner that lies signs everything. What honest owners have
sent is the state, and every state that can be reached is looked at.
"""

from itertools import chain, combinations

import pytest
from secure_sessions import KEYS, ListedSums, Study, Sum, rows_of, secure_roster

from fedpca.errors import SecureError
from fedpca.secure import Owner, OwnerMemory, Progress, Session, Terms
from fedpca.secure.owner import refusal
from fedpca.secure.wire import canonical, digest, header

HONEST, LIAR = (0, 1, 2), 3
NOISE = 9.0


class Walk:
    """The states that a coordinator can bring honest owners to.

    A state has, for each honest owner, the messages that it has sent, by their names and digests.

    Args:
        until: where the coordinator begins to lie.
        forgets: kinds of messages that owners do not keep: a mutant.
    """

    def __init__(self, until, forgets=()):
        self.study = Study(secure_roster(4, least=3), [Sum("gram", ((1, NOISE),))])
        self.study.run(until=until)
        self.board, self.forgets = dict(self.study.board), forgets
        self.session = Session(self.study.roster, self.study.session)  # what was verified is known
        self.messages = {}  # by digest
        self._replies = {}
        self.start = tuple(self.kept(self.study.sent(index)) for index in HONEST)

    def kept(self, messages):
        """Messages of an owner as a part of a state."""
        named = {(name, digest(contents)): contents for name, contents in messages.items()}
        self.messages |= {key[1]: contents for key, contents in named.items()}
        return frozenset(named)

    def owner(self, index, sent):
        state = OwnerMemory(self.study.secrets[index], sent)
        state.pairs_key = bytes(32)
        progress = Progress(self.session, ListedSums(self.study.sums, lambda n: self.study.x[n][index]))
        return Owner(progress, KEYS[index], rows_of(10 + index), state)

    def reply(self, index, kept, shown):
        """What an owner has sent after it was shown more than this board, or was asked to refuse."""
        key = index, kept, None if shown is None else frozenset(shown.items())
        if key not in self._replies:
            sent = {name: self.messages[value] for name, value in kept}
            before = {name: item for name, item in sent.items() if name.split("/")[-2] not in self.forgets}
            try:
                if shown is None:
                    state = OwnerMemory(self.study.secrets[index], before)
                    new = refusal(self.session, KEYS[index], state, 0, self.board)
                else:
                    new = self.owner(index, before).reply(self.board | shown)
            except SecureError:
                new = {}
            self._replies[key] = kept | self.kept(new)
        return self._replies[key]

    def states(self, actions, until=lambda state: False):
        """All of them, or as far as the first that is wanted.

        `actions` gives what a coordinator can show to whom in a state.
        """
        found, waiting = {self.start}, [self.start]
        while waiting and not until(waiting[-1]):
            state = waiting.pop()
            for index, shown in actions(state):
                following = (*state[:index], self.reply(index, state[index], shown), *state[index + 1 :])
                if following not in found:
                    found.add(following)
                    waiting.append(following)
        return found

    def sent(self, state, kind):
        """Messages of a kind that honest owners have sent: headers, with their sender."""
        return [
            header(self.messages[value])[0]
            for of_owner in state
            for name, value in of_owner
            if name.split("/")[-2] == kind
        ]

    def signed(self, state, kind, field, about, number):
        """Signatures on something: those of honest owners in this state, and the liar's."""
        prefix = "" if number is None else f"{number:02}/"
        lie = self.session.sign(KEYS[LIAR], kind, LIAR, number, {field: about})
        found = {f"{prefix}{kind}/{LIAR:03}": lie}
        for fields in self.sent(state, kind):
            if fields[field] == about:
                name = f"{prefix}{kind}/{fields['from']:03}"
                found[name] = next(
                    self.messages[value]
                    for of_owner in state
                    for at, value in of_owner
                    if at == name and header(self.messages[value])[0][field] == about
                )
        return found


def sets(indices, least=3):
    indices = list(indices)
    return chain.from_iterable(combinations(indices, size) for size in range(least, len(indices) + 1))


def changed(board, name, **fields):
    known, payload = header(board[name])
    return canonical({**known, **fields}) + bytes(payload)


# --- who takes part ---


def members_shown(walk):
    """What a coordinator can show before there are masked words: sets of members, and an announcement."""
    listed = header(walk.board["members"])[0]["members"]
    boards = []
    for inside in sets(range(4)):
        members = changed(walk.board, "members", members=[item for item in listed if item[0] in inside])
        levels = len(inside)
        blocks = [[1, NOISE, {3: 8, 4: 9}[levels]]]
        announced = walk.session.publish({"name": "gram", "blocks": blocks, "before": digest(members)})
        boards.append({"members": members, "00/announced": announced})

    def actions(state):
        for index in HONEST:
            for shown in boards:
                signatures = walk.signed(state, "agreed", "members", digest(shown["members"]), None)
                yield index, shown | signatures

    return actions


def test_honest_owners_mask_for_one_set_of_members():
    walk = Walk("members")
    states = walk.states(members_shown(walk))
    masked = [{of["announced"] for of in walk.sent(state, "masked")} for state in states]
    assert max(map(len, masked)) == 1
    assert max(len(walk.sent(state, "masked")) for state in states) == 3
    assert len({about for each in masked for about in each}) >= 3  # whichever set the coordinator wants
    assert all(
        len({of["members"] for of in walk.sent(state, "agreed") if of["from"] == index}) <= 1
        for state in states
        for index in HONEST
    )


# --- who is in a sum ---


def present_shown(walk):
    """What a coordinator can show once a sum was announced: sets of those present, and their signatures."""
    masked = {
        index: walk.owner(index, walk.study.sent(index)).reply(walk.board)[f"00/masked/{index:03}"]
        for index in HONEST
    }
    words = {index: digest(contents) for index, contents in masked.items()} | {LIAR: "00" * 32}
    announced, boards = digest(walk.board["00/announced"]), [{}]
    for present in sets(range(4)):
        fields = {"announced": announced, "present": [[index, words[index]] for index in present]}
        boards.append({"00/present": walk.session.publish(fields)})

    def actions(state):
        yield 0, None  # one may refuse
        for index in HONEST:
            for shown in boards:
                yield index, shown
                if shown:
                    signatures = walk.signed(state, "signed", "present", digest(shown["00/present"]), 0)
                    yield index, shown | signatures

    return actions


def opened_sets(walk, state):
    """What honest owners have opened."""
    return {of["present"] for of in walk.sent(state, "opened")}


@pytest.mark.slow
def test_honest_owners_open_one_set_and_the_seed_or_the_key_of_an_owner():
    walk = Walk("00/announced")
    states = walk.states(present_shown(walk))
    opened = [opened_sets(walk, state) for state in states]
    assert max(map(len, opened)) == 1
    assert len({about for each in opened for about in each}) == 5  # whichever set the coordinator wants
    threshold = walk.session.terms.threshold
    for state in states:
        answers = walk.sent(state, "opened")
        for dealer in map(str, range(4)):
            shares = [sum(dealer in of[which] for of in answers) for which in ("seeds", "keys")]
            # The liar has a share of both.
            assert sum(number + 1 >= threshold for number in shares) <= 1
        refused = {of["from"] for of in walk.sent(state, "refused")}
        assert not refused & {of["from"] for of in answers}
        for kind in ("masked", "signed", "opened"):
            senders = [of["from"] for of in walk.sent(state, kind)]
            assert len(set(senders)) == len(senders)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ["opens without signatures", "keeps no signature", "a lower threshold"])
def test_a_planted_mutant_is_found(monkeypatch, mutant):
    if mutant == "opens without signatures":
        monkeypatch.setattr(Owner, "_enough", lambda *_: True)
    walk = Walk("00/announced", forgets=["signed"] if mutant == "keeps no signature" else ())
    if mutant == "a lower threshold":
        monkeypatch.setattr(Terms, "threshold", property(lambda terms: 2))
    states = walk.states(present_shown(walk), until=lambda state: len(opened_sets(walk, state)) > 1)
    assert any(len(opened_sets(walk, state)) > 1 for state in states)
