"""How long it takes to sign a message, and to check it.

    python -m benchmarks.signing           # 200 rounds
    python -m benchmarks.signing --quick   # 20 rounds

One thread, CPU time, contenders in turn, medians. A message of 1 MB is a summary of 100 directions of 1,250
features; opening it is what every reader does, signed or not.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.common import heading, interleave, machine, number, options, power_law, table, verdict

SIZES = {"100 kB": 125, "1 MB": 1250, "10 MB": 12500}  # features
LIMIT = 5.0  # ms, of 1 MB


def main() -> None:
    arguments = options(__doc__, "20 rounds").parse_args()
    rounds = 20 if arguments.quick else 200
    print(f"# Signatures\n\n{machine()}")
    from fedpca import Roster, SigningKey, Subspace
    from fedpca.federation.aggregator.message import Message
    from fedpca.trust import Member

    key = SigningKey.new()
    roster = Roster("study", [Member("north", key.public)])
    signer = roster.signer(key)
    lines, slowest = [], 0.0
    for name, n_features in SIZES.items():
        summary = Subspace.from_rows(power_law(101, n_features), rank=min(100, n_features))
        contents = Message("north", 1, summary).encode()
        signed = signer.sign(contents)
        runs: dict[str, Callable[[], object]] = {
            "sign": lambda contents=contents: signer.sign(contents),  # type: ignore[misc]
            "check": lambda signed=signed: roster.check(signed, "north"),  # type: ignore[misc]
            "open": lambda signed=signed: Message.decode(signed),  # type: ignore[misc]
        }
        found = {what: 1e3 * timing.median for what, timing in interleave(runs, rounds, budget=60.0).items()}
        lines.append((name, number(len(signed) / 1e6), *(number(value) for value in found.values())))
        if name == "1 MB":
            slowest = max(found["sign"], found["check"])
    heading(f"Milliseconds per message, {rounds} rounds")
    table(("message", "MB", "sign", "check", "open"), lines)
    verdict(slowest < LIMIT, f"signing or checking 1 MB below {LIMIT:g} ms", f"{slowest:.2f} ms")


if __name__ == "__main__":
    main()
