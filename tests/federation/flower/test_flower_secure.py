"""Secure sums on Flower: totals are the plain sums of those who took part, whoever drops out, and when."""

import json
import os
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA

import fedpca
from fedpca import Ledger, Roster, Subspace
from fedpca.errors import NodeError, SecureError
from fedpca.metrics import principal_angles
from fedpca.report import write_report
from fedpca.secure import Session, relevant
from fedpca.secure.wire import canonical
from fedpca.trust import Member

pytest.importorskip("flwr", reason="the Flower federation needs flwr: pip install 'fedpca[flower]'")

from flower_grid import FakeGrid, client, pretend_to_be_flower, run, sends
from flower_secure import (
    PLAIN,
    PRIVATE,
    PROMISE,
    DroppingGrid,
    SecureClub,
    random_pattern,
    remember_secrets,
    summary_in,
    without_waiting,
)
from flwr.app import Array, ConfigRecord, Message, RecordDict

from fedpca.federation.flower.member import to_request
from fedpca.federation.flower.node import Node
from fedpca.federation.flower.round import array_record
from fedpca.federation.flower.stopping import Stopped, stoppable

pytestmark = pytest.mark.engine  # they take long
N_PATTERNS = 100


@pytest.fixture(autouse=True)
def _identity(monkeypatch):
    """Flower's processes know which run they belong to; so must this one, to make messages."""
    pretend_to_be_flower(monkeypatch)
    without_waiting(monkeypatch)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # nothing here outlives the test


def try_run(club, grid, **config):
    """A run's summary, and whether it ended with a model."""
    try:
        return run(grid, club.server, **club.run_config | config), True
    except RuntimeError:
        return summary_in(club.server), False


class TestDropouts:
    @pytest.mark.parametrize("seed", range(N_PATTERNS))
    @pytest.mark.parametrize("settings", [PLAIN, PRIVATE], ids=["plain", "private"])
    def test_patterns(self, tmp_path, monkeypatch, settings, seed):
        rng = random.Random(seed)
        n = rng.randint(4, 6)
        threshold = (n + 1) // 2 + 1
        least = rng.randint(threshold, max(threshold, n - 1))
        club = SecureClub(tmp_path, n, settings=settings, least=least)
        heads = remember_secrets(monkeypatch, club) if settings is PRIVATE else None
        grid = DroppingGrid(club.nodes(), random_pattern(rng, range(1, n + 1)))
        summary, done = try_run(club, grid, expect=rng.choice((0, least)), retries=0)
        sums = club.check_totals(heads)
        if done:
            assert [entry["owners"] for entry in summary["secure"]["sums"]] == [list(each) for each in sums]
            assert summary["contributors"]["heart"]["rows"] == summary["secure"]["sums"][0]["rows"]
            assert (club.server / "model.safetensors").exists()
        else:
            assert "too few members were there in time" in summary["problem"]
            assert not (club.server / "model.safetensors").exists()
        again = run(club.grid(), club.server, **club.run_config)  # all are there: what was begun goes on
        assert again["secure"]["session"] == summary["secure"]["session"]
        assert club.check_totals(heads)[: len(sums)] == sums


