"""Several biobanks on the command line: alleles, scale, merge, plink2, and scores that do not shrink."""

import json
import re
import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
from command_line import invoke
from sklearn.decomposition import PCA
from test_genotypes import write_bed

import fedpca
from fedpca.genetics import count_alike, read_list, read_plink2, write_plink2
from fedpca.summaries.shrinkage import shrinkage_factors

pytestmark = pytest.mark.slow  # all of it together

N_VARIANTS = 60
PAIRS = [("A", "G"), ("C", "A"), ("G", "T"), ("T", "C")] * (N_VARIANTS // 4)
NAMES = tuple(f"1:{100 + i}:{other}:{counted}" for i, (other, counted) in enumerate(PAIRS))
COMPLEMENT = dict(zip("ACGT", "TGCA", strict=True))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def people(n_people, seed, missing=0.0):
    """Copies of an allele of people of two populations."""
    rng, frequencies = (
        np.random.default_rng(seed),
        np.random.default_rng(0).uniform(0.1, 0.9, (2, N_VARIANTS)),
    )
    copies = rng.binomial(2, frequencies[rng.integers(2, size=n_people)]).astype(float)
    copies[rng.uniform(size=copies.shape) < missing] = np.nan
    return copies


def write_biobanks(folder, missing=0.0):
    """North as it is; south with other counted alleles and strands."""
    north, south = people(80, 1, missing), people(50, 2, missing)
    write_bed(folder / "north.bed", north, PAIRS)
    swap, turn = np.random.default_rng(3).uniform(size=(2, N_VARIANTS)) < 0.4
    pairs = [
        tuple(COMPLEMENT[a] for a in pair) if turned else pair
        for pair, turned in zip(PAIRS, turn, strict=True)
    ]
    pairs = [pair[::-1] if swapped else pair for pair, swapped in zip(pairs, swap, strict=True)]
    write_bed(folder / "south.bed", np.where(swap, 2 - south, south), pairs)
    return north, south


def run(*arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warnings, "filters", [])
        return invoke(arguments)


def run_ok(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_fails(*arguments):
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


def two_rounds(folder, n_components=2):
    """The model of both biobanks, as docs/how-to/ancestry.md has it."""
    names = ("north", "south")
    for name in names:
        run_ok("scale", name, "--variants", "north.bim", "-o", f"{name}-scale.safetensors")
    run_ok("merge", *(f"{name}-scale.safetensors" for name in names), "-o", "scale.safetensors")
    for name in names:
        run_ok(
            "fit", name, "--variants", "scale.safetensors", "--scale", "binomial:scale.safetensors",
            "-n", n_components, "--oversample", 50, "-o", f"{name}.safetensors",
        )  # fmt: skip
    run_ok("merge", *(f"{name}.safetensors" for name in names), "-o", "all.safetensors")
    return fedpca.load(folder / "all.safetensors")


def standardized(*parts):
    rows = np.concatenate(parts)
    share = np.nanmean(rows, axis=0) / 2
    return (rows - 2 * share) / np.sqrt(2 * share * (1 - share))


def scores_in(path):
    return np.loadtxt(path, delimiter=",", skiprows=1, usecols=(1, 2))


class TestCommands:
    def test_two_rounds_give_the_pca_of_all_genotypes(self, folder):
        parts = write_biobanks(folder)
        model = two_rounds(folder)
        pooled = PCA(2).fit(standardized(*parts))
        np.testing.assert_allclose(
            model.subspace(2).components.T @ model.subspace(2).components,
            pooled.components_.T @ pooled.components_,
            atol=1e-6,
        )
        printed = run_ok("transform", "all.safetensors", "south", "--keep", "iid", "-o", "south.csv")
        assert "south.bed: 60 of 60 variants found, " in printed
        expected = pooled.transform(standardized(*parts))[80:]
        np.testing.assert_allclose(np.abs(scores_in("south.csv")), np.abs(expected), atol=1e-4)

    def test_models_that_count_other_alleles_merge_as_if_they_counted_the_same(self, folder):
        parts = write_biobanks(folder)
        for name in ("north", "south"):
            run_ok("fit", name, "-n", 3, "-o", f"{name}.safetensors")
        printed = run_ok("merge", "north.safetensors", "south.safetensors", "-o", "all.safetensors")
        assert "south.safetensors: 60 of 60 variants found, " in printed
        merged, pooled = fedpca.load("all.safetensors"), fedpca.Moments.from_rows(np.concatenate(parts))
        assert merged.feature_names == NAMES
        np.testing.assert_allclose(merged.mean, pooled.mean)
        np.testing.assert_allclose(merged.scatter, pooled.scatter, atol=1e-9)

    def test_a_list_names_what_was_done_in_one_line_and_in_json(self, folder):
        write_biobanks(folder)
        (folder / "list.txt").write_text("\n".join([*NAMES[:50], "1:999:A:G", "1:100:A:T"]))
        command = ["fit", "south.bed", "--variants", "list.txt", "-n", "2", "-o"]
        line = run_ok(*command, "a.safetensors").splitlines()[1]
        assert line.startswith("south.bed: 50 of 51 variants found, ")
        assert line.endswith("1 missing: 1:999:A:G; of list.txt 1 ambiguous (A/T, C/G) left out: 1:100:A:T")
        described = json.loads(run_ok(*command, "b.safetensors", "--json"))
        assert described["variant_list"] == {"file": "list.txt", "wanted": 51, "ambiguous": ["1:100:A:T"]}
        (found,) = described["variants"]
        assert found["missing"] == ["1:999:A:G"]
        assert found["found"] == 50
        assert fedpca.load("a.safetensors").feature_names == (*NAMES[:50], "1:999:A:G")

    def test_a_model_with_ids_for_names_still_transforms(self, folder):
        write_biobanks(folder)
        (folder / "list.txt").write_text(
            "".join(f"rs{i}_{counted}\n" for i, (_, counted) in enumerate(PAIRS))
        )
        run_ok("fit", "north", "--variants", "list.txt", "-n", 2, "-o", "old.safetensors")
        run_ok("fit", "north", "-n", 2, "-o", "new.safetensors")
        for name in ("old", "new"):
            run_ok("transform", f"{name}.safetensors", "south", "--keep", "iid", "-o", f"{name}.csv")
        assert fedpca.load("old.safetensors").feature_names[0] == "rs0_G"
        np.testing.assert_allclose(scores_in("old.csv"), scores_in("new.csv"), atol=1e-5)

    def test_chromosomes_of_the_same_people_are_not_other_people(self, folder):
        north, _ = write_biobanks(folder)
        half = N_VARIANTS // 2
        write_bed(folder / "chr1.bed", north[:, :half], PAIRS[:half], range(half))
        write_bed(folder / "chr2.bed", north[:, half:], PAIRS[half:], range(half, N_VARIANTS))
        for options in ([], ["--variants", "north"]):
            message = run_fails("fit", "chr1", "chr2", *options, "-n", 2, "-o", "o.safetensors")
            assert "chr1.bed and chr2.bed have no variant in common; put chromosomes together" in message

    def test_scores_that_do_not_shrink(self, folder):
        write_biobanks(folder)
        run_ok("fit", "north", "-n", 1, "-o", "north.safetensors")
        for options in ([], ["--shrinkage", "asymptotic"]):
            out = f"scores{len(options)}.npy"
            run_ok("transform", "north.safetensors", "south", "-o", out, *options)
        ratio = np.load("scores0.npy") / np.load("scores2.npy")
        model = fedpca.load("north.safetensors").subspace()
        np.testing.assert_allclose(ratio, shrinkage_factors(model, 1)[0], rtol=1e-5)
        assert ratio.max() < 1

    def test_what_goes_wrong_is_one_line(self, folder):
        north, _ = write_biobanks(folder)
        run_ok("fit", "north", "-n", 2, "-o", "plain.safetensors")
        run_ok("scale", "north", "-o", "scale.safetensors")
        np.save("table.npy", north)
        write_bed(folder / "build.bed", north, PAIRS, range(5000, 5000 + N_VARIANTS))
        Path("table.csv").write_text("age,dose\n1,2\n3,5\n2,2\n")
        run_ok("fit", "table.csv", "-n", 1, "-o", "table.safetensors")
        run_ok("scale", "south", "-o", "south-scale.safetensors")
        fedpca.load("scale.safetensors").with_names((*NAMES[:-1], "2:1:A:G")).save("other-scale.safetensors")
        for command, rule in (
            ("transform plain.safetensors build -o o.csv", "0 have their position in the file: it must have"),
            ("fit build --variants scale.safetensors -o o.safetensors", "must have the same genome build"),
            ("fit table.npy --variants scale.safetensors -o o.safetensors", "--variants is for genotypes"),
            ("fit north --variants nothing.pvar -o o.safetensors", "nothing.pvar: no such file"),
            ("fit north --variants table.npy -o o.safetensors", "must be text with one variant per line"),
            (
                "transform table.safetensors north -o o.csv",
                "rs123_A, and 'age' is no variant; use other rows",
            ),
            (
                "fit north --scale binomial:south-scale.safetensors -o o.safetensors",
                "variants must be those of south-scale.safetensors, in its order; pass --variants south",
            ),
            (
                "merge scale.safetensors other-scale.safetensors -o o.safetensors",
                "and only another '2:1:A:G'; select the same columns, or leave out what not all have with "
                "--features intersection",
            ),
            ("fit north --scale binomial:plain.safetensors -o o.safetensors", "but is a model"),
            (
                "merge plain.safetensors scale.safetensors -o o.safetensors",
                "must all be models, or all of fedpca",
            ),
            ("transform scale.safetensors north -o o.csv", "must be a model, but is a Scaling"),
            (
                "export plain.safetensors --plink2 out",
                r"needs scale sqrt(2 p (1 - p)), and that of the model is none",
            ),
            ("import --plink2 nothing -o o.safetensors", "nothing.afreq is missing beside the loadings"),
        ):
            assert rule in run_fails(*command.split())
        run_ok("fit", "table.npy", "-n", 2, "--scale", "binomial", "-o", "unnamed.safetensors")
        assert "variants, such as 1:55516888:G:A, got unnamed" in run_fails(
            "export", "unnamed.safetensors", "--plink2", "out"
        )
        assert run("export", "plain.safetensors").exit_code == 2
        assert (
            run("fit", "north", "--variants", "north", "--columns", "a", "-o", "o.safetensors").exit_code == 2
        )
        assert not {*folder.glob("o.*"), *folder.glob("out*")}


class TestAlleles:
    @pytest.mark.parametrize("scale", [None, "std", "numbers"])
    @pytest.mark.parametrize("kind", [fedpca.Subspace, fedpca.Moments])
    def test_a_turned_model_is_that_of_turned_genotypes(self, kind, scale):
        copies = people(40, 5)
        numbers = np.linspace(0.5, 1.5, N_VARIANTS) if scale == "numbers" else scale
        swap = np.arange(N_VARIANTS) % 3 == 0
        names = tuple(
            f"1:{100 + i}:{b}:{a}" if swap[i] else f"1:{100 + i}:{a}:{b}" for i, (a, b) in enumerate(PAIRS)
        )
        first = kind.from_rows(copies, scale=numbers).with_about(names=NAMES)
        other = kind.from_rows(np.where(swap, 2 - copies, copies), scale=numbers).with_about(names=names)
        (_, turned), (match,) = count_alike([first, other], ["a", "b"])
        assert turned.feature_names == NAMES
        np.testing.assert_allclose(turned.subspace().mean, first.subspace().mean)
        np.testing.assert_allclose(turned.subspace().scatter, first.subspace().scatter, atol=1e-9)
        assert match.to_json()["swapped"] == swap.sum()

    def test_variants_that_one_does_not_know_stay_unknown(self):
        copies = people(40, 5)
        copies[:, 3] = np.nan
        pca = fedpca.StreamingPCA(2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pca.fit(copies)
        names = (*NAMES[:3], "1:103:C:T", *NAMES[4:])
        (_, turned), _ = count_alike(
            [
                fedpca.Subspace.from_rows(people(9, 1)).with_about(names=NAMES),
                pca.subspace_.with_about(names=names),
            ],
            "ab",
        )
        assert turned.mean[3] == 0
        assert turned.observed[3] == 0

    def test_ambiguous_ones_are_left_out_of_what_had_to_be_matched(self):
        rows = people(20, 1)[:, :3]
        names = ("1:100:A:G", "1:101:A:T", "1:102:C:T")
        first = fedpca.Moments.from_rows(rows).with_about(names=names)
        other = fedpca.Moments.from_rows(rows).with_about(names=("1:100:G:A", *names[1:]))
        (_, turned), (match,) = count_alike([first, other], ["a", "b"])
        assert turned.feature_names == ("1:100:A:G", "1:102:C:T")
        assert match.ambiguous == ("1:101:A:T",)

    def test_uncentered_models_are_not_turned(self):
        rows = people(20, 1)[:, :1]
        models = [
            fedpca.Subspace.from_rows(rows, center=False).with_about(names=[name])
            for name in ("1:5:A:G", "1:5:G:A")
        ]
        with pytest.raises(ValueError, match="must be centered"):
            count_alike(models, ["a", "b"])

    def test_features_that_are_no_variants_are_left_alone(self):
        models = [
            fedpca.Subspace.from_rows(people(9, 1)[:, :2]).with_about(names=names)
            for names in (["a", "b"], ["b", "a"])
        ]
        assert count_alike(models, ["a", "b"]) == (models, [])


def test_lists(folder):
    write_biobanks(folder)
    fedpca.Scaling.from_rows(people(9, 1)).with_names(NAMES).save("scale.safetensors")
    for path in ("north", "north.bed", "north.bim", "scale.safetensors"):
        assert read_list(path).names == NAMES
    fedpca.Scaling.from_rows(people(9, 1)).save("unnamed.safetensors")
    with pytest.raises(ValueError, match="must be a model of variants"):
        read_list("unnamed.safetensors")
    names = [f"1:{i}:A:{'TG'[i % 2]}" for i in range(100_000)]
    (folder / "long.txt").write_text("\n".join(names))
    assert read_list("long.txt").ambiguous == tuple(names[::2])
    for name, text in (("marked.txt", NAMES[0]), ("marked.bim", "1\trs0\t0\t100\tG\tA")):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n")  # as Windows may save it
        assert read_list(name).names == NAMES[:1]
    (folder / "list.txt").write_text("# panel\nrs1\n")
    with pytest.raises(ValueError, match=r"list\.txt, line 2: variants must be named as in 1:55516888:G:A"):
        read_list("list.txt")


class TestPlink2Files:
    @pytest.fixture
    def model(self, folder):
        write_biobanks(folder, missing=0.02)
        return two_rounds(folder).subspace(2)

    def test_files_give_the_scores_by_their_own_arithmetic(self, folder, model):
        """What plink2 computes, from the text of the files."""
        assert write_plink2(model, "out") == N_VARIANTS
        table = np.loadtxt("out.tsv", skiprows=1, usecols=(2, 3))
        share = np.loadtxt("out.afreq", skiprows=1, usecols=4)
        rows = people(30, 9)
        expected = (rows - 2 * share) / np.sqrt(2 * share * (1 - share)) @ table
        np.testing.assert_allclose(model.project(rows), expected, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(np.loadtxt("out.eigenval"), model.singular_values**2 / 129)

    def test_they_come_back_as_the_model(self, folder, model):
        write_plink2(model, "out")
        back, rows = read_plink2("out"), people(30, 9)
        np.testing.assert_allclose(back.project(rows), model.project(rows), rtol=1e-6, atol=1e-8)
        assert back.feature_names == model.feature_names
        assert back.count == pytest.approx(model.count)
        np.testing.assert_allclose(back.singular_values, model.singular_values)
        (folder / "out.eigenval").unlink()
        alone = read_plink2("out")
        np.testing.assert_allclose(alone.project(rows), model.project(rows), rtol=1e-6, atol=1e-8)
        with pytest.raises(ValueError, match="variance that the components leave out"):
            alone.project(rows, shrinkage="asymptotic")

    @pytest.mark.parametrize("factor", [1.0, 0.01])
    def test_a_published_reference_with_few_digits_and_variants_left_out(self, folder, model, factor):
        write_plink2(model, "out")
        header, *lines = (folder / "out.tsv").read_text().splitlines()
        fields = [line.split() for line in lines[3:]]
        lines = ["\t".join([f[0], f[1], *(f"{factor * float(x):.4g}" for x in f[2:])]) for f in fields]
        (folder / "out.tsv").write_text("\n".join([header, *lines]) + "\n")
        back, rows = read_plink2("out"), people(30, 9)
        table = np.loadtxt("out.tsv", skiprows=1, usecols=(2, 3))
        share = np.loadtxt("out.afreq", skiprows=4, usecols=4)
        expected = (rows[:, 3:] - 2 * share) / np.sqrt(2 * share * (1 - share)) @ table
        np.testing.assert_allclose(back.project(rows[:, 3:]), expected, rtol=1e-6, atol=1e-9)

    def test_ids_and_alleles_of_a_file(self, folder, model):
        write_plink2(model, "own")
        write_plink2(model, "south", variants="south.bim")
        rows = people(30, 9)
        swapped = read_plink2("south")
        assert swapped.feature_names[0].startswith("rs0_")
        bed = {line.split()[1]: line.split()[4:6] for line in (folder / "south.bim").read_text().splitlines()}
        for line in (folder / "south.afreq").read_text().splitlines()[1:]:
            _, name, ref, alt, *_ = line.split()
            assert bed[name] == [alt, ref]
        np.testing.assert_allclose(swapped.project(rows), model.project(rows), rtol=1e-6, atol=1e-8)

    @pytest.mark.parametrize(
        ("ending", "change", "rule"),
        [
            (".afreq", None, "is missing beside the loadings"),
            (".tsv", None, "no such file"),
            (".afreq", lambda text: text.replace("OBS_CT", "N"), "header must have OBS_CT"),
            (".afreq", lambda text: "\n".join(text.splitlines()[:5]), "line 6: 1:104:A:G has no frequency"),
            (".afreq", lambda text: text.replace("\tA\tG\t", "\tA\tG\t1."), "expected a number"),
            (".tsv", lambda text: text.replace("\tG\t", "\tT\t", 1), "A1 must be one of the alleles"),
            (".tsv", lambda text: text.replace("ID\t", "x\t"), "header must have ID, A1"),
            (".tsv", lambda text: text.rpartition("\t")[0], "expected 4 fields, got 3"),
            (".tsv", lambda text: text.splitlines()[0] + "\n", "contains no variants"),
            (".tsv", lambda text: text + text.splitlines()[3] + "\n", "ids must be unique, but '1:102"),
            (".afreq", lambda text: text + text.splitlines()[3] + "\n", "ids must be unique, but '1:102"),
            (".tsv", lambda text: "", "is empty"),
            (".tsv", lambda text: text.replace("ID", "\udc8b"), "must be text, and is not; decompress it"),
            (".tsv", lambda text: "\n".join(text.splitlines()[:4]), "must be orthogonal"),
            (".eigenval", lambda text: "1\n2\n", "must have one variance per component, 2, descending"),
        ],
    )  # fmt: skip
    def test_bad_files(self, folder, model, ending, change, rule):
        write_plink2(model, "out")
        path = folder / f"out{ending}"
        if change is None:
            path.unlink()
        else:
            path.write_text(change(path.read_text()), errors="surrogateescape")
        with pytest.raises((ValueError, FileNotFoundError), match=rule):
            read_plink2("out")

    def test_headers_in_lower_case(self, folder, model):
        write_plink2(model, "out")
        expected = read_plink2("out")
        for path in (folder / "out.tsv", folder / "out.afreq"):
            header, rest = path.read_text().split("\n", 1)
            path.write_text(f"{header.lower()}\n{rest}")
        assert read_plink2("out") == expected

    def test_ids_that_stand_for_several_variants_are_refused(self, folder, model):
        table = (folder / "north.bim").read_text()
        (folder / "dots.bim").write_text(re.sub(r"\trs[12]\t", "\t.\t", table))
        with pytest.raises(ValueError, match=r"dots\.bim: ids must be unique, but '\.' stands for several"):
            write_plink2(model, "out", variants="dots.bim")
        assert not list(folder.glob("out.*"))

    def test_what_the_files_lack_is_said(self, folder, model):
        table = (folder / "north.bim").read_text().splitlines(keepends=True)
        (folder / "some.bim").write_text("".join(table[2:]))
        with pytest.warns(UserWarning, match=r"will lack the variants that are left out.*; 2 missing: 1:100"):
            assert write_plink2(model, "out", variants="some.bim") == N_VARIANTS - 2
        on_x = model.with_about(names=[name.replace("1:", "X:", 1) for name in model.feature_names])
        with pytest.warns(UserWarning, match="refuses X, Y and MT, and X:100:A:G is one of 60"):
            write_plink2(on_x, "out")

    def test_a_prefix_names_ids_and_alleles(self, folder, model):
        for prefix, variants in (("a", "north"), ("b", "north.bed"), ("c", "north.bim")):
            write_plink2(model, prefix, variants=variants)
        assert len({(folder / f"{prefix}.tsv").read_text() for prefix in "abc"}) == 1
        with pytest.raises(FileNotFoundError, match="nothing: no such file; check the path"):
            write_plink2(model, "out", variants="nothing")
        np.save("table.npy", np.full(3, -1))
        with pytest.raises(ValueError, match=r"table\.npy must be text, as \.bim and \.pvar files are"):
            write_plink2(model, "out", variants="table.npy")
        assert not list(folder.glob("out.*"))

    @pytest.mark.filterwarnings("ignore:.*have no observed value")
    def test_transform_scores_by_the_components_that_are_exported(self, folder):
        """Also where biobanks have different variants, and with the signs of a published model."""
        north, south = people(150, 5), people(150, 6)
        share = np.concatenate([north, south]).mean(axis=0) / 2
        north[:, :30], south[:, 40:] = np.nan, np.nan
        given = {"scale": np.sqrt(2 * share * (1 - share)), "oversample": 20}
        fits = [fedpca.StreamingPCA(3, **given).fit(rows).subspace_ for rows in (north, south)]
        model = fedpca.merge(fits, 20).with_about(names=NAMES)
        assert model.parts
        model.save("parts.safetensors")
        rows = people(30, 9)
        write_bed(folder / "new.bed", rows, PAIRS)
        run_ok("export", "parts.safetensors", "--plink2", "out", "--components", 2)
        header, *lines = (folder / "out.tsv").read_text().splitlines()
        fields = [line.split() for line in lines]
        flipped = [f"{f[0]}\t{f[1]}\t{f[2]}\t{-float(f[3])!r}" for f in fields]  # as others may have it
        (folder / "flipped.tsv").write_text("\n".join([header, *flipped]) + "\n")
        shutil.copy("out.afreq", "flipped.afreq")
        run_ok("import", "--plink2", "flipped", "-o", "flipped.safetensors")
        for name, sign in (("parts", 1), ("flipped", -1)):
            table = np.loadtxt("out.tsv", skiprows=1, usecols=(2, 3)) * [1, sign]
            share = np.loadtxt("out.afreq", skiprows=1, usecols=4)
            expected = (rows - 2 * share) / np.sqrt(2 * share * (1 - share)) @ table
            run_ok(
                "transform",
                f"{name}.safetensors",
                "new",
                "--components",
                2,
                "--keep",
                "iid",
                "-o",
                f"{name}.csv",
            )
            np.testing.assert_allclose(scores_in(f"{name}.csv"), expected, atol=1e-5)

    def test_names_with_one_allele_need_a_file_with_both(self, folder, model):
        old = model.with_about(names=[f"rs{i}_{counted}" for i, (_, counted) in enumerate(PAIRS)])
        with pytest.raises(ValueError, match="needs both alleles of every variant"):
            write_plink2(old, "out")
        write_plink2(old, "out", variants="north.bim")
        np.testing.assert_allclose(
            read_plink2("out").project(people(9, 1)), old.project(people(9, 1)), rtol=1e-6
        )


@pytest.mark.client
class TestPlink2:
    """The real plink2 gives the scores of `fedpca transform`."""

    @pytest.mark.skipif(shutil.which("plink2") is None, reason="plink2 is not installed")
    @pytest.mark.parametrize("ids", ["names", "own"])
    def test_it_prints_the_scores_of_transform(self, folder, ids):
        write_biobanks(folder)
        model = two_rounds(folder)
        new = people(400, 7)
        pairs = [pair[::-1] if i % 2 else pair for i, pair in enumerate(PAIRS)]
        write_bed(folder / "new.bed", np.where(np.arange(N_VARIANTS) % 2, 2 - new, new), pairs)
        options, named = ["--variants", "new.bim"], []
        if (
            ids == "names"
        ):  # plink2 finds them by chr:pos:ref:alt, so the file's alleles must be in that order
            write_bed(folder / "new.bed", new, PAIRS)
            options, named = [], ["--set-all-var-ids", "@:#:$r:$a"]
        run_ok("export", "all.safetensors", "--plink2", "out", *options)
        run_ok("transform", "all.safetensors", "new", "--keep", "iid", "-o", "new.csv")
        plink2(*named)
        assert_printed(scores_in("new.csv"), sums())
        assert model.count == 130
        subprocess.run(
            ["plink2", "--bfile", "new", "--make-pgen", "--out", "pgen"], check=True, capture_output=True
        )
        run_ok("transform", "all.safetensors", "pgen", "--keep", "iid", "-o", "pgen.csv")
        assert_printed(scores_in("pgen.csv"), sums())

    @pytest.mark.skipif(shutil.which("plink2") is None, reason="plink2 is not installed")
    def test_missing_genotypes_are_average_there_and_estimated_here(self, folder):
        write_biobanks(folder)
        model = two_rounds(folder).subspace(2)
        new = people(40, 7)
        gaps = np.random.default_rng(1).uniform(size=new.shape) < 0.05
        gaps[::2] = False
        write_bed(folder / "new.bed", np.where(gaps, np.nan, new), PAIRS)
        run_ok("export", "all.safetensors", "--plink2", "out", "--variants", "new.bim")
        run_ok("transform", "all.safetensors", "new", "--keep", "iid", "-o", "new.csv")
        plink2()
        averages = np.where(gaps, model.mean * model.scale, new)
        assert_printed(model.project(averages), sums())
        scores = scores_in("new.csv")
        assert_printed(scores[::2], sums()[::2])
        assert np.abs(sums() - scores)[1::2].max() > 0.01


def plink2(*options):
    subprocess.run(
        [
            "plink2", "--bfile", "new", *options, "--read-freq", "out.afreq", "--score", "out.tsv",
            "header-read", "no-mean-imputation", "variance-standardize", "cols=scoresums",
            "--score-col-nums", "3-4", "--out", "new",
        ],
        check=True, capture_output=True,
    )  # fmt: skip


def assert_printed(scores, printed):
    """Scores are those printed, to the last of six significant digits: off by half a unit of it at most."""
    half_a_unit = 0.5 * 10.0 ** (np.floor(np.log10(np.abs(printed))) - 5)
    excess = np.abs(scores - printed) - half_a_unit - 1e-9 * np.abs(scores)
    assert excess.max() <= 0, f"{(excess > 0).sum()} of {excess.size} scores differ in a printed digit"


def sums():
    header, *lines = (line.split() for line in Path("new.sscore").read_text().splitlines())
    columns = [header.index(f"PC{i}_SUM") for i in (1, 2)]
    return np.array([[float(fields[column]) for column in columns] for fields in lines])


class TestShrinkage:
    @pytest.mark.parametrize("carried", [None, 12])
    def test_scores_of_new_rows_are_those_of_rows_in_the_fit(self, carried):
        """Slopes of projected scores on those that left-out rows have in the fit of all rows."""
        rng = np.random.default_rng(4)
        n_rows, n_features = 300, 1200
        directions = np.linalg.qr(rng.normal(size=(n_features, 2)))[0].T
        rows = rng.normal(size=(n_rows, 2)) * np.sqrt([120.0, 50.0]) @ directions
        rows += rng.normal(size=(n_rows, n_features)) * rng.uniform(0.5, 1.4, n_features)
        whole = PCA(2, svd_solver="full").fit(rows)
        inside, projected = (
            whole.transform(rows),
            {None: np.zeros((n_rows, 2)), "asymptotic": np.zeros((n_rows, 2))},
        )
        for fold in np.array_split(np.arange(n_rows), 15):
            others = fedpca.Subspace.from_rows(np.delete(rows, fold, axis=0), rank=carried)
            pca = fedpca.StreamingPCA(2).merge(others)
            signs = np.sign(np.sum(pca.components_ * whole.components_, axis=1))
            for how, scores in projected.items():
                scores[fold] = pca.transform(rows[fold], shrinkage=how) * signs
        slope = {
            how: np.sum(scores * inside, axis=0) / np.sum(inside**2, axis=0)
            for how, scores in projected.items()
        }
        assert (slope[None] < 0.97).all()
        np.testing.assert_allclose(slope["asymptotic"], 1.0, atol=0.02)

    def test_factors_are_those_of_the_spiked_model(self):
        """With noise of variance 1, l = factor * d, where d = l (1 + g / (l - 1))."""
        rows, features, spikes = 1500, 3000, np.array([40.0, 12.0, 6.0])
        ratio = features / rows
        sample = spikes * (1 + ratio / (spikes - 1))
        total = sample.sum() + features * (1 - 3 / rows)
        model = fedpca.Subspace(
            np.eye(3, features),
            np.sqrt(rows * sample),
            np.zeros(features),
            rows,
            rows * total,
            centered=False,
        )
        np.testing.assert_allclose(shrinkage_factors(model, 3), spikes / sample, atol=2e-3)
        np.testing.assert_allclose(
            shrinkage_factors(model, 3), (spikes - 1) / (spikes - 1 + ratio), atol=2e-3
        )

    def test_few_features_of_many_rows_hardly_shrink(self):
        rows = np.random.default_rng(0).normal(size=(20_000, 5)) * [5, 1, 1, 1, 1]
        factors = shrinkage_factors(fedpca.Subspace.from_rows(rows), 1)
        assert 0.999 < factors[0] < 1

    def test_the_same_by_subspace_and_estimator_whitened_or_not(self):
        rows = np.random.default_rng(0).normal(size=(60, 200)) * np.linspace(3, 0.5, 200)
        model = fedpca.Subspace.from_rows(rows, rank=2)
        pca = fedpca.StreamingPCA(2, whiten=True).merge(model)
        expected = model.project(rows, shrinkage="asymptotic") / np.sqrt(pca.explained_variance_)
        np.testing.assert_allclose(pca.transform(rows, shrinkage="asymptotic"), expected)
        assert np.abs(expected).max() > np.abs(pca.transform(rows)).max()

    def test_equal_variances_are_not_divided_by_zero(self):
        model = fedpca.Subspace(np.eye(2, 9), [3.0, 3.0], np.zeros(9), 20, 30.0)
        assert np.isfinite(shrinkage_factors(model, 1)).all()

    def test_what_cannot_be_corrected(self):
        rows = np.random.default_rng(0).normal(size=(60, 3))
        model = fedpca.Subspace.from_rows(rows)
        with pytest.raises(ValueError, match="shrinkage must be None or 'asymptotic', got shrinkage='oadp'"):
            model.project(rows, shrinkage="oadp")
        with pytest.raises(
            ValueError, match="variance that the components leave out, and the model has none"
        ):
            model.project(rows, shrinkage="asymptotic")
        pca = fedpca.PrivatePCA(2, epsilon=8.0, delta=1e-5, bound=3.0, center=None).fit(rows)
        with pytest.raises(ValueError, match="cannot be corrected in a private model"):
            pca.release().subspace(1).project(rows, shrinkage="asymptotic")

    def test_an_estimator_that_merged_a_private_summary_has_its_noise(self):
        rows = np.random.default_rng(0).normal(size=(400, 3)) * [3, 1, 1]
        privacy = fedpca.Privacy(8.0, 1e-5, bound=5.0, center=np.zeros(3))
        private = fedpca.PrivatePCA(1, **privacy.settings).fit(rows)
        merged = fedpca.StreamingPCA(1).merge(private.release().subspace(1))
        exact = fedpca.StreamingPCA(1).fit(rows)
        mixed = fedpca.StreamingPCA(1).merge(exact, merged).partial_fit(rows)
        for pca in (private, merged, mixed):
            with pytest.raises(ValueError, match="cannot be corrected in a private model"):
                pca.transform(rows, shrinkage="asymptotic")
        for pca in (exact, merged.fit(rows)):
            pca.transform(rows, shrinkage="asymptotic")
