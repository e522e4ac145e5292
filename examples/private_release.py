"""From a plan to a certificate: three hospitals release differentially private components, once.

Nothing about the measurements is public: their center and length are found privately, by all hospitals
together.

Run `python examples/private_release.py [FOLDER]`. The measurements are synthetic, the noise is real: results
differ slightly from run to run.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.base import clone

import fedpca
from fedpca.privacy import StepSum

EPSILON, DELTA, COMPONENTS, FEATURES = 1.0, 1e-6, 3, 30


def measurements(seed: int, people: int) -> np.ndarray:
    """Thirty measurements per person, which depend on four hidden factors."""
    shared = np.random.default_rng(0).normal(size=(4, FEATURES)) * [[3.0], [2.0], [1.5], [1.0]]
    rng = np.random.default_rng([1, seed])
    return 10 + rng.normal(size=(people, 4)) @ shared + 0.5 * rng.normal(size=(people, FEATURES))


def main(folder: Path) -> None:
    hospitals = {name: measurements(seed, 1500) for seed, name in enumerate(("north", "south", "west"))}

    for epsilon in (0.1, 0.3, 1.0):
        plan = fedpca.plan(
            fedpca.Privacy(epsilon, DELTA), FEATURES, 4500, n_components=COMPONENTS, owners=len(hospitals)
        )
        print(f"plan, epsilon = {epsilon}: captures {plan.captured:.0%} of what {COMPONENTS} components can")

    audit = fedpca.audit(fedpca.Privacy(EPSILON, DELTA), runs=100)
    print(f"audit: {'passed' if audit.passed else 'FAILED'}")

    # Each on its own machine, with its own ledger.
    clients = {}
    for name in hospitals:
        ledger = fedpca.Ledger(folder / f"{name}.ledger", epsilon=EPSILON, delta=DELTA)
        clients[name] = fedpca.PrivatePCA(COMPONENTS, epsilon=EPSILON, delta=DELTA, ledger=ledger)

    # What is not known is found in a few rounds: noisy sums go out, and their total comes back.
    while not all(client.is_prepared for client in clients.values()):
        pooled = StepSum.pooled([client.step_sum(hospitals[name]) for name, client in clients.items()])
        for client in clients.values():
            client.advance(pooled)

    for name, client in clients.items():
        client.partial_fit(hospitals[name]).release().save(folder / f"{name}.safetensors")
    model = fedpca.merge([fedpca.load(folder / f"{name}.safetensors") for name in hospitals], rank=COMPONENTS)

    # One more round: how good is the model of all?
    sums = [client.evaluation_sum(hospitals[name], model) for name, client in clients.items()]
    print(clients["north"].evaluation(StepSum.pooled(sums), model).describe())

    for name, client in clients.items():
        try:
            clone(client).fit(hospitals[name])
        except fedpca.BudgetExceeded:
            spent = client.ledger_.spent()
            print(f"{name}: released once, epsilon = {spent:.2f} is spent; a second release is refused")
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
