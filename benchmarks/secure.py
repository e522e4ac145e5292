"""What secure sums cost: bytes and CPU seconds of an owner and of the coordinator, the speed of masks, and
what other constants of noise in parts, fixed point and announced noise would cost.

    python -m benchmarks.secure           # d = 784 with 10 and 100 owners, d = 4,096 with 10
    python -m benchmarks.secure --quick   # d = 64 with 10 owners

All sums of a private study (epsilon = 2, 6 components, private center, colluding 1, `least` by default), all
owners present, in one process and one thread. Every owner and the coordinator run; the first owner is timed,
restarted at each visit as by cron, and so is the coordinator. The work on rows is not part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.common import heading, interleave, machine, number, options, table, verdict

if TYPE_CHECKING:
    from fedpca._typing import AnyArray, Array
    from fedpca.secure.fit import Sum, Total

STUDIES = ((784, 10), (784, 100), (4096, 10))  # features, owners
QUICK = ((64, 10),)
ROWS, RANK = 20_000, 6
WORDS = 2**21  # of a mask
LIMIT = 0.5  # of the speed of ChaCha20


class Cost(NamedTuple):
    """Of one side of a study."""

    sent: int
    received: int
    seconds: float


class Sums:
    """What a study sums: the lengths and deviations that a plan expects, of entries that are made up."""

    feature_names = None
    taken = ()
    view: Any = None
    model: Any = None

    def __init__(self, sums: Sequence[Sum], n_features: int, entries: dict[int, AnyArray]) -> None:
        self._sums, self._left, self.n_features = sums, list(sums), n_features
        self.most_sums, self.most_words = len(sums), max(each.length for each in sums)
        self._entries = entries

    @property
    def next(self) -> Sum | None:
        return self._left[0] if self._left else None

    def begin(self, rows: int, noise: float) -> None:
        """Nothing depends on them."""

    def check_rows(self, parts: Iterable[Array]) -> None:
        """The work on rows is not part of the costs."""

    def vector(self, parts: Iterable[Array], random: np.random.Generator) -> AnyArray:
        return self._entries[self._left[0].length]

    def add(self, total: Total) -> None:
        del self._left[0]


class Clock:
    """CPU seconds, less those of what a study would do without secure sums, too."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[[], dict[str, bytes]]) -> dict[str, bytes]:
        start = time.process_time()
        result = function()
        self.seconds += time.process_time() - start
        return result