class TestRun:
    def test_the_model_is_that_of_the_pooled_rows(self, tmp_path):
        club = SecureClub(tmp_path, 4)
        summary = run(club.grid(), club.server, **club.run_config)
        pooled = np.concatenate([club.rows(name) for name in club.configs])
        model, reference = loaded(club), PCA(2).fit(pooled)
        assert principal_angles(model, Subspace.from_rows(pooled, 2)).max() < 1e-6
        np.testing.assert_allclose(model.mean, pooled.mean(axis=0), atol=1e-8)
        np.testing.assert_allclose(
            model.singular_values**2 / (len(pooled) - 1), reference.explained_variance_, rtol=1e-8
        )
        assert summary["rows"] == len(pooled)
        assert list(summary["contributors"]) == ["heart"]
        assert {reply["client"]: reply["what"] for reply in summary["replies"]} == dict.fromkeys(
            club.configs, "accepted"
        )
        assert summary["roster"]["not_heard_from"] == []
        secure = summary["secure"]
        assert (secure["state"], secure["least"], secure["colluding"], secure["threshold"]) == (
            "done",
            3,
            1,
            3,
        )
        assert secure["members"] == list(club.configs)
        assert secure["refused"] == {}

    def test_the_server_sees_no_rows_of_one_member(self, tmp_path):
        """Nothing on the board but totals depends on the rows in a way that shows."""
        club = SecureClub(tmp_path, 4)
        run(club.grid(), club.server, **club.run_config)
        masked = [board for name, board in club.board.items() if "/masked/" in name]
        words = np.frombuffer(b"".join(each[-64 - 8 * 6 : -64] for each in masked), dtype=np.uint8)
        assert len(np.unique(words)) > 60  # of so few bytes, uniform ones have most values

    def test_again(self, tmp_path):
        """A run in the folder of a session that has ended asks nobody."""
        club = SecureClub(tmp_path, 4)
        first = run(club.grid(), club.server, **club.run_config)
        grid = club.grid()
        again = run(grid, club.server, **club.run_config)
        assert grid.requested == []
        assert again["secure"] == first["secure"]
        assert again["contributors"]["heart"]["since"] == first["contributors"]["heart"]["since"]

    def test_privacy(self, tmp_path):
        """One promise for all; every member pays it once, and a private scale and center are found."""
        settings = {"rank": 1, "n_features": 3, "scale": "std", "center": True} | PROMISE
        club = SecureClub(tmp_path, 4, settings=settings, n_rows=2000)
        summary = run(club.grid(), club.server, **club.run_config)
        certificate = loaded(club).certificate
        assert (certificate.epsilon, certificate.private) == (8.0, True)
        assert certificate.delta == pytest.approx(1e-5)
        assert certificate.secure.members == tuple(club.configs)
        assert summary["evaluation"]["rows"] == summary["rows"] == 8006
        assert 0 < summary["evaluation"]["explained"] < 1
        for config in club.configs.values():
            entries = ledger(config).entries
            assert len(entries) == len(summary["secure"]["sums"]) > 2
            assert all(entry.completed for entry in entries)
            assert ledger(config).spent() == pytest.approx(8.0, rel=1e-6)
        run(club.grid(), club.server, **club.run_config)
        assert len(ledger(config).entries) == len(entries)

    def test_a_debit_is_cancelled_for_whoever_is_not_in_the_sum(self, tmp_path):
        """Its masked words were lost on the way, and the others' signatures show it."""
        club = SecureClub(tmp_path, 4, settings=PRIVATE)
        grid = DroppingGrid(club.nodes(), {1: {3: ("lost", 0)}})  # is back at once
        summary = run(grid, club.server, **club.run_config, retries=0)
        assert summary["secure"]["sums"][0]["owners"] == ["owner1", "owner2", "owner3"]
        first, *others = ledger(club.configs["owner0"]).entries
        assert first.cancelled
        assert not any(entry.cancelled for entry in others)

    def test_a_report(self, tmp_path):
        club = SecureClub(tmp_path, 4)
        run(club.grid(), club.server, **club.run_config)
        write_report(tmp_path / "report.html", loaded(club), run=club.server)
        page = (tmp_path / "report.html").read_text()
        assert "All 4 members are in a sum." in page
        assert "1 client" not in page

    def test_a_region_sums_inside_and_sends_the_sum(self, tmp_path):
        clubs = []
        for name, settings in (("plain", PLAIN), ("private", PRIVATE)):
            (tmp_path / name).mkdir()
            club = SecureClub(tmp_path / name, 4, settings=settings)
            run(club.grid(), club.server, **club.run_config)
            clubs.append(club)
            region = client({"client-id": name, "region": str(club.server)})
            plain = {key: value for key, value in club.run_config.items() if key != "roster"}
            summary = run(FakeGrid(n1=region), tmp_path / f"parent of {name}", **plain, expect=1)
            assert list(summary["contributors"]) == [name]
            parent = fedpca.load(tmp_path / f"parent of {name}" / "model.safetensors")
            assert parent.count == loaded(club).count
            assert principal_angles(parent, loaded(club)).max() < 1e-6

    @pytest.mark.parametrize("settings", [PLAIN, PRIVATE], ids=["plain", "private"])
    def test_a_new_roster_begins_a_new_session(self, tmp_path, settings):
        """Owners have to agree to be summed again; without noise they are not: it would show who joined."""
        club = SecureClub(tmp_path, 5, settings=settings)
        for name, config in club.configs.items() if settings is PRIVATE else ():
            config["ledger"] = str(tmp_path / f"{name}.ledger")
            Ledger(config["ledger"], epsilon=20.0, delta=1e-5, key=club.keys[name])
        everybody = club.roster
        club.agree(everybody.without_member("owner4"))
        grid = club.grid()
        del grid.nodes[5]
        run(grid, club.server, **club.run_config)
        club.agree(club.roster.with_member(everybody.members["owner4"]))
        summary, done = try_run(club, club.grid())
        assert not done
        assert "version 1 of the rows is summed in session" in summary["secure"]["refused"]["owner0"]
        assert "increase version in the node config" in summary["secure"]["refused"]["owner0"]
        for config in club.configs.values():
            config["version"] = 2
        summary, done = try_run(club, club.grid())
        assert summary["secure"]["members"] == list(club.configs), summary["problem"]
        if settings is PLAIN:
            assert not done
            assert "sums without noise must be of the same owners" in summary["secure"]["refused"]["owner0"]
        else:
            assert summary["contributors"]["heart"]["version"] == 1 + len(club.roster.predecessors)

    @pytest.mark.parametrize(("name", "value"), [("scale", "std"), ("center", False)])
    def test_settings_that_the_roster_does_not_state_are_its_defaults(self, tmp_path, name, value):
        """They were ignored, and the model was another than the run config says."""
        settings = {key: PLAIN[key] for key in ("rank", "n_features", "largest")}
        club = SecureClub(tmp_path, 4, settings=settings | {"scale": "none"})
        club.agree(Roster("heart", list(club.roster.members.values()), settings | {"colluding": 1}))
        grid, agreed = club.grid(), {"roster": str(club.path), "rank": 2}
        with pytest.raises(ValueError, match=f"{name} must be .* agree on a roster that states it"):
            run(grid, club.server, **agreed | {name: value})
        assert grid.requested == []
        run(grid, club.server, **agreed)

    @pytest.mark.parametrize("rules", ["secure_sums_required = true", "least_rows = 10\nleast_level = 0"])
    def test_policies_that_hold(self, tmp_path, rules):
        (tmp_path / "policy.toml").write_text(rules + "\nmost_directions_per_row = 0.9\n")
        club = SecureClub(tmp_path, 3, config={"policy": str(tmp_path / "policy.toml")})
        run(club.grid(), club.server, **club.run_config)
        assert len(club.check_totals()) == 2

    def test_a_policy_that_is_broken(self, tmp_path):
        (tmp_path / "policy.toml").write_text("privacy_required = true")
        club = SecureClub(tmp_path, 4)
        club.configs["owner2"]["policy"] = str(tmp_path / "policy.toml")
        summary = run(club.grid(), club.server, **club.run_config)
        assert summary["secure"]["members"] == ["owner0", "owner1", "owner3"]
        assert summary["secure"]["refused"]["owner2"].startswith(
            "the policy of its owner does not allow it: privacy_required: only private releases may leave"
        )
        assert not list(tmp_path.glob("owner2.npy.fedpca*/**/keys*"))


