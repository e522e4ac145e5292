"""Watch twelve pumps: drift, gaps, an alarm when one breaks, and what the fleet knows that one does not.

Run `python examples/sensors.py`. The rows are made here: 16 sensors a pump, one reading a minute.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np

import fedpca

SENSORS, MINUTES, HOURS = 16, 60, 168
FAULT = 150  # the hour in which a bearing of one pump starts to go


class Watch:
    """The stream of one machine: every batch is judged by what came before, then learned from.

    Args:
        learn: batches to learn from before anything is called strange.
        strange: a batch is, when this share of its rows lies above the limits; of ordinary rows 1 % do.
        forget: what a batch leaves of what came before; 0.98 remembers about 25 batches.
    """

    def __init__(self, learn: int = 48, strange: float = 0.25, forget: float = 0.98) -> None:
        self.learn, self.strange = learn, strange
        self.pca = fedpca.StreamingPCA(3, energy=(0.03, 0.12), forget=forget)
        self.ordinary: deque[np.ndarray] = deque(maxlen=100)  # scores of the last batches that were

    def see(self, rows: np.ndarray) -> bool:
        """Take a batch, NaN where a reading is missing, and say whether it is strange."""
        if hasattr(self.pca, "components_"):
            scores = np.stack(self.pca.anomaly_scores(rows))  # spe and t2 of every row
            if len(self.ordinary) >= self.learn and self.above(scores) > self.strange:
                return True  # and learn nothing from it
            self.ordinary.append(scores)
        self.pca.partial_fit(rows)
        return False

    def limits(self) -> np.ndarray:
        """What 99 % of ordinary rows stay below, of each score."""
        return np.quantile(np.concatenate(self.ordinary, axis=1), 0.99, axis=1)

    def above(self, scores: np.ndarray) -> float:
        """The share of rows above the limit, of the score in which more are."""
        return float((scores > self.limits()[:, None]).mean(axis=1).max())


def pump(number: int, fault: int | None = None) -> Iterator[np.ndarray]:
    """The hours of a pump: load, heat and speed seen by 16 sensors that drift and sometimes fall silent."""
    make = np.random.default_rng(0)  # all pumps are of one make
    response, drift = make.normal(size=(2, 3, SENSORS))
    rng = np.random.default_rng([1, number])
    for hour in range(HOURS):
        turned = response + hour / HOURS * drift  # as sensors age, they answer differently
        hidden = rng.normal(size=(MINUTES, 3)) * [3.0, 2.0, 1.0] + [0.0, hour / 100, 0.0]  # summer comes
        rows = 20 + hidden @ turned + 0.3 * rng.normal(size=(MINUTES, SENSORS))
        if fault is not None and hour >= fault:
            rows[:, 4] += 3.0 * rng.normal(size=MINUTES)  # one vibration no longer follows the others
        rows[rng.uniform(size=rows.shape) < 0.02] = np.nan  # readings get lost
        if hour % 50 == number:
            rows[:30, number] = np.nan  # and a sensor is out for half an hour
        yield rows


def main() -> None:
    watches = {number: Watch() for number in range(12)}
    alarms: dict[int, list[int]] = {number: [] for number in watches}
    for number, watch in watches.items():
        for hour, rows in enumerate(pump(number, FAULT if number == 7 else None)):
            if watch.see(rows):
                alarms[number].append(hour)
    print(f"{len(watches)} pumps with {SENSORS} sensors each, {HOURS} hours, 2 % of the readings missing")
    for number, heard in alarms.items():
        if heard:
            print(f"pump {number}: {len(heard)} alarms from hour {heard[0]} on; it broke in hour {FAULT}")
    healthy = [watch for number, watch in watches.items() if not alarms[number]]
    ranks = sorted({watch.pca.n_components_ for watch in healthy})
    print(f"{len(healthy)} pumps without an alarm, components of each: {ranks}")

    fleet = fedpca.merge([watch.pca.subspace_ for watch in healthy], rank=4)
    limits = np.median([watch.limits() for watch in healthy], axis=0)
    print(f"merged: {fleet}")

    *_, first, second = pump(99)
    judges = {
        "its own ten minutes": fedpca.StreamingPCA(4).fit(first[:10]),
        "the fleet": fedpca.StreamingPCA(4).merge(fleet),
    }
    broken = second.copy()
    broken[:, 4] += 3.0 * np.random.default_rng(2).normal(size=MINUTES)
    for name, pca in judges.items():
        for state, rows in (("healthy", second), ("broken", broken)):
            share = (np.stack(pca.anomaly_scores(rows)) > limits[:, None]).mean(axis=1).max()
            print(f"a new pump, {state}, judged by {name}: {share:.0%} of its minutes are strange")


if __name__ == "__main__":
    main()
