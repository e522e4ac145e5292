"""The section about secure sums: who took part, who saw what, and against whom the promise holds."""

from fedpca._util.text import format_number, join_names, pluralize, sanitize
from fedpca.report.formatting import cell
from fedpca.report.layout import Section, Table
from fedpca.summaries.certificate import Certificate, Secured

_MOST_NAMES = 10


def secure_section(certificate: Certificate) -> Section:
    """Secure sums behind a model, as its certificate states them; empty without any."""
    found = [release.secure for release in certificate.all_releases() if release.secure is not None]
    paragraphs: list[str] = []
    tables: list[Table] = []
    for secured in found:
        study = "" if len(found) == 1 else f", study {sanitize(secured.study, 40)}"
        paragraphs += _paragraphs(secured)
        tables += [
            Table(
                f"Who is in each sum{study}",
                ("sum", "owners", "records", "noise", "not in it"),
                _sums(secured),
            ),
            Table(f"Terms{study}", ("property", "value"), _terms(secured)),
        ]
    if found and (others := certificate.merged - len(found)):
        are = (
            "is no secure sum: whoever collected it saw it"
            if others == 1
            else ("are no secure sums: whoever collected them saw each")
        )
        paragraphs.append(f"{pluralize(others, 'release')} in this model {are}.")
    return Section("secure", "Secure sums", paragraphs, tables)


def _paragraphs(secured: Secured) -> list[str]:
    """What it means for whoever answers for the records."""
    told = [
        "According to the certificate, owners sent their numbers behind random masks that cancel in the sum. "
        "The coordinator, who collected them, learned sums over owners, and how many records each owner has; "
        f"nothing else about any one of them. Every sum has at least {secured.least} owners.",
        f"The promise {sanitize(secured.promise, 600)}. If more members side with it, the promise weakens: "
        f"{secured.threshold} together with the coordinator can read what every single owner sent.",
    ]
    took_part = secured.took_part
    if absent := [sanitize(member, 40) for member in secured.members if member not in took_part]:
        told.append(
            f"{len(took_part)} of {pluralize(len(secured.members), 'member')} took part. In no sum: "
            f"{join_names(absent, _MOST_NAMES)}."
        )
    else:
        told.append(f"All {len(secured.members)} members took part.")
    return [
        *told,
        "Every owner computes the model from the sums. That the sums are those of the owners' messages "
        "can be checked by whoever has all messages, with the command fedpca secure verify.",
        "What one owner sends cannot be looked at. False numbers of an owner are refused only if they are "
        "beyond what so many records can have.",
        "Noise is the variance of the noise in a sum, in units of what the promise needs. Owners who may "
        "collude know their own part of it, so all owners together add more.",
    ]


def _sums(secured: Secured) -> list[tuple[str, ...]]:
    return [
        (
            sanitize(part.sum, 40),
            f"{len(part.owners)} of {len(secured.members)}",
            format_number(part.rows),
            f"{part.noise:.3g}×",
            join_names(
                [sanitize(member, 40) for member in secured.members if member not in part.owners], _MOST_NAMES
            )
            or "–",
        )
        for part in secured.sums
    ]


def _terms(secured: Secured) -> list[tuple[str, str]]:
    members = [sanitize(member, 40) for member in secured.members]
    return [
        ("study", sanitize(secured.study, 80)),
        ("members", f"{len(members)}: {join_names(members, _MOST_NAMES)}"),
        ("fewest owners in a sum", cell(secured.least)),
        ("owners who may side with the coordinator", cell(secured.colluding)),
        ("owners that it takes to open a sum", cell(secured.threshold)),
        (
            "standard deviation of the honest owners' noise, of clipped rows of length one",
            cell(secured.sigma),
        ),
        ("part of delta that is due to rounding the owners' noise", cell(secured.aliasing)),
    ]
