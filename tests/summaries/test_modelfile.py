"""Model files: what is saved comes back bit for bit; anything else is refused with one ModelFileError."""

import io
import json
import os
import pickle
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
from helpers import bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file

import fedpca
from fedpca import ModelFileError, Moments, Subspace
from fedpca.summaries import model_file
from fedpca.summaries.about import About
from fedpca.summaries.certificate import Certificate

NAMES = ("Größe", "体重", "naïve \U0001f600", "new\nline", "quote\"\\'", "", " ")
CERTIFICATE = Certificate(
    private=True, epsilon=0.1, delta=1e-5, mu=1 / 3, unit="patient", bound=(0.1, 1 / 3), warnings=("none",)
)

# One file name for all examples is what we want.
one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def rows(n_rows=20, n_features=7, seed=0):
    return np.random.default_rng(seed).normal(size=(n_rows, n_features)) * np.arange(1, n_features + 1)


def some_subspace():
    return Subspace.from_rows(rows(), rank=3)


def subspace_contents():
    """Arrays and facts of a valid subspace file, to spoil one at a time."""
    arrays = {"components": np.eye(3, 5), "singular_values": np.array([3.0, 2.0, 1.0]), "mean": np.ones(5)}
    facts = {"count": 9.0, "total": 20.0, "centered": True, "feature_names": None, "certificate": None}
    return arrays, facts


def moments_contents():
    arrays = {"mean": np.ones(3), "scatter": np.diag([3.0, 2.0, 1.0])}
    return arrays, {"count": 9.0, "centered": True, "feature_names": None, "certificate": None}


def write_facts_text(path, text, monkeypatch, kind="subspace"):
    """A file with a right checksum whose facts are any text."""
    with monkeypatch.context() as patch:
        patch.setattr(model_file.json, "dumps", lambda *args, **kwargs: text)
        model_file.write(path, kind, subspace_contents()[0], {})


def write_raw(path, header, data=b""):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(header)) + header + data)


def assert_refused(path, match=None, read=fedpca.load):
    """One ModelFileError, which is a ValueError and names the file."""
    with pytest.raises(ModelFileError, match=match) as caught:
        read(path)
    assert isinstance(caught.value, ValueError)
    assert str(path) in str(caught.value)
    return str(caught.value)


def assert_refused_or_valid(path, kind=Subspace):
    """No file makes `load` fail in any other way, or gives a value that is not valid."""
    try:
        loaded = fedpca.load(path)
    except ModelFileError:
        assert_refused(path)
    else:
        assert type(loaded) is kind
        assert np.isfinite([loaded.count, loaded.total]).all()
        loaded.save(path)
        assert fedpca.load(path) == loaded


# --- What was saved comes back ---

