"""Monitor twelve pumps: drift, missing readings, an alarm when one breaks, and a merged model of the fleet.

Run `python examples/sensors.py`. The rows are synthetic: 16 sensors per pump, one reading per minute.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np

import fedpca

SENSORS, MINUTES, HOURS = 16, 60, 168
FAULT = 150  # the hour in which a bearing of one pump starts to fail


class Watch:
    """The stream of one machine: every batch is scored by the model so far, then learned from.

    Args:
        learn: batches to learn from before the first alarm.
        alarm: share of rows above the limits that makes a batch anomalous; 1 % of normal rows are.
        forget: the forgetting factor per batch; 0.98 remembers about 25 batches.
    """

    def __init__(self, learn: int = 48, alarm: float = 0.25, forget: float = 0.98) -> None:
        self.learn, self.alarm = learn, alarm
        self.pca = fedpca.StreamingPCA(3, energy=(0.03, 0.12), forget=forget)
        self.normal: deque[np.ndarray] = deque(maxlen=100)  # scores of the last normal batches

    def see(self, rows: np.ndarray) -> bool:
        """Process a batch, NaN where a reading is missing; returns whether it is anomalous."""
        if hasattr(self.pca, "components_"):
            scores = np.stack(self.pca.anomaly_scores(rows))  # spe and t2 of every row
            if len(self.normal) >= self.learn and self.above(scores) > self.alarm:
                return True  # without learning from it
            self.normal.append(scores)
        self.pca.partial_fit(rows)
        return False

    def limits(self) -> np.ndarray:
        """The 99 % quantile of each score over normal rows."""
        return np.quantile(np.concatenate(self.normal, axis=1), 0.99, axis=1)

    def above(self, scores: np.ndarray) -> float:
        """The share of rows above the limit, for the score that has more of them."""
        return float((scores > self.limits()[:, None]).mean(axis=1).max())


def pump(number: int, fault: int | None = None) -> Iterator[np.ndarray]:
    """Hourly batches of a pump: load, heat and speed, from 16 sensors that drift and sometimes fail."""
    make = np.random.default_rng(0)  # all pumps are of the same make
    response, drift = make.normal(size=(2, 3, SENSORS))
    rng = np.random.default_rng([1, number])
    for hour in range(HOURS):
        turned = response + hour / HOURS * drift  # sensors age
        hidden = rng.normal(size=(MINUTES, 3)) * [3.0, 2.0, 1.0] + [
            0.0,
            hour / 100,
            0.0,
        ]  # the season changes
        rows = 20 + hidden @ turned + 0.3 * rng.normal(size=(MINUTES, SENSORS))
        if fault is not None and hour >= fault:
            rows[:, 4] += 3.0 * rng.normal(size=MINUTES)  # one sensor no longer follows the others
        rows[rng.uniform(size=rows.shape) < 0.02] = np.nan  # readings are lost
        if hour % 50 == number:
            rows[:30, number] = np.nan  # and a sensor fails for half an hour
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
            print(f"new {state} pump, scored by {name}: {share:.0%} of its minutes are anomalous")


if __name__ == "__main__":
    main()
