"""A Flower federation with a roster: who may speak, under which agreement, and what a change of it costs."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flower_clients import PRIVATE, REQUEST, config_of, spent, write
from helpers import rows_of

import fedpca
from fedpca import Aggregator, Ledger, Roster, SigningKey
from fedpca.errors import NodeError
from fedpca.federation.aggregator.message import Message
from fedpca.federation.aggregator.owner_sum import OwnerSum
from fedpca.federation.flower.exchanges import Published
from fedpca.federation.flower.member import to_request
from fedpca.federation.flower.node import Node
from fedpca.federation.flower.region import Region
from fedpca.summaries import model_file
from fedpca.trust import Member

pytest.importorskip("flwr", reason="the Flower federation needs flwr: pip install 'fedpca[flower]'")

from flower_grid import FakeGrid, client, pretend_to_be_flower, run, sends, summary_in

pytestmark = pytest.mark.slow  # all of it together

ANYONE = "no roster: senders are not verified"
STEPS = {"rank": 2, "scale": "std", "expect": 2, "quorum": 2, "deadline": 30.0, "epsilon": 4.0}
PROMISE = {"epsilon": 4.0, "delta": 1e-6}


@pytest.fixture(autouse=True)
def _identity(monkeypatch):
    """Flower's processes know which run they belong to; so must this one, to make messages."""
    pretend_to_be_flower(monkeypatch)


class Club:
    """A study with a roster: the files of its server, and of its members."""

    def __init__(self, folder, *names, study="heart", width=8, n_rows=1500, config=None, **settings):
        self.folder = folder
        self.server = folder / "server"
        self.path = folder / f"{study}.toml"  # of the server
        self.keys, self.configs = {}, {}
        self.roster = Roster(study, [], settings)
        self._more = config or {}
        self._shape = n_rows, width
        for name in names:
            self.add(name)

    def add(self, name, rows=None):
        """A new member with a key; every member, and the server, gets the new roster."""
        if name not in self.configs:
            source = write(
                self.folder / f"{name}.npy", 3 + rows_of(len(self.configs), self._shape[0], self._shape[1])
            )
            more = {
                "key": str(self.folder / f"{name}.key"),
                "roster": str(self.folder / f"{name}.roster.toml"),
            }
            self.configs[name] = {"client-id": name, "source": str(source)} | more | self._more
        self.new_key(name)
        self.agree(self.roster.with_member(Member(name, self.keys[name].public, rows)))

    def new_key(self, name):
        path = Path(self.configs[name]["key"])
        path.unlink(missing_ok=True)
        self.keys[name] = SigningKey.new()
        self.keys[name].save(path)

    def agree(self, roster, *only):
        """Give a new roster to the server and all members, or to some."""
        self.roster = roster
        if not only or "server" in only:
            roster.save(self.path)
        for name, config in self.configs.items():
            if not only or name in only:
                roster.save(config["roster"])

    def node(self, name):
        return Node.from_config(self.configs[name])

    def sign(self, name, contents):
        return self.roster.signer(self.keys[name]).sign(contents)

    def grid(self, **others):
        nodes = {f"n{number}": client(config) for number, config in enumerate(self.configs.values(), start=1)}
        return FakeGrid(**nodes | others)

    def run(self, grid=None, folder=None, **config):
        config = {"expect": len(self.configs), "roster": str(self.path)} | config
        return run(grid or self.grid(), folder or self.server, **config)

    def request(self, **more):
        return REQUEST | to_request(self.roster) | more


@pytest.fixture
def club(tmp_path):
    return Club(tmp_path, "north", "south")


def by_node(summary):
    return {reply["node"]: (reply["client"], reply["what"], reply["reason"]) for reply in summary["replies"]}


def by_client(summary):
    return {reply["client"]: (reply["what"], reply["reason"]) for reply in summary["replies"]}


def loaded(folder):
    return fedpca.load(folder / "model.safetensors")


def debits(config):
    path = Path(config["source"] + ".fedpca") / "ledger"
    return [entry.mechanism for entry in Ledger(path).entries] if path.exists() else []


def nothing_was_read(config):
    return not Path(config["source"] + ".fedpca").exists()


def published_in(message):
    given = message.content.get("published")
    return Published() if given is None else Published.decode(given["message"].data)


def meanwhile(config, action, condition):
    """A node that does something, once, before it replies to a certain request."""
    done = []

    def reply(message):
        if not done and condition(published_in(message)):
            done.append(action())
        return client(config)(message)

    return reply