SUMMARIES = {
    "float64": lambda: Subspace.from_rows(rows()),
    "float32": lambda: Subspace.from_rows(rows().astype(np.float32), rank=2),
    "uncentered": lambda: Subspace.from_rows(rows(), rank=3, center=False),
    "weighted": lambda: Subspace.from_rows(rows(), rank=3, sample_weight=np.linspace(0, 1, 20)),
    "names": lambda: Subspace(np.eye(2, 7), [2.0, 1.0], np.zeros(7), 3, 5.0, about=About(NAMES)),
    "certificate": lambda: Subspace(
        np.eye(2, 7), [2.0, 1.0], np.zeros(7), 3, 5.0, about=About(certificate=CERTIFICATE)
    ),
    "odd floats": lambda: Subspace(
        np.eye(2) * [1, -1], [1e-160, 5e-324], [-0.0, 1e-310], 1e12 + 1 / 3, 0.1 + 0.2
    ),
    "empty": lambda: Subspace.empty(4),
    "empty float32": lambda: Subspace.empty(
        4, dtype=np.float32, centered=False, about=About(("a", "b", "c", "d"))
    ),
    "one feature": lambda: Subspace.from_rows([[1.0], [2.0]]),
    "no direction": lambda: Subspace.from_rows(np.ones((5, 3))),
    "merged": lambda: fedpca.merge([Subspace.from_rows(rows(seed=seed), rank=3) for seed in range(3)], 4),
    "tracked": lambda: fedpca.StreamingPCA(2).fit(rows()).subspace_,
    "moments": lambda: Moments.from_rows(rows()),
    "moments uncentered": lambda: Moments.from_rows(rows().astype(np.float32), center=False),
    "moments named": lambda: Moments(3, np.zeros(7), np.eye(7), about=About(NAMES)),
    "moments of nothing": lambda: Moments(0, np.zeros(2), np.zeros((2, 2))),
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_what_was_saved_comes_back_bit_for_bit(name, tmp_path):
    summary, path = SUMMARIES[name](), tmp_path / "model.fedpca"
    summary.save(path)
    assert bits(fedpca.load(path)) == bits(summary)
    assert fedpca.load(path) == summary
    assert fedpca.load(str(path)) == summary


@pytest.mark.parametrize("name", [name for name in SUMMARIES if not name.startswith("moments")])
def test_subspace_load_gives_the_subspace(name, tmp_path):
    summary = SUMMARIES[name]()
    summary.save(tmp_path / "model")
    assert bits(Subspace.load(tmp_path / "model")) == bits(summary)


def test_subspace_load_turns_moments_into_all_their_directions(tmp_path):
    Moments.from_rows(rows()).save(tmp_path / "model")
    loaded, expected = Subspace.load(tmp_path / "model"), Subspace.from_rows(rows())
    np.testing.assert_allclose(loaded.singular_values, expected.singular_values)
    np.testing.assert_allclose(loaded.components**2, expected.components**2, atol=1e-12)


@pytest.mark.slow
@one_folder
@given(
    table=hnp.arrays(
        st.sampled_from([np.float32, np.float64]),
        st.tuples(st.integers(1, 6), st.integers(1, 6)),
        # Rows too small to square are refused before there is any summary: see test_bad_input.
        elements=st.floats(-1e6, 1e6, width=32).filter(lambda value: value == 0 or abs(value) > 1e-6),
    ),
    center=st.booleans(),
)
def test_any_summary_of_rows_comes_back(table, center, tmp_path):
    parts = [Subspace.from_rows(table, center=center), Subspace.from_rows(table[:1], center=center)]
    for summary in (*parts, fedpca.merge(parts), Moments.from_rows(table, center=center)):
        summary.save(tmp_path / "model")
        assert bits(fedpca.load(tmp_path / "model")) == bits(summary)


def test_loaded_arrays_are_read_only(tmp_path):
    some_subspace().save(tmp_path / "model")
    with pytest.raises(ValueError, match="read-only"):
        fedpca.load(tmp_path / "model").mean[0] = 1.0


# --- Arrays of any layout (safetensors writes the buffer of a strided array as if it were contiguous) ---

LAYOUTS = {
    "fortran": np.asfortranarray,
    "transposed": lambda a: a.T.copy().T,
    "every second": lambda a: np.kron(a, [1.0, 7.0]).astype(a.dtype)[..., ::2],
    "reversed": lambda a: np.flip(np.flip(a).copy()),
    "inner slice": lambda a: np.pad(a, 2, constant_values=7.0)[(slice(2, -2),) * a.ndim],
    "broadcast": lambda a: np.broadcast_to(a.ravel()[0], a.shape),
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_write_keeps_the_values_of_any_layout(layout, dtype, tmp_path):
    table = np.arange(12, dtype=dtype).reshape(3, 4)
    arrays = {"table": layout(table), "line": layout(table[1])}
    expected = {name: array.tolist() for name, array in arrays.items()}
    model_file.write(tmp_path / "model", "subspace", arrays, {})
    kind, loaded, facts = model_file.read(tmp_path / "model")
    assert {name: array.tolist() for name, array in loaded.items()} == expected
    assert (kind, facts) == ("subspace", {})
    assert {array.dtype for array in loaded.values()} == {np.dtype(dtype)}


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "broadcast"])
def test_save_keeps_the_values_of_any_layout(layout, tmp_path):
    expected = Subspace.from_rows(rows(), rank=3)
    change = LAYOUTS[layout]
    values = (change(expected.components), change(expected.singular_values), change(expected.mean))
    Subspace(*values, expected.count, expected.total).save(tmp_path / "subspace")
    assert bits(fedpca.load(tmp_path / "subspace")) == bits(expected)
    moments = Moments.from_rows(rows())
    Moments(moments.count, change(moments.mean), change(moments.scatter)).save(tmp_path / "moments")
    assert bits(fedpca.load(tmp_path / "moments")) == bits(moments)