class TestInterruptions:
    @pytest.mark.parametrize("settings", [PLAIN, PRIVATE], ids=["plain", "private"])
    @pytest.mark.parametrize("at", [3, 8, 13, 18, 23, 28])
    def test_the_next_run_goes_on(self, tmp_path, monkeypatch, settings, at):
        club = SecureClub(tmp_path, 4, settings=settings)
        heads = remember_secrets(monkeypatch, club) if settings is PRIVATE else None
        grid = club.grid()
        push = grid.push_messages

        def die(messages):
            if len(grid.requested) == at:
                raise KeyboardInterrupt
            return push(messages)

        grid.push_messages = die
        with pytest.raises(KeyboardInterrupt):
            run(grid, club.server, **club.run_config)
        before = dict(club.board)
        summary = run(club.grid(), club.server, **club.run_config)
        assert before.items() <= dict(club.board).items()  # nothing was said twice
        assert club.check_totals(heads) == [tuple(club.configs)] * 2
        assert summary["problem"] == ""


def test_a_state_from_a_backup_answers_nothing(tmp_path):
    """What a node has answered is in the folder that is not backed up: neither may be of another time."""
    club = SecureClub(tmp_path, 4)
    state = Path(club.configs["owner0"]["source"] + ".fedpca")
    live = Path(f"{state}-live")
    request = {"rank": 2, "center": True, "scale": "none"} | to_request(club.roster)
    board = {"session": Session.new(club.roster)}
    node = Node.from_config(club.configs["owner0"])
    first = node.secure_reply(request, board, [])
    assert not list(state.rglob("*session*"))  # nothing of a session is in what is backed up
    copies = {folder: shutil.copytree(folder, tmp_path / f"{folder.name}.copy") for folder in (state, live)}
    assert node.secure_reply(request, board, []) == first
    for folder, copy in copies.items():
        aside = folder.rename(tmp_path / "aside")
        shutil.copytree(copy, folder)
        with pytest.raises(NodeError, match=r"not of the same time: .*increase version"):
            node.secure_reply(request, board, [])
        shutil.rmtree(folder)
        aside.rename(folder)
        assert node.secure_reply(request, board, []) == first
    shutil.rmtree(live)
    with pytest.raises(NodeError, match=r"drawn for version 1 is missing.*increase version"):
        node.secure_reply(request, board, [])
    newer = Node.from_config(club.configs["owner0"] | {"version": 2})
    again = {"session": Session.new(club.roster)}
    for _ in range(2):  # a session that was lost is answered by no version, whatever else has begun
        with pytest.raises(NodeError, match=r"drawn for session \w+ is missing.*begin another session"):
            newer.secure_reply(request, board, [])
        assert newer.secure_reply(request, again, []).keys() == first.keys()
    with pytest.raises(NodeError, match=r"drawn for version 1 is missing.*increase version"):
        node.secure_reply(request, again, [])


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"{")])
def test_what_a_server_learns_of_a_spoiled_state_names_no_path(tmp_path, spoil):
    club = SecureClub(tmp_path, 4)
    request = {"rank": 2, "center": True, "scale": "none"} | to_request(club.roster)
    board = {"session": Session.new(club.roster)}
    node = Node.from_config(club.configs["owner0"])
    node.secure_reply(request, board, [])
    live = Path(club.configs["owner0"]["source"] + ".fedpca-live")
    (path,) = live.rglob("session.json")
    spoil(path)
    with pytest.raises(SecureError) as refused:
        node.secure_reply(request, board, [])
    said = node.public_message(refused.value)
    assert "owner0" not in said
    assert str(tmp_path) not in said