class TestRun:
    def test_the_model_is_that_of_the_members(self, club, tmp_path):
        summary = club.run()
        plain = {
            name: {key: config[key] for key in ("client-id", "source")}
            for name, config in club.configs.items()
        }
        without = run(
            FakeGrid(**{f"n{i}": client(config) for i, config in enumerate(plain.values())}),
            tmp_path / "plain",
            expect=2,
        )
        assert loaded(club.server) == loaded(tmp_path / "plain")
        roster = {"study": "heart", "hash": club.roster.hash, "members": 2, "not_heard_from": []}
        assert summary["roster"] == roster
        assert without["roster"] == ANYONE
        again = club.run()
        assert {what for what, _ in by_client(again).values()} == {"unchanged"}

    def test_without_a_roster_the_log_says_so(self, tmp_path, caplog):
        with caplog.at_level(logging.WARNING):
            run(FakeGrid(n1=client(config_of(tmp_path, "north", 1))), tmp_path / "server", expect=1)
        assert ANYONE in caplog.text

    def test_who_was_not_heard_from_is_named(self, club):
        summary = club.run(FakeGrid(n1=client(club.configs["north"])), expect=1)
        assert summary["roster"]["not_heard_from"] == ["south"]

    def test_a_server_has_the_settings_of_its_roster(self, tmp_path):
        club = Club(tmp_path, "north", rank=5, scale="none", center=True)
        grid = club.grid()
        with pytest.raises(ValueError, match=r"rank must be 5, as in the roster of study 'heart', got 3"):
            club.run(grid)
        assert grid.requested == []
        assert "rank must be 5" in summary_in(club.server)["problem"]
        assert summary_in(club.server)["roster"] is None
        assert club.run(rank=5)["problem"] == ""

    def test_a_private_roster(self, tmp_path):
        settings = PRIVATE | {"adjacency": "replace-one", "mechanism": "gram"}
        club = Club(tmp_path, "north", config=PRIVATE | {"center": "pairs"}, **settings)
        with pytest.raises(ValueError, match=r"epsilon must be 2.0, as in the roster of study 'heart'"):
            club.run()
        assert club.run(**PRIVATE)["problem"] == ""
        assert loaded(club.server).certificate.epsilon == 2.0

    @pytest.mark.parametrize(
        ("changes", "rule"),
        [
            ({"roster": "roster.toml"}, "roster must be an absolute path on the server"),
            ({"roster": "/no/roster.toml"}, "no such roster"),
            ({"simulate": "/data"}, "a simulation has no keys"),
        ],
    )
    def test_a_roster_that_cannot_be_used(self, club, changes, rule):
        with pytest.raises((ValueError, OSError), match=rule):
            club.run(**changes)

    def test_a_folder_stays_with_its_roster(self, club, tmp_path):
        club.run()
        with pytest.raises(ValueError, match="have a roster; set roster, or choose another folder"):
            club.run(roster="none")
        old = club.roster
        club.add("west")
        club.run()
        old.save(club.path)
        with pytest.raises(
            ValueError, match=r"does not follow that of the run before it .*; get the newest roster"
        ):
            club.run()
        (tmp_path / "other").mkdir()
        other = Club(tmp_path / "other", "north", study="lung")
        with pytest.raises(
            ValueError, match="is of study 'heart', and the roster of 'lung'; choose another folder"
        ):
            other.run(folder=club.server)

    def test_what_came_before_the_roster_counts_no_more(self, club):
        plain = {key: club.configs["north"][key] for key in ("client-id", "source")}
        run(FakeGrid(n9=client(plain)), club.server, expect=1)
        summary = club.run(FakeGrid(n2=client(club.configs["south"])), expect=1)
        assert list(summary["contributors"]) == ["south"]
        assert "unsigned" in summary["quarantined"]["north"]
        assert list(club.run()["contributors"]) == ["north", "south"]


def tampered(contents):
    """The file with another mean, and a checksum that is right: the signature alone tells."""
    kind, arrays, metadata = model_file.decode(contents, "a release")
    arrays["mean"] = arrays["mean"] + 1
    forged = model_file.encode(kind, arrays, metadata)
    return model_file.with_signature(forged, model_file.opened(contents, "a release").signature)