def study(n_features: int, n_owners: int) -> tuple[Cost, Cost, int]:
    """The costs of the first owner and of the coordinator, and the number of sums."""
    from fedpca import Privacy, Roster, SigningKey
    from fedpca.privacy.search_plan import expected
    from fedpca.secure import (
        Coordinator,
        Owner,
        OwnerMemory,
        Progress,
        Secrets,
        SecureSums,
        Session,
        relevant,
    )
    from fedpca.secure.fit import PrivateFit, Sum
    from fedpca.secure.noise_shares import Levels
    from fedpca.secure.planning import expected_sums
    from fedpca.secure.rows import OwnerRows
    from fedpca.trust import Member

    privacy = Privacy(2.0, 1e-6)
    terms = SecureSums().terms([f"owner-{i:03}" for i in range(n_owners)])
    noise = Levels.of(terms, n_owners).variance(n_owners, n_owners)
    outlook = expected(privacy, n_features, RANK, ROWS, noise, finds_scale=False)
    sums = [
        Sum(
            each.name,
            tuple((block.length, block.sd) for block in each.blocks),
            0.0,
            (0.0,) * len(each.blocks),
            (0.0,) * len(each.blocks),
        )
        for each in expected_sums(privacy, n_features, RANK, outlook)
    ]
    most_sums = PrivateFit(privacy, n_features, RANK).most_sums

    keys = [SigningKey.new() for _ in terms.ids]
    members = [Member(name, key.public) for name, key in zip(terms.ids, keys, strict=True)]
    roster = Roster("costs", members, {"rank": RANK, "n_features": n_features, "colluding": 1})
    opened = Session.new(roster)
    board: dict[str, bytes] = {"session": opened}
    secrets = [Secrets.new(most_sums) for _ in keys]
    sent: list[dict[str, bytes]] = [{} for _ in keys]
    rows = OwnerRows(ROWS // n_owners, n_features, None, lambda: iter(()), np.zeros((0, n_features)))

    entries: dict[int, AnyArray] = {each.length: np.arange(each.length) for each in sums}

    def progress() -> Progress:
        return Progress(Session(roster, opened), Sums(sums, n_features, entries))

    def owner_of(index: int) -> Owner:
        return Owner(progress(), keys[index], rows, OwnerMemory(secrets[index], sent[index]))

    owners = [owner_of(index) for index in range(n_owners)]
    coordinator = Coordinator(progress())
    of_owner, of_coordinator = Clock(), Clock()

    def visit(index: int) -> dict[str, bytes]:
        return (owners[index] if index else owner_of(0)).reply(relevant(board, index))

    visits = 0
    while coordinator.state != "done":
        for index in range(n_owners):
            new = of_owner(lambda: visit(0)) if not index else visit(index)
            sent[index].update(new)
            board.update(new)
        visits += 1
        while new := of_coordinator(lambda: coordinator.advance(board)):
            board.update(new)
    for each, total in enumerate(sums):
        check_total(board, each, total.length, n_owners)
    print(f"{len(sums)} sums in {visits} visits", flush=True)

    def size(messages: dict[str, bytes]) -> int:
        return sum(map(len, messages.values()))

    received = [
        size(relevant(board, index)) - size(relevant(sent[index], index)) for index in range(n_owners)
    ]
    owner = Cost(size(sent[0]), received[0], of_owner.seconds)
    return owner, Cost(sum(received), sum(map(size, sent)), of_coordinator.seconds), len(sums)


def check_total(board: dict[str, bytes], sum_number: int, length: int, n_owners: int) -> None:
    """That the study was a real one: its totals are those of the entries, up to their noise."""
    import json

    header, payload = board[f"{sum_number:02}/total"].split(b"\n", 1)
    blocks = json.loads(board[f"{sum_number:02}/announced"])["blocks"]
    shifts = np.repeat([shift for _, _, shift in blocks], [length for length, _, _ in blocks])
    deviations = np.repeat([sd for _, sd, _ in blocks], [length for length, _, _ in blocks])
    found = np.frombuffer(payload, dtype="<i8") * 2.0**-shifts - n_owners * np.arange(length)
    spread = float(np.sqrt(np.mean((found / deviations) ** 2)))
    expected = np.sqrt(json.loads(header)["noise"])
    if not abs(spread / expected - 1) < 5 / np.sqrt(length):
        raise AssertionError(f"the noise of sum {sum_number} is {spread:g}, not {expected:g}")


def mask_speed() -> tuple[float, float]:
    """Bytes per second: of the words of masks added to a vector, and of ChaCha20 alone."""
    from cryptography.hazmat.primitives import ciphers

    from fedpca.secure.masks import add_masks

    words, zeros, out = np.zeros(WORDS, dtype="<u8"), bytes(8 * WORDS), bytearray(8 * WORDS)

    def cipher() -> None:
        ciphers.Cipher(ciphers.algorithms.ChaCha20(bytes(32), bytes(16)), mode=None).encryptor().update_into(
            zeros, out
        )

    def mask() -> None:
        add_masks(words, [(bytes(32), True)])

    found = interleave({"masks": mask, "ChaCha20": cipher}, rounds=30, budget=20.0)
    return 8 * WORDS / found["masks"].median, 8 * WORDS / found["ChaCha20"].median


def levels() -> None:
    """How many parts owners draw, and how much more noise than needed is left, by the step between levels."""
    from fedpca.secure import SecureSums
    from fedpca.secure.noise_shares import Levels

    lines = []
    for n_owners in (10, 100, 1000):
        terms = SecureSums().terms([f"{i:04}" for i in range(n_owners)])
        shown = [f"{n_owners}", f"{terms.least}"]
        for step in (1.02, 1.05, 1.1, 1.2, 1.5):
            sizes = [n_owners]
            while sizes[-1] > terms.least:
                following = 1 + int(np.ceil((sizes[-1] - 1) / step - 1e-9))
                sizes.append(max(terms.least, min(following, sizes[-1] - 1)))
            if step == 1.1:
                assert tuple(sizes) == Levels.of(terms, n_owners).sizes
            kept = [next(size for size in sizes if size <= u) for u in range(terms.least, n_owners + 1)]
            more = [(u - 1) / (k - 1) for u, k in zip(range(terms.least, n_owners + 1), kept, strict=True)]
            shown.append(f"{len(sizes)}: {max(more) - 1:.0%}")
        lines.append(tuple(shown))
    heading("Levels: parts that an owner draws, and the most noise that is left beyond what is needed")
    table(("owners", "least", "1.02", "1.05", "1.1", "1.2", "1.5"), lines)


def fixed_point() -> None:
    """What rounding costs without noise: the error of a scatter, by the bits that are kept in reserve."""
    from fedpca.secure import plain_fit

    lines, before = [], plain_fit._RESERVE
    rng = np.random.default_rng(0)
    for n_rows in (100, 10_000, 1_000_000):
        rows = rng.normal(size=(n_rows, 8)) @ rng.normal(size=(8, 8)) + 3.0
        deviations = rows - rows.mean(axis=0)
        exact, found = deviations.T @ deviations, []
        for plain_fit._RESERVE in (2, 4, 6, 8, 12):
            fit = plain_fit.PlainFit(100.0, 8, 8)
            fit.begin(n_rows, 0.0)
            while (needed := fit.next) is not None:
                values = np.asarray(fit.vector(iter([rows]), rng), dtype=np.float64)
                fit.add(Result(needed.name, values, n_rows, ("one",), 0.0))
            found.append(f"{np.linalg.norm(fit.view.whole.scatter - exact) / np.linalg.norm(exact):.0e}")
        lines.append((f"{n_rows:,}", *found))
    plain_fit._RESERVE = before
    heading("Fixed point: error of the scatter relative to it, by bits in reserve")
    table(("rows", "2", "4", "6", "8", "12"), lines)


class Result(NamedTuple):
    """A total."""

    name: str
    values: Array
    rows: int
    owners: tuple[str, ...]
    noise: float


def deviations() -> None:
    """What announced noise may cost or lack, as epsilon at the delta of a promise."""
    from fedpca import Privacy
    from fedpca.privacy.calibration import epsilon_of
    from fedpca.secure.progress import LARGER, SAME

    lines = []
    for epsilon in (0.5, 2.0, 8.0):
        mu = Privacy(epsilon, 1e-6).mu
        limits = (1 / (1 - SAME), 1 / (1 + LARGER))
        changed = [epsilon_of(mu * factor, 1e-6) / epsilon - 1 for factor in limits]
        lines.append((f"{epsilon:g}", *(f"{value:.0e}" for value in changed)))
    heading("Announced deviations: epsilon, relative to the promise, at the limits that owners accept")
    table(("epsilon", "1e-12 smaller", "1e-5 larger"), lines)


def main() -> None:
    arguments = options(__doc__, "d = 64 with 10 owners").parse_args()
    print(f"# Secure sums\n\n{machine()}")
    masks, chacha = mask_speed()
    heading("Masks")
    table(("", "GB/s"), [("ChaCha20", number(chacha / 1e9)), ("masks", number(masks / 1e9))])
    verdict(
        masks >= LIMIT * chacha, f"masks at {LIMIT:g} of ChaCha20's speed or more", f"{masks / chacha:.2f}"
    )
    levels()
    fixed_point()
    deviations()
    heading("A study")
    lines = []
    for n_features, n_owners in QUICK if arguments.quick else STUDIES:
        owner, coordinator, n_sums = study(n_features, n_owners)
        costs = (number(value) for each in (owner, coordinator) for value in in_megabytes(each))
        lines.append((f"{n_features:,}", f"{n_owners}", f"{n_sums}", *costs))
    columns = ("MB sent", "MB received", "s")
    header = [f"{who}: {what}" for who in ("owner", "coordinator") for what in columns]
    table(("d", "owners", "sums", *header), lines)


def in_megabytes(cost: Cost) -> tuple[float, float, float]:
    return cost.sent / 1e6, cost.received / 1e6, cost.seconds


if __name__ == "__main__":
    main()