class TestSummary:
    """summary.json is there from the beginning of a run, and says how it ended."""

    def interrupted(self, club, interrupt):
        """The summary during a run, and after it was interrupted in its second exchange."""
        grid, during = club.grid(), []
        push = grid.push_messages

        def pushed(messages):
            if len(grid.requested) == 6:
                during.append(summary_in(club.server))
                interrupt()
            return push(messages)

        grid.push_messages = pushed
        with stoppable():
            run(grid, club.server, **club.run_config)
        return during[0]

    def test_while_it_runs_and_after_a_kill(self, tmp_path):
        club = SecureClub(tmp_path, 4)
        during = self.interrupted(club, lambda: None)
        assert during["finished"] is None
        assert during["model"] is None
        assert "has not ended yet, or it was killed" in during["problem"]
        assert summary_in(club.server)["problem"] == ""

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal(self, tmp_path, number):
        """Flower's handler, which ends the process, has its turn when the summary is written, and once."""
        club, seen = SecureClub(tmp_path, 4), []
        before = signal.signal(number, lambda *_: seen.append(summary_in(club.server)))

        def interrupt():
            os.kill(os.getpid(), number)
            signal.raise_signal(number)  # nor does a second one keep it from being written

        try:
            with pytest.raises(Stopped):
                self.interrupted(club, interrupt)
        finally:
            signal.signal(number, before)
        (summary,) = seen
        assert summary["finished"]
        assert f"the run was stopped ({number.name})" in summary["problem"]
        assert summary["secure"]["state"] == "shares"
        assert len(summary["replies"]) == 4

    def test_flower_says_that_the_run_is_over(self, tmp_path):
        """With an exception that is none of Python's usual ones, and has no text."""

        class RunNotRunning(BaseException):
            pass

        def interrupt():
            raise RunNotRunning

        club = SecureClub(tmp_path, 4)
        with pytest.raises(RunNotRunning):
            self.interrupted(club, interrupt)
        assert "the run was stopped (RunNotRunning)" in summary_in(club.server)["problem"]