class TestAttacks:
    """North is honest, and the attacker has a node of its own that Flower has authenticated."""

    def test_a_replay_neither_takes_a_name_nor_ends_a_run(self, club):
        """Whoever repeats what a member signed has done nothing, first or last."""
        contents = club.node("south").reply(club.request()).contents

        def late(message):  # appears when the replayed release has come
            grid.nodes[4] = client(club.configs["south"])
            return client(club.configs["north"])(message)

        grid = FakeGrid(n1=sends(contents), n2=sends(contents), n3=late)
        summary = club.run(grid, replies=4)
        found = by_node(summary)
        assert sorted(what for _, what, _ in found.values()) == [
            "accepted",
            "accepted",
            "unchanged",
            "unchanged",
        ]
        assert list(summary["contributors"]) == ["north", "south"]
        assert summary["rows"] == 3000

    def test_replays_do_not_count_as_clients_that_are_expected(self, club):
        contents = club.node("south").reply(club.request()).contents
        north = client(club.configs["north"])
        grid = FakeGrid(n1=sends(contents), n2=sends(contents))

        def first(message):
            grid.nodes[3] = north
            return sends(contents)(message)

        grid.nodes[2] = first
        assert list(club.run(grid)["contributors"]) == ["north", "south"]

    def test_a_flower_node_may_change(self, club):
        """A name belongs to its key: after a new registration, a member is another node of Flower."""
        club.run()
        summary = club.run(FakeGrid(n77=client(club.configs["north"]), n78=client(club.configs["south"])))
        assert {what for what, _ in by_client(summary).values()} == {"unchanged"}

    @pytest.mark.long
    def test_scalings(self, tmp_path):
        club = Club(tmp_path, "north", "south", "west", width=300, n_rows=60)
        honest = [np.load(club.configs[name]["source"]) for name in ("north", "south")]
        scaling = fedpca.Scaling.from_rows(1000 * rows_of(5, 60, 300))
        forged = Message("west", 1, scaling).encode()
        signed = club.sign("west", forged)
        kind, arrays, metadata = model_file.decode(signed, "")
        changed = model_file.with_signature(
            model_file.encode(kind, arrays | {"mean": arrays["mean"] + 1}, metadata),
            model_file.opened(signed, "").signature,
        )
        grid = FakeGrid(
            n1=client(club.configs["north"]),
            n2=client(club.configs["south"]),
            n3=sends(forged, "scaling"),
            n4=sends(club.sign("north", forged), "scaling"),
            n5=sends(changed, "scaling"),
            n6=sends(club.node("south").reply(club.request(scale="std")).contents, "scaling"),
        )
        summary = club.run(grid, scale="std", expect=0, deadline=4.0)
        found = by_node(summary)
        assert "is unsigned" in found["3"][2]
        assert "wrong key, that of 'north'" in found["4"][2]
        assert "was changed after 'west' signed it" in found["5"][2]
        assert {found[node][1] for node in "345"} == {"rejected"}
        np.testing.assert_allclose(summary["scale"], np.concatenate(honest).std(axis=0), rtol=1e-10)
        assert list(summary["contributors"]) == ["north", "south"]

    @pytest.mark.long
    def test_a_scaling_of_an_older_version_or_of_too_many_rows(self, tmp_path):
        club = Club(tmp_path, "north", "south", width=300, n_rows=60)
        club.add("west", rows=10)
        old = club.node("south").reply(club.request(scale="std")).contents
        club.configs["south"] |= {"version": 2}
        new = club.node("south").reply(club.request(scale="std")).contents
        grid = FakeGrid(n1=client(club.configs["north"]), n2=sends(new, "scaling"), n3=sends(old, "scaling"))
        grid.nodes[4] = client(club.configs["west"])
        summary = club.run(grid, scale="std", expect=0, deadline=4.0)
        assert "rolled back: version 2 of 'south' is known" in by_node(summary)["3"][2]
        assert "declared 10 rows" in by_node(summary)["4"][2]


@pytest.fixture
def private(tmp_path):
    return Club(tmp_path, "north", "south", width=6, n_rows=3000, config=PROMISE)


