"""A federation over Flower: the model of whoever answered, by the deadline, each release paid for once."""

import fcntl
import importlib.util
import json
import os
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from helpers import power_law

import fedpca
from fedpca import Aggregator, Ledger, StreamingPCA, modelfile
from fedpca.federation.flower.node import Node, NodeError
from fedpca.federation.flower.source import open_source

pytest.importorskip("flwr", reason="the Flower federation needs flwr: pip install 'fedpca[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from fedpca.federation.flower import client_app, server_app

EXAMPLE = Path(__file__).parents[1] / "examples" / "flower"
ASK = {"rank": 3, "center": True}
PROMISE = {"epsilon": 2.0, "delta": 1e-6, "bound": 3.0}
RUN = {
    "rank": 3, "center": True, "deadline": 60.0, "expect": 0, "quorum": 1, "retries": 2, "most-bytes": 2**20,
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
        names, batches = open_source(Path(path))
        pca = StreamingPCA(rank)
        for batch in batches:
            pca.partial_fit(batch)
        summary = pca._state()
        aggregator.receive(client, 1, type(summary)(**vars(summary) | {"feature_names": names}))
    return aggregator.model()


def spent(config):
    return Ledger(Path(config["source"] + ".fedpca") / "ledger").spent()


class TestSource:
    def test_npy_comes_in_batches_of_all_rows(self, tmp_path):
        rows = rows_of(1, n_rows=2500)
        names, batches = open_source(write(tmp_path / "rows.npy", rows))
        batches = list(batches)
        assert names is None
        assert [len(batch) for batch in batches] == [1024, 1024, 452]
        np.testing.assert_array_equal(np.concatenate(batches), rows)

    def test_csv_comes_in_batches_with_names_and_gaps(self, tmp_path):
        rows = rows_of(1, n_rows=1100)
        path = write(tmp_path / "rows.csv", rows)
        path.write_text(path.read_text() + "1,,3,4,5,6,7,8\n\n")
        names, batches = open_source(path)
        read = np.concatenate(list(batches))
        assert names is not None
        assert names[0] == "feature 0"
        np.testing.assert_array_equal(read[:-1], rows)
        np.testing.assert_array_equal(read[-1], [1, np.nan, 3, 4, 5, 6, 7, 8])

    def test_csv_without_names(self, tmp_path):
        path = tmp_path / "rows.csv"
        path.write_text("1,2\n3,4\n")
        names, batches = open_source(path)
        assert names is None
        np.testing.assert_array_equal(next(batches), [[1, 2], [3, 4]])

    @pytest.mark.parametrize(
        ("name", "contents", "rule"),
        [
            ("a.csv", b"x,y\n1,2\nsecret,4\n", "a.csv, line 3, column 1 is not a number"),
            ("a.csv", b"secret,2\n3,4\n", "a.csv, line 1, column 1 is not a number"),
            ("a.csv", b"1,2\n3\n", "line 2: 1 cells, and 2 in the first"),
            ("a.npy", b"secret", "not an .npy file"),
            ("a.txt", b"1", "must be a .npy or .csv file"),
        ],
    )
    def test_bad_files_are_named_not_quoted(self, tmp_path, name, contents, rule):
        (tmp_path / name).write_bytes(contents)
        with pytest.raises(ValueError, match=rule) as caught:
            list(open_source(tmp_path / name).batches)
        assert "secret" not in str(caught.value)

    def test_other_arrays(self, tmp_path):
        np.save(tmp_path / "a.npy", np.zeros(3))
        with pytest.raises(ValueError, match=r"rows and columns, got shape \(3,\)"):
            open_source(tmp_path / "a.npy")
        with pytest.raises(FileNotFoundError, match=r"b\.npy is not there"):
            open_source(tmp_path / "b.npy")


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
            ({"center": False}, "no centre"),
        ],
    )
    def test_nothing_is_spent_on_what_would_be_refused(self, tmp_path, ask, rule):
        config = config_of(tmp_path, "north", 1, **PROMISE, center="private")
        with pytest.raises(NodeError, match=rule):
            Node.from_config(config).release(ASK | {"adjacency": "replace-one"} | ask)
        assert not Path(config["source"] + ".fedpca").exists()

    def test_centres(self, tmp_path):
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
    """Nodes in this process: by number, what replies to a message, or None for a node that is silent."""

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
        return [self.replies.pop(name) for name in names if name in self.replies]


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
        assert said[2] == ("failed", "bad.csv, line 2, column 1 is not a number.")
        assert said[3] == (
            "failed",
            "its rows could not be released (ValueError); the log of its SuperNode says why.",
        )
        assert said[4][0] == "refused"
        assert "same features, got 8 and 5" in said[4][1]
        assert said[5] == ("refused", "a release of 1048577 bytes is larger than most-bytes=1048576.")
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

    def test_no_model_below_the_quorum(self, tmp_path):
        grid = FakeGrid(n1=client(config_of(tmp_path, "north", 1)))
        with pytest.raises(RuntimeError, match="1 clients have contributed, and quorum=2"):
            run(grid, tmp_path / "server", expect=1, quorum=2)
        assert not (tmp_path / "server" / "model.safetensors").exists()
        assert json.loads((tmp_path / "server" / "summary.json").read_text())["model"] is None

    def test_one_private_release_under_two_names(self, tmp_path):
        north = config_of(tmp_path, "north", 1, **PROMISE, center="private")
        Node.from_config(north).release(ASK)
        kind, arrays, facts = modelfile.read(tmp_path / "north.npy.fedpca" / "release-1.safetensors")
        modelfile.write(tmp_path / "copy", kind, arrays, facts | {"child": "copy"})
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


