"""Exchanges before and after the releases of a Flower federation: scales, private steps, an evaluation."""

import hashlib
import json
import os
import shutil
import stat
import time
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from flower_clients import write
from helpers import aggregate

import fedpca
from fedpca import Ledger, Privacy, PrivatePCA, StreamingPCA
from fedpca.errors import NodeError
from fedpca.federation.aggregator.message import Message
from fedpca.federation.aggregator.owner_sum import OwnerSum
from fedpca.federation.flower import private_exchange
from fedpca.federation.flower.exchanges import Published
from fedpca.federation.flower.node import Node
from fedpca.privacy import StepSum
from fedpca.summaries import model_file

pytest.importorskip("flwr", reason="the Flower federation needs flwr: pip install 'fedpca[flower]'")

from flower_grid import FakeGrid, client, pretend_to_be_flower, run, sends, summary_in

pytestmark = pytest.mark.slow  # all of it together

PROMISE = {"epsilon": 4.0, "delta": 1e-6}
STEPS = {"rank": 2, "expect": 3, "quorum": 2, "scale": "std", "deadline": 30.0} | PROMISE
REQUEST = {
    "rank": 2,
    "center": True,
    "scale": "std",
    "adjacency": "replace-one",
    "bound": "private",
} | PROMISE


@pytest.fixture(autouse=True)
def _identity(monkeypatch):
    """Flower's processes know which run they belong to; so must this one, to make messages."""
    pretend_to_be_flower(monkeypatch)