@pytest.mark.slow
class TestPrivateSteps:
    def test_members_find_together_what_is_not_public(self, private):
        summary = private.run(**STEPS)
        assert {what for what, _ in by_client(summary).values()} == {"accepted"}
        assert summary["evaluation"]["rows"] == 6000
        assert summary["evaluation"]["missing"] == {}

    @pytest.mark.long
    def test_forged_sums(self, private):
        """Everything but what a member signed is refused in every exchange, and costs nobody anything."""
        private.add("west")
        west = private.configs.pop("west")

        def unsigned(message):
            return client({key: west[key] for key in ("client-id", "source", "epsilon", "delta")})(message)

        def repeats(message):
            return client(private.configs["south"])(message)  # what south signed, from another node

        def as_another(message):
            kind = next(iter(client(west)(message).content))
            contents = client(west)(message).content[kind]["message"].data
            return sends(private.sign("south", contents), kind)(message)

        grid = private.grid(n3=unsigned, n4=repeats, n5=as_another)
        summary = private.run(grid, **STEPS | {"expect": 0, "deadline": 12.0})
        found = by_node(summary)
        assert (found["3"][1], "is unsigned" in found["3"][2]) == ("rejected", True)
        assert found["5"][1] == "rejected"
        assert "wrong key, that of 'south'" in found["5"][2]
        assert list(summary["contributors"]) == ["north", "south"]
        published = Published.decode((private.server / "published.safetensors").read_bytes())
        assert {pooled.noise for pooled in published.sums} == {2}
        assert {pooled.n_rows for pooled in published.sums} == {6000}
        assert summary["evaluation"]["rows"] == 6000
        for config in private.configs.values():
            assert Ledger(Path(config["source"] + ".fedpca") / "ledger").spent() == pytest.approx(4.0)

    def test_a_forged_evaluation(self, private):
        def lies(message):
            reply = client(private.configs["south"])(message)
            if published_in(message).model is None:
                return reply
            contents = reply.content["sum"]["message"].data
            honest = Message.decode(contents)
            own, features = honest.content.own, honest.content.features
            content = OwnerSum(replace(own, total=1.01 * own.total), features)
            return sends(replace(honest, content=content).encode(), "sum")(message)

        summary = private.run(private.grid(n2=lies), **STEPS)
        assert summary["evaluation"]["rows"] == 3000
        assert "is unsigned" in summary["evaluation"]["missing"]["south"]

    @pytest.mark.long
    def test_a_member_that_is_added_under_way_joins_the_next_run(self, private):
        def add():
            private.add("west")

        grid = private.grid(n1=meanwhile(private.configs["north"], add, lambda known: len(known.sums) == 2))
        with pytest.raises(RuntimeError, match="no node that began the private steps replied in time"):
            private.run(grid, **STEPS | {"deadline": 8.0})
        summary = summary_in(private.server)
        # North and south have agreed on a roster that the run does not know: they wait with what is next.
        reasons = {reason for what, reason in by_client(summary).values() if what == "failed"}
        assert reasons == {
            "the roster of the run is older than that of this node; give both the newest roster."
        }
        before = {name: debits(private.configs[name]) for name in ("north", "south")}
        summary = private.run(**STEPS | {"expect": 3})
        assert {name: what for name, (what, _) in by_client(summary).items()} == dict.fromkeys(
            ("north", "south", "west"), "accepted"
        )
        for name, paid in before.items():
            assert debits(private.configs[name])[: len(paid)] == paid
            assert Ledger(
                Path(private.configs[name]["source"] + ".fedpca") / "ledger"
            ).spent() == pytest.approx(4.0)

    def test_a_member_that_is_removed_under_way_spends_nothing_more(self, private):
        private.add("west")
        grid = private.grid()

        def dies(message):
            if len(published_in(message).sums) == 2:
                raise KeyboardInterrupt
            return client(private.configs["north"])(message)

        grid.nodes[1] = dies
        with pytest.raises(KeyboardInterrupt):
            private.run(grid, **STEPS | {"expect": 3})
        paid = debits(private.configs["south"])
        private.agree(private.roster.without_member("south"), "server", "north", "west")
        summary = private.run(**STEPS | {"expect": 2})
        what, reason = by_client(summary)["south"]
        assert what == "failed"
        assert "has no longer the key of 'south'" in reason
        assert debits(private.configs["south"]) == paid
        assert list(summary["contributors"]) == ["north", "west"]
        assert summary["problem"] == ""

    def test_a_key_that_is_replaced_under_way_loses_nothing(self, private):
        def dies(message):
            if len(published_in(message).sums) == 3:
                raise KeyboardInterrupt
            return client(private.configs["north"])(message)

        with pytest.raises(KeyboardInterrupt):
            private.run(private.grid(n1=dies), **STEPS)
        lost = private.keys["south"]
        private.agree(private.roster.without_member("south"))
        private.add("south")
        summary = private.run(**STEPS)
        assert {what for what, _ in by_client(summary).values()} == {"accepted"}
        signed = Ledger(Path(private.configs["south"]["source"] + ".fedpca") / "ledger").signed_by
        assert signed == (lost.public, private.keys["south"].public)
        for config in private.configs.values():
            assert Ledger(Path(config["source"] + ".fedpca") / "ledger").spent() == pytest.approx(4.0)
            assert len(debits(config)) == len(debits(private.configs["north"]))


