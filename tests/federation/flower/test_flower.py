"""A federation over Flower: the model of whoever answered, by the deadline, each release paid for once."""

import fcntl
import json
import logging
import re
import shlex
import threading
import time
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from flower_clients import PRIVATE, REQUEST, config_of, lies, spent, write
from helpers import aggregate, disk_full, rows_of

import fedpca
from fedpca import Aggregator, Ledger, Moments, StreamingPCA
from fedpca.errors import FileFormatError, NodeError
from fedpca.federation.aggregator.message import Message as ChildMessage
from fedpca.federation.flower.node import Node
from fedpca.federation.flower.region import Region
from fedpca.federation.flower.scaffold import write_template
from fedpca.readers import open_rows
from fedpca.report import write_report
from fedpca.summaries import model_file

pytest.importorskip("flwr", reason="the Flower federation needs flwr: pip install 'fedpca[flower]'")

from flower_grid import RUN, FakeGrid, client, pretend_to_be_flower, run, sends, summary_in
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from fuzz import seal
from fuzz_carriers import check
from httpx import HTTPError

from fedpca.federation.flower import client_app, server_app

pytestmark = pytest.mark.slow  # all of it together


def expected_model(sources, rank=3):
    """What an aggregator makes of the same files without Flower."""
    messages = []
    for name, path in sources.items():
        rows = open_rows(path)
        pca = StreamingPCA(rank)
        for batch in rows:
            pca.partial_fit(batch)
        messages.append((name, 1, pca.summary_.with_about(names=rows.feature_names)))
    return aggregate(messages, rank).model()


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
            summaries.append(ChildMessage.decode(node.release(REQUEST)).summary)
        assert summaries[0] == summaries[1]

    @pytest.mark.parametrize("promise", [{}, PRIVATE | {"center": "none"}])
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
            ("a.csv", b"1,2\n777,inf\n", "FileFormatError"),
            ("a.csv", b"1,2\n7.77e200,3\n", "ValueError"),
            ("a.npy", b"secret", "FileFormatError"),
            ("a.md", b"777", "FileFormatError"),
            ("secret.csv", None, "FileNotFoundError"),
        ],
    )
    def test_nothing_of_a_bad_file_is_told(self, tmp_path, name, contents, kind, promise):
        if contents is not None:
            (tmp_path / name).write_bytes(contents)
        node = Node.from_config({"client-id": "north", "source": str(tmp_path / name)} | promise)
        with pytest.raises((ValueError, OSError)) as caught:
            node.release(REQUEST if not promise else REQUEST | {"center": False})
        message = node.public_message(caught.value)
        # With privacy a cell that is not a number is missing, and a first line with a number is refused.
        private = {b"x": "ValueError", b"secret,s": "ValueError", b"1": "FileFormatError"}
        kinds = [private[start] for start in private if promise and (contents or b"").startswith(start)]
        assert (kinds or [kind])[0] in message
        assert not any(word in message for word in ("secret", "777", "7.77", str(tmp_path)))