def raw_units(seed, n_rows, n_features=6):
    """Rows whose columns have units that differ by up to 1e5, and means of their own."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(3, n_features))
    rows = rng.normal(size=(n_rows, 3)) * [4.0, 2.0, 1.0] @ mixing + 0.3 * rng.normal(
        size=(n_rows, n_features)
    )
    units = 10.0 ** (np.arange(n_features) % 6 - 2)
    return (rows + 5.0) * units


def standardized(rows):
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(rows)
    return scaler.scale_, PCA(svd_solver="full").fit(scaler.transform(rows))


def configs_of(folder, sizes, n_features=6, **more):
    configs = {}
    for seed, n_rows in enumerate(sizes):
        source = write(folder / f"h{seed}.npy", raw_units(seed, n_rows, n_features))
        configs[f"h{seed}"] = {"client-id": f"h{seed}", "source": str(source)} | more
    return configs


def rows_in(configs):
    return np.concatenate([np.load(config["source"]) for config in configs.values()])


def grid_of(configs):
    return FakeGrid(**{f"n{node}": client(config) for node, config in enumerate(configs.values(), start=1)})


def state_of(config):
    return Path(config["source"] + ".fedpca")


def live_of(config):
    """What is beside the state folder, and never backed up."""
    return Path(config["source"] + ".fedpca-live")


class Copy:
    """A copy of folders, as a backup or a snapshot of the machine has it."""

    def __init__(self, home, *folders):
        self.folders = {folder: home / folder.name for folder in folders}
        for folder, copy in self.folders.items():
            shutil.copytree(folder, copy)

    def restore(self):
        for folder, copy in self.folders.items():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(copy, folder)


def debits(config):
    path = state_of(config) / "ledger"  # created with the first debit
    return [entry.mechanism for entry in Ledger(path).entries] if path.exists() else []


def all_steps(folder):
    """What an owner pays for who takes part in everything."""
    published = Published.decode((folder / "published.safetensors").read_bytes())
    counted, *steps = (pooled.step for pooled in published.sums)
    assert counted == "rows"
    return [*steps, "gram", "evaluation"]


def replies_in(summary):
    return {reply["client"]: (reply["what"], reply["reason"]) for reply in summary["replies"]}


def loaded(folder):
    return fedpca.load(folder / "model.safetensors")


def no_room_for(monkeypatch, name):
    """Let the disk be full when a node writes a file of this name."""
    write = private_exchange.write

    def full(path, contents):
        if path.name == name:
            raise OSError("disk full")
        write(path, contents)

    monkeypatch.setattr(private_exchange, "write", full)


class TestScale:
    def test_few_features_need_one_exchange(self, tmp_path):
        configs = configs_of(tmp_path, [60, 90, 200, 35, 500])
        grid, folder = grid_of(configs), tmp_path / "server"
        summary = run(grid, folder, expect=5, scale="std")
        scale, pca = standardized(rows_in(configs))
        assert len(grid.requested) == 5
        model = loaded(folder)
        np.testing.assert_allclose(model.scale, scale, rtol=1e-10)
        np.testing.assert_allclose(summary["scale"], scale, rtol=1e-10)
        np.testing.assert_allclose(np.abs(model.components @ pca.components_[:3].T), np.eye(3), atol=1e-10)
        variances = model.singular_values**2 / (model.count - 1)
        np.testing.assert_allclose(variances, pca.explained_variance_[:3], rtol=1e-10)

    def test_many_features_need_two(self, tmp_path):
        configs = configs_of(tmp_path, [60, 90, 200, 35, 500], n_features=300)
        grid, folder = grid_of(configs), tmp_path / "server"
        summary = run(grid, folder, expect=5, scale="std")
        scale, pca = standardized(rows_in(configs))
        assert len(grid.requested) == 10
        model = loaded(folder)
        np.testing.assert_allclose(summary["scale"], scale, rtol=1e-10)
        np.testing.assert_allclose(np.abs(model.components @ pca.components_[:3].T), np.eye(3), atol=1e-3)
        again = run(grid, folder, expect=5, scale="std")
        assert {what for what, _ in replies_in(again).values()} == {"unchanged"}
        assert len(grid.requested) == 15  # the scale is known
        assert loaded(folder) == model

    def test_one_that_joins_later_has_the_scale_of_the_others(self, tmp_path):
        configs = configs_of(tmp_path, [60, 90, 200], n_features=300)
        late, folder = configs.pop("h2"), tmp_path / "server"
        grid = grid_of(configs)
        grid.nodes[3] = only_if(late, lambda published: published.scale is not None)
        summary = run(grid, folder, scale="std", deadline=6.0)
        assert replies_in(summary)["h0"] == ("accepted", "")
        what, reason = replies_in(summary)["h2"]
        assert (what, reason) == ("accepted", "it joined later: the scale is that of the rows of others.")
        np.testing.assert_allclose(summary["scale"], standardized(rows_in(configs))[0], rtol=1e-10)
        assert summary["rows"] == 350

    def test_another_scale_for_the_same_version_is_refused(self, tmp_path):
        configs = configs_of(tmp_path, [60, 90], n_features=300)
        run(grid_of(configs), tmp_path / "server", expect=2, scale="std")
        node = Node.from_config(configs["h0"])
        request = REQUEST | {"epsilon": "none", "rank": 3}
        scale = loaded(tmp_path / "server").scale
        kept = node.reply(request, Published(scale=scale))
        assert kept.kind == "release"
        assert node.reply(request, Published(scale=scale)) == kept
        with pytest.raises(NodeError, match=r"another scale than that of this run; .*increase version"):
            node.reply(request, Published(scale=2 * scale))
        with pytest.raises(NodeError, match="increase version"):
            node.reply(request | {"scale": "none"})

    def test_rows_that_change_between_the_exchanges_are_refused(self, tmp_path):
        (config,) = configs_of(tmp_path, [60], n_features=300).values()
        node, request = Node.from_config(config), REQUEST | {"epsilon": "none"}
        first = node.reply(request)
        assert first.kind == "scaling"
        assert node.reply(request) == first
        write(Path(config["source"]), raw_units(8, 70, 300))
        with pytest.raises(
            NodeError, match="rows changed since version 1 sent their scale; increase version"
        ):
            node.reply(request, Published(scale=np.ones(300)))
        assert node.reply(request) == first  # served unchanged
        assert Node.from_config(config | {"version": 2}).reply(request) != first

    def test_binomial(self, tmp_path):
        rng = np.random.default_rng(0)
        counts = rng.binomial(2, rng.uniform(0.1, 0.9, 8), size=(300, 8)).astype(float)
        configs = {}
        for name, rows in (("a", counts[:100]), ("b", counts[100:])):
            configs[name] = {"client-id": name, "source": str(write(tmp_path / f"{name}.npy", rows))}
        summary = run(grid_of(configs), tmp_path / "server", expect=2, scale="binomial")
        share = counts.mean(axis=0) / 2
        np.testing.assert_allclose(summary["scale"], np.sqrt(2 * share * (1 - share)), rtol=1e-12)

    def test_a_scaling_that_cannot_be_is_rejected(self, tmp_path):
        configs = configs_of(tmp_path, [60, 90], n_features=300)
        wide = Message("wide", 1, fedpca.Scaling.from_rows(raw_units(1, 50, 400))).encode()
        many = Message("many", 1, fedpca.Scaling.from_rows(raw_units(1, 500, 300))).encode()
        grid = grid_of(configs)
        grid.nodes |= {3: sends(wide, "scaling"), 4: sends(many, "scaling"), 5: sends(b"x", "scaling")}
        summary = run(grid, tmp_path / "server", scale="std", max_rows=100, deadline=3.0)
        replies = replies_in(summary)
        assert "same features, got 300 and 400" in replies["wide"][1]
        assert "at most 100" in replies["many"][1]
        np.testing.assert_allclose(summary["scale"], standardized(rows_in(configs))[0], rtol=1e-10)
        assert list(summary["contributors"]) == ["h0", "h1"]

    def test_a_scaling_counts_once_from_however_many_nodes_it_comes(self, tmp_path):
        configs = configs_of(tmp_path, [60, 90], n_features=300)
        grid = grid_of(configs)
        grid.nodes[3] = only_if(configs["h0"], lambda published: published.is_empty)  # h0 from another node
        other = Message("h0", 1, fedpca.Scaling.from_rows(raw_units(9, 50, 300))).encode()
        grid.nodes[4] = sends(other, "scaling")
        summary = run(grid, tmp_path / "server", scale="std", deadline=3.0)
        replies = {reply["node"]: (reply["what"], reply["reason"]) for reply in summary["replies"]}
        assert replies["4"] == ("rejected", "node 1 is 'h0' already; give each its own client-id.")
        np.testing.assert_allclose(summary["scale"], standardized(rows_in(configs))[0], rtol=1e-10)
        assert list(summary["contributors"]) == ["h0", "h1"]

    def few_and(self, folder, others=()):
        """Two nodes of 20 columns, whose moments have their scale, and others."""
        few = configs_of(folder, [60, 90], n_features=20)
        (folder / "odd").mkdir()
        (odd,) = configs_of(folder / "odd", [80], n_features=300).values()
        grid = grid_of(few)
        grid.nodes |= others or {3: client(odd | {"client-id": "odd"})}
        return few, grid

    def of_others(self, folder, few):
        """A run of the next day, with a newcomer in place of the others."""
        late = few | {"late": few["h0"] | {"client-id": "late", "state": few["h0"]["source"] + ".late"}}
        return replies_in(run(grid_of(late), folder, expect=3, scale="std", quorum=1))

    @pytest.mark.parametrize("is_first", [False, True])
    @pytest.mark.parametrize("features", ["none", 20])
    @pytest.mark.parametrize("quorum", [1, 2])
    def test_one_of_other_features_neither_decides_nor_ends_an_exchange(
        self, tmp_path, quorum, features, is_first
    ):
        few, grid = self.few_and(tmp_path)
        if is_first:
            grid.nodes[0] = grid.nodes.pop(3)
        settings = {"scale": "std", "quorum": quorum, "features": features}
        began = time.monotonic()
        summary = run(grid, tmp_path / "server", expect=4, deadline=3.0, **settings)
        assert time.monotonic() - began > 2.5  # more were expected, to the end
        assert replies_in(summary)["odd"][0] == "rejected"
        assert list(summary["contributors"]) == ["h0", "h1"]
        assert not (tmp_path / "server" / "published.safetensors").exists()
        outcomes = {name: what for name, (what, _) in self.of_others(tmp_path / "server", few).items()}
        assert outcomes == {"h0": "unchanged", "h1": "unchanged", "late": "accepted"}

    def test_hostile_scalings_of_few_features_do_not_decide(self, tmp_path):
        scalings = [
            Message(name, 1, fedpca.Scaling.from_rows(1e6 * raw_units(seed, 50, 20))).encode()
            for seed, name in enumerate("xy")
        ]
        hostile = {node: sends(each, "scaling") for node, each in enumerate(scalings, start=3)}
        few, grid = self.few_and(tmp_path, hostile)
        summary = run(grid, tmp_path / "server", scale="std", quorum=2, replies=4)
        assert "no scaling was requested of 20 features" in replies_in(summary)["x"][1]
        assert not (tmp_path / "server" / "published.safetensors").exists()
        assert self.of_others(tmp_path / "server", few)["late"][0] == "accepted"

    def test_a_release_without_the_common_scale_does_not_decide(self, tmp_path):
        configs = configs_of(tmp_path, [60, 90], n_features=300)
        grid = grid_of(configs)
        moments = StreamingPCA(40, scale="std").fit(raw_units(8, 500, 300)).summary_
        grid.nodes[0] = sends(Message("early", 1, moments).encode())  # it is first
        summary = run(grid, tmp_path / "server", scale="std", quorum=2, expect=2)
        assert "must have the scale of all nodes" in replies_in(summary)["early"][1]
        assert list(summary["contributors"]) == ["h0", "h1"]
        grid.nodes = {3: sends(Message("early", 1, moments).encode())}
        again = run(grid, tmp_path / "server", scale="std", quorum=2, replies=1)
        assert replies_in(again)["early"] == (
            "rejected", "a release must have the scale that was found by all nodes, got another one."
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("scale", "form"),
        [(scale, form) for scale in ("none", "std") for form in ("uncentered", "binomial", "numbers")]
        + [("none", "std"), ("std", "none")],
    )
    def test_a_release_of_another_form_does_not_decide(self, tmp_path, scale, form):
        """It is the first, of as many features as the others, and not what the run requests."""
        rows, rule = raw_units(8, 50, 20) % 2.0, None if scale == "none" else scale
        by = {"uncentered": rule, "none": None, "numbers": np.ones(20)}.get(form, form)
        own = StreamingPCA(3, center=form != "uncentered", scale=by).fit(rows).summary_
        few, grid = self.few_and(tmp_path, {0: sends(Message("early", 1, own).encode())})
        grid.nodes = dict(sorted(grid.nodes.items()))
        folder = tmp_path / "server"
        summary = run(grid, folder, scale=scale, replies=3)
        assert replies_in(summary)["early"][0] == "rejected"
        assert list(summary["contributors"]) == ["h0", "h1"]
        again = run(grid_of(few), folder, scale=scale, expect=2)
        assert {what for what, _ in replies_in(again).values()} == {"unchanged"}

    def test_no_scaling_is_taken_in_a_private_run(self, tmp_path):
        scaling = Message("x", 1, fedpca.Scaling.from_rows(raw_units(1, 50, 300))).encode()
        grid = FakeGrid(_1=sends(scaling, "scaling"))
        with pytest.raises(RuntimeError):
            run(grid, tmp_path / "server", replies=1, **{**STEPS, "quorum": 1})
        assert replies_in(summary_in(tmp_path / "server"))["x"] == ("rejected", "no scaling was requested.")
        assert not (tmp_path / "server" / "published.safetensors").exists()

    def test_a_name_stays_with_its_node_from_the_first_exchange_on(self, tmp_path):
        configs = configs_of(tmp_path, [60, 90], n_features=300)
        (tmp_path / "evil").mkdir()
        (evil,) = configs_of(tmp_path / "evil", [400], n_features=300).values()

        def thief(message):  # another name first, and then that of h1, before h1 releases
            name = "zed" if published_in(message).scale is None else "h1"
            state = str(tmp_path / f"evil-{name}")
            return client(evil | {"client-id": name, "state": state})(message)

        grid = FakeGrid(_1=thief, _2=client(configs["h0"]), _3=client(configs["h1"]))
        summary = run(grid, tmp_path / "server", scale="std", quorum=2, expect=3, deadline=4.0)
        replies = {reply["node"]: (reply["what"], reply["reason"]) for reply in summary["replies"]}
        assert replies["1"][0] == "failed"  # told before it read anything
        assert "another node is 'h1' already" in replies["1"][1]
        assert replies["3"] == ("accepted", "")
        assert summary["contributors"]["h1"]["rows"] == 90

    def test_the_settings_of_a_folder_stay(self, tmp_path):
        configs = configs_of(tmp_path, [60, 90], n_features=300)
        run(grid_of(configs), tmp_path / "server", expect=2, scale="std")
        with pytest.raises(ValueError, match="choose another folder, or delete the file"):
            run(grid_of(configs), tmp_path / "server", expect=2, scale="binomial")
        with pytest.raises(ValueError, match="scale must be one of std, binomial, none"):
            run(grid_of(configs), tmp_path / "other", expect=2, scale="max")


def published_in(message):
    """What a request says was published."""
    given = message.content.get("published")
    return Published() if given is None else Published.decode(given["message"].data)


def only_if(config, condition):
    """A node that replies to some requests, and is silent otherwise."""
    return lambda message: client(config)(message) if condition(published_in(message)) else None


@pytest.mark.slow
class TestPrivateSteps:
    @pytest.fixture
    def hospitals(self, tmp_path):
        return configs_of(tmp_path, [3000, 2500, 4000], **PROMISE)

    def test_epsilon_and_delta_are_enough(self, tmp_path, hospitals):
        folder, grid = tmp_path / "server", grid_of(hospitals)
        summary = run(grid, folder, **STEPS)
        model, rows = loaded(folder), rows_in(hospitals)
        scale, pca = standardized(rows)
        assert {what for what, _ in replies_in(summary).values()} == {"accepted"}
        np.testing.assert_allclose(model.scale / scale, np.full(6, np.mean(model.scale / scale)), rtol=0.1)
        affinity = np.linalg.norm(model.components @ pca.components_[:2].T) ** 2 / 2
        assert affinity > 0.99
        truth = pca.explained_variance_ratio_[:2].sum()
        assert abs(model.explained_variance_ratio.sum() - truth) < 0.05
        low, high = summary["evaluation"]["interval"]
        assert low < summary["evaluation"]["explained"] < high
        assert summary["evaluation"]["rows"] == model.certificate.evaluation.records == len(rows)
        assert summary["evaluation"]["missing"] == {}
        expected = all_steps(folder)
        assert expected[:2] == ["scales", "lengths and spread"]
        assert [step.step for step in model.certificate.steps] == expected
        for config in hospitals.values():
            ledger = Ledger(state_of(config) / "ledger")
            assert debits(config) == expected
            assert ledger.spent() == pytest.approx(4.0)
            assert all(entry.completed for entry in ledger.entries)

    def test_a_second_run_costs_nothing_and_changes_nothing(self, tmp_path, hospitals):
        folder, grid = tmp_path / "server", grid_of(hospitals)
        run(grid, folder, **STEPS)
        model, kept = loaded(folder), {name: debits(config) for name, config in hospitals.items()}
        summary = run(grid, folder, **STEPS)
        assert {what for what, _ in replies_in(summary).values()} == {"unchanged"}
        assert loaded(folder) == model
        assert {name: debits(config) for name, config in hospitals.items()} == kept
        smaller = run(grid, folder, **STEPS | {"rank": 1})  # the same releases serve fewer components
        assert smaller["problem"] == ""
        assert "evaluated another model already" in smaller["evaluation"]["missing"]["h0"]
        assert loaded(folder).certificate.evaluation is None

    def test_a_second_node_of_a_name_pays_nothing_and_may_be_renamed(self, tmp_path, hospitals):
        folder = tmp_path / "server"
        second = hospitals.pop("h2") | {"client-id": "h0"}
        run(grid_of(hospitals), folder, **STEPS | {"expect": 2})
        grid = grid_of(hospitals)
        grid.nodes[3] = client(second)
        replies = {
            reply["node"]: (reply["client"], reply["what"], reply["reason"])
            for reply in run(grid, folder, **STEPS | {"expect": 0}, replies=3)["replies"]
        }
        name, what, reason = replies["3"]
        assert (name, what) == ("h0", "failed")
        assert "another node is 'h0' already; give each its own client-id. Nothing was read" in reason
        assert debits(second) == []
        grid.nodes[3] = client(second | {"client-id": "h2"})
        summary = run(grid, folder, **STEPS)
        assert replies_in(summary)["h2"][0] == "accepted"
        assert Ledger(state_of(second) / "ledger").spent() <= 4.0 * (1 + 1e-9)

    def test_a_liar_who_takes_a_name_in_a_later_step(self, tmp_path, hospitals):
        (tmp_path / "evil").mkdir()
        evil = configs_of(tmp_path / "evil", [3000], **PROMISE)["h0"] | {"client-id": "zed"}

        def thief(message):
            reply = client(evil)(message)
            if not published_in(message).sums or "failed" in reply.content:
                return reply
            (kind,) = (kind for kind in ("sum", "release") if kind in reply.content)
            arrays, metadata = model_file.decode(reply.content[kind]["message"].data, "")[1:]
            contents = model_file.decode(reply.content[kind]["message"].data, "")[0]
            return sends(model_file.encode(contents, arrays, metadata | {"child": "h1"}), kind)(message)

        grid = grid_of(hospitals)
        grid.nodes = {0: thief} | grid.nodes
        summary = run(grid, tmp_path / "server", **STEPS | {"expect": 4, "deadline": 12.0})
        replies = {reply["node"]: (reply["what"], reply["reason"]) for reply in summary["replies"]}
        assert replies["0"] == ("rejected", "node 2 is 'h1' already; give each its own client-id.")
        assert {replies[node][0] for node in "123"} == {"accepted"}

    @pytest.mark.parametrize(
        ("scale", "when"),
        [("std", "before"), ("std", "during"), ("std", "after"), ("none", "during"), ("none", "after")],
    )
    def test_a_release_without_what_nodes_find_does_not_decide(self, tmp_path, scale, when):
        """It is private, and the first; those who take the steps could not follow."""
        hospitals = configs_of(tmp_path, [3000, 2500] if scale == "std" else [60, 60], **PROMISE)
        privacy = Privacy(*PROMISE.values(), "sphere", center=(9.0,) * 6, evaluate=False)
        own = PrivatePCA(2, scale=np.ones(6) if scale == "std" else None, **privacy.settings)
        early = Message("early", 1, own.fit(raw_units(8, 500)).release()).encode()
        n_sums = {"before": 0, "during": 1, "after": 2}[when]

        def comes(message):
            return sends(early)(message) if len(published_in(message).sums) >= n_sums else None

        grid = grid_of(hospitals)
        grid.nodes = {0: comes} | grid.nodes
        settings = STEPS | {"scale": scale, "expect": 0, "deadline": 9.0}
        summary = run(grid, tmp_path / "server", **settings)
        assert replies_in(summary)["early"][0] == "rejected"
        assert list(summary["contributors"]) == ["h0", "h1"]

    def test_what_is_kept_is_for_its_owner_only(self, tmp_path, hospitals):
        run(grid_of(hospitals), tmp_path / "server", **STEPS)
        state, live = state_of(hospitals["h0"]), live_of(hospitals["h0"])
        for path in [
            state,
            live,
            *state.rglob("*"),
            *live.rglob("*"),
            tmp_path / "server" / "published.safetensors",
        ]:
            if "lock" not in path.name and path.name != "ledger":  # they lie in a folder of its own
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path

    @pytest.mark.long
    def test_one_that_joins_later_spends_everything_on_its_release(self, tmp_path, hospitals):
        folder = tmp_path / "server"
        (tmp_path / "late").mkdir()
        late = configs_of(tmp_path / "late", [3500], **PROMISE)["h0"] | {"client-id": "late"}
        grid = grid_of(hospitals)
        grid.nodes[4] = only_if(late, lambda published: len(published.sums) >= 2)
        summary = run(grid, folder, **STEPS | {"expect": 0, "deadline": 12.0})
        assert replies_in(summary)["late"] == (
            "accepted", "it joined later: what was found privately is that of the rows of others."
        )  # fmt: skip
        assert debits(late) == ["gram", "evaluation"]
        privacy = Privacy(**PROMISE)
        entries = Ledger(state_of(late) / "ledger").entries
        assert entries[0].mu == pytest.approx(privacy.mu * sqrt(1 - privacy.evaluation_share))
        assert summary["evaluation"]["rows"] == summary["rows"] == 13000
        assert loaded(folder).certificate.merged == 4

    @pytest.mark.long
    def test_one_that_falls_silent_does_not_stop_the_others(self, tmp_path, hospitals):
        folder, grid = tmp_path / "server", grid_of(hospitals)
        grid.nodes[3] = only_if(hospitals["h2"], lambda published: len(published.sums) < 3)
        summary = run(grid, folder, **STEPS | {"deadline": 6.0})
        assert list(summary["contributors"]) == ["h0", "h1"]
        assert summary["evaluation"]["rows"] == 5500
        assert summary["no_reply"] == ["3"]
        assert replies_in(summary)["h2"] == ("taken", "its sum of 'lengths and spread', but no release yet.")
        summary = run(grid_of(hospitals), folder, **STEPS)  # it is back
        assert replies_in(summary)["h2"][0] == "accepted"
        # What it did not take part in is left for its release, and the others have evaluated another model.
        assert debits(hospitals["h2"]) == ["scales", "lengths and spread", "gram", "evaluation"]
        assert Ledger(state_of(hospitals["h2"]) / "ledger").spent() == pytest.approx(4.0)

    def test_after_a_kill_the_next_run_goes_on_with_what_was_published(self, tmp_path, hospitals):
        folder, grid = tmp_path / "server", grid_of(hospitals)

        def dies(published):
            if len(published.sums) == 3:
                raise KeyboardInterrupt
            return True

        grid.nodes[2] = only_if(hospitals["h1"], dies)
        with pytest.raises(KeyboardInterrupt):
            run(grid, folder, **STEPS)
        summary = run(grid_of(hospitals), folder, **STEPS)
        assert {what for what, _ in replies_in(summary).values()} == {"accepted"}
        for config in hospitals.values():
            assert debits(config) == all_steps(folder)

    def test_too_few_rows_for_a_scale_cost_nothing(self, tmp_path):
        configs = configs_of(tmp_path, [200, 150], **PROMISE)
        with pytest.raises(RuntimeError, match="needs about"):
            run(grid_of(configs), tmp_path / "server", **STEPS | {"expect": 2})
        assert "needs about" in summary_in(tmp_path / "server")["problem"]
        assert all(debits(config) == [] for config in configs.values())

    def test_a_quorum_is_needed_to_begin(self, tmp_path, hospitals):
        grid = grid_of({"h0": hospitals["h0"]})
        with pytest.raises(RuntimeError, match="1 of 2 nodes were there to begin with; nothing was spent"):
            run(grid, tmp_path / "server", **STEPS | {"expect": 1})
        assert debits(hospitals["h0"]) == []

    def test_without_a_scale_and_with_a_public_bound(self, tmp_path):
        rows = np.random.default_rng(0).normal(size=(6000, 4)) * [3.0, 1.0, 0.5, 0.5] + [9.0, 0.0, 0.0, 2.0]
        configs = {}
        for name, part in (("a", rows[:2000]), ("b", rows[2000:])):
            source = write(tmp_path / f"{name}.npy", part)
            configs[name] = {"client-id": name, "source": str(source), "bound": 5.0} | PROMISE
        settings = STEPS | {"expect": 2, "scale": "none", "bound": 5.0, "rank": 1}
        summary = run(grid_of(configs), tmp_path / "server", **settings)
        model = loaded(tmp_path / "server")
        assert model.certificate.bound == 5.0
        assert abs(model.components[0, 0]) > 0.99
        assert np.linalg.norm(model.mean - rows.mean(axis=0)) < 0.2
        assert summary["evaluation"]["rows"] == 6000


@pytest.mark.slow
class TestHostileSums:
    def sums(self):
        """What liars send as their sum of rows and, once they are in, of the first step."""
        count = StepSum("rows", np.zeros(0), 3000)
        features = (6, None)
        n_bins = 121 * 6
        return {
            "other step": ([count, StepSum("mean", np.zeros(6), 3000)], features, "must be that of 'scales'"),
            "nan": ([count, StepSum("scales", np.full(n_bins, np.nan), 3000)], features, "must be finite"),
            "halves": ([count, StepSum("scales", np.full(n_bins, 0.5), 3000)], features, "whole numbers"),
            "huge": ([count, StepSum("scales", np.full(n_bins, 1e12), 3000)], features, "have at most"),
            "overflow": ([count, StepSum("scales", np.full(n_bins, 1e300), 3000)], features, "have at most"),
            "more rows": ([count, StepSum("scales", np.zeros(n_bins), 9000)], features, "must stay 3000"),
            "radius": ([count, StepSum("scales", np.zeros(n_bins), 3000, 1, 3.0)], features, "clipped to"),
            "owners": ([StepSum("rows", np.zeros(0), 3000, noise=5.0)], features, "one owner"),
            "too many": ([StepSum("rows", np.zeros(0), 2**40)], features, "one owner with 1 to"),
            "wide": ([StepSum("rows", np.zeros(0), 3000)], (7, None), "same features, got 6 and 7"),
        }  # fmt: skip

    @pytest.mark.long
    def test_they_are_rejected_and_the_others_unaffected(self, tmp_path):
        configs = configs_of(tmp_path, [3000, 2500, 4000], **PROMISE)
        grid = grid_of(configs)
        for node, (name, (sums, features, _)) in enumerate(self.sums().items(), start=11):
            encoded = [Message(name, 1, OwnerSum(own, features)).encode() for own in sums]
            grid.nodes[node] = lambda message, encoded=encoded: sends(
                encoded[min(len(published_in(message).sums), len(encoded) - 1)], "sum"
            )(message)
        grid.nodes[30] = sends(b"nonsense", "sum")
        grid.nodes[31] = sends(b"\xff\xff", "waits")
        summary = run(grid, tmp_path / "server", **STEPS | {"expect": 0, "deadline": 10.0})
        replies = replies_in(summary)
        for name, (_, _, reason) in self.sums().items():
            assert replies[name][0] == "rejected", (name, replies[name])
            assert reason in replies[name][1]
        assert list(summary["contributors"]) == ["h0", "h1", "h2"]
        assert summary["evaluation"]["rows"] == 9500

    def test_a_false_evaluation_does_not_count(self, tmp_path):
        configs = configs_of(tmp_path, [3000, 2500, 4000], **PROMISE)
        grid = grid_of(configs)

        def lies(message):
            reply = client(configs["h2"])(message)
            if published_in(message).model is None:
                return reply
            honest = Message.decode(reply.content["sum"]["message"].data)
            false = replace(honest.content.own, total=np.full(4, 1e15))
            content = OwnerSum(false, honest.content.features)
            return sends(replace(honest, content=content).encode(), "sum")(message)

        grid.nodes[3] = lies
        summary = run(grid, tmp_path / "server", **STEPS)
        assert summary["evaluation"]["rows"] == 5500
        assert "have at most" in summary["evaluation"]["missing"]["h2"]
        model = loaded(tmp_path / "server")
        assert model.count == 9500
        truth = standardized(rows_in(configs))[1].explained_variance_[:2].sum()
        variance = np.sum(model.singular_values**2) / model.count  # per row: others are taken to be alike
        assert 0.75 < variance / truth < 1.25


class TestNode:
    @pytest.fixture
    def config(self, tmp_path):
        return configs_of(tmp_path, [3000], **PROMISE)["h0"]

    def advanced(self, config, published=None, until=None):
        """Go on alone, as if this were the only owner; returns what was published and the last reply."""
        published = published or Published()
        while True:
            reply = Node.from_config(config).reply(REQUEST, published)
            if reply.kind != "sum" or len(published.sums) == until:
                return published, reply
            owner = Message.decode(reply.contents).content
            published = Published(sums=(*published.sums, owner.own), rank=2)

    def test_every_sum_is_served_again_unchanged(self, config):
        published, release = self.advanced(config)
        assert release.kind == "release"
        paid = debits(config)
        for number in range(len(published.sums)):
            before = Published(sums=published.sums[:number], rank=2)
            first = Node.from_config(config).reply(REQUEST, before)
            assert Message.decode(first.contents).content.own.n_rows == 3000
            assert first == Node.from_config(config).reply(REQUEST, before)
        assert Node.from_config(config).reply(REQUEST, published) == release
        assert debits(config) == paid

    def owner_sum(self, reply):
        return Message.decode(reply.contents).content.own

    def test_a_snapshot_of_the_machine_gives_the_same_sum(self, config, tmp_path):
        """Otherwise two noises, or two sums with one noise, would reveal the rows."""
        published, first = self.advanced(config, until=1)
        published = published.with_sum(self.owner_sum(first))
        copy = Copy(tmp_path / "copy", state_of(config), live_of(config))
        first = Node.from_config(config).reply(REQUEST, published)
        copy.restore()
        assert Node.from_config(config).reply(REQUEST, published) == first

    def test_a_snapshot_with_other_rows_has_independent_noise(self, config, tmp_path, monkeypatch):
        """Even if neither size nor time of the file tells that they are others."""
        published, first = self.advanced(config, until=0)
        published = Published(sums=(self.owner_sum(first),), rank=2)
        Node.from_config(config).reply(REQUEST, replace(published, sums=()))
        with monkeypatch.context() as patch:  # a key was drawn, and nothing was paid for
            patch.setattr(Ledger, "debit", lambda *given, **more: (_ for _ in ()).throw(OSError("no disk")))
            with pytest.raises(OSError, match="no disk"):
                Node.from_config(config).reply(REQUEST, published)
        copy = Copy(tmp_path / "copy", state_of(config), live_of(config))
        source = Path(config["source"])
        rows, before = np.load(source), source.stat()
        first = self.owner_sum(Node.from_config(config).reply(REQUEST, published))
        copy.restore()
        rows[7] = 900.0
        with source.open("r+b") as file:
            np.save(file, rows)
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert source.stat().st_size == before.st_size
        second = self.owner_sum(Node.from_config(config).reply(REQUEST, published))
        changed = np.count_nonzero(second.total != first.total)
        assert changed > 0.5 * len(first.total)  # one record is in 12 of 726 bins

    def test_rows_that_change_unnoticed_are_refused(self, config):
        published, reply = self.advanced(config, until=3)
        published = published.with_sum(self.owner_sum(reply))
        source = Path(config["source"])
        contents, before, paid = source.read_bytes(), source.stat(), debits(config)

        def put(changed):
            with source.open("r+b") as file:
                file.write(changed)
            os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))

        put(contents[:-1] + bytes([contents[-1] ^ 1]))
        with pytest.raises(NodeError, match=r"rows changed since version 1 began .*increase version"):
            Node.from_config(config).reply(REQUEST, published)
        assert debits(config) == paid
        put(contents)
        assert Node.from_config(config).reply(REQUEST, published).kind == "release"
        assert debits(config) == [*paid, "gram"]

    def test_no_key_of_noise_that_has_left_is_kept(self, config):
        published, reply = Published(), None
        path, keys = live_of(config) / "exchange-1.json", []
        while reply is None or reply.kind == "sum":
            if reply is not None:
                published = Published(sums=(*published.sums, self.owner_sum(reply)), rank=2)
            reply = Node.from_config(config).reply(REQUEST, published)
            keys += [json.loads(path.read_text())["key"]] if path.exists() else []
            in_state = b"".join(each.read_bytes() for each in state_of(config).rglob("*") if each.is_file())
            assert not any(key.encode() in in_state or bytes.fromhex(key) in in_state for key in keys)
        assert len(set(keys)) == len(keys) == len(debits(config))
        for key, later in pairwise(keys):  # forward, and not back
            assert hashlib.blake2b(b"next", key=bytes.fromhex(key), digest_size=32).hexdigest() == later
        model = Message.decode(reply.contents).summary.subspace(2)
        Node.from_config(config).reply(REQUEST, Published(sums=published.sums, rank=2, model=model))
        assert debits(config)[-1] == "evaluation"
        assert not path.exists()
        assert Node.from_config(config).reply(REQUEST, published) == reply

    def test_a_key_is_replaced_after_a_kill_as_well(self, config, monkeypatch):
        published, reply = self.advanced(config, until=0)
        published = Published(sums=(self.owner_sum(reply),), rank=2)
        path = live_of(config) / "exchange-1.json"
        with monkeypatch.context() as patch:
            patch.setattr(private_exchange.PrivateExchange, "_forget", lambda self: None)  # killed before
            first = Node.from_config(config).reply(REQUEST, published)
        before = json.loads(path.read_text())["key"]
        assert Node.from_config(config).reply(REQUEST, published) == first
        assert json.loads(path.read_text())["key"] != before

    def test_a_state_from_a_backup_draws_nothing(self, config, tmp_path):
        published, first = self.advanced(config, until=1)
        copy = Copy(tmp_path / "copy", state_of(config))
        published = published.with_sum(self.owner_sum(first))
        self.advanced(config, published, until=2)
        copy.restore()
        with pytest.raises(NodeError, match=r"not of the same time: .*remove the folder .*increase version"):
            Node.from_config(config).reply(REQUEST, published)
        assert debits(config) == ["scales"]
        shutil.rmtree(live_of(config))  # or on another machine
        with pytest.raises(NodeError, match=r"drawn for version 1 is missing.*increase version"):
            Node.from_config(config).reply(REQUEST, published)
        Ledger(tmp_path / "larger", epsilon=9.0, delta=2e-6)
        again = config | {"version": 2, "ledger": str(tmp_path / "larger")}
        for n_sums in (0, 1):
            before = Published(sums=published.sums[:n_sums], rank=2)
            assert Node.from_config(again).reply(REQUEST, before).kind == "sum"
        with pytest.raises(NodeError, match=r"drawn for version 1 is missing.*increase version"):
            Node.from_config(config).reply(REQUEST, published)  # nor after another version has begun

    def test_the_ledger_is_the_one_that_paid(self, config, tmp_path):
        """Else what was sent before would be free."""
        published, reply = self.advanced(config, until=2)
        published = published.with_sum(self.owner_sum(reply))
        with pytest.raises(NodeError, match=r"a debit for each of the 2 noisy sums .* has 0: bring back"):
            Node.from_config(config | {"ledger": str(tmp_path / "another")}).reply(REQUEST, published)
        assert not (tmp_path / "another").exists()
        assert Node.from_config(config).reply(REQUEST, published).kind == "sum"

    def test_a_release_is_sent_under_another_name_at_no_cost(self, config, tmp_path):
        published, release = self.advanced(config)
        paid = debits(config)
        renamed = Node.from_config(config | {"client-id": "c"}).reply(REQUEST, published)
        ours, theirs = Message.decode(release.contents), Message.decode(renamed.contents)
        assert theirs == replace(ours, child="c")
        for number in range(len(published.sums)):
            before = Published(sums=published.sums[:number], rank=2)
            first = Node.from_config(config | {"client-id": "c"}).reply(REQUEST, before)
            assert model_file.decode(first.contents, "")[2]["child"] == "c"
        assert debits(config) == paid
        other = write(tmp_path / "other.npy", raw_units(4, 3000))  # two clients, and one folder by mistake
        theirs = config | {"client-id": "c", "source": str(other), "state": str(state_of(config))}
        with pytest.raises(NodeError, match=r"belongs to client 'h0'; .* set state in the node config"):
            Node.from_config(theirs).reply(REQUEST, published)

    def test_impossible_published_sums_are_refused_before_any_debit(self, config):
        """A finite lie about a mean made the center infinite, and the release failed after its debit."""
        published, reply = self.advanced(config, until=3)
        assert self.owner_sum(reply).step == "mean"
        paid = debits(config)
        lie = replace(self.owner_sum(reply), total=np.full(6, 1e308))
        with pytest.raises(NodeError, match=r"do not fit .* 'mean' is inf long; 3000 rows and noise have"):
            Node.from_config(config).reply(REQUEST, published.with_sum(lie))
        assert debits(config) == paid

    def test_a_release_is_sent_from_a_backup(self, config):
        published, release = self.advanced(config)
        shutil.rmtree(live_of(config))
        assert Node.from_config(config).reply(REQUEST, published) == release

    def test_other_published_sums_are_refused_once_a_step_was_paid_for(self, config, tmp_path):
        _, reply = self.advanced(config, until=0)
        counted = self.owner_sum(reply)
        copy = Copy(tmp_path / "copy", state_of(config))
        for n_rows in (9000, 6000):  # nothing was spent yet: whoever is there begins
            others = Published(sums=(StepSum("rows", counted.total, n_rows, 2),), rank=2)
            first = Node.from_config(config).reply(REQUEST, others)
            if n_rows == 9000:
                copy.restore()
                shutil.rmtree(live_of(config))
        assert first.kind == "sum"
        with pytest.raises(NodeError, match=r"published sums differ from those .*increase version"):
            Node.from_config(config).reply(
                REQUEST, Published(sums=(StepSum("rows", counted.total, 7000, 2),), rank=2)
            )
        assert debits(config) == ["scales"]

    def test_rows_that_change_are_refused(self, config):
        published, _ = self.advanced(config, until=2)
        write(Path(config["source"]), raw_units(5, 3000))
        number = len(published.sums)
        kept = Node.from_config(config).reply(REQUEST, published)
        own = Message.decode(kept.contents).content.own
        paid = debits(config)
        with pytest.raises(NodeError, match=r"rows changed since version 1 began .*increase version"):
            Node.from_config(config).reply(REQUEST, Published(sums=(*published.sums, own), rank=2))
        assert debits(config) == paid
        assert number == 2

    def test_a_sum_that_is_lost_after_its_debit_is_not_drawn_again(self, config, monkeypatch):
        published, _ = self.advanced(config, until=1)
        scales = Node.from_config(config).reply(REQUEST, published)
        published = published.with_sum(Message.decode(scales.contents).content.own)
        no_room_for(monkeypatch, "step-2.safetensors")
        with pytest.raises(OSError, match="disk full"):
            Node.from_config(config).reply(REQUEST, published)
        monkeypatch.undo()
        assert debits(config) == ["scales", "lengths and spread"]
        assert Node.from_config(config).reply(REQUEST, published).kind == "waits"
        assert debits(config) == ["scales", "lengths and spread"]
        # Others took the step; this one goes on, and has paid for it.
        other = config | {"client-id": "other", "state": config["source"] + ".other"}
        theirs = StepSum("lengths and spread", self.sum_of(other, published), 3000)
        published = published.with_sum(theirs)
        published, release = self.advanced(config, published)
        assert release.kind == "release"
        spent = Ledger(state_of(config) / "ledger")
        assert debits(config)[:2] == ["scales", "lengths and spread"]
        assert spent.spent() < 4.0
        certificate = Message.decode(release.contents).summary.certificate
        assert [step.step for step in certificate.steps] == debits(config)

    def sum_of(self, config, published):
        """What another owner of the same rows sends for the next step, as one who took those before."""
        node = Node.from_config(config)
        for number in range(len(published.sums) + 1):
            reply = node.reply(REQUEST, Published(sums=published.sums[:number], rank=2))
        return Message.decode(reply.contents).content.own.total

    def failed_before_its_debit(self, config, monkeypatch):
        """What was published when the first noisy sum could not be paid for."""
        _, reply = self.advanced(config, until=0)
        published = Published(sums=(self.owner_sum(reply),), rank=2)
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "debit", lambda *given, **more: (_ for _ in ()).throw(OSError("no disk")))
            with pytest.raises(OSError, match="no disk"):
                Node.from_config(config).reply(REQUEST, published)
        return published

    def test_a_step_that_failed_before_its_debit_is_taken_again(self, config, monkeypatch):
        published = self.failed_before_its_debit(config, monkeypatch)
        assert Node.from_config(config).reply(REQUEST, published).kind == "sum"

    def test_a_release_that_is_lost_after_its_debit(self, config, monkeypatch):
        no_room_for(monkeypatch, "release-1.safetensors")
        with pytest.raises(OSError, match="disk full"):
            self.advanced(config)
        monkeypatch.undo()
        paid = debits(config)
        assert paid[-1] == "gram"
        with pytest.raises(NodeError, match=r"release of version 1 was paid for and lost .*increase version"):
            self.advanced(config)
        assert debits(config) == paid

    def test_a_clean_release_is_not_told_once_privacy_is_promised(self, config):
        plain = {key: config[key] for key in ("client-id", "source")}
        Node.from_config(plain).reply(REQUEST | {"epsilon": "none"})
        with pytest.raises(NodeError, match="increase version"):
            Node.from_config(config).reply(REQUEST)
        assert not (state_of(config) / "exchange-1").exists()

    def test_one_model_is_evaluated(self, config):
        published, release = self.advanced(config)
        model = Message.decode(release.contents).summary.subspace(2)
        asked = Published(sums=published.sums, rank=2, model=model)
        first = Node.from_config(config).reply(REQUEST, asked)
        assert first.kind == "sum"
        assert Node.from_config(config).reply(REQUEST, asked) == first
        assert debits(config)[-1] == "evaluation"
        with pytest.raises(NodeError, match="evaluated another model already"):
            Node.from_config(config).reply(
                REQUEST, Published(sums=published.sums, rank=2, model=model.truncate(1))
            )
        narrow = StreamingPCA(2).fit(raw_units(1, 50, 4)).subspace_
        with pytest.raises(NodeError, match="cannot be evaluated"):
            Node.from_config(config).reply(REQUEST, replace(asked, model=narrow))
        assert debits(config).count("evaluation") == 1

    def test_the_release_is_that_of_an_estimator_with_these_steps(self, config):
        """Alone, a node finds what `fit` finds."""
        _, release = self.advanced(config)
        released = Message.decode(release.contents).summary
        pca = PrivatePCA(2, scale="std", **PROMISE).fit(np.load(config["source"]))
        theirs = pca.summary_
        assert released.certificate.clipping == theirs.certificate.clipping
        assert [step.step for step in released.certificate.steps] == [
            step.step for step in theirs.certificate.steps[:-1]
        ]
        together = aggregate([("a", 1, released)], 2).model()
        assert np.linalg.norm(together.components @ pca.components_.T) ** 2 / 2 > 0.98

    @pytest.mark.parametrize(
        ("changes", "request_changes", "rule"),
        [
            ({}, {"epsilon": "none"}, "set epsilon=4 delta=1e-06 in the run config"),
            (
                {"epsilon": 2.0},
                {},
                "epsilon must be 4.0, as in the run, got 2.0; nodes find together what is not public",
            ),
            ({"bound": 3.0}, {}, "bound must be 'private', as in the run, got 3.0"),
            ({"center": "pairs"}, {}, "centering must be 'private', as in the run, got 'pairs'"),
            ({}, {"bound": 3.0}, "bound must be at most 3.0, as in the run, got 'private'"),
            ({"center": "none"}, {}, "center must be True, as in the run, got False"),
            ({"min-rank": 5}, {}, "rank of the run, 2, which is below min-rank=5; take min-rank out"),
            ({}, {"scale": "binomial"}, "'binomial' cannot be found privately"),
            ({}, {"scale": "max"}, "scale must be one of std, binomial, none, got 'max'"),
        ],
    )
    def test_what_does_not_fit_is_refused_before_anything_is_read(
        self, config, changes, request_changes, rule
    ):
        with pytest.raises(NodeError, match=rule):
            Node.from_config(config | changes).reply(REQUEST | request_changes)
        assert not state_of(config).exists()

    def test_it_may_begin_again_before_anything_is_paid_for(self, config, monkeypatch):
        self.failed_before_its_debit(config, monkeypatch)
        key = (live_of(config) / "exchange-1.json").read_text()
        write(Path(config["source"]), raw_units(5, 2000))
        reply = Node.from_config(config).reply(REQUEST | {"rank": 3})
        assert self.owner_sum(reply).n_rows == 2000
        Node.from_config(config).reply(
            REQUEST | {"rank": 3}, Published(sums=(self.owner_sum(reply),), rank=3)
        )
        assert (live_of(config) / "exchange-1.json").read_text() != key

    def test_settings_stay_while_steps_are_taken(self, config):
        self.advanced(config, until=1)
        rule = r"began its private steps with other settings of scale than .*increase version"
        with pytest.raises(NodeError, match=rule):
            Node.from_config(config).reply(REQUEST | {"scale": "none"})

    def test_published_sums_that_do_not_fit(self, config):
        self.advanced(config, until=0)
        other = Published(sums=(StepSum("mean", np.zeros(6), 3000),), rank=2)
        with pytest.raises(NodeError, match="settings of this node: the sum must be that of 'rows'"):
            Node.from_config(config).reply(REQUEST, other)


class TestPublished:
    def test_it_survives_its_encoding(self):
        model = StreamingPCA(2, scale="std").fit(raw_units(1, 50)).subspace_
        sums = (StepSum("rows", np.zeros(0), 50, 2), StepSum("mean", np.arange(6.0), 50, 2))
        published = Published(np.arange(1.0, 7.0), sums, 2, model, {"settings": {"scale": "std"}})
        again = Published.decode(published.encode())
        assert again.encode() == published.encode()
        assert again.model == model
        assert again.facts == {"settings": {"scale": "std"}}

    @pytest.mark.parametrize(
        "change",
        [
            {"sums": 5},
            {"sums": [{"step": "rows", "n_rows": 0, "noise": 1}]},
            {"sums": [{"step": "rows", "n_rows": 5}]},
            {"sums": [{"step": 5, "n_rows": 5, "noise": 1}]},
            {"rank": -1},
            {"facts": 7},
            {"model": {}},
        ],
        ids=repr,
    )
    def test_anything_else_is_refused(self, change):
        published = Published(sums=(StepSum("rows", np.zeros(0), 50, 2),), rank=2)
        kind, arrays, metadata = model_file.decode(published.encode(), "")
        with pytest.raises(fedpca.ModelFileError, match="not valid"):
            Published.decode(model_file.encode(kind, arrays, metadata | change))
        with pytest.raises(fedpca.ModelFileError, match="not valid"):
            Published.decode(model_file.encode("moments", arrays, metadata))


def test_a_summary_says_what_is_json(tmp_path):
    """summary.json can be read by anything: no NaN, no arrays."""
    configs = configs_of(tmp_path, [60, 90])
    run(grid_of(configs), tmp_path / "server", expect=2, scale="std")
    text = (tmp_path / "server" / "summary.json").read_text()
    assert len(json.loads(text, parse_constant=pytest.fail)["scale"]) == 6