class TestChanges:
    """A roster that changes between runs; nothing is read, spent or released again."""

    @pytest.fixture
    def club(self, tmp_path):
        return Club(tmp_path, "north", "south", config=PRIVATE | {"center": "pairs"})

    def test_a_member_is_added(self, club):
        first = club.run(**PRIVATE)
        club.add("west")
        summary = club.run(**PRIVATE)
        assert {name: what for name, (what, _) in by_client(summary).items()} == {
            "north": "unchanged", "south": "unchanged", "west": "accepted"
        }  # fmt: skip
        assert summary["contributors"]["north"] != first["contributors"]["north"]  # of more rows
        assert all(spent(config) == pytest.approx(2.0) for config in club.configs.values())

    def test_who_has_the_old_roster_still_counts(self, club):
        old = club.roster
        club.add("west")
        old.save(club.configs["north"]["roster"])
        assert by_client(club.run(**PRIVATE))["north"] == ("accepted", "")

    def test_a_member_is_removed(self, club):
        club.run(**PRIVATE)
        club.agree(club.roster.without_member("south"))
        summary = club.run(expect=1, **PRIVATE)
        assert list(summary["contributors"]) == ["north"]
        assert "'south' is not a member" in summary["quarantined"]["south"]
        assert loaded(club.server).count == 1500

    def test_a_key_is_replaced(self, club):
        club.run(**PRIVATE)
        release = club.node("south").release(club.request())
        club.agree(club.roster.without_member("south"))
        club.add("south")
        summary = club.run(FakeGrid(n1=client(club.configs["north"])), expect=1, **PRIVATE)
        assert list(summary["contributors"]) == ["north"]  # the old key counts no more
        assert list(summary["quarantined"]) == ["south"]
        summary = club.run(**PRIVATE)
        assert by_client(summary)["south"] == ("accepted", "")
        assert club.node("south").release(club.request()) == release
        assert spent(club.configs["south"]) == pytest.approx(2.0)

    def test_a_state_that_was_changed_on_the_disk_of_the_server(self, club):
        club.run(**PRIVATE)
        path = club.server / "store" / "south.state"
        line, message = path.read_bytes().split(b"\n", 1)
        path.write_bytes(line + b"\n" + tampered(message))
        summary = club.run(FakeGrid(n1=client(club.configs["north"])), expect=1, **PRIVATE)
        assert list(summary["contributors"]) == ["north"]
        assert list(summary["quarantined"]) == ["south"]