class TestRefusals:
    @pytest.fixture
    def club(self, tmp_path):
        return SecureClub(tmp_path, 4)

    def refused(self, club, **config):
        """What the last member is refused for, while the others sum."""
        summary = run(club.grid(), club.server, **club.run_config | config)
        assert "owner3" not in summary["secure"]["members"]
        assert club.check_totals()
        return next(iter(summary["secure"]["refused"].values()))

    @pytest.mark.parametrize(
        ("settings", "config", "rule"),
        [
            ({}, {"robust": "trim"}, "robust='trim' compares what members send, and secure sums let nobody"),
            ({"least": 2}, {}, "least must be from 3 to 4"),
            ({"colluding": 3}, {}, "colluding must be at most 2"),
            ({"largest": None}, {}, "must state epsilon and delta or, without noise, largest"),
            ({"n_features": None}, {}, "must state rank, and features or n_features"),
            ({"scale": "binomial"}, {"scale": "binomial"}, "scale='binomial' cannot be found by secure sums"),
        ],
    )
    def test_studies_that_cannot_be_summed(self, club, settings, config, rule):
        club.agree(club.roster.with_settings(**settings))
        grid = club.grid()
        with pytest.raises(ValueError, match=rule):
            run(grid, club.server, **club.run_config | config)
        assert grid.requested == []
        assert not list(club.server.glob("secure-*"))

    def test_a_node_without_a_key(self, club):
        for name in ("key", "roster"):
            del club.configs["owner3"][name]
        assert self.refused(club) == (
            "a run of secure sums needs key and roster, and this node has neither; set both in the node "
            "config."
        )

    def test_a_node_with_other_settings(self, club):
        club.configs["owner3"] |= {"epsilon": 1.0, "delta": 1e-6}
        assert self.refused(club) == (
            "epsilon must be none, as in the secure sums of study 'heart', got 1.0; correct the node config."
        )

    def test_a_node_that_spends_less(self, tmp_path):
        club = SecureClub(tmp_path, 4, settings=PRIVATE)
        club.configs["owner3"] |= {"epsilon": 1.0}
        summary = run(club.grid(), club.server, **club.run_config)
        assert summary["secure"]["refused"]["owner3"].startswith("epsilon must be 8.0, as in the secure sums")
        assert not list(tmp_path.glob("owner3.npy.fedpca*/*"))

    def test_a_node_with_an_older_roster(self, club, tmp_path):
        club.roster.save(tmp_path / "old.toml")
        club.configs["owner3"]["roster"] = str(tmp_path / "old.toml")
        club.agree(club.roster.with_settings(rank=1))
        reason = self.refused(club)
        assert reason.startswith("rank must be 2") or "give this node the newest roster" in reason

    def test_a_node_with_other_rows(self, club, tmp_path):
        np.save(tmp_path / "owner3.npy", np.ones((9, 2)))
        assert "n_features must be 3, as in the roster of study" in self.refused(club)

    def test_more_rows_than_declared(self, club):
        members = [
            Member(member.id, member.key, rows=13 if member.id == "owner3" else None)
            for member in club.roster.members.values()
        ]
        club.agree(Roster("heart", members, club.roster.settings))
        assert "declared 13 and has 15" in self.refused(club)

    def test_a_node_of_a_secure_study_answers_no_other_run(self, club):
        """A server that asks for releases gets none."""
        request = {"rank": 2, "center": True, "scale": "none"} | to_request(club.roster)
        with pytest.raises(NodeError, match="have agreed on secure sums, and the run is without them"):
            Node.from_config(club.configs["owner0"]).reply(request)

    def test_a_node_of_a_study_without_secure_sums_takes_no_part(self, club):
        request = {"rank": 2, "center": True, "scale": "none"}
        club.agree(club.roster.with_settings(colluding=None, largest=None))
        with pytest.raises(NodeError, match="have agreed on no secure sums, and the run has them"):
            Node.from_config(club.configs["owner0"]).secure_reply(request | to_request(club.roster), {}, [])

    def test_a_region_takes_no_part(self, club):
        config = {"client-id": "owner3", "region": str(club.server)}
        config |= {name: club.configs["owner3"][name] for name in ("key", "roster")}
        club.configs["owner3"] = config
        assert self.refused(club).startswith("a region has no rows, and takes no part in secure sums")