class TestNode:
    def test_the_release_is_that_of_the_rows(self, tmp_path):
        config = config_of(tmp_path, "north", 1, ".csv")
        message = ChildMessage.decode(Node.from_config(config).release(REQUEST))
        assert (message.child, message.version, message.summary.count) == ("north", 1, 1500)
        assert message.summary.feature_names[0] == "feature 0"

    def test_a_private_release_is_repeated_and_paid_once(self, tmp_path):
        config = config_of(tmp_path, "north", 1, **PRIVATE, center="pairs")
        first = Node.from_config(config).release(REQUEST)
        cost = spent(config)
        assert Node.from_config(config).release(REQUEST | {"rank": 5}) == first
        assert spent(config) == cost == pytest.approx(2.0)
        with pytest.raises(fedpca.BudgetExceeded):
            Node.from_config(config | {"version": 2}).release(REQUEST)

    @pytest.mark.parametrize("cell", ["", "1.5", "inf", "1e308"])
    @pytest.mark.parametrize("center", ["none", "pairs"])
    def test_no_single_record_decides_whether_a_private_node_fails(self, tmp_path, cell, center):
        """A column that only record 17 fills, if at all."""
        source = tmp_path / "rows.csv"
        lines = [f"{x},{y},{cell if i == 17 else ''}" for i, (x, y) in enumerate(rows_of(1, 900, 2))]
        source.write_text("\n".join(["x,y,z", *lines]) + "\n")
        more = PRIVATE | {"center": center}
        node = Node.from_config({"client-id": "north", "source": str(source)} | more)
        release = node.release({"rank": 2, "center": center != "none", "scale": "none"})
        assert ChildMessage.decode(release).summary.count == 900

    def test_a_larger_budget_pays_for_a_second_version(self, tmp_path):
        ledger = tmp_path / "ledger"
        Ledger(ledger, epsilon=4.0, delta=1e-6)
        config = config_of(tmp_path, "north", 1, **PRIVATE, center="pairs", ledger=str(ledger))
        first = Node.from_config(config).release(REQUEST)
        assert Node.from_config(config | {"version": 2}).release(REQUEST) != first
        assert Node.from_config(config).release(REQUEST) == first

    def test_a_clean_release_is_not_told_once_privacy_is_promised(self, tmp_path):
        config = config_of(tmp_path, "north", 1)
        Node.from_config(config).release(REQUEST)
        with pytest.raises(NodeError, match="increase version"):
            Node.from_config(config | PRIVATE | {"center": "pairs"}).release(REQUEST)

    def test_a_release_without_its_settings_is_not_sent(self, tmp_path):
        config = config_of(tmp_path, "north", 1)
        Node.from_config(config).release(REQUEST)
        (tmp_path / "north.npy.fedpca" / "release-1.json").unlink()
        with pytest.raises(NodeError, match="increase version"):
            Node.from_config(config).release(REQUEST)

    def test_a_clean_summary_does_not_leave_where_only_private_ones_are_taken(self, tmp_path):
        config = config_of(tmp_path, "north", 1)
        with pytest.raises(NodeError, match="only private releases"):
            Node.from_config(config).release(REQUEST | PRIVATE | {"adjacency": "replace-one"})
        assert not Path(config["source"] + ".fedpca").exists()

    @pytest.mark.parametrize(
        ("changes", "rule"),
        [
            (PRIVATE | {"epsilon": 1.0}, "epsilon must be at most 1.0"),
            (PRIVATE | {"bound": 1.0}, "bound must be at most 1.0"),
            (PRIVATE | {"adjacency": "zero-out"}, "adjacency must be 'zero-out', as in the run"),
            ({"center": False}, "center must be False, as in the run, got True"),
        ],
    )
    def test_nothing_is_spent_on_what_would_be_refused(self, tmp_path, changes, rule):
        config = config_of(tmp_path, "north", 1, **PRIVATE, center="pairs")
        with pytest.raises(NodeError, match=rule):
            Node.from_config(config).release(REQUEST | {"adjacency": "replace-one"} | changes)
        assert not Path(config["source"] + ".fedpca").exists()

    def test_centers(self, tmp_path):
        np.save(tmp_path / "center.npy", np.full(8, 0.1))
        for center, centered in (
            ({"center": "none"}, False),
            ({"center": str(tmp_path / "center.npy")}, True),
        ):
            config = config_of(tmp_path, f"client {centered}", 1, **PRIVATE, **center)
            contents = Node.from_config(config).release(REQUEST | {"center": centered})
            assert ChildMessage.decode(contents).summary.centered is centered

    def test_a_node_sets_its_least_rank(self, tmp_path):
        source = write(tmp_path / "wide.npy", rows_of(1, 900, 300))
        config = {"client-id": "wide", "source": str(source), "mechanism": "sketch", "min-rank": 5} | PRIVATE
        config["center"] = "none"
        node = Node.from_config(config)
        first = node.release({"rank": 1, "center": False, "scale": "none"})
        assert node.release({"rank": 5, "center": False, "scale": "none"}) == first
        with pytest.raises(NodeError, match="released for rank=5, but the run requests rank=6"):
            node.release({"rank": 6, "center": False, "scale": "none"})

    def test_a_folder_is_one_clients(self, tmp_path):
        config = config_of(tmp_path, "north", 1)
        Node.from_config(config).release(REQUEST)
        with pytest.raises(NodeError, match="belongs to client 'north'"):
            Node.from_config(config | {"client-id": "south"}).release(REQUEST)

    def test_more_components_than_a_release_was_made_for(self, tmp_path):
        source = write(tmp_path / "wide.npy", rows_of(1, 40, 300))
        node = Node.from_config({"client-id": "wide", "source": str(source)})
        assert node.release(REQUEST) == node.release(REQUEST | {"rank": 2})
        with pytest.raises(NodeError, match="released for rank=3, but the run requests rank=4"):
            node.release(REQUEST | {"rank": 4})

    @pytest.mark.parametrize(
        ("config", "rule"),
        [
            ({"client-id": "a"}, "source must be a non-empty string"),
            (
                {"client-id": 3, "source": "a.npy"},
                "client-id must be a non-empty string in the node config, got 3",
            ),
            (
                {"client-id": "a", "source": "a.npy", "epsilom": 1.0},
                "unknown key .*: epsilom; known",
            ),
            ({"client-id": "a", "source": "a.npy", "epsilon": 1.0}, "missing: delta"),
            ({"client-id": "a", "source": "a.npy", "version": -1}, "version"),
            ({"client-id": "a", "source": "a.npy", "min-rank": 0}, "min-rank must be at least 1"),
            ({"client-id": "a", "source": "a.npy"} | PRIVATE | {"epsilon": -1.0}, "epsilon must lie between"),
            ({"client-id": "a", "source": "a.npy"} | PRIVATE | {"center": "no.npy"}, "no.npy"),
            ({"client-id": "a", "source": "a.csv", "delimiter": "::"}, "delimiter must be one character"),
            ({"client-id": "a", "source": "a.csv", "na-values": -9}, "na-values must be text in .* got -9"),
            (
                {"client-id": "a", "source": "a.csv", "header": "no"},
                "header must be true or false in .* 'no'",
            ),
            (
                {"client-id": "a", "source": "a.csv", "encoding": "x"},
                "encoding must be one that Python knows",
            ),
            (
                {"client-id": "a", "source": "a.csv", "passthrough": "id"},
                "unknown key .*: passthrough; known",
            ),
        ],
    )
    def test_bad_configs(self, config, rule):
        with pytest.raises(NodeError, match=rule):
            Node.from_config(config)

    @pytest.mark.parametrize("privacy", [{}, PRIVATE | {"center": "none"}], ids=["plain", "private"])
    def test_text_is_read_as_the_config_says(self, tmp_path, privacy):
        rows = rows_of(1, 900, 3)
        lines = [f"north\t{x}\t{y}\t{z}".replace(".", ",") for x, y, z in rows]
        lines[5] = "north\t?\t?\t?"
        text = "\n".join(["% 2025", "größe\tx\ty\tz", *lines])
        (tmp_path / "rows.csv").write_bytes(text.encode("latin-1"))
        config = {
            "client-id": "north",
            "source": str(tmp_path / "rows.csv"),
            "delimiter": "tab",
            "decimal": ",",
            "thousands": " ",
            "na-values": "?,missing",
            "comment": "%",
            "encoding": "latin-1",
            "header": True,
            "drop": "größe,y",
        } | privacy
        request = REQUEST | {"rank": 1, "center": not privacy}
        summary = ChildMessage.decode(Node.from_config(config).release(request)).summary
        assert summary.feature_names == ("x", "z")
        if not privacy:
            np.testing.assert_allclose(summary.mean, np.delete(rows[:, [0, 2]], 5, axis=0).mean(axis=0))
        changed = config | {"drop": "größe,z"}
        with pytest.raises(NodeError, match=r"released with other settings of drop than .*increase version"):
            Node.from_config(changed).release(request)
        del config["drop"]
        selected = config | {"columns": "z, x", "version": 2, "state": str(tmp_path / "other")}
        release = Node.from_config(selected).release(request)
        assert ChildMessage.decode(release).summary.feature_names == ("z", "x")

    def test_columns_that_are_not_numeric_are_left_out(self, tmp_path):
        (tmp_path / "rows.csv").write_text("x,name\n1,a\n2,b\n4,c\n")
        config = {"client-id": "north", "source": str(tmp_path / "rows.csv"), "numeric-only": True}
        with pytest.warns(UserWarning, match="left out because not numeric: name"):
            release = Node.from_config(config).release(REQUEST | {"rank": 1})
        assert ChildMessage.decode(release).summary.feature_names == ("x",)

    @pytest.mark.parametrize(
        "text",
        ["x,name\n1,a\n2,b\n4,c\n", "x;y\n1;2,500\n2;3,500\n", "x:y\n1:2\n2:5\n", "0,1,2\n2,3,5\n1,2,5\n"],
    )
    def test_what_an_error_advises_is_a_key_that_helps(self, tmp_path, text):
        (tmp_path / "rows.csv").write_text(text)
        config = {"client-id": "north", "source": str(tmp_path / "rows.csv")}
        with pytest.raises(FileFormatError) as caught:
            Node.from_config(config).release(REQUEST | {"rank": 1})
        advised = [shlex.split(option) for option in re.findall(r"\((--[^)]*)\)", str(caught.value))]
        keys = [{option[0][2:]: option[1]} for option in advised]  # options are named as keys are
        if advised == [["--header", "or", "--no-header"]]:
            keys = [{"header": True}, {"header": False}]
        assert keys
        for number, changed in enumerate(keys):
            changed = config | changed | {"state": str(tmp_path / f"{number}")}
            assert Node.from_config(changed).release(REQUEST | {"rank": 1})