class TestNode:
    @pytest.mark.parametrize(
        ("change", "rule"),
        [
            (
                lambda club: REQUEST,
                "study 'heart' alone, and the run has no roster; set roster in the run config",
            ),
            (lambda club: club.request(study="lung"), "study 'heart' alone, and the run is of 'lung'"),
            (
                lambda club: club.request(rosters=["sha256:" + 64 * "0"]),
                "is not one that follows that of this node",
            ),
            (
                lambda club: club.request(rosters=list(club.roster.predecessors)),
                "the roster of the run is older than that of this node; give both the newest roster",
            ),
            (
                lambda club: club.request(keys=[club.keys["south"].public.text]),
                "no longer the key of 'north'",
            ),
            (
                lambda club: club.request(rank=4),
                "rank must be 3, as in the roster of study 'heart', got 4; correct the run config",
            ),
            (lambda club: club.request(center=False), "center must be True"),
            (lambda club: club.request(scale="std"), "scale must be 'none'"),
        ],
    )
    def test_what_was_not_agreed_on_is_refused_before_anything_is_read(self, tmp_path, change, rule):
        club = Club(tmp_path, "north", "south", rank=3, center=True, scale="none")
        with pytest.raises(NodeError, match=rule):
            club.node("north").reply({"scale": "none"} | change(club))
        assert nothing_was_read(club.configs["north"])

    def test_private_settings_are_the_rosters(self, tmp_path):
        settings = PRIVATE | {"adjacency": "replace-one", "mechanism": "gram"}
        club = Club(tmp_path, "north", config=PRIVATE | {"center": "pairs"}, **settings)
        request = club.request(**PRIVATE, adjacency="replace-one")
        for changes, rule in (
            ({"epsilon": 3.0}, "epsilon must be 2.0"),
            ({"delta": 1e-3}, "delta must be 1e-06"),
            ({"bound": 9.0}, "bound must be 3.0"),
            ({"adjacency": "zero-out"}, "adjacency must be 'replace-one'"),
        ):
            with pytest.raises(NodeError, match=rule):
                club.node("north").reply(request | changes)
        club.configs["north"] |= {"mechanism": "sketch"}
        with pytest.raises(
            NodeError, match="mechanism must be 'gram', as in the roster of study 'heart', got 'sketch'"
        ):
            club.node("north").reply(request)
        club.configs["north"] |= {"mechanism": "gram", "bound": 2.0}
        with pytest.raises(
            NodeError, match=r"bound must be 3\.0, as in the roster of study 'heart', got 2\.0"
        ):
            club.node("north").reply(request)
        plain = {
            key: value
            for key, value in club.configs["north"].items()
            if key not in (*PRIVATE, "center", "mechanism")
        }
        with pytest.raises(NodeError, match=r"bound must be 3.0, as in the roster of .*, got none"):
            Node.from_config(plain).reply(request)
        assert nothing_was_read(club.configs["north"])

    @pytest.mark.parametrize("setting", [{"n_features": 7}, {"features": ["a", "b"]}])
    def test_features_are_the_rosters(self, tmp_path, setting):
        club = Club(tmp_path, "north", **setting)
        with pytest.raises(
            NodeError,
            match=r"features must be .*, got .*; select them with columns",
        ):
            club.node("north").reply(club.request())

    @pytest.mark.parametrize(
        ("changes", "rule"),
        [
            (
                {"key": ""},
                "needs key and roster, a file each, got key=''; set both in the node config, or neither",
            ),
            ({"roster": 5}, "needs key and roster, a file each, got roster=5"),
            ({"key": "/no/north.key"}, "no such key file"),
            ({"roster": "/no/roster.toml"}, "no such roster"),
            ({"client-id": "south"}, "client-id must be that of the key in the roster, 'north', got 'south'"),
        ],
    )
    def test_bad_configs(self, club, changes, rule):
        with pytest.raises(NodeError, match=rule):
            Node.from_config(club.configs["north"] | changes)
        region = {key: club.configs["north"][key] for key in ("client-id", "key", "roster")} | {
            "region": "/srv"
        }
        with pytest.raises(NodeError, match=rule):
            Region.from_config(region | changes)

    def test_a_key_without_a_roster(self, club):
        for missing in ("key", "roster"):
            config = {key: value for key, value in club.configs["north"].items() if key != missing}
            with pytest.raises(NodeError, match=f"got {missing}=None"):
                Node.from_config(config)

    def test_a_key_that_others_can_read(self, club):
        Path(club.configs["north"]["key"]).chmod(0o644)
        with pytest.raises(NodeError, match="chmod 600"):
            club.node("north")
        summary = club.run(replies=2)
        assert by_node(summary)["1"][1] == "failed"
        assert by_node(summary)["1"][2].endswith("see the log of its SuperNode.")  # which has the remedy
        assert list(summary["contributors"]) == ["south"]

    def test_a_key_that_is_nobodys(self, club):
        club.new_key("north")
        with pytest.raises(NodeError, match="is that of no member of study 'heart'"):
            club.node("north")

    def test_what_is_kept_is_not_signed(self, club):
        reply = club.node("north").reply(club.request())
        kept = Path(club.configs["north"]["source"] + ".fedpca") / "release-1.safetensors"
        assert model_file.opened(kept.read_bytes(), kept).signature is None
        assert club.roster.check(reply.contents, "north").study == "heart"
        assert club.node("north").reply(club.request()) == reply  # byte for byte


class TestRegion:
    @pytest.fixture
    def regional(self, tmp_path):
        (tmp_path / "region").mkdir()
        club = Club(tmp_path / "region", "anna", "berta", study="the north")
        club.run()
        return club

    @pytest.fixture
    def parent(self, tmp_path, regional):
        (tmp_path / "parent").mkdir()
        club = Club(tmp_path / "parent", "the north", "the south", study="the country")
        club.configs["the north"] = {
            "client-id": "the north",
            "region": str(regional.server),
            "key": club.configs["the north"]["key"],
            "roster": club.configs["the north"]["roster"],
        }
        return club

    def test_it_signs_as_a_member_of_its_parents_study(self, parent, regional):
        summary = parent.run()
        assert {what for what, _ in by_client(summary).values()} == {"accepted"}
        assert summary["contributors"]["the north"]["rows"] == 3000
        assert {what for what, _ in by_client(parent.run()).values()} == {"unchanged"}

    def test_what_its_clients_signed_is_nothing_to_the_parent(self, parent, regional):
        contents = regional.node("anna").reply(regional.request()).contents
        summary = parent.run(FakeGrid(n1=sends(contents), n2=client(parent.configs["the south"])), replies=2)
        assert "signed for study 'the north', and this is 'the country'" in by_node(summary)["1"][2]

    def test_it_checks_its_own_clients(self, parent, regional):
        path = regional.server / "store" / "berta.state"
        line, message = path.read_bytes().split(b"\n", 1)
        path.write_bytes(line + b"\n" + tampered(message))
        summary = parent.run()
        assert summary["contributors"]["the north"]["rows"] == 1500

    def test_a_run_of_anything_else_is_refused(self, parent, regional):
        region = Region.from_config(parent.configs["the north"])
        with pytest.raises(NodeError, match="the run has no roster"):
            region.reply(REQUEST)

    def test_without_rosters_it_works_as_before(self, tmp_path, parent, regional):
        config = {"client-id": "the north", "region": str(regional.server)}
        summary = run(FakeGrid(n1=client(config)), tmp_path / "server", expect=1)
        assert summary["roster"] == ANYONE
        assert summary["rows"] == 3000