class TestLies:
    @pytest.fixture
    def club(self, tmp_path):
        return SecureClub(tmp_path, 4)

    def lying(self, club, change):
        """A grid whose server shows the first node another board."""
        honest = client(club.configs["owner0"])

        def shown(message):
            change(message.content["board"])
            return honest(message)

        return club.grid(n1=shown)

    @pytest.mark.parametrize("name", ["keyring", "members", "00/announced", "00/present", "00/total"])
    def test_a_changed_message_of_the_coordinator(self, club, name):
        """A member that is shown something else answers nothing more; the others go on."""

        def change(board):
            if name in board:
                contents = bytearray(board[name].data)
                contents[20] = ord("0") if contents[20] != ord("0") else ord("1")
                board[name] = Array("uint8", (len(contents),), "", bytes(contents))

        summary, _ = try_run(club, self.lying(club, change))
        assert summary["secure"]["refused"]["owner0"]
        club.check_totals()

    def test_another_session(self, club):
        """Keys of one session are worth nothing in another."""
        other = Session.new(club.roster)
        summary, _ = try_run(
            club,
            self.lying(club, lambda board: board.update(session=Array("uint8", (len(other),), "", other))),
        )
        assert "its session is" in summary["secure"]["refused"]["owner0"]

    def test_two_answers_to_one_board(self, club):
        """A node sends the same bytes whenever it is asked, and signs one set for a sum."""
        run(club.grid(), club.server, **club.run_config)
        request = {"rank": 2, "center": True, "scale": "none"} | to_request(club.roster)
        node, board = Node.from_config(club.configs["owner0"]), club.board
        own = {name: contents for name, contents in board.items() if name.endswith("/000")}
        assert node.secure_reply(request, relevant(board, 0), []) == own
        changed = json.loads(board["00/present"])
        changed["present"] = changed["present"][1:]
        lie = dict(relevant(board, 0)) | {"00/present": canonical(changed)}
        with pytest.raises(SecureError, match="every message is written once"):
            node.secure_reply(request, lie, [])

    @pytest.mark.parametrize(
        ("contents", "reason"),
        [
            ({"keys/000": b"{}\n" + bytes(64)}, "keys/000 must be a message of 'owner0' in this session"),
            ({"keys/001": b"{}\n" + bytes(64)}, "'keys/001' is not a message of 'owner0'"),
            ({"00/masked/000": bytes(10**6)}, "1000000 bytes are more than the"),
            (None, "must name a member, and this one does not"),
        ],
    )
    def test_a_stranger_speaks_as_a_member(self, club, contents, reason):
        """Whoever sends what no member has signed neither takes its place nor ends the run."""
        stranger = sends(b"something")
        if contents:
            member = ConfigRecord({"client": "owner0"})
            record = RecordDict({"member": member, "messages": array_record(contents)})
            stranger = lambda message: Message(record, reply_to=message)  # noqa: E731
        summary = run(club.grid(n0=stranger), club.server, **club.run_config)
        (rejected,) = (reply for reply in summary["replies"] if reply["what"] == "rejected")
        assert reason in rejected["reason"]
        assert club.check_totals() == [tuple(club.configs)] * 2

    def test_names_that_are_no_messages(self, club):
        request = {"rank": 2, "center": True, "scale": "none"} | to_request(club.roster)
        for name in ("../../session", "notes", ".hidden", "keys/0000"):
            board = {"session": Session.new(club.roster), name: b"{}\n"}
            with pytest.raises(SecureError, match="messages of a session only"):
                Node.from_config(club.configs["owner0"]).secure_reply(request, board, [])

    def test_a_reply_that_is_too_large(self, club):
        summary, done = try_run(club, club.grid(), max_bytes=100)
        assert not done
        assert "are larger than max-bytes=100" in summary["secure"]["refused"]["owner0"]


def loaded(club):
    return fedpca.load(club.server / "model.safetensors")


def ledger(config):
    return Ledger(Path(config["source"] + ".fedpca") / "ledger")
