"""From a plan to a certificate: three hospitals release differentially private components, once.

Run `python examples/private_release.py [FOLDER]`. The measurements are synthetic, the noise is real: results
differ slightly from run to run.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import fedpca

EPSILON, DELTA, COMPONENTS = 1.0, 1e-6, 3


def measurements(seed: int, people: int) -> np.ndarray:
    """Thirty measurements per person, which depend on four hidden factors."""
    shared = np.random.default_rng(0).normal(size=(4, 30)) * [[3.0], [2.0], [1.5], [1.0]]
    rng = np.random.default_rng([1, seed])
    return 10 + rng.normal(size=(people, 4)) @ shared + 0.5 * rng.normal(size=(people, 30))


def main(folder: Path) -> None:
    hospitals = {name: measurements(seed, 1500) for seed, name in enumerate(("north", "south", "west"))}
    published = measurements(99, 400)  # a public study

    # The center and the bound come from public data, never from the private rows.
    center = published.mean(axis=0)
    bound = float(np.quantile(np.linalg.norm(published - center, axis=1), 0.9))
    spectrum = fedpca.Subspace.from_rows(published).singular_values ** 2 / len(published)
    for epsilon in (0.1, 0.3, 1.0):
        privacy = fedpca.Privacy(epsilon, DELTA, bound, center=center, evaluate=False)
        plan = fedpca.plan(privacy, 30, 4500, spectrum, n_components=COMPONENTS, owners=3)
        print(f"plan, epsilon = {epsilon}: {plan.components_found} of {COMPONENTS} components expected")

    audit = fedpca.audit(fedpca.Privacy(EPSILON, DELTA, bound, center=center, evaluate=False), runs=400)
    print(f"audit: {'passed' if audit.passed else 'FAILED'}")

    for name, rows in hospitals.items():  # each on its own machine, with its own ledger
        ledger = fedpca.Ledger(folder / f"{name}.ledger", epsilon=EPSILON, delta=DELTA)
        privacy = fedpca.Privacy(EPSILON, DELTA, bound, center=center, ledger=ledger, evaluate=False)
        release = fedpca.StreamingPCA(COMPONENTS, privacy=privacy).fit(rows).release()
        release.save(folder / f"{name}.safetensors")
        try:
            fedpca.StreamingPCA(COMPONENTS, privacy=privacy).fit(rows)
        except fedpca.BudgetExceeded:
            print(
                f"{name}: released once, epsilon = {ledger.spent():.2f} is spent; a second release is refused"
            )

    model = fedpca.merge([fedpca.load(folder / f"{name}.safetensors") for name in hospitals], rank=COMPONENTS)
    for field in ("private", "epsilon", "delta", "unit", "adjacency", "merged", "assumes", "warnings"):
        print(f"certificate, {field}: {getattr(model.certificate, field)}")
    share = fedpca.metrics.captured_variance(model, np.concatenate(list(hospitals.values())))
    print(f"variance captured, of the best {COMPONENTS} directions of all rows: {share:.3f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