def alike(seed):
    """Rows of owners that are alike: all have the same directions."""
    return np.random.default_rng(seed).normal(size=(1500, 8)) * [4, 3, 2, 1, 1, 1, 1, 1]


def spiked(seed):
    """Rows of a liar: one direction that nobody else has, far longer than all others."""
    return alike(seed) * [1, 1, 1, 1, 1, 1, 1, 40]


class TestLiars:
    @pytest.fixture
    def five(self, tmp_path):
        rows = [*map(alike, range(4)), spiked(4)]
        return {
            name: {"client-id": name, "source": str(write(tmp_path / f"{name}.npy", each))}
            for name, each in zip("abcde", rows, strict=True)
        }

    def grid(self, configs):
        return FakeGrid(**{f"n{node}": client(config) for node, config in enumerate(configs.values())})

    @pytest.mark.parametrize("robust", ["median", "trim"])
    def test_a_liar_does_not_take_the_model(self, tmp_path, five, robust):
        plain = run(self.grid(five), tmp_path / "plain", expect=5)
        summary = run(self.grid(five), tmp_path / "server", expect=5, robust=robust)
        assert (plain["robust"], summary["robust"], summary["max_share"]) == (None, robust, None)
        honest = np.concatenate([np.load(five[name]["source"]) for name in "abcd"])
        assert fedpca.metrics.captured_variance(loaded(tmp_path / "plain"), honest) < 0.95
        assert fedpca.metrics.captured_variance(loaded(tmp_path / "server"), honest) > 0.999

    def test_a_region_sends_what_its_runs_have_merged(self, tmp_path, five):
        run(self.grid(five), tmp_path / "server", expect=5, robust="trim", max_share=0.25)
        region = Region.from_config({"client-id": "a region", "region": str(tmp_path / "server")})
        sent = Message.decode(region.release(REQUEST)).summary.subspace(3)
        assert sent == loaded(tmp_path / "server")

    def test_bad_settings(self, tmp_path):
        with pytest.raises(ValueError, match="robust must be None or one of"):
            run(FakeGrid(), tmp_path, robust="mean")
        with pytest.raises(ValueError, match="max_share is for robust merging"):
            run(FakeGrid(), tmp_path, max_share=0.3)
        with pytest.raises(ValueError, match="max_share must be a share above 0 and at most 1"):
            run(FakeGrid(), tmp_path, robust="cap", max_share=1.5)

    def test_few_rows(self, tmp_path):
        few = {"client-id": "few", "source": str(write(tmp_path / "few.npy", rows_of(3, 9)))}
        grid = FakeGrid(n1=client(few), n2=client(config_of(tmp_path, "north", 1)))
        summary = run(grid, tmp_path / "server", replies=2, least_rows=10)
        what, reason = by_client(summary)["few"]
        assert (what, "at least least_rows=10 rows" in reason) == ("rejected", True)
        assert list(summary["contributors"]) == ["north"]


