"""Private steps by files: owners with a folder find center, bound and scale together, and pay once."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import fedpca
from fedpca import Aggregator, Ledger, Privacy, Roster, SigningKey
from fedpca.errors import NodeError
from fedpca.federation.aggregator.message import Message
from fedpca.federation.aggregator.owner_sum import OwnerSum
from fedpca.federation.flower.exchanges import Published
from fedpca.federation.flower.node import Node
from fedpca.federation.folder import collect
from fedpca.federation.folder.private_steps import open_steps, pool_step, take_step
from fedpca.trust import Member

PROMISE = {"epsilon": 4.0, "delta": 1e-6}
SETTINGS = {"rank": 2, "center": True, "scale": "std"} | PROMISE
SIZES = {"north": 3000, "south": 2500, "west": 4000}


def rows_of_owner(seed, n_rows, n_features=6):
    """Correlated rows whose columns have units of their own, and means far from zero."""
    rng, mixing = np.random.default_rng(seed), np.random.default_rng(99).normal(size=(3, n_features))
    rows = rng.normal(size=(n_rows, 3)) * [4.0, 2.0, 1.0] @ mixing + 0.3 * rng.normal(
        size=(n_rows, n_features)
    )
    return (rows + 5.0) * 10.0 ** (np.arange(n_features) - 2)


class Study:
    """Owners with a shared folder."""

    def __init__(self, tmp_path, **more):
        self.folder = tmp_path / "shared"
        self.folder.mkdir()
        self.configs = {}
        for seed, (name, n_rows) in enumerate(SIZES.items()):
            source = tmp_path / f"{name}.npy"
            np.save(source, rows_of_owner(seed, n_rows))
            self.configs[name] = {"client-id": name, "source": str(source)} | PROMISE | more
        self.roster = None

    def with_keys(self, tmp_path):
        keys = {name: SigningKey.new() for name in SIZES}
        self.roster = Roster("heart", [Member(name, key.public) for name, key in keys.items()], SETTINGS)
        self.roster.save(tmp_path / "roster.toml")
        for name, key in keys.items():
            key.save(tmp_path / f"{name}.key")
            self.configs[name] |= {
                "key": str(tmp_path / f"{name}.key"),
                "roster": str(tmp_path / "roster.toml"),
            }
        return self

    def take(self, *names):
        return [take_step(self.folder, Node.from_config(self.configs[name])) for name in names]

    def pool(self, least=2):
        return pool_step(self.folder, roster=self.roster, least=least)

    def run(self, *names):
        """All steps of these owners, and their releases; returns who took each."""
        steps = {}
        while True:
            written = self.take(*names)
            if not any(".sum-" in path for path in written):
                return steps
            pooled = self.pool()
            steps[pooled.step] = pooled.owners

    def model(self):
        privacy = None if self.roster else Privacy(**PROMISE)
        aggregator = Aggregator(2, privacy=privacy, roster=self.roster)
        assert collect(self.folder, aggregator) == []
        return aggregator.model()

    def ledger(self, name):
        return Ledger(Path(self.configs[name]["source"] + ".fedpca") / "ledger")


def captured(model, names):
    """How much of the variance of the best directions of these owners' standardized rows is captured."""
    rows = np.vstack(
        [rows_of_owner(seed, n) for seed, (name, n) in enumerate(SIZES.items()) if name in names]
    )
    scaled = StandardScaler().fit_transform(rows)
    best = PCA(2, svd_solver="full").fit(scaled)
    return np.sum((model.components @ scaled.T) ** 2) / np.sum((best.components_ @ scaled.T) ** 2)


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path)


def test_owners_find_scale_center_and_bound_together(study):
    assert Path(open_steps(study.folder, SETTINGS)).name == "steps.0.published.safetensors"
    steps = study.run(*SIZES)
    assert next(iter(steps)) == "rows"
    assert {"scales", "mean"} <= set(steps)
    assert set(steps.values()) == {("north", "south", "west")}
    model = study.model()
    assert model.count == sum(SIZES.values())
    assert captured(model, SIZES) > 0.9
    rows = np.vstack([rows_of_owner(seed, n) for seed, n in enumerate(SIZES.values())])
    np.testing.assert_allclose(model.scale, rows.std(axis=0), rtol=0.5)
    for name in SIZES:
        assert study.ledger(name).spent() <= 4.0 + 1e-9
    assert study.pool().step == ""  # there is nothing left to find


def test_what_has_left_is_written_again_unchanged_and_costs_nothing(study):
    open_steps(study.folder, SETTINGS)
    study.take(*SIZES)
    study.pool()
    first = study.take("north")
    contents, spent = Path(first[0]).read_bytes(), study.ledger("north").spent()
    assert study.take("north") == first
    Path(first[0]).unlink()
    assert study.take("north") == first
    assert (Path(first[0]).read_bytes(), study.ledger("north").spent()) == (contents, spent)


