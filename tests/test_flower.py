"""A federation over Flower: the model of whoever answered, by the deadline, each release paid for once."""

import fcntl
import json
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from helpers import power_law

import fedpca
from fedpca import Aggregator, Ledger, StreamingPCA
from fedpca.errors import NodeError, SummaryRejected
from fedpca.federation.flower.node import Node
from fedpca.federation.flower.region import Region
from fedpca.federation.flower.scaffold import new
from fedpca.readers import open_rows
from fedpca.summaries import model_file

pytest.importorskip("flwr", reason="the Flower federation needs flwr: pip install 'fedpca[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from httpx import HTTPError

from fedpca.federation.flower import client_app, server_app

ASK = {"rank": 3, "center": True}
PROMISE = {"epsilon": 2.0, "delta": 1e-6, "bound": 3.0}
RUN = {
    "rank": 3, "center": True, "features": 0,
    "deadline": 60.0, "expect": 0, "quorum": 1, "retries": 2, "max-bytes": 2**20,
    "epsilon": 0.0, "delta": 1e-6, "bound": 1.0, "adjacency": "replace-one",
}  # fmt: skip


def rows_of(seed, n_rows=1500, n_features=8):
    return power_law(np.random.default_rng(seed), n_rows, n_features) + 0.1 * seed


def write(path, rows):
    if path.suffix == ".npy":
        np.save(path, rows)
    else:
        names = ",".join(f"feature {column}" for column in range(rows.shape[1]))
        lines = [names, *(",".join(map(repr, row.tolist())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    return path


def config_of(folder, client, seed, ending=".npy", **more):
    source = write(folder / f"{client}{ending}", rows_of(seed))
    return {"client-id": client, "source": str(source)} | more


def fed(sources, rank=3):
    """The aggregator fed directly."""
    aggregator = Aggregator(rank)
    for client, path in sources.items():
        rows = open_rows(path)
        pca = StreamingPCA(rank)
        for batch in rows:
            pca.partial_fit(batch)
        summary = pca.summary_
        aggregator.receive(client, 1, type(summary)(**vars(summary) | {"feature_names": rows.feature_names}))
    return aggregator.model()


def spent(config):
    return Ledger(Path(config["source"] + ".fedpca") / "ledger").spent()


class TestSource:
    def test_any_file_that_readers_read(self, tmp_path):
        pytest.importorskip("pyarrow", reason="Parquet needs it")
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = rows_of(1)
        names = [f"feature {column}" for column in range(8)]
        pq.write_table(pa.table(dict(zip(names, rows.T, strict=True))), tmp_path / "rows.parquet")
        write(tmp_path / "rows.csv", rows)
        summaries = []
        for name in ("rows.parquet", "rows.csv"):
            node = Node.from_config({"client-id": "north", "source": str(tmp_path / name)})
            summaries.append(server_app.read_release(node.release(ASK), 2**20)[2])
        assert summaries[0] == summaries[1]

    @pytest.mark.parametrize("promise", [{}, PROMISE])
    @pytest.mark.parametrize(
        ("name", "contents", "kind"),
        [
            ("a.csv", b"x,y\n1,2\nsecret,4\n", "FileFormatError"),
            ("a.csv", b"secret,2\n3,4\n", "FileFormatError"),
            (
                "a.csv",
                b"secret,secret too\nmore,secrets\n",
                "FileFormatError",
            ),  # not names, but taken for them
            ("a.csv", b"1,2\n3\n", "FileFormatError"),
            ("a.csv", b"1,2\n777,inf\n", "ValueError"),
            ("a.csv", b"1,2\n7.77e200,3\n", "ValueError"),
            ("a.npy", b"secret", "FileFormatError"),
            ("a.txt", b"777", "FileFormatError"),
            ("secret.csv", None, "FileNotFoundError"),
        ],
    )
    def test_nothing_of_a_bad_file_is_told(self, tmp_path, name, contents, kind, promise):
        if contents is not None:
            (tmp_path / name).write_bytes(contents)
        node = Node.from_config({"client-id": "north", "source": str(tmp_path / name)} | promise)
        with pytest.raises((ValueError, OSError)) as caught:
            node.release(ASK if not promise else ASK | {"center": False})
        told = node.told(caught.value)
        assert kind in told
        assert not any(word in told for word in ("secret", "777", "7.77", str(tmp_path)))


class TestNode:
    def test_the_release_is_that_of_the_rows(self, tmp_path):
        config = config_of(tmp_path, "north", 1, ".csv")
        client, version, summary = server_app.read_release(Node.from_config(config).release(ASK), 2**20)
        assert (client, version, summary.count) == ("north", 1, 1500)
        assert summary.feature_names[0] == "feature 0"

    def test_a_private_release_is_repeated_and_paid_once(self, tmp_path):
        config = config_of(tmp_path, "north", 1, **PROMISE, center="private")
        first = Node.from_config(config).release(ASK)
        cost = spent(config)
        assert Node.from_config(config).release(ASK | {"rank": 5}) == first
        assert spent(config) == cost == pytest.approx(2.0)
        with pytest.raises(fedpca.BudgetExceeded):
            Node.from_config(config | {"version": 2}).release(ASK)

    def test_a_larger_budget_pays_for_a_second_version(self, tmp_path):
        ledger = tmp_path / "ledger"
        Ledger(ledger, epsilon=4.0, delta=1e-6)
        config = config_of(tmp_path, "north", 1, **PROMISE, center="private", ledger=str(ledger))
        first = Node.from_config(config).release(ASK)
        assert Node.from_config(config | {"version": 2}).release(ASK) != first
        assert Node.from_config(config).release(ASK) == first

    def test_a_clean_release_is_not_told_once_privacy_is_promised(self, tmp_path):
        config = config_of(tmp_path, "north", 1)
        Node.from_config(config).release(ASK)
        with pytest.raises(NodeError, match="raise version"):
            Node.from_config(config | PROMISE | {"center": "private"}).release(ASK)

    def test_a_clean_summary_does_not_leave_where_only_private_ones_are_taken(self, tmp_path):
        config = config_of(tmp_path, "north", 1)
        with pytest.raises(NodeError, match="only private releases"):
            Node.from_config(config).release(ASK | PROMISE | {"adjacency": "replace-one"})
        assert not Path(config["source"] + ".fedpca").exists()

    @pytest.mark.parametrize(
        ("ask", "rule"),
        [
            (PROMISE | {"epsilon": 1.0}, "epsilon must be at most 1"),
            (PROMISE | {"bound": 1.0}, "bound must be at most 1"),
            (PROMISE | {"adjacency": "zero-out"}, "adjacency must be 'zero-out'"),
            ({"center": False}, "no center"),
        ],
    )
    def test_nothing_is_spent_on_what_would_be_refused(self, tmp_path, ask, rule):
        config = config_of(tmp_path, "north", 1, **PROMISE, center="private")
        with pytest.raises(NodeError, match=rule):
            Node.from_config(config).release(ASK | {"adjacency": "replace-one"} | ask)
        assert not Path(config["source"] + ".fedpca").exists()

    def test_centers(self, tmp_path):
        np.save(tmp_path / "center.npy", np.full(8, 0.1))
        for center, centered in (({}, False), ({"center": str(tmp_path / "center.npy")}, True)):
            config = config_of(tmp_path, f"client {centered}", 1, **PROMISE, **center)
            contents = Node.from_config(config).release(ASK | {"center": centered})
            _, _, summary = server_app.read_release(contents, 2**20)
            assert summary.centered is centered

    def test_a_folder_is_one_clients(self, tmp_path):
        config = config_of(tmp_path, "north", 1)
        Node.from_config(config).release(ASK)
        with pytest.raises(NodeError, match="is that of 'north'"):
            Node.from_config(config | {"client-id": "south"}).release(ASK)

    def test_more_components_than_a_release_was_made_for(self, tmp_path):
        source = write(tmp_path / "wide.npy", rows_of(1, 40, 300))
        node = Node.from_config({"client-id": "wide", "source": str(source)})
        assert node.release(ASK) == node.release(ASK | {"rank": 2})
        with pytest.raises(NodeError, match="made for rank=3, and rank=4"):
            node.release(ASK | {"rank": 4})

    @pytest.mark.parametrize(
        ("config", "rule"),
        [
            ({"client-id": "a"}, "must have source"),
            ({"client-id": 3, "source": "a.npy"}, "must have client-id as a text, got 3"),
            (
                {"client-id": "a", "source": "a.npy", "epsilom": 1.0},
                "unknown key .*: epsilom; known",
            ),
            ({"client-id": "a", "source": "a.npy", "epsilon": 1.0}, "has no delta, bound"),
            ({"client-id": "a", "source": "a.npy", "version": -1}, "version"),
            ({"client-id": "a", "source": "a.npy"} | PROMISE | {"epsilon": -1.0}, "epsilon must be above 0"),
            ({"client-id": "a", "source": "a.npy"} | PROMISE | {"center": "no.npy"}, "no.npy"),
        ],
    )
    def test_bad_configs(self, config, rule):
        with pytest.raises(NodeError, match=rule):
            Node.from_config(config)


class FakeGrid:
    """Nodes in this process by number: what replies to a message; None is silent, an exception unreadable."""

    def __init__(self, **nodes):
        self.nodes = {int(name[1:]): node for name, node in nodes.items()}
        self.replies = {}
        self.asked = []

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        for message in messages:
            name = f"message {len(self.asked)}"
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            self.asked.append(node)
            if self.nodes[node] is not None:
                self.replies[name] = self.nodes[node](message)
            yield name

    def pull_messages(self, names):
        replies = [self.replies.pop(name) for name in names if name in self.replies]
        for reply in replies:
            if isinstance(reply, Exception):  # as Flower does, whatever else it was to pull
                raise reply
            if isinstance(reply, threading.Event):
                reply.wait()
        return replies


def client(config):
    """A node that runs the ClientApp."""
    return lambda message: client_app.app(message, Context(1, 1, config, RecordDict(), {}))


def sends(contents):
    """A node that sends something else as its release."""
    file = Array("uint8", (len(contents),), "", contents)
    return lambda message: Message(RecordDict({"release": ArrayRecord({"file": file})}), reply_to=message)


def run(grid, folder, **config):
    folder.mkdir(exist_ok=True)
    server_app.run(grid, RUN | {name.replace("_", "-"): value for name, value in config.items()}, folder)
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture
def identity(monkeypatch):
    """Flower's processes know which run they belong to; so must this one, to make messages."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.mark.usefixtures("identity")
class TestRun:
    def test_the_model_is_that_of_the_aggregator(self, tmp_path):
        north, south = config_of(tmp_path, "north", 1), config_of(tmp_path, "south", 2, ".csv")
        grid = FakeGrid(n1=client(north), n2=client(south))
        summary = run(grid, tmp_path / "server", expect=2)
        model = fedpca.load(tmp_path / "server" / "model.safetensors")
        assert model == fed({"north": north["source"], "south": south["source"]})
        assert summary["rows"] == 3000
        assert list(summary["contributors"]) == ["north", "south"]
        again = run(grid, tmp_path / "server", expect=2)
        assert [answer["what"] for answer in again["answers"]] == ["unchanged", "unchanged"]
        assert again["contributors"] == summary["contributors"]

    def test_how_the_model_moved_is_kept(self, tmp_path):
        grid = FakeGrid(**{f"n{node}": client(config_of(tmp_path, f"c{node}", node)) for node in range(1, 4)})
        run(grid, tmp_path / "server", expect=3)
        run(grid, tmp_path / "server", expect=3)  # nothing new
        grid.nodes[4] = client(config_of(tmp_path, "c4", 4))
        run(grid, tmp_path / "server", expect=4)
        history = Aggregator(store=tmp_path / "server" / "store").history
        models = [event for event in history if event.what == "model"]
        assert [event.children for event in models][-2:] == [3, 4]
        assert [event.children for event in models] == sorted({event.children for event in models})
        assert [event.angle is None for event in models] == [True] + [False] * (len(models) - 1)
        assert models[-1].count == 6000

    def test_bad_clients_are_reported_and_the_others_count(self, tmp_path):
        bad = config_of(tmp_path, "bad", 3, ".csv")
        Path(bad["source"]).write_text("1,2\nsecret,4\n")
        other = {"client-id": "other", "source": str(write(tmp_path / "o.npy", rows_of(1, n_features=5)))}
        good = config_of(tmp_path, "good", 1)
        release = Node.from_config(good).release(ASK)
        private = bad | {"client-id": "private", "state": str(tmp_path / "s"), "center": "private"} | PROMISE
        grid = FakeGrid(
            n1=client(good),
            n2=client(bad),
            n3=client(private),
            n4=client(other),
            n5=sends(b"x" * (2**20 + 1)),
            n6=sends(release[:-8]),
            n7=sends(release),
            n8=client({}),
            n9=lambda message: Message(RecordDict({"what": ConfigRecord()}), reply_to=message),
        )  # fmt: skip
        summary = run(grid, tmp_path / "server", expect=9)
        said = {int(answer["node"]): (answer["what"], answer["reason"]) for answer in summary["answers"]}
        assert said[1] == ("accepted", "")
        for node in (2, 3):
            assert said[node] == (
                "failed",
                "its rows could not be released (FileFormatError); the log of its SuperNode says why.",
            )
        assert said[4][0] == "refused"
        assert "same features, got 8 and 5" in said[4][1]
        assert said[5] == ("refused", "a release of 1048577 bytes is larger than max-bytes=1048576.")
        assert said[6][0] == "refused"
        assert "damaged" in said[6][1]
        assert said[7] == ("refused", "another node, 1, is 'good'; give each its own name.")
        assert said[8][0] == "failed"
        assert "client-id" in said[8][1]
        assert said[9][0] == "refused"
        assert list(summary["contributors"]) == ["good"]

    def test_a_lost_node_is_asked_again_and_then_given_up(self, tmp_path):
        def lost(message):
            return Message(Error(5, "gone"), reply_to=message)

        def comes_back(message):
            return client(north)(message) if grid.asked.count(2) == 3 else lost(message)

        north = config_of(tmp_path, "north", 1)
        grid = FakeGrid(n1=lost, n2=comes_back)
        summary = run(grid, tmp_path / "server", expect=2)
        assert sorted(grid.asked) == [1, 1, 1, 2, 2, 2]
        assert {answer["what"] for answer in summary["answers"]} == {"accepted", "failed"}
        assert "Flower's error 5: gone" in {answer["reason"] for answer in summary["answers"]}

    def test_a_reply_that_flower_cannot_read_costs_no_other(self, tmp_path):
        north = config_of(tmp_path, "north", 1)
        grid = FakeGrid(n1=lambda message: ValueError("hostile"), n2=client(north))
        summary = run(grid, tmp_path / "server", expect=2)
        assert sorted(grid.asked) == [1, 1, 1, 2]
        assert [(answer["what"], answer["reason"]) for answer in summary["answers"]] == [
            ("accepted", ""),
            ("failed", "Flower cannot read its reply (ValueError: hostile)"),
        ]

    def test_a_reply_that_never_comes_whole_costs_no_other(self, tmp_path):
        """Flower's `pull_messages` waits for hours for all of a reply."""
        done = threading.Event()
        grid = FakeGrid(n1=lambda message: done, n2=client(config_of(tmp_path, "north", 1)))
        summary = run(grid, tmp_path / "server", deadline=2.0)
        assert list(summary["contributors"]) == ["north"]
        assert summary["silent"] == ["1"]
        done.set()

    def test_a_superlink_that_is_too_busy_is_asked_again(self, tmp_path):
        class BusyGrid(FakeGrid):
            def busy(self, what):
                self.done = {*getattr(self, "done", ())} ^ {what}
                if what in self.done:  # every other time
                    raise HTTPError("database is locked")

            def get_node_ids(self):
                self.busy("get")
                return super().get_node_ids()

            def push_messages(self, messages):
                self.busy("push")
                return super().push_messages(messages)

            def pull_messages(self, names):
                self.busy("pull")
                return super().pull_messages(names)

        grid = BusyGrid(n1=client(config_of(tmp_path, "north", 1)))
        summary = run(grid, tmp_path / "server", expect=1)
        assert [answer["what"] for answer in summary["answers"]] == ["accepted"]
        assert grid.asked == [1]

    def test_late_joiners_and_silence(self, tmp_path):
        def first(message):
            grid.nodes[3] = client(south)
            return client(north)(message)

        north, south = config_of(tmp_path, "north", 1), config_of(tmp_path, "south", 2)
        grid = FakeGrid(n1=first, n2=None)
        begun = time.monotonic()
        summary = run(grid, tmp_path / "server", deadline=1.5)
        assert 1.4 < time.monotonic() - begun < 10
        assert list(summary["contributors"]) == ["north", "south"]
        assert summary["silent"] == ["2"]

    def test_a_first_comer_with_other_features_does_not_decide(self, tmp_path):
        other = {"client-id": "other", "source": str(write(tmp_path / "o.npy", rows_of(1, n_features=5)))}
        grid = FakeGrid(n1=client(other), n2=client(config_of(tmp_path, "north", 1)))
        summary = run(grid, tmp_path / "server", expect=2, features=8)
        assert list(summary["contributors"]) == ["north"]
        assert "same features, got 5 and 8" in str(summary["answers"]) or "got 8 and 5" in str(
            summary["answers"]
        )

    def test_no_model_below_the_quorum(self, tmp_path):
        grid = FakeGrid(n1=client(config_of(tmp_path, "north", 1)))
        with pytest.raises(RuntimeError, match="1 clients have contributed, and quorum=2"):
            run(grid, tmp_path / "server", expect=1, quorum=2)
        assert not (tmp_path / "server" / "model.safetensors").exists()
        assert json.loads((tmp_path / "server" / "summary.json").read_text())["model"] is None

    def test_one_private_release_under_two_names(self, tmp_path):
        north = config_of(tmp_path, "north", 1, **PROMISE, center="private")
        Node.from_config(north).release(ASK)
        kind, arrays, facts = model_file.read(tmp_path / "north.npy.fedpca" / "release-1.safetensors")
        model_file.write(tmp_path / "copy", kind, arrays, facts | {"child": "copy"})
        grid = FakeGrid(n1=client(north), n2=sends((tmp_path / "copy").read_bytes()))
        with pytest.raises(RuntimeError, match="the same private stream is merged twice"):
            run(grid, tmp_path / "server", expect=2)

    def test_two_runs_do_not_share_a_folder(self, tmp_path):
        config = RUN | {"folder": str(tmp_path)}
        with (tmp_path / "lock").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(RuntimeError, match="another run writes to"):
                server_app.main(FakeGrid(), Context(1, 1, {}, RecordDict(), config))
        with pytest.raises(ValueError, match="absolute path"):
            server_app.main(FakeGrid(), Context(1, 1, {}, RecordDict(), config | {"folder": "here"}))


class TestRegion:
    def region_of(self, folder, **more):
        aggregator = Aggregator(3, store=str(folder / "store"))
        for seed, name in enumerate(("north", "south"), start=1):
            config = config_of(folder, name, seed, **more)
            aggregator.receive(*server_app.read_release(Node.from_config(config).release(ASK), 2**20))
        return aggregator, Region.from_config({"client-id": "a region", "region": str(folder)})

    def test_it_says_what_its_store_says_at_its_version(self, tmp_path):
        aggregator, region = self.region_of(tmp_path)
        said = server_app.read_release(region.release(ASK), 2**20)
        assert said == ("a region", aggregator.version, aggregator.summary())
        assert server_app.read_release(region.release(ASK), 2**20) == said
        aggregator.withdraw("south")
        client, version, summary = server_app.read_release(region.release(ASK), 2**20)
        assert (client, version, summary.count) == ("a region", aggregator.version, 1500)
        assert version > said[1]

    def test_privacy_is_that_of_its_clients(self, tmp_path):
        ask = ASK | PROMISE | {"adjacency": "replace-one"}
        aggregator, region = self.region_of(tmp_path, **PROMISE, center="private")
        assert server_app.read_release(region.release(ask), 2**20)[2] == aggregator.summary()
        with pytest.raises(SummaryRejected, match=r"its epsilon is 2\.0, and at most 1 is taken"):
            region.release(ask | {"epsilon": 1.0})

    def test_what_is_not_private_does_not_leave_where_it_must_be(self, tmp_path):
        _, region = self.region_of(tmp_path)
        with pytest.raises(SummaryRejected, match="no privacy certificate"):
            region.release(ASK | PROMISE | {"adjacency": "replace-one"})
        with pytest.raises(NodeError, match="center must be True, as in its region, got False"):
            region.release(ASK | {"center": False})

    def test_a_region_with_nothing_to_say(self, tmp_path):
        region = Region.from_config({"client-id": "a region", "region": str(tmp_path)})
        with pytest.raises(NodeError, match="no store"):
            region.release(ASK)
        assert not (tmp_path / "store").exists()
        (tmp_path / "store").mkdir()
        with pytest.raises(NodeError, match="no client of its region"):
            region.release(ASK)

    @pytest.mark.parametrize(
        ("config", "rule"),
        [
            ({"client-id": "a", "region": ""}, "must have region as a text, got ''"),
            ({"region": "/srv"}, "must have client-id"),
            ({"client-id": "a", "region": "/srv", "source": "a.npy"}, "a region has no source"),
            ({"client-id": "a", "region": "/srv", "epsilon": 1.0}, "a region has no epsilon"),
        ],
    )
    def test_bad_configs(self, config, rule):
        with pytest.raises(NodeError, match=rule):
            Region.from_config(config)


@pytest.mark.usefixtures("identity")
class TestSimulation:
    """Virtual nodes, of which Flower says only which of how many they are."""

    def virtual(self, number, config):
        node_config = {"partition-id": number, "num-partitions": 2}
        return lambda message: client_app.app(message, Context(1, 1, node_config, RecordDict(), config))

    def test_a_virtual_node_has_the_file_of_its_number(self, tmp_path):
        shards = tmp_path / "shards"
        shards.mkdir()
        (shards / "notes.txt").write_text("what we did")
        sources = {name: write(shards / f"{name}.npy", rows_of(seed)) for seed, name in enumerate("ab")}
        config = RUN | {"simulate": str(shards), "folder": str(tmp_path / "server"), "expect": 3}
        grid = FakeGrid(**{f"n{number}": self.virtual(number, config) for number in range(3)})
        summary = run(grid, tmp_path / "server", expect=3)
        assert list(summary["contributors"]) == ["a", "b"]
        assert fedpca.load(tmp_path / "server" / "model.safetensors") == fed(sources)
        assert "there are 2 files in" in summary["answers"][2]["reason"]
        assert sorted(path.name for path in shards.iterdir()) == ["a.npy", "b.npy", "notes.txt"]

    def test_it_promises_what_is_asked(self, tmp_path):
        write(tmp_path / "a.npy", rows_of(1))
        folder = tmp_path / "server"
        config = RUN | PROMISE | {"simulate": str(tmp_path), "folder": str(folder)}
        summary = run(FakeGrid(n1=self.virtual(0, config)), folder, expect=1, **PROMISE)
        assert summary["answers"][0]["what"] == "accepted"
        assert fedpca.load(folder / "model.safetensors").certificate.epsilon == 2.0

    def test_a_simulation_needs_a_folder(self, tmp_path):
        config = RUN | {"simulate": "", "folder": str(tmp_path)}
        with pytest.raises(RuntimeError, match="0 clients"):
            run(FakeGrid(n1=self.virtual(0, config)), tmp_path, expect=1)
        reason = json.loads((tmp_path / "summary.json").read_text())["answers"][0]["reason"]
        assert "a simulation needs a folder of files of rows, got simulate=''" in reason


class TestTemplate:
    def test_it_has_all_settings_of_a_run_and_of_a_node(self, tmp_path):
        new(tmp_path / "study")
        settings = tomllib.loads((tmp_path / "study" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
        assert set(settings["config"]) == {*RUN, "folder", "simulate"}
        node = tomllib.loads((tmp_path / "study" / "node.toml").read_text())
        assert Node.from_config(node).client == "north"

    def test_a_folder_with_something_in_it_stays(self, tmp_path):
        (tmp_path / "notes.txt").write_text("what we did")
        with pytest.raises(FileExistsError, match="a federation starts in a new or empty folder"):
            new(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("app", ["client_app", "server_app"])
def test_without_flower_the_error_names_the_extra(app):
    code = f"import sys; sys.modules['flwr'] = None; import fedpca.federation.flower.{app}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "needs flwr: pip install 'fedpca[flower]'" in done.stderr