def example():
    spec = importlib.util.spec_from_file_location("run_loopback", EXAMPLE / "run_loopback.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(folder):
    return json.loads((folder / "summary.json").read_text()), fedpca.load(folder / "model.safetensors")


@pytest.mark.skipif(
    not os.environ.get("FEDPCA_DEPLOYMENT"),
    reason="starts a Flower deployment for two minutes: set FEDPCA_DEPLOYMENT=1",
)
class TestDeployment:
    """Real processes, TLS and node authentication, on loopback."""

    def test_a_killed_link_a_killed_node_and_a_bad_source(self, tmp_path):
        configs = {
            "north": config_of(tmp_path, "north", 1),
            "south": config_of(tmp_path, "south", 2, ".csv"),
            "bad": config_of(tmp_path, "bad", 3, ".csv"),
            "stuck": config_of(tmp_path, "stuck", 4),
        }
        sources = {client: config["source"] for client, config in configs.items()}
        Path(sources["bad"]).write_text("1,2\nword,4\n")
        state = Path(sources["stuck"] + ".fedpca")
        state.mkdir()
        store = tmp_path / "server" / "store"
        settings = {"folder": str(store.parent), "rank": 3, "expect": 4}
        with (
            (state / "lock").open("a") as held,
            example().Deployment(tmp_path / "deployment") as deployment,
        ):
            fcntl.flock(held, fcntl.LOCK_EX)  # the ClientApp waits for it, and never answers
            deployment.start_nodes(configs)
            deployment.start_run(**settings, deadline=300.0)
            until(lambda: (store / "north.state").exists() and (store / "south.state").exists())
            deployment.kill("superlink")  # and with it the ServerApp
            deployment.start_link()  # nodes find it again
            process = deployment.start_run(**settings, deadline=20.0)
            until(lambda: deployment.log("north").count("Receiving: query message") == 2)
            deployment.kill("stuck")
            process.communicate(timeout=60)
        summary, model = result(store.parent)
        assert model == fed({client: sources[client] for client in ("north", "south")})
        assert list(summary["contributors"]) == ["north", "south"]
        assert {answer["client"]: (answer["what"], answer["reason"]) for answer in summary["answers"]} == {
            "north": ("unchanged", ""),
            "south": ("unchanged", ""),
            "bad": ("failed", "bad.csv, line 2, column 1 is not a number."),
        }
        assert len(summary["silent"]) == 1
        began, ended = (datetime.fromisoformat(summary[name]) for name in ("started", "finished"))
        assert 19 < (ended - began).total_seconds() < 30

    def test_private_clients_release_once(self, tmp_path):
        promise = PROMISE | {"center": "private"}
        configs = {
            client: config_of(tmp_path, client, seed, ending, **promise)
            for seed, (client, ending) in enumerate([("north", ".npy"), ("south", ".csv"), ("west", ".npy")])
        }
        models = []
        with example().Deployment(tmp_path / "deployment") as deployment:
            deployment.start_nodes(configs)
            for place in ("server", "another server"):
                folder = tmp_path / place
                deployment.run(folder=str(folder), rank=3, expect=3, deadline=60.0, **PROMISE)
                summary, model = result(folder)
                assert [answer["what"] for answer in summary["answers"]] == ["accepted"] * 3
                assert all(spent(config) == pytest.approx(2.0) for config in configs.values())
                models.append(model)
        assert models[0] == models[1]
        assert models[0].certificate["merged"] == 3
        aggregator = Aggregator(3)
        for config in configs.values():
            contents = Node.from_config(config).release(ASK)
            aggregator.receive(*server_app.read_release(contents, 2**20))
        assert aggregator.model() == models[0]


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)