def test_the_others_go_on_without_an_owner_that_drops_out_or_comes_late(study):
    open_steps(study.folder, SETTINGS)
    study.take("north", "south")
    with pytest.raises(ValueError, match="2 of 3 owners have taken step 0; wait for more"):
        study.pool(least=3)
    assert study.pool().owners == ("north", "south")
    assert study.take("west") == [""]  # it missed the first step
    study.take("north", "south")
    assert study.pool().owners == ("north", "south")
    study.run("north", "south")
    assert study.model().count == 5500
    assert Path(study.take("west")[0]).name == "west.1.safetensors"  # with what the others found
    assert study.model().count == 9500


def test_only_members_are_heard(tmp_path):
    study = Study(tmp_path).with_keys(tmp_path)
    open_steps(study.folder, SETTINGS, roster=study.roster)
    study.take(*SIZES)
    honest = Message.decode((study.folder / "south.1.sum-00.safetensors").read_bytes())
    unsigned = replace(honest, version=2).encode()
    (study.folder / "south.2.sum-00.safetensors").write_bytes(unsigned)
    stranger = replace(honest, child="eve").encode()
    (study.folder / "eve.1.sum-00.safetensors").write_bytes(stranger)
    pooled = study.pool()
    assert pooled.owners == ("north", "south", "west")
    reasons = {item.file: item.reason for item in pooled.skipped}
    assert "is unsigned" in reasons["south.2.sum-00.safetensors"]
    assert "is unsigned" in reasons["eve.1.sum-00.safetensors"]
    study.run(*SIZES)
    assert study.model().count == sum(SIZES.values())


def test_hostile_sums_do_not_count_and_the_others_do(study):
    open_steps(study.folder, SETTINGS)
    study.take(*SIZES)
    study.pool()
    study.take(*SIZES)
    honest = Message.decode((study.folder / "west.1.sum-01.safetensors").read_bytes())
    own, features = honest.content.own, honest.content.features
    hostile = {
        "huge": replace(honest, content=OwnerSum(replace(own, total=own.total + 1e12), features)),
        "more rows": replace(honest, content=OwnerSum(replace(own, n_rows=9000), features)),
        "other features": replace(honest, content=OwnerSum(own, (7, None))),
        "a release": replace(honest, content=fedpca.Subspace.from_rows(rows_of_owner(5, 20))),
        "late": replace(honest, version=3),
    }
    (study.folder / "west.1.sum-01.safetensors").unlink()
    (study.folder / "steps.9.sum-01.safetensors").write_bytes(b"nonsense")
    for what, message in hostile.items():
        path = study.folder / f"west.{message.version}.sum-01.safetensors"
        path.write_bytes(message.encode())
        with pytest.raises(ValueError, match=r"2 of 3 owners have taken step 1.*west\.[13]\.sum-01"):
            study.pool(least=3)
        path.unlink()
        assert what
    (study.folder / "west.1.sum-01.safetensors").write_bytes(honest.encode())
    assert study.pool(least=3).owners == ("north", "south", "west")


@pytest.mark.parametrize("other_rank", [0, 1])
@pytest.mark.parametrize(
    "facts",
    [
        {"owners": [1]},
        {"features": 3},
        {"features": [-1, None]},
        {"features": [6, [1, 2]]},
        {"features": ["x", None]},
        {"request": 3},
        {"request": {}},
        {"request": SETTINGS | {"epsilon": "x"}},
        {},
    ],
)
def test_files_that_nobody_can_have_published_stop_no_step(study, facts, other_rank):
    open_steps(study.folder, SETTINGS)
    study.take(*SIZES)
    study.pool()
    name, path = "steps.{}.published.safetensors", study.folder
    first = Published.decode((path / name.format(1)).read_bytes())
    (path / name.format(7)).write_bytes(first.encode())  # renamed
    (path / name.format(8)).write_bytes(b"nonsense")
    later = replace(first.with_sum(first.sums[0]), facts=first.facts | facts)  # two sums, the wrong ones
    (path / name.format(2)).write_bytes(later.encode())
    if facts or other_rank:
        rank = first.rank + other_rank
        (path / name.format(1)).write_bytes(replace(first, rank=rank, facts=first.facts | facts).encode())
        assert Path(study.take("north")[0]).name == "north.1.sum-00.safetensors"  # of what is left
        assert not Path(study.configs["north"]["source"] + ".fedpca", "ledger").exists()  # nothing was paid
        (path / name.format(1)).write_bytes(first.encode())
    assert {Path(each).name[-14:] for each in study.take(*SIZES)} == {"01.safetensors"}
    (path / name.format(2)).unlink()
    assert study.pool().owners == ("north", "south", "west")
    assert Path(study.take("north")[0]).name == "north.1.sum-02.safetensors"


def test_what_does_not_fit_is_refused_before_anything_is_read(study):
    with pytest.raises(ValueError, match="begin with open_steps"):
        study.take("north")
    with pytest.raises(ValueError, match="settings must have epsilon and delta"):
        open_steps(study.folder, {"rank": 2, "center": True, "scale": "std"})
    open_steps(study.folder, SETTINGS | {"epsilon": 8.0})
    with pytest.raises(NodeError, match=r"epsilon must be 8\.0, as in the run, got 4\.0"):
        study.take("north")
    assert not Path(study.configs["north"]["source"] + ".fedpca").exists()
    with pytest.raises(FileExistsError, match="other contents"):
        open_steps(study.folder, SETTINGS)
