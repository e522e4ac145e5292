"""Genotype files: .pgen against Pgenlib's own reading, prefixes, and variants matched to a list."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpca import StreamingPCA
from fedpca.errors import FileFormatError
from fedpca.genetics.variants import Relation, Variant, match_variants
from fedpca.readers import open_rows

bed_reader = pytest.importorskip("bed_reader", reason="it writes .bed files")

PEOPLE, VARIANTS = 23, 17
COMPLEMENT = dict(zip("ACGT", "TGCA", strict=True))


def genotypes(dosages=False, seed=5):
    """Copies of ALT, shape (PEOPLE, VARIANTS)."""
    rng = np.random.default_rng(seed)
    copies = rng.integers(0, 3, (PEOPLE, VARIANTS)).astype(np.float32)
    if dosages:
        copies = (rng.integers(0, 2**15 + 1, copies.shape) / 2**14).astype(np.float32)
    copies[::5, ::3] = np.nan
    return copies


def alleles(n=VARIANTS):
    return [("A", "G") if i % 2 else ("C", "A") for i in range(n)]


def write_pgen(path, copies, pairs=None, chromosome="1", dosages=False, psam=None, pvar=None):
    """A .pgen with its .pvar and .psam, by Pgenlib."""
    pgenlib = pytest.importorskip("pgenlib", reason="it writes .pgen files; see the extra genetics")
    n_people, n_variants = copies.shape
    settings = {"variant_ct": n_variants, "nonref_flags": False, "dosage_present": dosages}
    writer = pgenlib.PgenWriter(bytes(path), n_people, **settings)
    values = np.where(np.isnan(copies), -9, copies).T
    if dosages:
        writer.append_dosages_batch(np.ascontiguousarray(values, dtype=np.float32))
    else:
        writer.append_biallelic_batch(np.ascontiguousarray(values, dtype=np.int8))
    writer.close()
    lines = [
        f"{chromosome}\t{100 + i}\trs{i}\t{ref}\t{alt}"
        for i, (ref, alt) in enumerate(pairs or alleles(n_variants))
    ]
    header = "##source=test\n#CHROM\tPOS\tID\tREF\tALT\n"
    path.with_suffix(".pvar").write_text(pvar or header + "\n".join(lines) + "\n")
    people = "#IID\tSEX\ttrait\n" + "".join(f"p{i}\tNA\t{i}.5\n" for i in range(n_people))
    path.with_suffix(".psam").write_text(psam or people)
    return path


def write_bed(path, copies, pairs=None, numbers=None):
    """A .bed that counts the second of each pair of alleles."""
    pairs = pairs or alleles(copies.shape[1])
    numbers = range(len(pairs)) if numbers is None else numbers
    properties = {
        "chromosome": ["chr1"] * len(pairs),
        "bp_position": [100 + i for i in numbers],
        "sid": [f"rs{i}" for i in numbers],
        "allele_1": [counted for _, counted in pairs],
        "allele_2": [other for other, _ in pairs],
    }
    bed_reader.to_bed(path, np.ascontiguousarray(copies), properties=properties, num_threads=1)
    return path


def read(path, **settings):
    opened = open_rows(path, **settings)
    return np.concatenate([batch.rows for batch in opened.batches()]), opened


@pytest.mark.client
class TestPgen:
    @pytest.mark.parametrize("dosages", [False, True])
    @given(size=st.integers(1, 30), skip=st.integers(0, PEOPLE - 1), held=st.integers(1, 900))
    def test_as_pgenlib_reads_it(self, tmp_path_factory, dosages, size, skip, held):
        path = tmp_path_factory.mktemp("pgen") / "study.pgen"
        write_pgen(path, genotypes(dosages), dosages=dosages)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedpca.genetics.pgen._HELD_BYTES", held)
            patch.setattr("fedpca.genetics.pgen._CHUNK_ENTRIES", held)
            opened = open_rows(path, batch_rows=size)
            rows = np.concatenate([batch.rows for batch in opened.batches(skip)])
        expected = np.empty((VARIANTS, PEOPLE), np.float32)
        pgenlib = pytest.importorskip("pgenlib")
        pgenlib.PgenReader(bytes(path)).read_dosages_range(0, VARIANTS, expected)
        expected[expected == -9] = np.nan
        np.testing.assert_array_equal(rows, expected.T[skip:])
        np.testing.assert_array_equal(rows, genotypes(dosages)[skip:])
        assert opened.feature_names[:2] == ("1:100:C:A", "1:101:A:G")
        assert opened.dtype == np.float32

    def test_people_are_passed_through(self, tmp_path):
        path = write_pgen(tmp_path / "study.pgen", genotypes())
        (batch,) = open_rows(path, passthrough=["iid", "trait"]).batches()
        assert batch.passthrough["iid"][7] == "p7"
        assert batch.passthrough["trait"][3] == "3.5"
        write_pgen(path, genotypes(), psam="".join(f"f{i} p{i} dad mum 1 -9\n" for i in range(PEOPLE)))
        (batch,) = open_rows(path, passthrough=["fid", "father", "mother", "sex"]).batches()
        assert [values[2] for values in batch.passthrough.values()] == ["f2", "dad", "mum", "1"]

    def test_compressed_variants_and_a_folder(self, tmp_path):
        pa = pytest.importorskip("pyarrow")
        path = write_pgen(tmp_path / "study.pgen", genotypes())
        with pa.output_stream(str(tmp_path / "study.pvar.zst"), compression="zstd") as file:
            file.write(path.with_suffix(".pvar").read_bytes())
        path.with_suffix(".pvar").unlink()
        rows, opened = read(tmp_path)
        np.testing.assert_array_equal(rows, genotypes())
        assert opened.feature_names[1] == "1:101:A:G"

    def test_a_prefix_stands_for_the_files_as_in_plink(self, tmp_path):
        write_bed(tmp_path / "north.v2.bed", genotypes())
        np.testing.assert_array_equal(read(tmp_path / "north.v2")[0], genotypes())
        write_pgen(tmp_path / "north.v2.pgen", genotypes(seed=6))
        np.testing.assert_array_equal(read(tmp_path / "north.v2")[0], genotypes(seed=6))
        with pytest.raises(FileNotFoundError, match="south: no such file"):
            open_rows(tmp_path / "south")

    def test_some_variants_of_many_are_read_in_any_order(self, tmp_path):
        path = write_pgen(tmp_path / "study.pgen", genotypes(dosages=True), dosages=True)
        rows, opened = read(path, columns=["1:105:A:G", "1:101:A:G", "1:102:C:A"])
        np.testing.assert_array_equal(rows, genotypes(dosages=True)[:, [5, 1, 2]])
        assert opened.matches[0].is_exact
        rows, _ = read(path, columns=["1:105:A:G", "1:101:A:G"], drop=["1:105:A:G"])
        np.testing.assert_array_equal(rows, genotypes(dosages=True)[:, [1]])

    def test_a_fit_and_a_transform(self, tmp_path):
        path = write_pgen(tmp_path / "study.pgen", np.nan_to_num(genotypes()))
        (batch,) = open_rows(path).batches()
        pca = StreamingPCA(2).partial_fit(batch)
        assert pca.transform(batch).shape == (PEOPLE, 2)

    @pytest.mark.parametrize(
        ("change", "rule"),
        [
            (lambda p: p.with_suffix(".pvar").unlink(), r"study\.pvar is missing beside the \.pgen"),
            (lambda p: p.with_suffix(".psam").unlink(), r"study\.psam is missing beside the \.pgen"),
            (lambda p: p.with_suffix(".psam").write_text("#IID\np1\n"), "23 people .* study.psam 1 people"),
            (lambda p: p.with_suffix(".psam").write_text("#SEX\n1\n"), "header must have IID"),
            (lambda p: p.with_suffix(".psam").write_text("#IID\tSEX\np1\n"), "person 1: expected 2 fields"),
            (lambda p: p.with_suffix(".pvar").write_text("1 rs1 0 5 A C\n"), "17 variants.*pvar 1 variants"),
            (lambda p: p.with_suffix(".pvar").write_text("#CHROM\tPOS\n"), "header must have ALT, ID, REF"),
            (lambda p: p.with_suffix(".pvar").write_text("1 rs1 0 x A C\n"), "line 1: positions must be"),
            (lambda p: p.with_suffix(".pvar").write_bytes(gzip.compress(b"1")), "study.pvar must be text"),
            (lambda p: p.write_bytes(b"hello world, hello"), "must be a PLINK .pgen file"),
            (lambda p: p.write_bytes(b"\x6c\x1b\x01" + bytes(20)), "is a PLINK 1 .bed file"),
            (lambda p: p.write_bytes(p.read_bytes()[:40]), "not a valid PLINK .pgen file .truncated"),
        ],
    )
    def test_bad_files(self, tmp_path, change, rule):
        path = write_pgen(tmp_path / "study.pgen", genotypes())
        change(path)
        with pytest.raises(FileFormatError, match=rule):
            open_rows(path)

    @pytest.mark.parametrize("dosages", [False, True])
    def test_a_truncated_file_is_noticed_while_it_is_read(self, tmp_path, dosages):
        path = write_pgen(tmp_path / "study.pgen", genotypes(dosages), dosages=dosages)
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(FileFormatError, match=r"not a valid PLINK \.pgen file"):
            read(path)

    def test_variants_with_three_alleles_are_refused_unless_not_wanted(self, tmp_path):
        path = write_pgen(tmp_path / "study.pgen", genotypes())
        path.unlink()
        pgenlib = pytest.importorskip("pgenlib")
        writer = pgenlib.PgenWriter(bytes(path), 3, variant_ct=3, nonref_flags=False, allele_ct_limit=3)
        for codes, count in (([0, 0, 0, 1, 1, 1], 2), ([0, 1, 0, 2, 1, 2], 3), ([1, 1, 0, 1, -9, -9], 2)):
            writer.append_alleles(np.array(codes, np.int32), allele_ct=count)
        writer.close()
        lines = ["1\t5\trs1\tA\tC", "1\t6\trs2\tA\tC,G", "1\t7\trs3\tG\tT"]
        path.with_suffix(".pvar").write_text("#CHROM\tPOS\tID\tREF\tALT\n" + "\n".join(lines) + "\n")
        path.with_suffix(".psam").write_text("#IID\na\nb\nc\n")
        with pytest.raises(FileFormatError, match=r"1:6:A:C,G has more; .*--max-alleles 2"):
            open_rows(path)
        rows, opened = read(path, columns=["1:7:G:T", "1:6:A:C", "1:5:A:C"])
        np.testing.assert_array_equal(rows, [[2, np.nan, 0], [1, np.nan, 1], [np.nan, np.nan, 2]])
        assert opened.matches[0].missing == ("1:6:A:C",)


class TestMatching:
    @given(data=st.data())
    def test_random_flips_are_undone(self, tmp_path_factory, data):
        """The same genotypes in a file with other counted alleles, strands and order, and some left out."""
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        letters = "ACGT"
        pairs = [tuple(letters[i] for i in rng.choice(4, 2, replace=False)) for _ in range(VARIANTS)]
        names = tuple(f"1:{100 + i}:{ref}:{alt}" for i, (ref, alt) in enumerate(pairs))
        copies = genotypes(seed=int(rng.integers(1000)))
        swap, turn = rng.uniform(size=(2, VARIANTS)) < 0.4
        there, theirs = np.where(swap, 2 - copies, copies), []
        for (ref, alt), swapped, turned in zip(pairs, swap, turn, strict=True):
            ref, alt = (COMPLEMENT[ref], COMPLEMENT[alt]) if turned else (ref, alt)
            theirs.append((alt, ref) if swapped else (ref, alt))
        kept = np.sort(rng.choice(VARIANTS, size=int(rng.integers(5, VARIANTS + 1)), replace=False))
        # By position: the file's order is its own.
        folder = tmp_path_factory.mktemp("flips")
        order = rng.permutation(kept)
        path = write_bed(folder / "south.bed", there[:, order], [theirs[i] for i in order], order)
        ambiguous = {i for i, (ref, alt) in enumerate(pairs) if COMPLEMENT[ref] == alt}
        if len(set(kept) - ambiguous) < 2:
            return
        rows, opened = read(path, columns=names)
        (match,) = opened.matches
        file_names = {f"1:{100 + i}:{theirs[i][0]}:{theirs[i][1]}" for i in kept}
        if set(names) <= file_names:
            ambiguous = set()
        assert set(match.ambiguous) == {names[i] for i in ambiguous}
        assert set(match.missing) == {names[i] for i in range(VARIANTS) if i not in kept} - {*match.ambiguous}
        expected = copies.copy()
        lost = [i for i in range(VARIANTS) if i in ambiguous or i not in kept]
        expected[:, lost] = np.nan
        np.testing.assert_array_equal(rows, expected)
        used = [i for i in kept if i not in ambiguous]
        assert match.to_json()["swapped"] == int(swap[used].sum())
        assert match.to_json()["other_strand"] == int(turn[used].sum())
        assert match.to_json()["found"] == len(used)

    @pytest.mark.client
    def test_bed_and_pgen_of_the_same_people_are_the_same(self, tmp_path):
        bed = write_bed(tmp_path / "a.bed", genotypes(), [(alt, ref) for ref, alt in alleles()])
        pgen = write_pgen(tmp_path / "b.pgen", 2 - genotypes())
        names = open_rows(pgen).feature_names
        rows, opened = read(bed, columns=names)
        np.testing.assert_array_equal(rows, read(pgen)[0])
        assert str(opened.matches[0]).endswith("a.bed: 17 of 17 variants found, 17 with swapped alleles")

    def test_ids_and_alleles_of_an_older_model(self, tmp_path):
        pairs = [("A", "G"), ("C", "A"), ("T", "C"), ("A", "T")] * 3
        bed = write_bed(tmp_path / "a.bed", genotypes()[:, :12], pairs)
        names = ("rs0_G", "rs1_C", "rs2_A", "rs3_T", "rs99_A")
        rows, opened = read(bed, columns=names)
        expected = genotypes()[:, [0, 1, 2, 3, 4]]
        expected[:, 1:3] = 2 - expected[:, 1:3]
        expected[:, 3:] = np.nan
        np.testing.assert_array_equal(rows, expected)
        assert opened.matches[0].ambiguous == ("rs3_T",)
        assert opened.matches[0].missing == ("rs99_A",)

    @pytest.mark.parametrize(
        ("file", "wanted", "relation"),
        [
            (("G", "0"), "1:5:G:A", Relation.SAME),
            (("G", "0"), "1:5:A:G", Relation.SWAPPED),
            (("G", "."), "1:5:C:T", Relation.STRAND),
            (("G", "0"), "1:5:T:C", Relation.STRAND_SWAPPED),
            (("AT", "A"), "1:5:A:AT", Relation.SWAPPED),
            (("G", "0"), "rs1_G", Relation.SWAPPED),
        ],
    )
    def test_an_allele_that_nobody_has_and_insertions(self, tmp_path, file, wanted, relation):
        match = match_variants(tmp_path, [Variant("1", 5, "rs1", *file)], (wanted,))
        assert match.sources == ((0, relation),)

    def test_the_nearest_of_several_variants_at_a_position_is_taken(self, tmp_path):
        here = [
            Variant("1", 5, "a", "G", "A"),
            Variant("1", 5, "b", "A", "G"),
            Variant("1", 5, "c", "T", "C"),
        ]
        assert match_variants(tmp_path, here, ("1:5:A:G",)).sources == ((1, Relation.SAME),)
        with pytest.raises(FileFormatError, match=r"1:5:A:G appears twice.*--rm-dup"):
            match_variants(tmp_path, [*here, here[1]], ("1:5:A:G",))

    def test_a_file_that_has_all_names_keeps_ambiguous_ones(self, tmp_path):
        here = [Variant("1", 5, "a", "A", "T"), Variant("1", 6, "b", "A", "G")]
        assert match_variants(tmp_path, here, ("1:6:A:G", "1:5:A:T")).is_exact
        left_out = match_variants(tmp_path, here, ("1:6:G:A", "1:5:A:T"))
        assert left_out.ambiguous == ("1:5:A:T",)

    def test_another_genome_build_is_one_error(self, tmp_path):
        here = [Variant("1", 1000 + i, f"rs{i}", "A", "G") for i in range(100)]
        names = tuple(f"1:{i}:A:G" for i in range(5000, 5100))
        with pytest.raises(FileFormatError, match="0 have their position in the file: it must have the same"):
            match_variants(tmp_path / "a.pgen", here, names)
        names = tuple(f"1:{1000 + i}:ACC:AC" for i in range(100))
        with pytest.raises(FileFormatError, match="100 have their position in the file, but only 0 their al"):
            match_variants(tmp_path / "a.pgen", here, names)
        with pytest.raises(FileFormatError, match="1 variant wanted, such as rs999_A, 0 have their id"):
            match_variants(tmp_path / "a.pgen", here, ("rs999_A",))