@pytest.mark.parametrize("shape", [(0, 4), (0,), (1, 1), (1, 4), (4, 1)])
def test_write_keeps_shapes(shape, tmp_path):
    model_file.write(tmp_path / "model", "any", {"table": np.ones(shape)}, {})
    assert model_file.read(tmp_path / "model")[1]["table"].shape == shape


# --- The format is plain safetensors ---


def test_the_file_is_plain_safetensors(tmp_path):
    subspace = SUMMARIES["names"]()
    subspace.save(tmp_path / "model")
    tensors = load_file(tmp_path / "model")
    assert sorted(tensors) == ["components", "mean", "singular_values"]
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, getattr(subspace, name))


def test_the_file_is_a_json_header_and_numbers_and_nothing_else(tmp_path):
    """Nothing in it can be a pickle: all bytes are accounted for."""
    SUMMARIES["certificate"]().save(tmp_path / "model")
    content = (tmp_path / "model").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__")
    assert list(metadata) == ["fedpca"]
    assert json.loads(json.loads(metadata["fedpca"])["facts"])["certificate"] == CERTIFICATE.to_json()
    assert {tensor["dtype"] for tensor in header.values()} == {"F64"}
    assert len(content) == 8 + length + 8 * (2 * 7 + 2 + 7)


def test_reading_never_unpickles(tmp_path, monkeypatch):
    def no_pickle(*args, **kwargs):
        raise AssertionError("a model file must not be unpickled")

    some_subspace().save(tmp_path / "model")
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, no_pickle)
    assert fedpca.load(tmp_path / "model") == some_subspace()


# --- Saving is whole or not at all ---


@pytest.fixture
def saved(tmp_path):
    """A model file alone in its folder."""
    path = tmp_path / "models" / "model.fedpca"
    path.parent.mkdir()
    some_subspace().save(path)
    return path


def fail(*args, **kwargs):
    raise OSError("disk full")


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