@pytest.fixture(autouse=True)
def _quiet():
    """The handlers of Flower that its apps attach to our log go again."""
    logger = logging.getLogger("fedpca")
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers = handlers
    logger.setLevel(level)


@pytest.fixture
def identity(monkeypatch):
    """Flower's processes know which run they belong to; so must this one, to make messages."""
    pretend_to_be_flower(monkeypatch)


@pytest.mark.usefixtures("identity")
class TestRun:
    def test_the_model_is_that_of_the_aggregator(self, tmp_path):
        north, south = config_of(tmp_path, "north", 1), config_of(tmp_path, "south", 2, ".csv")
        grid = FakeGrid(n1=client(north), n2=client(south))
        summary = run(grid, tmp_path / "server", expect=2)
        model = fedpca.load(tmp_path / "server" / "model.safetensors")
        assert model == expected_model({"north": north["source"], "south": south["source"]})
        assert summary["rows"] == 3000
        assert list(summary["contributors"]) == ["north", "south"]
        again = run(grid, tmp_path / "server", expect=2)
        assert [reply["what"] for reply in again["replies"]] == ["unchanged", "unchanged"]
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
        release = Node.from_config(good).release(REQUEST)
        private = bad | {"client-id": "private", "state": str(tmp_path / "s"), "center": "pairs"} | PRIVATE
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
            n10=lambda message: Message(RecordDict({"release": ArrayRecord({})}), reply_to=message),
        )  # fmt: skip
        summary = run(grid, tmp_path / "server", replies=10)
        replies = {int(reply["node"]): (reply["what"], reply["reason"]) for reply in summary["replies"]}
        assert replies[1] == ("accepted", "")
        for node in (2, 3):
            assert replies[node] == (
                "failed",
                "its rows could not be released (FileFormatError); see the log of its SuperNode.",
            )
        assert replies[4][0] == "rejected"
        assert "same features, got 8 and 5" in replies[4][1]
        assert replies[5] == ("rejected", "a release of 1048577 bytes is larger than max-bytes=1048576.")
        assert replies[6][0] == "rejected"
        assert "damaged" in replies[6][1]
        assert replies[7] == ("rejected", "node 1 is 'good' already; give each its own client-id.")
        assert replies[8][0] == "failed"
        assert replies[8][1] == (
            "client-id must be a non-empty string in the node config; see the log of its SuperNode."
        )
        assert replies[9] == ("rejected", "a release must be an ArrayRecord, got NoneType.")
        assert replies[10][0] == "rejected"
        assert "must have an array 'message'" in replies[10][1]
        assert list(summary["contributors"]) == ["good"]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"policy": "/srv/smith/policy.toml"},
            {"delimiter": "Smith"},
            {"version": "Smith"},
            {"roster": "/srv/smith/roster.toml", "key": "/srv/smith/key"},
            {"key": "/srv/smith/key"},
            {"header": "Smith"},
            PRIVATE | {"bound": "Smith"},
            PRIVATE | {"center": "/srv/smith/center.npy"},
            PRIVATE | {"center": "pairs", "ledger": "smith"},
        ],
        ids=lambda wrong: list(wrong)[-1],
    )
    def test_an_error_names_the_client_and_tells_nothing_of_its_config(self, tmp_path, wrong):
        if "ledger" in wrong:
            wrong = wrong | {"ledger": str(tmp_path / "smith")}
            Ledger(wrong["ledger"], epsilon=0.1, delta=1e-9).check(0, 1, 1e-3)
        config = config_of(tmp_path, "north", 1) | wrong
        privacy = PRIVATE if "ledger" in wrong else {}
        with pytest.raises(RuntimeError):
            run(FakeGrid(_1=client(config)), tmp_path / "server", replies=1, **privacy)
        (reply,) = summary_in(tmp_path / "server")["replies"]
        assert (reply["client"], reply["what"]) == ("north", "failed")
        assert reply["reason"].endswith("see the log of its SuperNode.")
        assert "smith" not in reply["reason"].lower()
        assert str(tmp_path) not in reply["reason"]

    def test_garbage_is_named_after_the_node_it_comes_from(self, tmp_path):
        north, folder = config_of(tmp_path, "north", 1), tmp_path / "server"
        run(FakeGrid(_1=client(north)), folder, expect=1)
        summary = run(FakeGrid(_1=sends(b"x")), folder, replies=1)
        assert (summary["replies"][0]["client"], summary["replies"][0]["what"]) == ("north", "rejected")

    @pytest.mark.parametrize(
        "failed",
        [ConfigRecord({}), ConfigRecord({"reason": "x"}), ArrayRecord({})],
        ids=["none", "half", "odd"],
    )
    def test_a_failure_that_says_nothing_is_named(self, tmp_path, failed):
        def says(message):
            return Message(RecordDict({"failed": failed}), reply_to=message)

        north = client(config_of(tmp_path, "north", 1))
        summary = run(FakeGrid(_1=says, _2=north), tmp_path / "server", replies=2)
        (reply,) = [reply for reply in summary["replies"] if reply["what"] == "failed"]
        assert reply["node"] == "1"
        assert reply["reason"] == "a failure must be a ConfigRecord with a client and a reason."
        assert list(summary["contributors"]) == ["north"]

    @pytest.mark.parametrize("deadline", [0.0, -1.0, float("nan"), float("inf"), "5"])
    def test_a_deadline_that_never_or_at_once_ends_a_run_is_refused(self, tmp_path, deadline):
        with pytest.raises(ValueError, match="deadline must be a number of seconds above 0"):
            run(FakeGrid(), tmp_path / "server", deadline=deadline)
        assert "deadline must be" in summary_in(tmp_path / "server")["problem"]

    def test_an_old_model_that_cannot_be_renamed_is_named_in_the_summary(self, tmp_path):
        (tmp_path / "model.safetensors").write_bytes(b"old")
        (tmp_path / "model-previous.safetensors").mkdir()
        with pytest.raises(RuntimeError, match="quorum not reached"):
            run(FakeGrid(), tmp_path, deadline=0.1)
        problem = summary_in(tmp_path)["problem"]
        assert "quorum not reached" in problem
        assert "model.safetensors is that of an earlier run" in problem

    def test_lies_are_refused_and_the_others_unaffected(self, tmp_path):
        private = PRIVATE | {"center": "pairs"}
        honest, liar = (config_of(tmp_path, name, seed, **private) for seed, name in enumerate("ab"))
        contents = lies(Node.from_config(liar).release(REQUEST))
        liars = {f"n{node}": sends(lie) for node, (lie, _) in enumerate(contents, start=2)}
        summary = run(FakeGrid(n1=client(honest), **liars), tmp_path / "server", replies=7, **PRIVATE)
        replies = {int(reply["node"]): (reply["what"], reply["reason"]) for reply in summary["replies"]}
        assert replies.pop(1) == ("accepted", "")
        for (what, reason), (_, expected) in zip(replies.values(), contents, strict=True):
            assert what == "rejected"
            assert expected in reason
        assert list(summary["contributors"]) == ["a"]

    def test_a_lost_node_is_asked_again_and_then_given_up(self, tmp_path):
        def lost(message):
            return Message(Error(5, "gone"), reply_to=message)

        def comes_back(message):
            return client(north)(message) if grid.requested.count(2) == 3 else lost(message)

        north = config_of(tmp_path, "north", 1)
        grid = FakeGrid(n1=lost, n2=comes_back)
        summary = run(grid, tmp_path / "server", replies=2)
        assert sorted(grid.requested) == [1, 1, 1, 2, 2, 2]
        assert {reply["what"] for reply in summary["replies"]} == {"accepted", "failed"}
        assert "Flower's error 5: gone" in {reply["reason"] for reply in summary["replies"]}

    def test_a_reply_that_flower_cannot_read_costs_no_other(self, tmp_path):
        north = config_of(tmp_path, "north", 1)
        grid = FakeGrid(n1=lambda message: ValueError("hostile"), n2=client(north))
        summary = run(grid, tmp_path / "server", replies=2)
        assert sorted(grid.requested) == [1, 1, 1, 2]
        assert [(reply["what"], reply["reason"]) for reply in summary["replies"]] == [
            ("accepted", ""),
            ("failed", "Flower cannot read its reply (ValueError: hostile)"),
        ]

    def test_a_reply_that_never_comes_whole_costs_no_other(self, tmp_path):
        """Flower's `pull_messages` waits for hours for all of a reply."""
        done = threading.Event()
        grid = FakeGrid(n1=lambda message: done, n2=client(config_of(tmp_path, "north", 1)))
        summary = run(grid, tmp_path / "server", deadline=2.0)
        assert list(summary["contributors"]) == ["north"]
        assert summary["no_reply"] == ["1"]
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
        assert [reply["what"] for reply in summary["replies"]] == ["accepted"]
        assert grid.requested == [1]

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
        assert summary["no_reply"] == ["2"]

    def test_a_first_comer_with_other_features_does_not_decide(self, tmp_path):
        other = {"client-id": "other", "source": str(write(tmp_path / "o.npy", rows_of(1, n_features=5)))}
        grid = FakeGrid(n1=client(other), n2=client(config_of(tmp_path, "north", 1)))
        summary = run(grid, tmp_path / "server", replies=2, features=8)
        assert list(summary["contributors"]) == ["north"]
        assert "same features, got 5 and 8" in str(summary["replies"]) or "got 8 and 5" in str(
            summary["replies"]
        )

    def test_no_model_below_the_quorum(self, tmp_path):
        grid = FakeGrid(n1=client(config_of(tmp_path, "north", 1)))
        with pytest.raises(RuntimeError, match="quorum not reached: 1 of 2 clients"):
            run(grid, tmp_path / "server", expect=1, quorum=2)
        assert not (tmp_path / "server" / "model.safetensors").exists()
        assert summary_in(tmp_path / "server")["model"] is None

    def test_a_node_that_fails_does_not_end_a_run_before_the_last_one_replies(self, tmp_path):
        def last(message):
            return Message(
                RecordDict({"failed": ConfigRecord({"client": "bad", "reason": "x"})}), reply_to=message
            )

        def late(message):  # joins when two others have replied
            grid.nodes[4] = client(south)
            return client(north)(message)

        north, south = config_of(tmp_path, "north", 1), config_of(tmp_path, "south", 2)
        grid = FakeGrid(n1=last, n2=sends(b"nonsense"), n3=late)
        summary = run(grid, tmp_path / "server", expect=2)
        assert list(summary["contributors"]) == ["north", "south"]

    def test_an_older_version_is_called_so(self, tmp_path):
        north = config_of(tmp_path, "north", 1)
        run(FakeGrid(n1=client(north | {"version": 7})), tmp_path / "server", expect=1)
        summary = run(FakeGrid(n1=client(north)), tmp_path / "server", expect=1)
        (reply,) = summary["replies"]
        assert reply["what"] == "outdated"
        assert reply["reason"].startswith("version 1 is older than version 7 in the store; increase version")

    def test_an_old_model_does_not_pass_for_the_model_of_a_run_without_one(self, tmp_path):
        folder = tmp_path / "server"
        grid = FakeGrid(n1=client(config_of(tmp_path, "north", 1)))
        run(grid, folder, expect=1)
        model = (folder / "model.safetensors").read_bytes()
        with pytest.raises(RuntimeError, match="quorum"):
            run(grid, folder, expect=1, quorum=2)
        assert not (folder / "model.safetensors").exists()
        assert (folder / "model-previous.safetensors").read_bytes() == model
        assert summary_in(folder)["model"] is None

    @pytest.mark.parametrize(
        ("config", "problem"),
        [({"rank": 0}, "rank must be at least 1"), ({"deadline": "soon"}, "deadline must be a number")],
    )
    def test_there_is_a_summary_of_a_run_that_cannot_begin(self, tmp_path, config, problem):
        with pytest.raises(ValueError, match=problem):
            run(FakeGrid(), tmp_path, **config)
        summary = summary_in(tmp_path)
        assert problem in summary["problem"]
        assert (summary["model"], summary["contributors"], summary["replies"]) == (None, {}, [])

    def test_what_came_before_an_exception_counts(self, tmp_path):
        class Broken(FakeGrid):
            def get_node_ids(self):
                if (tmp_path / "store" / "north.state").exists():
                    raise RuntimeError("the SuperLink is gone")
                return super().get_node_ids()

        with pytest.raises(RuntimeError, match="interrupted by RuntimeError: the SuperLink is gone"):
            run(Broken(n1=client(config_of(tmp_path, "north", 1))), tmp_path)
        summary = summary_in(tmp_path)
        assert list(summary["contributors"]) == ["north"]
        assert summary["model"] == "model.safetensors"
        assert fedpca.load(tmp_path / "model.safetensors").count == 1500

    def test_there_is_a_summary_when_the_model_cannot_be_written(self, tmp_path, monkeypatch):
        monkeypatch.setattr(fedpca.Subspace, "save", disk_full)
        with pytest.raises(RuntimeError, match="No space left"):
            run(FakeGrid(n1=client(config_of(tmp_path, "north", 1))), tmp_path, expect=1)
        assert list(summary_in(tmp_path)["contributors"]) == ["north"]

    def test_what_is_written_is_for_its_owner_only(self, tmp_path):
        north = config_of(tmp_path, "north", 1, **PRIVATE, center="pairs")
        folder = tmp_path / "a" / "server"
        config = RUN | {"folder": str(folder), "expect": 1}
        grid = FakeGrid(n1=client(north))
        server_app.main(grid, Context(1, 1, {}, RecordDict(), config))
        state = Path(north["source"] + ".fedpca")
        private = [folder, folder / "summary.json", state, *state.glob("release-*")]
        assert len(private) == 5
        assert [oct(path.stat().st_mode & 0o077) for path in private] == ["0o0"] * 5

    def test_the_log_is_the_librarys_and_shown_by_flower(self, tmp_path):
        class Kept(logging.Handler):
            def emit(self, record):
                shown.append(record)

        shown, handler = [], Kept()
        bad = {"client-id": "bad", "source": str(tmp_path / "none.npy")}
        flower = logging.getLogger("flwr")
        flower.addHandler(handler)
        try:
            config = RUN | {"folder": str(tmp_path / "server"), "deadline": 1.5}
            grid = FakeGrid(n1=client(config_of(tmp_path, "north", 1)), n2=client(bad))
            server_app.main(grid, Context(1, 1, {}, RecordDict(), config))
        finally:
            flower.removeHandler(handler)
        lines = {record.name.rpartition(".")[2]: record.getMessage() for record in shown}
        assert lines["client_app"] == "fedpca: no release"
        assert lines["server_app"].startswith("fedpca: 1 client, 1500 rows")
        assert {record.name.partition(".")[0] for record in shown} == {"fedpca"}

    def test_one_private_release_under_two_names(self, tmp_path):
        north = config_of(tmp_path, "north", 1, **PRIVATE, center="pairs")
        release = ChildMessage.decode(Node.from_config(north).release(REQUEST))
        grid = FakeGrid(n1=client(north), n2=sends(replace(release, child="copy").encode()))
        summary = run(grid, tmp_path / "server", replies=2)
        assert list(summary["contributors"]) == ["north"]
        assert "stream" in summary["replies"][1]["reason"]

    @pytest.mark.parametrize("certificate", [{"warnings": 5}, {"mu": "x"}, {"releases": 7}], ids=repr)
    def test_a_hostile_certificate_is_rejected_by_name(self, tmp_path, certificate):
        private = PRIVATE | {"center": "pairs"}
        north, evil = (config_of(tmp_path, name, seed, **private) for seed, name in enumerate(("a", "evil")))
        kind, arrays, metadata = model_file.decode(Node.from_config(evil).release(REQUEST), "evil")
        forged = seal(kind, arrays, metadata | {"certificate": metadata["certificate"] | certificate})
        grid = FakeGrid(n1=sends(forged), n2=client(north))
        for _ in range(2):
            summary = run(grid, tmp_path / "server", replies=2)
            reply = next(reply for reply in summary["replies"] if reply["node"] == "1")
            assert (reply["client"], reply["what"]) == ("evil", "rejected")
            assert next(iter(certificate)) in reply["reason"]
            assert list(summary["contributors"]) == ["a"]
        Path(evil["source"] + ".fedpca", "release-1.safetensors").write_bytes(forged)
        summary = run(FakeGrid(n1=client(evil), n2=client(north)), tmp_path / "again", replies=2)
        assert [reply["what"] for reply in summary["replies"]] == ["failed", "accepted"]

    def test_a_name_belongs_to_the_node_that_used_it_first(self, tmp_path):
        north, folder = config_of(tmp_path, "north", 1), tmp_path / "server"
        evil = replace(ChildMessage.decode(Node.from_config(north).release(REQUEST)), version=10**15)
        run(FakeGrid(n7=client(north)), folder, expect=1)
        summary = run(FakeGrid(n1=sends(evil.encode()), n7=client(north)), folder, expect=1)
        replies = {reply["node"]: (reply["what"], reply["reason"]) for reply in summary["replies"]}
        assert replies["7"] == ("unchanged", "")  # though the other one was first in this run
        assert replies["1"][0] == "rejected"
        assert replies["1"][1] == "node 7 is 'north' already; give each its own client-id."
        assert summary["contributors"]["north"]["version"] == 1

    def test_virtual_nodes_have_other_numbers_in_every_run(self, tmp_path):
        north, folder = config_of(tmp_path, "north", 1), tmp_path / "server"
        for node in ("n1", "n2"):
            summary = run(FakeGrid(**{node: client(north)}), folder, expect=1, simulate="folder")
        assert [reply["what"] for reply in summary["replies"]] == ["unchanged"]

    @pytest.mark.parametrize("limit", [{"max_rows": 100}, {"max_rms": 1e6}])
    def test_what_is_more_than_plausible_is_rejected(self, tmp_path, limit):
        write(tmp_path / "huge.npy", np.eye(8)[:2] * 1e100)
        write(tmp_path / "many.npy", rows_of(3, 200))
        write(tmp_path / "good.npy", rows_of(1))
        nodes = {
            f"n{i}": client({"client-id": name, "source": str(tmp_path / f"{name}.npy")})
            for i, name in enumerate(("huge", "many", "good"))
        }
        summary = run(FakeGrid(**nodes), tmp_path / "server", replies=3, **limit)
        rejected = {reply["client"] for reply in summary["replies"] if reply["what"] == "rejected"}
        assert rejected == ({"many"} if "max_rows" in limit else {"huge"})
        assert rejected.isdisjoint(summary["contributors"])

    def test_who_has_far_more_influence_than_rows_is_named(self, tmp_path):
        write(tmp_path / "huge.npy", np.eye(8)[:2] * 1e100)
        huge = {"client-id": "huge", "source": str(tmp_path / "huge.npy")}
        grid = FakeGrid(n1=client(config_of(tmp_path, "north", 1)), n2=client(huge))
        folder = tmp_path / "server"
        summary = run(grid, folder, expect=2)
        assert "far more influence than rows: 'huge'; the first has 1 of the variance" in summary["warning"]
        huge = summary["contributors"]["huge"]
        assert huge["direction_share"] == pytest.approx(1)
        assert huge["angle"] > 0.5
        assert huge["captured"] > huge["captured_without"]
        assert summary["contributors"]["north"]["row_share"] == pytest.approx(1500 / 1502)
        write_report(tmp_path / "report.html", fedpca.load(folder / "model.safetensors"), run=folder)
        page = (tmp_path / "report.html").read_text()
        assert "far more influence than rows: " in page
        assert "largest share of a direction" in page
        with Aggregator(store=folder / "store") as aggregator:
            aggregator.withdraw("huge")
        summary = run(FakeGrid(n1=grid.nodes[1]), folder, expect=1)
        assert summary["warning"] == ""

    def test_a_damaged_state_is_named_and_the_others_count(self, tmp_path):
        folder = tmp_path / "server"
        grid = FakeGrid(n1=client(config_of(tmp_path, "a", 1)), n2=client(config_of(tmp_path, "b", 2)))
        run(grid, folder, expect=2)
        (folder / "store" / "a.state").write_bytes(b"torn")
        del grid.nodes[1]
        summary = run(grid, folder, expect=1)
        assert list(summary["contributors"]) == ["b"]
        assert list(summary["quarantined"]) == ["a"]
        assert summary["model"] == "model.safetensors"

    def test_a_store_that_another_writes_to(self, tmp_path):
        with Aggregator(store=tmp_path / "store"), pytest.raises(OSError, match="another aggregator writes"):
            run(FakeGrid(), tmp_path)
        assert "another aggregator writes to the store" in summary_in(tmp_path)["problem"]

    def test_two_runs_do_not_share_a_folder(self, tmp_path):
        config = RUN | {"folder": str(tmp_path)}
        with (tmp_path / "lock").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(RuntimeError, match="another run writes to"):
                server_app.main(FakeGrid(), Context(1, 1, {}, RecordDict(), config))
        with pytest.raises(ValueError, match="absolute path"):
            server_app.main(FakeGrid(), Context(1, 1, {}, RecordDict(), config | {"folder": "here"}))