class TestPolicy:
    """What may leave is checked before anything is spent; others learn public numbers alone."""

    def config(self, folder, rules, rows=None, **more):
        (folder / "policy.toml").write_text(rules)
        config = config_of(folder, "north", 1, ".csv") if rows is None else {"client-id": "north"}
        if rows is not None:
            config["source"] = str(write(folder / "north.csv", rows))
        return config | {"policy": str(folder / "policy.toml")} | more

    @pytest.mark.parametrize(
        ("rules", "reason"),
        [
            ("least_rows = 2000", "see the log of its SuperNode."),
            (
                "most_features_per_row = 0.001",
                "most_features_per_row: at most 0.001 features per row may leave, got 0.005333",
            ),
            ("most_directions_per_row = 0.001", "most_directions_per_row: at most 0.001"),
            ("privacy_required = true", "privacy_required: only private releases may leave"),
            ("mean_allowed = false", "mean_allowed: the means of columns may not leave"),
        ],
    )
    def test_rules(self, tmp_path, rules, reason):
        config = self.config(tmp_path, rules)
        summary = run(
            FakeGrid(n1=client(config), n2=client(config_of(tmp_path, "south", 2, ".csv"))),
            tmp_path / "server",
            replies=2,
        )
        what, found = by_client(summary)["north"]
        assert what == "failed"
        assert found.startswith(f"the policy of its owner does not allow it: {reason}")
        assert list(summary["contributors"]) == ["south"]
        assert not list(Path(config["source"] + ".fedpca").glob("release-*.safetensors"))

    def test_a_rare_level_is_not_told(self, tmp_path, caplog):
        rows = rows_of(1, 900, 3)
        rows[:, 2] = np.arange(900) == 17
        config = self.config(tmp_path, "least_level = 3", rows)
        summary = run(
            FakeGrid(n1=client(config), n2=client(config_of(tmp_path, "south", 2))),
            tmp_path / "server",
            replies=2,
        )
        assert by_client(summary)["north"] == (
            "failed", "the policy of its owner does not allow it: see the log of its SuperNode."
        )  # fmt: skip
        assert "and one of 'feature 2' has 1; leave the column out" in caplog.text  # its own log
        private = self.config(tmp_path, "least_level = 3", rows, **PRIVATE, center="pairs")
        assert Node.from_config(private).reply(REQUEST | {"rank": 2}).kind == "release"

    @pytest.mark.parametrize(
        ("rules", "reason"),
        [
            ("largest_epsilon = 1.0", "largest_epsilon: at most 1 may be spent, got 2; release with less."),
            (
                "least_rows = 2000",
                "least_rows: at least 2,000 rows must be behind what leaves, got 1,500; wait for more.",
            ),
        ],
    )
    def test_nothing_is_spent_on_what_may_not_leave(self, tmp_path, rules, reason):
        for more in (PRIVATE | {"center": "pairs"}, {"epsilon": 2.0, "delta": 1e-6}):
            config = self.config(tmp_path, rules, **more)
            request = REQUEST | {
                "epsilon": 2.0,
                "delta": 1e-6,
                "bound": more.get("bound", "private"),
                "adjacency": "replace-one",
            }
            with pytest.raises(NodeError) as caught:
                Node.from_config(config).reply(request)
            assert str(caught.value) == f"the policy of its owner does not allow it: {reason}"
            assert debits(config) == []

    def test_a_stricter_policy_holds_for_what_was_released_before(self, tmp_path):
        config = self.config(tmp_path, "")
        first = Node.from_config(config).reply(REQUEST)
        (tmp_path / "policy.toml").write_text("least_rows = 2000")
        with pytest.raises(NodeError, match="does not allow it"):
            Node.from_config(config).reply(REQUEST)
        (tmp_path / "policy.toml").write_text("")
        assert Node.from_config(config).reply(REQUEST) == first

    def test_a_policy_for_what_was_released_without_one(self, tmp_path):
        rows = rows_of(1, 900, 3)
        rows[:, 2] = np.arange(900) == 17
        config = self.config(tmp_path, "", rows)
        request = REQUEST | {"rank": 1}
        Node.from_config({key: config[key] for key in ("client-id", "source")}).reply(request)
        with pytest.raises(NodeError, match="does not allow it: see the log"):
            Node.from_config(config).reply(request)

    def test_a_scaling(self, tmp_path):
        config = self.config(tmp_path, "least_rows = 100", rows_of(1, 60, 300))
        request = REQUEST | {"scale": "std"}
        with pytest.raises(NodeError, match="does not allow it"):
            Node.from_config(config).reply(request)
        assert not list(Path(config["source"] + ".fedpca").glob("scaling-*"))
        (tmp_path / "policy.toml").write_text("most_features_per_row = inf")
        assert Node.from_config(config).reply(request).kind == "scaling"
        (tmp_path / "policy.toml").write_text("most_features_per_row = inf\nmean_allowed = false")
        with pytest.raises(NodeError, match="mean_allowed"):
            Node.from_config(config).reply(request)

    def test_bad_policies(self, tmp_path):
        for rules, reason in (
            ("leest_rows = 3", "unknown keys: leest_rows"),
            ("least_rows = -1", "least_rows must be"),
        ):
            with pytest.raises(NodeError, match=reason):
                Node.from_config(self.config(tmp_path, rules))
        with pytest.raises(NodeError, match="no such policy"):
            Node.from_config(self.config(tmp_path, "") | {"policy": str(tmp_path / "none.toml")})

    def test_without_one_the_log_says_so(self, tmp_path, caplog):
        with caplog.at_level(logging.INFO):
            Node.from_config(config_of(tmp_path, "north", 1)).reply(REQUEST)
        assert "no policy: nothing was checked" in caplog.text


def test_a_summary_with_a_roster_is_json(club):
    club.run()
    json.loads((club.server / "summary.json").read_text(), parse_constant=pytest.fail)
    with Aggregator(store=club.server / "store", roster=club.roster) as aggregator:
        assert list(aggregator.children) == ["north", "south"]