@pytest.mark.parametrize("failure", [fail, interrupt])
@pytest.mark.parametrize(
    "step",
    ["os.replace", "os.fsync", "pathlib.Path.open", "shutil.copymode", "fedpca.summaries.model_file.encode"],
)
def test_a_failed_save_leaves_the_old_file_and_nothing_else(saved, step, failure, monkeypatch):
    before = saved.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(step, failure)
        with pytest.raises((OSError, KeyboardInterrupt)):
            Subspace.empty(3).save(saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.parametrize("written", [0, 1, 100])
def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_else(saved, written, monkeypatch):
    class FullDisk:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, content):
            self.file.write(content[:written])
            fail()

    before, opened = saved.read_bytes(), Path.open
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *args: FullDisk(opened(*args)))
        with pytest.raises(OSError, match="disk full"):
            Subspace.empty(3).save(saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_the_new_file_is_complete_before_it_takes_the_name(saved, monkeypatch):
    seen, replace = [], os.replace

    def look(temporary, path):
        seen.append((fedpca.load(temporary), fedpca.load(path), Path(temporary).parent == Path(path).parent))
        replace(temporary, path)

    monkeypatch.setattr(os, "replace", look)
    Subspace.empty(3).save(saved)
    assert seen == [(Subspace.empty(3), some_subspace(), True)]
    assert fedpca.load(saved) == Subspace.empty(3)


@pytest.mark.parametrize(
    "facts",
    [{"count": np.nan}, {"certificate": object()}, {"certificate": b"bytes"}, {"certificate": {"x": np.inf}}],
    ids=["nan", "object", "bytes", "inf"],
)
def test_facts_that_are_not_json_are_refused_before_anything_is_written(saved, facts):
    before = saved.read_bytes()
    with pytest.raises((TypeError, ValueError)):
        model_file.write(saved, "subspace", subspace_contents()[0], facts)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_saving_into_a_missing_folder_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        some_subspace().save(tmp_path / "missing" / "model")
    assert os.listdir(tmp_path) == []


def test_saving_onto_a_folder_is_refused(saved):
    with pytest.raises(OSError, match="models"):
        some_subspace().save(saved.parent)
    assert os.listdir(saved.parent) == [saved.name]
    assert os.listdir(saved.parent.parent) == ["models"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_keeps_its_file(saved):
    before = saved.read_bytes()
    saved.parent.chmod(0o555)
    try:
        with pytest.raises(PermissionError):
            Subspace.empty(3).save(saved)
    finally:
        saved.parent.chmod(0o755)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_new_file_has_the_permissions_any_new_file_would(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        some_subspace().save(tmp_path / "model")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == mode


@pytest.mark.parametrize(
    "name", ["n" * 255, "ü" * 127, ".hidden", "with space", "-", "a.part"], ids=lambda n: n[:9]
)
def test_any_legal_file_name_works(name, tmp_path):
    some_subspace().save(tmp_path / name)
    assert fedpca.load(tmp_path / name) == some_subspace()
    assert os.listdir(tmp_path) == [name]


# --- Files that are not there ---


@pytest.mark.parametrize("read", [fedpca.load, Subspace.load, model_file.read])
@pytest.mark.parametrize("name", ["missing.fedpca", "missing/model"])
def test_a_missing_file_is_not_found_under_its_name(name, read, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_a_folder_is_no_file_and_no_folder_is_nowhere_to_save(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder"):
        fedpca.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        some_subspace().save(tmp_path / "nowhere" / "model")


# --- Files that are no model files ---


class Bomb:
    """Unpickled, it would say so."""

    def __reduce__(self):
        return (pytest.fail, ("a model file was unpickled",))


def saved_by(save, array):
    file = io.BytesIO()
    save(file, array)
    return file.getvalue()


def not_model_files(path):
    """Name -> function that writes it."""
    tensors = {"components": np.eye(2)}
    return {
        "empty": lambda: path.write_bytes(b""),
        "seven bytes": lambda: path.write_bytes(b"\0" * 7),
        "zeros": lambda: path.write_bytes(b"\0" * 4096),
        "text": lambda: path.write_text("a,b\n1,2\n"),
        "pickle": lambda: path.write_bytes(pickle.dumps(Bomb())),
        "long pickle": lambda: path.write_bytes(pickle.dumps([Bomb()] + [0.5] * 1000)),
        "npy": lambda: path.write_bytes(saved_by(np.save, np.eye(3))),
        "npz": lambda: path.write_bytes(saved_by(np.savez, np.eye(3))),
        "foreign safetensors": lambda: save_file(tensors, path),
        "foreign metadata": lambda: save_file(tensors, path, metadata={"format": "pt"}),
        "no checksum": lambda: save_file(
            tensors,
            path,
            metadata={"fedpca": '{"format_version": 1, "kind": "subspace", "facts": "{}"}'},
        ),
        "header of 10**18 bytes": lambda: path.write_bytes(struct.pack("<Q", 10**18) + b"{}"),
        "header of 2**64 - 1 bytes": lambda: path.write_bytes(b"\xff" * 8 + b"{}"),
        "header of 1 GB": lambda: path.write_bytes(struct.pack("<Q", 10**9) + b"{}"),
        "header no JSON": lambda: write_raw(path, b"{" * 64),
        "header no UTF-8": lambda: write_raw(path, b'{"__metadata__": {"format": "\xff"}}'),
        "header a list": lambda: write_raw(path, []),
        "header deep": lambda: write_raw(path, b"[" * 100_000),
        "metadata no object": lambda: write_raw(path, {"__metadata__": 3}),
        "metadata of numbers": lambda: write_raw(path, {"__metadata__": {"format": 1}}),
    }


@pytest.mark.parametrize("read", [fedpca.load, Subspace.load], ids=["load", "Subspace.load"])
@pytest.mark.parametrize("name", not_model_files(Path()))
def test_what_is_no_model_file_is_refused(name, read, tmp_path):
    path = tmp_path / "model.fedpca"
    not_model_files(path)[name]()
    assert_refused(path, read=read)


OURS = {"fedpca": '{"format_version": 1, "kind": "subspace", "facts": "{}", "checksum": ""}'}


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": "F64", "shape": [2], "data_offsets": [0, 10**18]},
        {"dtype": "F64", "shape": [10**18], "data_offsets": [0, 8 * 10**18]},
        {"dtype": "F64", "shape": [2**32, 2**32], "data_offsets": [0, 0]},
        {"dtype": "F64", "shape": [2], "data_offsets": [8, 0]},
        {"dtype": "F64", "shape": [3], "data_offsets": [0, 16]},
        {"dtype": "F64", "shape": [-2], "data_offsets": [0, 16]},
        {"dtype": "F64", "shape": [10**30], "data_offsets": [0, 16]},
        {"dtype": "F64", "shape": [0, 10**18], "data_offsets": [0, 0]},
        {"dtype": "F64", "shape": [0, 2**63], "data_offsets": [0, 0]},
        {"dtype": "F64", "shape": [0, 2**64 - 1], "data_offsets": [0, 0]},
        {"dtype": "F64", "shape": [0] + [1] * 100, "data_offsets": [0, 0]},
        {"dtype": "F64", "shape": "2", "data_offsets": [0, 16]},
        {"dtype": "F65", "shape": [2], "data_offsets": [0, 16]},
        {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]},
        {"dtype": "F64"},
        None,
    ],
    ids=lambda tensor: str(tensor)[:60],
)
def test_a_header_that_lies_about_its_arrays_is_refused(tensor, tmp_path):
    n_bytes = 0 if tensor and tensor.get("data_offsets") == [0, 0] else 16
    write_raw(tmp_path / "model", {"__metadata__": OURS, "components": tensor}, b"\0" * n_bytes)
    assert_refused(tmp_path / "model")


@one_folder
@given(content=st.binary(max_size=300))
def test_random_bytes_are_refused(content, tmp_path):
    (tmp_path / "model").write_bytes(content)
    assert_refused(tmp_path / "model")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@one_folder
@given(
    header=st.fixed_dictionaries(
        {"__metadata__": st.just(OURS) | JSON, "mean": JSON},
        optional={
            "components": st.fixed_dictionaries(
                {
                    "dtype": st.sampled_from(["F64", "F32", "I64", "BOOL", "U8"]),
                    "shape": st.lists(st.integers(0, 2**64), max_size=3),
                    "data_offsets": st.lists(st.integers(0, 64), min_size=2, max_size=2),
                }
            )
        },
    ),
    data=st.binary(max_size=64),
)
def test_random_headers_are_refused(header, data, tmp_path):
    write_raw(tmp_path / "model", header, data)
    assert_refused(tmp_path / "model")


# --- Damaged files ---

SMALL = {
    "subspace": lambda: Subspace(np.eye(1, 3), [1.0], np.ones(3), 2, 1.5, about=About(("a", "ü", "c"))),
    "moments": lambda: Moments(2, np.ones(2), np.eye(2)),
    "empty": lambda: Subspace.empty(2),
}


@pytest.fixture(params=SMALL)
def small_file(request, tmp_path):
    SMALL[request.param]().save(tmp_path / "model")
    return tmp_path / "model"


def test_a_file_cut_anywhere_is_refused(small_file):
    content = small_file.read_bytes()
    for length in {*range(12), *range(0, len(content), 7), *range(len(content) - 50, len(content))}:
        small_file.write_bytes(content[:length])
        assert_refused(small_file)


@pytest.mark.parametrize("more", [b"\0", b" ", b"\n", b"\0" * 8, b"x" * 1000], ids=len)
def test_a_file_with_something_added_is_refused(small_file, more):
    small_file.write_bytes(small_file.read_bytes() + more)
    assert_refused(small_file)


@pytest.mark.parametrize("kind", ["subspace", "moments"])
def test_any_flipped_bit_is_noticed(kind, tmp_path):
    """In the header and in the data; every byte, another bit each time."""
    path = tmp_path / "model"
    SMALL[kind]().save(path)
    content = path.read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (5 * place + place // 8) % 8
        path.write_bytes(flipped)
        assert_refused(path)


def test_damage_to_the_numbers_says_so(tmp_path):
    path = tmp_path / "model"
    some_subspace().save(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert_refused(path, "checksum does not match; fetch or save it again")


@pytest.mark.parametrize(
    ("old", "new"), [(b"count", b"cOunt"), (b": 9.0", b": 8.0"), (b'"components"', b'"Components"')], ids=str
)
def test_an_edited_header_is_noticed(old, new, tmp_path):
    model_file.write(tmp_path / "model", "subspace", *subspace_contents())
    content = (tmp_path / "model").read_bytes()
    assert old in content
    (tmp_path / "model").write_bytes(content.replace(old, new))
    assert_refused(tmp_path / "model", "checksum")


# --- Well-formed files with wrong contents: the checksum is right, the values are not ---


@pytest.mark.parametrize("version", [0, 2, 10**6, "1.0", ""])
def test_another_format_version_is_refused_by_its_number(version, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(model_file, "FORMAT_VERSION", version)
        some_subspace().save(tmp_path / "model")
    assert_refused(tmp_path / "model", f"format version {version!r}; this fedpca reads version 1")


@pytest.mark.parametrize("kind", ["", "Subspace", "aggregator", "__init__"])
def test_an_unknown_kind_is_refused_by_its_name(kind, tmp_path):
    model_file.write(tmp_path / "model", kind, *subspace_contents())
    assert_refused(tmp_path / "model", f"contains '{kind}'")


def test_a_file_of_the_other_kind_is_refused(tmp_path):
    model_file.write(tmp_path / "model", "moments", *subspace_contents())
    assert "scatter" in assert_refused(tmp_path / "model")


tilted = np.eye(3, 5)
tilted[0, 1] = 1e-3
repeated = np.eye(3, 5)
repeated[1] = repeated[0]
broken = np.eye(3, 5)
broken[0, 0] = np.nan

WRONG_SUBSPACES = [
    # array or fact, wrong value, what the message must say
    ("components", np.eye(5, 3), "shapes"),
    ("components", np.eye(2, 5), "shapes"),
    ("components", np.eye(3, 4), "shapes"),
    ("components", np.zeros(5), "shapes"),
    ("components", np.zeros((3, 5, 1)), "shapes"),
    ("components", np.float64(1.0), "shapes"),
    ("components", np.eye(3, 5, dtype=int), "components.*not of floats"),
    ("components", np.eye(3, 5, dtype=bool), "components.*not of floats"),
    ("components", np.eye(3, 5, dtype=np.float16), "components.*not of floats"),
    ("singular_values", np.array([3, 2, 1], dtype=np.float32), "must be of float64"),
    ("mean", np.zeros(5, dtype=np.float32), "must be of float64"),
    ("components", broken, "finite"),
    ("components", np.full((3, 5), np.inf), "finite"),
    ("components", 2 * np.eye(3, 5), "orthonormal"),
    ("components", tilted, "orthonormal"),
    ("components", tilted.astype(np.float32), "orthonormal"),
    ("components", repeated, "orthonormal"),
    ("components", np.zeros((3, 5)), "orthonormal"),
    ("components", 1e200 * np.eye(3, 5), "orthonormal"),
    ("components", np.full((3, 5), 1e30, dtype=np.float32), "orthonormal"),
    ("singular_values", np.array([1.0, 2.0, 3.0]), "descending"),
    ("singular_values", np.array([3.0, 2.0, -1.0]), "not negative"),
    ("singular_values", np.array([3.0, 2.0, np.nan]), "finite"),
    ("singular_values", np.array([np.inf, 2.0, 1.0]), "finite"),
    ("singular_values", np.array([9.0, 2.0, 1.0]), "total"),
    ("singular_values", np.array([1e200, 2.0, 1.0]), "total|large"),
    ("singular_values", np.array([[3.0, 2.0, 1.0]]), "shapes"),
    ("mean", np.zeros(4), "shapes"),
    ("mean", np.zeros((1, 5)), "shapes"),
    ("mean", np.array([0, 0, 0, 0, np.nan]), "finite"),
    ("mean", np.array([0, 0, 0, 0, -np.inf]), "finite"),
    ("mean", np.full(5, 1e200), "mean"),
    ("count", -1.0, "count.*-1"),
    ("count", 0.0, "no rows"),
    ("count", 1e308, "count.*1e\\+308"),
    ("count", 10**400, "count"),
    ("count", "9", "count.*'9'"),
    ("count", None, "count.*None"),
    ("count", [9.0], "count"),
    ("count", {"rows": 9}, "count"),
    ("total", 13.9, "total.*13.9"),
    ("total", -1.0, "total"),
    ("total", 1e308, "total.*1e\\+308"),
    ("total", "20", "total"),
    ("total", None, "total"),
    ("centered", False, "uncentered"),
    ("centered", "false", "centered"),
    ("centered", None, "centered"),
    ("feature_names", ["a"], "5 features, 1 names"),
    ("feature_names", list("abcdef"), "5 features, 6 names"),
    ("feature_names", [1, 2, 3, 4, 5], "strings"),
    ("feature_names", [["a"]] * 5, "strings"),
    ("feature_names", "abcde", "feature_names"),
    ("feature_names", dict.fromkeys("abcde", 1), "feature_names"),
    ("feature_names", 5, "feature_names|iterable"),
    ("certificate", "trust me", "Certificate"),
    ("certificate", [1], "Certificate"),
]

WRONG_MOMENTS = [
    ("mean", np.zeros(4), "shapes"),
    ("mean", np.array([0, 0, np.nan]), "finite"),
    ("mean", np.full(3, 1e200), "mean"),
    ("scatter", np.eye(2), "shapes"),
    ("scatter", np.zeros(3), "shapes"),
    ("scatter", np.eye(3, dtype=np.float16), "scatter.*not of floats"),
    ("scatter", np.eye(3, dtype=np.float32), "must be of float64"),
    ("scatter", np.full((3, 3), np.nan), "finite"),
    ("scatter", np.full((3, 3), np.inf), "finite"),
    ("scatter", np.eye(3) * 1.5e308, "finite|large"),
    ("scatter", np.triu(np.ones((3, 3))), "symmetric"),
    ("scatter", -np.eye(3), "negative"),
    ("count", -1.0, "count"),
    ("count", 0.0, "no rows"),
    ("count", 1e308, "count"),
    ("count", "9", "count"),
    ("centered", False, "uncentered"),
    ("centered", "false", "centered"),
    ("feature_names", ["a"], "3 features, 1 names"),
    ("feature_names", "abc", "feature_names"),
]

CASES = [("subspace", subspace_contents, *case) for case in WRONG_SUBSPACES] + [
    ("moments", moments_contents, *case) for case in WRONG_MOMENTS
]


def case_id(value):
    if callable(value):
        return ""
    return f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else str(value)[:20]


@pytest.mark.parametrize(("kind", "contents", "name", "value", "match"), CASES, ids=case_id)
def test_wrong_contents_are_refused_with_the_rule(kind, contents, name, value, match, tmp_path):
    arrays, facts = contents()
    (arrays if name in arrays else facts)[name] = value
    model_file.write(tmp_path / "model", kind, arrays, facts)
    assert_refused(tmp_path / "model", match)
    assert_refused(tmp_path / "model", match, read=Subspace.load)


@pytest.mark.parametrize(
    ("kind", "contents"), [("subspace", subspace_contents), ("moments", moments_contents)]
)
def test_the_contents_that_are_spoiled_here_are_right_to_begin_with(kind, contents, tmp_path):
    model_file.write(tmp_path / "model", kind, *contents())
    assert type(fedpca.load(tmp_path / "model")).__name__.lower() == kind


@pytest.mark.parametrize(
    "count",
    ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-" + "9" * 5000, "true"],
    ids=lambda c: c[:9],
)
def test_numbers_that_json_should_not_hold_are_refused(count, tmp_path, monkeypatch):
    text = json.dumps(subspace_contents()[1]).replace("9.0", count)
    write_facts_text(tmp_path / "model", text, monkeypatch)
    assert_refused(tmp_path / "model")


MISSING = [
    ("subspace", subspace_contents, name)
    for name in ("components", "singular_values", "mean", "count", "total", "centered", "feature_names")
] + [
    ("moments", moments_contents, name) for name in ("mean", "scatter", "count", "centered", "feature_names")
]


@pytest.mark.parametrize(("kind", "contents", "name"), MISSING, ids=case_id)
def test_a_missing_array_or_fact_is_named(kind, contents, name, tmp_path):
    arrays, facts = contents()
    (arrays if name in arrays else facts).pop(name)
    model_file.write(tmp_path / "model", kind, arrays, facts)
    assert name in assert_refused(tmp_path / "model")


@pytest.mark.parametrize("extra", [np.eye(2), np.full(3, np.nan), np.zeros(0)], ids=str)
@pytest.mark.parametrize("name", ["rows", "0.mean", "observe"])
def test_an_array_that_no_subspace_has_is_refused_by_its_name(extra, name, tmp_path):
    arrays, facts = subspace_contents()
    model_file.write(tmp_path / "model", "subspace", {**arrays, name: extra}, facts)
    assert_refused(tmp_path / "model", repr(name))


@pytest.mark.parametrize("name", ["note", "rank", "parts ", "sender", "scale"])
def test_a_fact_that_no_subspace_has_is_refused_by_its_name(name, tmp_path):
    arrays, facts = subspace_contents()
    model_file.write(tmp_path / "model", "subspace", arrays, {**facts, name: [5.0, 17.5]})
    assert_refused(tmp_path / "model", name)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"text"', "null", "{} {}", "{'a': 1}"])
def test_facts_that_are_no_json_object_are_refused(text, tmp_path, monkeypatch):
    write_facts_text(tmp_path / "model", text, monkeypatch)
    assert_refused(tmp_path / "model")


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000], ids=len)
def test_deeply_nested_facts_are_refused(deep, tmp_path, monkeypatch):
    write_facts_text(tmp_path / "model", deep, monkeypatch)
    assert_refused(tmp_path / "model")


@pytest.mark.parametrize("depth", [500, 5_000, 50_000])
def test_a_deeply_nested_certificate_loads_or_is_refused(depth, tmp_path, monkeypatch):
    text = json.dumps(subspace_contents()[1])
    text = text.replace('"certificate": null', '"certificate": {"a": ' + "[" * depth + "]" * depth + "}")
    write_facts_text(tmp_path / "model", text, monkeypatch)
    try:
        fedpca.load(tmp_path / "model")
    except ModelFileError:
        assert_refused(tmp_path / "model")


@pytest.mark.parametrize("scatter", [[[1.0, 5.0], [5.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]], ids=str)
def test_moments_with_negative_eigenvalues_load_or_are_refused_the_same_way_twice(scatter, tmp_path):
    """Noise gives a released scatter negative eigenvalues: whoever can load it can take its subspace."""
    arrays = {"mean": np.zeros(2), "scatter": np.array(scatter)}
    facts = {"count": 9.0, "centered": True, "feature_names": None}
    model_file.write(tmp_path / "model", "moments", arrays, facts)
    try:
        fedpca.load(tmp_path / "model")
    except ModelFileError:
        assert_refused(tmp_path / "model", read=Subspace.load)
    else:
        assert Subspace.load(tmp_path / "model").rank == 1


FACT = JSON.filter(lambda value: json.loads(json.dumps(value)) == value)  # no NaN, which `write` refuses


@one_folder
@given(
    name=st.sampled_from(sorted(subspace_contents()[1])),
    value=FACT.filter(lambda v: v not in (np.inf, -np.inf)),
)
def test_no_fact_makes_loading_fail_otherwise(name, value, tmp_path):
    arrays, facts = subspace_contents()
    facts[name] = value
    try:
        model_file.write(tmp_path / "model", "subspace", arrays, facts)
    except ValueError:  # an infinity deep inside
        return
    assert_refused_or_valid(tmp_path / "model")


NUMBER = st.floats() | st.sampled_from([-1.0, 0.0, 5e-324, 1.0, 1e20, 1e154, 1e155, 1e302, 1e308])
ARRAY = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.int32]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


@one_folder
@given(name=st.sampled_from(["components", "singular_values", "mean"]), value=ARRAY)
def test_no_array_makes_loading_fail_otherwise(name, value, tmp_path):
    arrays, facts = subspace_contents()
    model_file.write(tmp_path / "model", "subspace", {**arrays, name: value}, facts)
    assert_refused_or_valid(tmp_path / "model")


@one_folder
@given(
    components=hnp.arrays(np.float64, (2, 2), elements=NUMBER) | st.just(np.eye(2)),
    singular_values=st.lists(NUMBER, min_size=2, max_size=2).map(lambda values: np.sort(values)[::-1]),
    mean=hnp.arrays(np.float64, 2, elements=NUMBER),
    numbers=st.tuples(NUMBER, NUMBER).filter(lambda numbers: np.isfinite(numbers).all()),
    centered=st.booleans(),
)
def test_no_numbers_make_loading_a_subspace_fail_otherwise(
    components, singular_values, mean, numbers, centered, tmp_path
):
    arrays = {
        "components": components,
        "singular_values": singular_values,
        "mean": mean if centered else np.zeros(2),
    }
    facts = {"count": numbers[0], "total": numbers[1], "centered": centered, "feature_names": None}
    model_file.write(tmp_path / "model", "subspace", arrays, {**facts, "certificate": None})
    assert_refused_or_valid(tmp_path / "model")


@one_folder
@given(
    mean=hnp.arrays(np.float64, 2, elements=NUMBER),
    scatter=hnp.arrays(np.float64, (2, 2), elements=NUMBER),
    count=NUMBER.filter(np.isfinite),
    symmetric=st.booleans(),
)
def test_no_numbers_make_loading_moments_fail_otherwise(mean, scatter, count, symmetric, tmp_path):
    scatter = np.maximum(scatter, scatter.T) if symmetric else scatter
    facts = {"count": count, "centered": True, "feature_names": None}
    model_file.write(tmp_path / "model", "moments", {"mean": mean, "scatter": scatter}, facts)
    assert_refused_or_valid(tmp_path / "model", Moments)
