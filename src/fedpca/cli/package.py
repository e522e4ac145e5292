"""fedpca package: all that a data steward hands in with a model, and what stays."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fedpca._util.text import sanitize
from fedpca.approval.wording import refuse_other_words
from fedpca.cli import model_files
from fedpca.cli.check import counted, open_rows_of
from fedpca.cli.options import (
    File,
    Force,
    ModelPath,
    Out,
    Output,
    PolicyPath,
    RowsOfModel,
    WrongUsage,
    check_folder_path,
    check_no_input,
    check_output_path,
)
from fedpca.cli.policy_text import policy_line
from fedpca.cli.reading import Reading, reading_of
from fedpca.disclosure.policy import Policy
from fedpca.summaries import model_file


def package(
    model: ModelPath,
    /,
    *,
    out: Annotated[Out, Parameter(metavar="PATH")],
    policy: PolicyPath = None,
    rows: RowsOfModel = None,
    local: File | None = None,
    force: Force = False,
    output: Output = Output(),
    reading: Reading = Reading(),
) -> None:
    """Write a package for approval: the model, a report, and a page to sign.

    The package has the model, its certificate if it is private, release.json, a report, and a page to print
    and sign. With --policy it is written only if every rule holds. With --rows, a separate file that only its
    owner can read, and that never leaves, names the row with the largest leverage. The rows of a private
    model are not read: the noise hides each of them.

    For example:

    ```
    fedpca package model.safetensors --policy policy.toml --rows rows.csv -o study.zip
    ```

    Args:
        out: The package to write: a folder, or a file.zip.
        local: What never leaves, outside of the package. By default beside it, as in study.local.json.
    """
    from fedpca.approval.package import is_zip, local_facts, write_local, write_package

    _check_package_path(out, force)
    if local is None:
        beside = out if out.name else out.resolve()  # of "."
        local = beside.with_name(f"{beside.stem}.local.json")
    if out.resolve() in (local.resolve(), *local.resolve().parents):
        raise WrongUsage("--local must lie outside of the package: it never leaves.")

    rules = None if policy is None else Policy.load(policy)
    contents = model_file.read_bytes(model)
    summary, shown = model_files.decode(model, contents)
    refuse_other_words(summary.certificate)
    table = open_rows_of(summary, rows, reading_of(model, contents, rows or [], reading))
    contents = model_files.without_reading(model, contents)
    if table is not None:
        check_output_path(local, force)
    check_no_input([out, local], [model, *([] if policy is None else [policy]), *map(Path, rows or [])])
    counts = counted(model, contents, summary, table, output)
    if rules is not None:
        rules.check(summary, counts)
    facts = None
    if table is not None and counts is not None:
        with output.progress():
            facts = local_facts(summary, table, counts)
    files = write_package(
        out,
        _written_again(contents, model_files.encode(summary, shown, model_files.counts_in(model, contents))),
        summary,
        n_components=shown,
        title=model.name,
        policy=rules,
        counts=counts,
    )
    kept = None
    if facts is not None:
        write_local(local, facts)
        kept = str(local)
    without = "it was not computed; pass --rows" if summary.certificate is None else "nothing: it is private"
    lines = [
        f"{out}{'' if is_zip(out) else '/'}: {', '.join(files)}",
        policy_line(policy),
        f"what stays: {kept or without}",
    ]
    output.result({"out": str(out), "files": files, "local": kept}, "\n".join(lines))


def _written_again(contents: bytes, written: bytes) -> bytes:
    """A model as it was decoded; signed if it is what was signed."""
    found = model_file.opened(contents, "the model").signature
    signed = model_file.with_signature(written, found) if isinstance(found, dict) else written
    return signed if signed == contents else written


def _check_package_path(out: Path, force: bool) -> None:
    if out.suffix.lower() == ".zip":
        check_output_path(out, force)
        return
    if not out.parent.is_dir():
        raise FileNotFoundError(f"cannot write {out}: there is no folder {out.parent}; create it.")
    check_folder_path(out, force)
    if not out.resolve().name:
        raise FileExistsError(f"{out} has no folder beside it for what stays; choose another folder.")
    if not out.exists():
        return

    from fedpca.approval.package import FILES

    if others := sorted(path.name for path in out.iterdir() if path.name not in FILES or path.is_dir()):
        raise FileExistsError(
            f"{out} has files that are no part of a package, as {sanitize(others[0], 100)!r}, and they would "
            "leave with it; choose another folder, or remove them."
        )
