"""A policy on the command line: fit, check, merge, and what a steward hands in."""

import hashlib
import json
import re
import stat
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import secured

import fedpca
from fedpca import Policy
from fedpca.approval.package import FILES
from fedpca.disclosure.policy import NO_POLICY
from fedpca.summaries import model_file

pytest.importorskip("pyarrow", reason="the cli extra")
pytest.importorskip("jinja2", reason="the report extra")
pytest.importorskip("matplotlib", reason="the report extra")

from command_line import invoke

pytestmark = pytest.mark.slow  # all of it together


def run(*arguments):
    return invoke(arguments)


def run_ok(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments):
    """The one line that says why."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("fedpca: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def folder(tmp_path, monkeypatch, rng):
    """Files of 200 patients, and the same with one of a rare kind, at an owner with a policy."""
    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame(rng.normal(size=(200, 3)).round(3) + 3.0, columns=["age", "dose", "weight"])
    table["smoker"] = (np.arange(200) % 4 == 0).astype(int)
    table["rare"] = 0
    table.to_csv("usual.csv", index=False)
    table.loc[17, "rare"] = 1
    table.to_csv("rare.csv", index=False)
    Path("policy.toml").write_text("least_level = 3\n")
    return tmp_path


def test_fit_says_if_there_is_no_policy(folder):
    assert "policy" not in run_ok("fit", "rare.csv", "-o", "m.safetensors")
    data = json.loads(run_ok("fit", "rare.csv", "-o", "n.safetensors", "--json"))
    assert data["policy"] is None


def test_fit_writes_nothing_that_may_not_leave(folder):
    text = refused("fit", "rare.csv", "--policy", "policy.toml", "-o", "m.safetensors")
    assert "least_level" in text
    assert "'rare' has 1" in text
    assert not Path("m.safetensors").exists()
    printed = run_ok("fit", "usual.csv", "--policy", "policy.toml", "-o", "m.safetensors")
    assert printed.endswith("policy.toml: every rule holds\n")
    with_policy, without = fedpca.load("m.safetensors"), Path("n.safetensors")
    run_ok("fit", "usual.csv", "-o", without)
    assert with_policy == fedpca.load(without)  # a policy changes nothing that is computed


def test_a_policy_with_a_mistake_stops_fit_before_it_reads(folder):
    Path("wrong.toml").write_text("least_row = 3\n")
    assert "unknown keys: least_row" in refused(
        "fit", "usual.csv", "--policy", "wrong.toml", "-o", "m.safetensors"
    )
    assert "no such policy" in refused("fit", "usual.csv", "--policy", "none.toml", "-o", "m.safetensors")
    assert not Path("m.safetensors").exists()


def test_fit_checks_a_resumed_model_and_standard_input(folder):
    for name, ends in (("rare.csv", 1), ("usual.csv", 0)):
        result = invoke(
            ["fit", "-", "--policy", "policy.toml", "-o", f"{name}.safetensors"],
            input=Path(name).read_text(),
        )
        assert result.exit_code == ends


PRIVATE_FIT = ["--epsilon", "4", "--delta", "1e-6", "--bound", "3"]


@pytest.mark.slow
def test_a_rare_level_does_not_decide_whether_a_private_release_happens(folder):
    """Whoever sees only whether there is a release, and what is written with it, learns nothing."""
    written = []
    for name in ("usual", "rare"):
        model = f"{name}.safetensors"
        printed = run_ok(
            "fit",
            f"{name}.csv",
            *PRIVATE_FIT,
            "--ledger",
            f"{name}.ledger",
            "--policy",
            "policy.toml",
            "-o",
            model,
        )
        assert printed.endswith("policy.toml: every rule holds\n")
        run_ok("check", model, "--policy", "policy.toml", "--rows", f"{name}.csv")
        run_ok("package", model, "--policy", "policy.toml", "--rows", f"{name}.csv", "-o", name)
        release = json.loads(Path(name, "release.json").read_text())
        assert "smallest_level" not in release
        assert not Path(f"{name}.local.json").exists()
        written.append((sorted(release), release["policy"]))
        assert "counted" not in model_file.read(model)[2]
    assert written[0] == written[1]


def test_a_private_fit_that_is_refused_spends_nothing(folder):
    Path("strict.toml").write_text('preset = "strict"\n')
    options = ["--ledger", "ledger", "--policy", "strict.toml", "-o", "m.safetensors"]
    assert "largest_epsilon: at most 1" in refused("fit", "usual.csv", *PRIVATE_FIT, *options)
    Path("rows.toml").write_text("least_rows = 201\n")
    options = ["--ledger", "ledger", "--policy", "rows.toml", "-o", "m.safetensors"]
    assert "least_rows" in refused("fit", "usual.csv", *PRIVATE_FIT, *options)
    assert not Path("ledger").exists()
    assert not Path("m.safetensors").exists()


def test_a_private_fit_can_keep_the_mean(folder):
    Path("mean.toml").write_text("mean_allowed = false\n")
    fit = [
        "fit",
        "usual.csv",
        *PRIVATE_FIT,
        "--ledger",
        "ledger",
        "--policy",
        "mean.toml",
        "-o",
        "m.safetensors",
    ]
    assert "mean_allowed" in refused(*fit)
    assert not Path("ledger").exists()
    run_ok(*fit, "--center", "pairs")
    assert not fedpca.load("m.safetensors").mean.any()
    assert run("fit", "usual.csv", "--center", "pairs", "-o", "n.safetensors").exit_code == 2


def test_check_by_hand(folder):
    run_ok("fit", "usual.csv", "--policy", "policy.toml", "-o", "counted.safetensors")
    run_ok("fit", "usual.csv", "-o", "plain.safetensors")
    printed = run_ok("check", "counted.safetensors", "--policy", "policy.toml")
    assert printed.startswith("counted.safetensors may leave under policy.toml\n")
    assert "the rows must be counted" in refused("check", "plain.safetensors", "--policy", "policy.toml")
    run_ok("check", "plain.safetensors", "--policy", "policy.toml", "--rows", "usual.csv")
    Path("strict.toml").write_text("least_rows = 500\nleast_level = 60\n")
    result = run("check", "counted.safetensors", "--policy", "strict.toml", "--json")
    assert result.exit_code == 1
    assert "least_rows: at least 500 rows" in result.stderr
    found = json.loads(result.stdout)
    assert not found["may_leave"]
    assert [each["rule"] for each in found["rules"] if each["result"] == "broken"] == [
        "least_rows",
        "least_level",
    ]


def test_check_needs_the_rows_of_the_model(folder):
    run_ok("fit", "usual.csv", "-o", "m.safetensors")
    Path("few.csv").write_text("\n".join(Path("usual.csv").read_text().splitlines()[:101]))
    text = refused("check", "m.safetensors", "--policy", "policy.toml", "--rows", "few.csv")
    assert "--rows must be all rows of the model, 200, got 100" in text
    assert "the rows must be counted" in refused("check", "m.safetensors")


def test_merge_may_demand_rows(folder):
    run_ok("fit", "usual.csv", "-o", "north.safetensors")
    run_ok("fit", "rare.csv", "-o", "south.safetensors")
    parts = ["north.safetensors", "south.safetensors"]
    text = refused("merge", *parts, "--least-rows", "201", "-o", "both.safetensors")
    assert "north.safetensors: at least least_rows=201 rows must be behind a summary, got 200" in text
    assert not Path("both.safetensors").exists()
    run_ok("merge", *parts, "--least-rows", "200", "-o", "both.safetensors")


# --- packages ---


@pytest.fixture
def packaged(folder):
    run_ok("fit", "usual.csv", "--policy", "policy.toml", "-o", "m.safetensors")
    run_ok("package", "m.safetensors", "--policy", "policy.toml", "--rows", "usual.csv", "-o", "study")
    return folder / "study"


def test_a_package_has_what_a_steward_hands_in(packaged):
    assert sorted(path.name for path in packaged.iterdir()) == [
        "model.safetensors", "release.json", "report.html", "sign-off.html"
    ]  # fmt: skip
    assert (packaged / "model.safetensors").read_bytes() == Path("m.safetensors").read_bytes()
    release = json.loads((packaged / "release.json").read_text())
    assert (release["rows"], release["columns"], release["smallest_level"]) == (200, 5, 50)
    assert release["features_per_row"] == 0.025
    assert release["policy"]["hash"] == Policy().hash
    assert release["versions"]["fedpca"] == fedpca.__version__
    assert release["privacy"] is None
    page = (packaged / "sign-off.html").read_text()
    assert release["files"]["model.safetensors"]["sha256"] in page
    assert "It holds no record, no name and no identifier of a person." in page
    assert "no noise was added" in page


def test_what_stays_is_for_its_owner_only_and_outside(packaged):
    local = packaged.with_name("study.local.json")
    assert stat.S_IMODE(local.stat().st_mode) == 0o600
    facts = json.loads(local.read_text())
    rows = pd.read_csv("usual.csv").to_numpy()
    centered = np.linalg.qr(rows[:, :4] - rows[:, :4].mean(axis=0))[0]  # the fifth column does not vary
    leverages = np.sum(centered**2, axis=1) + 1 / len(rows)
    assert facts["largest_leverage"]["row"] == leverages.argmax() + 1
    assert facts["largest_leverage"]["value"] == pytest.approx(leverages.max())
    assert facts["mean_leverage"] == pytest.approx(leverages.mean())
    assert facts["smallest_level"] == {"rows": 50, "column": "smoker"}
    for path in packaged.iterdir():
        assert b"leverage" not in path.read_bytes()


@pytest.mark.parametrize("local", ["study/local.json", "study", "study/deep/../local.json"])
def test_what_stays_cannot_be_put_into_the_package(folder, local):
    run_ok("fit", "usual.csv", "-o", "m.safetensors")
    result = run("package", "m.safetensors", "--rows", "usual.csv", "-o", "study", "--local", local)
    assert result.exit_code == 2
    assert not Path("study").exists()


def test_a_package_that_may_not_leave_is_not_written(folder):
    run_ok("fit", "rare.csv", "-o", "m.safetensors")
    for more in ([], ["--rows", "rare.csv"]):
        text = refused("package", "m.safetensors", "--policy", "policy.toml", "-o", "study.zip", *more)
        assert "least_level" in text
    assert not Path("study.zip").exists()
    assert not Path("study.local.json").exists()


def test_a_package_without_a_policy_says_so(folder):
    run_ok("fit", "rare.csv", "-o", "m.safetensors")
    printed = run_ok("package", "m.safetensors", "-o", "study.zip")
    assert NO_POLICY in printed
    with zipfile.ZipFile("study.zip") as archive:
        assert archive.testzip() is None
        page = archive.read("study/sign-off.html").decode()
        release = json.loads(archive.read("study/release.json"))
    assert "No policy: nothing was checked." in page
    assert release["policy"] is None
    assert not release["levels_counted"]


def test_an_existing_package_is_not_overwritten(packaged):
    again = ["package", "m.safetensors", "-o", "study"]
    assert "must be a new or empty folder" in refused(*again)
    (packaged / "certificate.json").write_text("of an earlier model")
    run_ok(*again, "--force")
    assert not (packaged / "certificate.json").exists()
    assert "there is no folder" in refused("package", "m.safetensors", "-o", "missing/study")
    Path("file").write_text("")
    assert "must be a new or empty folder" in refused("package", "m.safetensors", "-o", "file", "--force")


@pytest.mark.parametrize("file", FILES)
def test_a_package_that_is_not_whole_has_no_page_to_sign(packaged, monkeypatch, file):
    before, replace = (packaged / "sign-off.html").read_bytes(), Path.replace

    def stopped(path, target):
        if Path(target).name == file:
            raise KeyboardInterrupt
        return replace(path, target)

    again = ["package", "m.safetensors", "-o", "study", "--force"]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stopped)
        run(*again)
    if file != "certificate.json":  # it has none
        assert not (packaged / "sign-off.html").exists()
    run_ok(*again)
    assert (packaged / "sign-off.html").read_bytes() != before


def test_what_is_no_part_of_a_package_does_not_leave_with_it(packaged):
    (packaged / "usual.csv").write_bytes(Path("usual.csv").read_bytes())
    again = ["package", "m.safetensors", "-o", "study", "--force"]
    assert "no part of a package, as 'usual.csv', and they would leave with it" in refused(*again)
    (packaged / "usual.csv").unlink()
    (packaged / "report.html").unlink()
    (packaged / "report.html").mkdir()
    assert "no part of a package, as 'report.html'" in refused(*again)
    assert not (packaged / "report.html" / "report.html").exists()


def test_a_package_can_be_the_folder_one_is_in(packaged, monkeypatch):
    monkeypatch.chdir(packaged)
    run_ok("package", "../m.safetensors", "--rows", "../usual.csv", "-o", ".", "--force")
    assert not list(packaged.glob("*local*"))
    assert (packaged.parent / "study.local.json").exists()
    assert "choose another folder" in refused("package", "../m.safetensors", "-o", "/", "--force")


@pytest.mark.parametrize("read", ["m.safetensors", "usual.csv", "policy.toml"])
def test_what_is_read_is_not_overwritten_even_by_force(packaged, read):
    before = Path(read).read_bytes()
    given = ["package", "m.safetensors", "--policy", "policy.toml", "--rows", "usual.csv", "--force"]
    assert "is read by this command" in refused(*given, "-o", "new.zip", "--local", read)
    Path("linked.zip").hardlink_to(read)
    assert "is read by this command" in refused(*given, "-o", "linked.zip")
    assert Path(read).read_bytes() == before
    assert not Path("new.zip").exists()


@pytest.mark.slow
def test_a_private_package_has_its_certificate(folder):
    run_ok("fit", "usual.csv", *PRIVATE_FIT, "--ledger", "ledger", "-o", "m.safetensors")
    printed = run_ok("package", "m.safetensors", "--policy", "policy.toml", "-o", "study")
    assert "what stays: nothing: it is private" in printed
    certificate = json.loads(Path("study/certificate.json").read_text())
    assert certificate == fedpca.load("m.safetensors").certificate.to_json()
    page = Path("study/sign-off.html").read_text()
    assert "epsilon = 4, delta = 1e-06" in page
    assert "a factor of at most 54.6, but for a chance of 1 in 1,000,000." in page
    assert page.count("<td>waived</td>") == 3


@pytest.mark.slow
def test_the_page_to_sign_asks_and_tells_what_decides(folder):
    run_ok("ledger", "new", "ledger", "--epsilon", "9", "--delta", "1e-6")
    for out in ("first.safetensors", "m.safetensors"):
        run_ok("fit", "usual.csv", *PRIVATE_FIT, "--ledger", "ledger", "-o", out)
    run_ok("package", "m.safetensors", "-o", "study")
    page = re.sub(r"\s+", " ", Path("study/sign-off.html").read_text())
    assert "One record is one person." in page
    assert "A person with several records is protected less: with five of them, epsilon is" in page
    assert "A column of words adds nothing" in page
    balance = json.loads(run_ok("ledger", "show", "ledger", "--json"))
    assert "Its budget is epsilon = 9 at delta = 1e-06. epsilon = 4 had been spent before" in page
    assert f"epsilon = {balance['spent']:.3g} with it" in page
    assert f"may cost epsilon = {balance['left']:.3g} at most" in page
    release = json.loads(Path("study/release.json").read_text())
    assert release["ledgers"]["one"]["entries_before"] == len(balance["entries"]) // 2
    for name in ("model.safetensors", "certificate.json", "report.html", "release.json"):
        assert hashlib.sha256(Path("study", name).read_bytes()).hexdigest() in page
    assert "per record" not in page.split("<main>")[0]
    assert "There are two lengths. Rows were clipped to" in Path("study/report.html").read_text()


@pytest.mark.slow
def test_the_page_to_sign_tells_when_nothing_is_left_or_nothing_is_counted(folder):
    run_ok("fit", "usual.csv", *PRIVATE_FIT, "--ledger", "ledger", "-o", "m.safetensors")
    run_ok("package", "m.safetensors", "-o", "study")
    page = Path("study/sign-off.html").read_text()
    assert "Nothing had been spent before this release" in page
    assert "Nothing is left: the next release of these records is refused" in page
    run_ok("fit", "usual.csv", *PRIVATE_FIT, "-o", "alone.safetensors")
    run_ok("package", "alone.safetensors", "-o", "alone")
    assert "No ledger was kept" in Path("alone/sign-off.html").read_text()
    run_ok("fit", "usual.csv", "-o", "plain.safetensors")
    run_ok("package", "plain.safetensors", "-o", "plain")
    page = Path("plain/sign-off.html").read_text()
    assert "One record is one person." in page
    assert "No account is kept of what leaves without noise" in page


@pytest.mark.slow
def test_a_certificate_and_its_ledger_agree(folder):
    run_ok("fit", "usual.csv", *PRIVATE_FIT, "--ledger", "ledger", "-o", "m.safetensors")
    stated = fedpca.load("m.safetensors").certificate.ledger
    balance = json.loads(run_ok("ledger", "show", "ledger", "--json"))
    assert stated.entries == len(balance["entries"])
    assert stated.spent == balance["spent"]
    assert stated.id == balance["id"]


@pytest.mark.slow
def test_a_ledger_holds_an_approved_total(folder):
    run_ok("ledger", "new", "ledger", "--epsilon", "5", "--delta", "1e-6")
    assert "epsilon=0 of 5 spent" in run_ok("ledger", "show", "ledger")
    run_ok("fit", "usual.csv", *PRIVATE_FIT, "--ledger", "ledger", "-o", "m.safetensors")
    shown = run_ok("ledger", "show", "ledger")
    assert "epsilon=4 of 5 spent, at delta=1e-06" in shown
    assert re.search(r"1 to 200 .* came out +components", shown)
    assert "Costs of the same records add up as their squares do" in shown
    before = Path("ledger").read_bytes()
    assert "already exists" in refused("ledger", "new", "ledger", "--epsilon", "9", "--delta", "1e-6")
    assert "there is no ledger" in refused("ledger", "show", "other")
    refused("fit", "usual.csv", *PRIVATE_FIT, "--ledger", "ledger", "-o", "n.safetensors")
    assert Path("ledger").read_bytes() == before


def test_the_default_policy_needs_no_file(folder):
    run_ok("fit", "usual.csv", "-o", "m.safetensors")
    printed = run_ok("check", "m.safetensors", "--rows", "usual.csv")
    assert "m.safetensors may leave under the default policy" in printed
    assert "least_level" in refused("check", "m.safetensors")


@pytest.mark.slow
def test_a_model_of_secure_sums_passes_where_they_are_required(folder):
    run_ok("fit", "usual.csv", *PRIVATE_FIT, "--ledger", "ledger", "-o", "m.safetensors")
    Path("secure.toml").write_text("secure_sums_required = true\n")
    assert "only secure sums may leave, and this is none" in refused(
        "check", "m.safetensors", "--policy", "secure.toml"
    )
    secured(fedpca.load("m.safetensors")).save("secure.safetensors")
    assert re.search(
        r"secure_sums_required +yes +yes +holds",
        run_ok("check", "secure.safetensors", "--policy", "secure.toml"),
    )
    shown = run_ok("inspect", "secure.safetensors")
    assert "Secure sums: 6 of 7 owners took part, at least 5 in every sum" in shown
    run_ok("package", "secure.safetensors", "--policy", "secure.toml", "-o", "study")
    page = Path("study/sign-off.html").read_text()
    assert "Others saw sums over 5 owners or more, and the number of records of each owner." in page
    assert json.loads(Path("study/release.json").read_text())["secure"] == {"least": 5, "colluding": 1}


def test_counts_in_a_model_file_are_checked(folder):
    run_ok("fit", "usual.csv", "--policy", "policy.toml", "-o", "m.safetensors")
    kind, arrays, metadata = model_file.read("m.safetensors")
    metadata["counted"]["smallest_level"] = "many"
    model_file.write("n.safetensors", kind, arrays, metadata)
    for command in (["check"], ["package", "-o", "study"]):
        text = refused(command[0], "n.safetensors", "--policy", "policy.toml", *command[1:])
        assert "n.safetensors is damaged: smallest_level must be a whole number" in text


def test_a_weakened_promise_is_told_to_who_signs(folder):
    run_ok("fit", "usual.csv", *PRIVATE_FIT, "--ledger", "ledger", "-o", "m.safetensors")
    kind, arrays, metadata = model_file.read("m.safetensors")
    metadata["certificate"]["warnings"] = ["floating-point noise"]
    model_file.write("m.safetensors", kind, arrays, metadata)
    run_ok("package", "m.safetensors", "-o", "study")
    assert "This promise is weakened: floating-point noise" in Path("study/sign-off.html").read_text()
    assert "privacy_required" in refused("check", "m.safetensors", "--policy", "policy.toml")


def test_names_from_a_model_are_no_markup_and_few_rows_are_told(folder):
    rows = pd.DataFrame(np.eye(3), columns=["<script>alert(1)</script>", "b" * 500, "c"])
    rows.to_csv("bad.csv", index=False)
    run_ok("fit", "bad.csv", "-o", "m.safetensors")
    run_ok("package", "m.safetensors", "-o", "study")
    page = Path("study/sign-off.html").read_text()
    assert "<script>" not in page
    assert "b" * 30 not in page
    assert "the records themselves can be computed from it" in page