@pytest.mark.filterwarnings("ignore:this is fit number", "ignore:n_components=")
@pytest.mark.parametrize("seed", range(4))
def test_no_message_stops_a_folder_or_a_run(tmp_path, seed):
    """`python tests/fuzz_carriers.py 100000` tries more."""
    check(500, seed=seed + 1, folder=tmp_path)


class TestRegion:
    @pytest.fixture(autouse=True)
    def _identity(self, monkeypatch):
        pretend_to_be_flower(monkeypatch)

    def region_of(self, folder, **more):
        aggregator = Aggregator(3, store=str(folder / "store"))
        for seed, name in enumerate(("north", "south"), start=1):
            config = config_of(folder, name, seed, **more)
            message = ChildMessage.decode(Node.from_config(config).release(REQUEST))
            aggregator.receive(message.child, message.version, message.summary)
        return aggregator, Region.from_config({"client-id": "a region", "region": str(folder)})

    def test_it_says_what_its_store_says_at_its_version(self, tmp_path):
        aggregator, region = self.region_of(tmp_path)
        first = ChildMessage.decode(region.release(REQUEST))
        assert first == ChildMessage("a region", aggregator.version, aggregator.summary())
        assert ChildMessage.decode(region.release(REQUEST)) == first
        aggregator.receive("south", 2, Moments.from_rows(rows_of(5, 10)))
        second = ChildMessage.decode(region.release(REQUEST))
        assert second == ChildMessage("a region", aggregator.version, aggregator.summary())
        assert second.version > first.version

    def test_whatever_it_sends_otherwise_has_a_newer_version(self, tmp_path):
        """Else its parent keeps what was sent before, and nobody is told."""
        aggregator, region = self.region_of(tmp_path)
        aggregator.close()

        def runs_with(**settings):
            rules = {name: settings[name] for name in ("robust", "least_rows") if name in settings}
            with Aggregator(3, store=tmp_path / "store", **rules) as writer:
                writer.record()
            (tmp_path / "summary.json").write_text(json.dumps(settings))

        parent, sent = Aggregator(3), []
        changes = [
            lambda: runs_with(quorum=2),
            lambda: runs_with(quorum=2, robust="cap"),
            lambda: runs_with(quorum=2),
            lambda: runs_with(quorum=3),
            lambda: runs_with(quorum=2),
        ]
        for change in changes:
            change()
            for _ in range(2):
                message = ChildMessage.decode(region.release(REQUEST))
                sent.append((message.version, message.summary))
            if message.summary is not None:
                parent.receive("a region", message.version, message.summary)
                assert parent.summary() == message.summary
            elif parent.children:
                parent.withdraw("a region")
        assert [one == other for one, other in pairwise(sent)] == [True, False] * 4 + [True]
        assert [version for version, _ in sent] == sorted(version for version, _ in sent)

    def test_below_its_quorum_it_sends_nothing(self, tmp_path):
        """One hospital's summary would leave as it is, to a server that it does not know."""
        aggregator, region = self.region_of(tmp_path)
        aggregator.withdraw("south")
        left = ChildMessage.decode(region.release(REQUEST))
        assert left == ChildMessage("a region", aggregator.version, None)
        (tmp_path / "summary.json").write_text(json.dumps({"quorum": 1, "least_rows": 0}))
        assert ChildMessage.decode(region.release(REQUEST)).summary.count == 1500
        (tmp_path / "summary.json").write_text(json.dumps({"quorum": 3}))
        aggregator.receive("south", 9, Moments.from_rows(rows_of(5, 10)))
        assert ChildMessage.decode(region.release(REQUEST)).summary is None
        (tmp_path / "summary.json").write_text(json.dumps({"quorum": 2, "least_rows": 20}))
        assert ChildMessage.decode(region.release(REQUEST)).summary is None  # the south has 10

    def test_the_quorum_is_that_of_its_last_run(self, tmp_path):
        configs = {f"_{seed}": client(config_of(tmp_path, f"h{seed}", seed)) for seed in (1, 2, 3)}
        run(FakeGrid(**configs), tmp_path / "north", expect=3, quorum=3)
        config = {"client-id": "north", "region": str(tmp_path / "north")}
        assert ChildMessage.decode(Region.from_config(config).release(REQUEST)).summary.count == 4500
        with Aggregator(3, store=tmp_path / "north" / "store") as aggregator:
            aggregator.withdraw("h2")
        assert ChildMessage.decode(Region.from_config(config).release(REQUEST)).summary is None

    @pytest.mark.parametrize(
        "settings", ['{"quorum": 0}', '{"quorum": "two"}', '{"quorum": 1, "least_rows": -9}', "[1]", "{"]
    )
    def test_nothing_is_sent_by_rules_that_no_run_can_have(self, tmp_path, settings):
        aggregator, region = self.region_of(tmp_path)
        aggregator.withdraw("south")
        (tmp_path / "summary.json").write_text(settings)
        with pytest.raises(NodeError, match="did not begin: correct its run config"):
            region.release(REQUEST)

    def test_what_was_sent_stays_older_when_its_record_is_torn(self, tmp_path):
        _, region = self.region_of(tmp_path)
        sent = []
        for robust in (None, "cap", None):
            (tmp_path / "summary.json").write_text(json.dumps({"robust": robust}))
            sent.append(ChildMessage.decode(region.release(REQUEST)))
            (tmp_path / "sent.json").write_bytes(b'{"version": 12')
        assert sent[0].version < sent[1].version < sent[2].version

    def test_a_parent_takes_out_what_a_region_has_no_more(self, tmp_path):
        aggregator, _ = self.region_of(tmp_path)
        region = client({"client-id": "a region", "region": str(tmp_path)})
        other = client(config_of(tmp_path, "other", 7))
        run(FakeGrid(_1=region, _2=other), tmp_path / "parent", expect=2)
        for name in ("north", "south"):  # one is below the quorum, none is too
            aggregator.withdraw(name)
            aggregator.close()
            summary = run(FakeGrid(_1=region, _2=other), tmp_path / "parent", replies=2)
            assert list(summary["contributors"]) == ["other"]
            replies = {reply["client"]: (reply["what"], reply["reason"]) for reply in summary["replies"]}
            assert replies["a region"][1].startswith("it has nothing to send")
        aggregator.receive("north", 5, Moments.from_rows(rows_of(5, 10)))
        aggregator.receive("south", 5, Moments.from_rows(rows_of(6, 10)))
        aggregator.close()
        summary = run(FakeGrid(_1=region, _2=other), tmp_path / "parent", expect=2)
        assert summary["contributors"]["a region"]["rows"] == 20

    def test_a_stranger_takes_nobody_out(self, tmp_path):
        north, folder = config_of(tmp_path, "north", 1), tmp_path / "server"
        run(FakeGrid(_1=client(north)), folder, expect=1)
        left = ChildMessage("north", 99, None).encode()
        summary = run(FakeGrid(_2=sends(left)), folder, replies=1)
        assert summary["replies"][0]["what"] == "rejected"
        assert list(summary["contributors"]) == ["north"]

    def test_it_replies_while_its_own_run_writes_to_the_store(self, tmp_path):
        aggregator, region = self.region_of(tmp_path)
        with aggregator:
            release = ChildMessage.decode(region.release(REQUEST))
        assert release.summary == aggregator.summary()

    def test_privacy_is_that_of_its_clients(self, tmp_path):
        request = REQUEST | PRIVATE | {"adjacency": "replace-one"}
        aggregator, region = self.region_of(tmp_path, **PRIVATE, center="pairs")
        assert ChildMessage.decode(region.release(request)).summary == aggregator.summary()
        with pytest.raises(NodeError, match="its epsilon is 2; at most 1 is accepted"):
            region.release(request | {"epsilon": 1.0})

    def test_what_is_not_private_does_not_leave_where_it_must_be(self, tmp_path):
        _, region = self.region_of(tmp_path)
        with pytest.raises(NodeError, match="no privacy certificate"):
            region.release(REQUEST | PRIVATE | {"adjacency": "replace-one"})
        with pytest.raises(NodeError, match="center must be False, as in the run, got True"):
            region.release(REQUEST | {"center": False})

    def test_a_region_with_nothing_to_say(self, tmp_path):
        region = Region.from_config({"client-id": "a region", "region": str(tmp_path)})
        with pytest.raises(NodeError, match="no store"):
            region.release(REQUEST)
        assert not (tmp_path / "store").exists()
        (tmp_path / "store").mkdir()
        with pytest.raises(NodeError, match="no client of the region"):
            region.release(REQUEST)

    @pytest.mark.parametrize(
        ("config", "rule"),
        [
            (
                {"client-id": "a", "region": ""},
                "region must be a non-empty string in the node config, got ''",
            ),
            ({"region": "/srv"}, "client-id must be a non-empty string"),
            (
                {"client-id": "a", "region": "/srv", "source": "a.npy"},
                "unknown key .*: source; known are client-id, region",
            ),
            (
                {"client-id": "a", "region": "/srv", "epsilon": 1.0},
                "unknown key .*: epsilon; known are client-id, region",
            ),
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
        (shards / "notes.md").write_text("what we did")
        sources = {name: write(shards / f"{name}.npy", rows_of(seed, 1500)) for seed, name in enumerate("ab")}
        config = RUN | {"simulate": str(shards), "folder": str(tmp_path / "server"), "expect": 3}
        grid = FakeGrid(**{f"n{number}": self.virtual(number, config) for number in range(3)})
        summary = run(grid, tmp_path / "server", replies=3)
        assert list(summary["contributors"]) == ["a", "b"]
        assert fedpca.load(tmp_path / "server" / "model.safetensors") == expected_model(sources)
        assert "there are 2 files in" in summary["replies"][2]["reason"]
        assert sorted(path.name for path in shards.iterdir()) == ["a.npy", "b.npy", "notes.md"]

    def test_it_promises_what_is_asked(self, tmp_path):
        write(tmp_path / "a.npy", rows_of(1, 1500))
        folder = tmp_path / "server"
        config = RUN | PRIVATE | {"simulate": str(tmp_path), "folder": str(folder)}
        summary = run(FakeGrid(n1=self.virtual(0, config)), folder, expect=1, **PRIVATE)
        assert summary["replies"][0]["what"] == "accepted"
        assert fedpca.load(folder / "model.safetensors").certificate.epsilon == 2.0

    def test_a_simulation_needs_a_folder(self, tmp_path):
        config = RUN | {"simulate": "none", "folder": str(tmp_path)}
        with pytest.raises(RuntimeError, match="quorum not reached: 0 of 1"):
            run(FakeGrid(n1=self.virtual(0, config)), tmp_path, replies=1)
        reason = summary_in(tmp_path)["replies"][0]["reason"]
        assert "a simulation needs a folder of data files, got simulate='none'" in reason


class TestTemplate:
    def test_it_has_all_settings_of_a_run_and_of_a_node(self, tmp_path):
        write_template(tmp_path / "study")
        settings = tomllib.loads((tmp_path / "study" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
        assert set(settings["config"]) == {*RUN, "folder", "simulate"}
        node = tomllib.loads((tmp_path / "study" / "node.toml").read_text())
        assert Node.from_config(node).client == "north"

    def test_a_folder_with_something_in_it_stays(self, tmp_path):
        (tmp_path / "notes.txt").write_text("what we did")
        with pytest.raises(FileExistsError, match="a federation needs a new or empty folder"):
            write_template(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("app", ["client_app", "server_app"])
def test_without_flower_the_error_names_the_extra(fork, app):
    program = f"import sys; sys.modules['flwr'] = None; import fedpca.federation.flower.{app}"
    _, _, errors = fork(program).wait()
    assert "needs flwr: pip install 'fedpca[flower]'" in errors
