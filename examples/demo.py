"""Stream and merge handwritten digits, plainly and privately: three owners, one set of components.

Run `make demo`, or `python examples/demo.py [FOLDER]`; its pages and pictures go to build/demo.
"""

import base64
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from sklearn.datasets import load_digits

import fedpca
from fedpca.federation.simulate import Faults, Simulation, simulate
from fedpca.metrics import captured_variance, principal_angles
from fedpca.report import write_report

mpl.use("Agg")
import matplotlib.pyplot as plt

RANK = 10
PUBLIC = 97  # images that everybody may see, to choose what must be chosen without looking at the rest

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>fedpca: digits, streamed, merged, made private</title>
<style>
  :root {{ color-scheme: light dark; }}
  body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
  .wide {{ overflow-x: auto; }}
  img {{ width: 100%; min-width: 44rem; height: auto; background: white; }}
  table {{ border-collapse: collapse; }}
  th, td {{ padding: .2rem 1rem .2rem 0; text-align: right; }}
  th:first-child, td:first-child {{ text-align: left; }}
</style>
<h1>Digits, streamed, merged, made private</h1>
<p>Three owners hold images of different digits. Each reads its own, 32 at a time, in one pass, and shares
a summary of {kilobytes:.0f} kB. Merged, the summaries give the components of all {count:.0f} images, which
nobody ever had in one place.</p>
<table>
<tr><th>model<th>images<th>variance captured, of the best possible {rank} directions
{table}
</table>
<p>The merged directions and those of all images in one place differ by {angle:.2f} degrees at most among
the first five, and by less the more directions the owners share.</p>
<h2>The same, when things go wrong</h2>
<p>The same owners, cut into clients that tell their region after every batch, and regions that tell the root.
Some straggle, messages come twice, and aggregators are killed {crashes} times and restarted from what they
had stored. {silent} of the clients fall silent half-way. The model is that of all that was said, and it is
the same, bit for bit, in whatever order it was said. <a href="report.html">A report</a> tells all about this
model and its federation.</p>
<div class="wide" tabindex="0">
<img src="data:image/png;base64,{storm}" alt="Images behind the model over time, as messages arrive; crosses
mark crashes. It grows to nearly all images and never falls."></div>
<h2>The same, privately</h2>
<p>A summary without noise can betray a single image. With <code>privacy=</code> each owner adds noise to its
sums before they leave: whoever sees all releases, and knows every image but one, can hardly tell whether that
one was among them. The more images there are, the less the noise matters; smaller components drown in it
first. The center and the bound that privacy needs come from {public} images that are public.</p>
<div class="wide" tabindex="0">
<img src="data:image/png;base64,{spectrum}" alt="Variances along the components as private releases tell
them, for epsilon 4 and 1, beside the true ones. A line marks what is lost in the noise."></div>
<table>
<tr><th>certificate<th>epsilon = 4<th>epsilon = 1
{certificates}
</table>
<h2>The first two components</h2>
<div class="wide" tabindex="0">
<img src="data:image/png;base64,{scores}" alt="Scores of all digits along the first two components, three
times: by one owner's components, by the merged ones, and by those released privately. The last two look
alike."></div>
<h2>What the components look like</h2>
<p>Blue pixels count for a component, red ones against it.</p>
<div class="wide" tabindex="0">
<img src="data:image/png;base64,{components}" alt="The first eight components as images of 8 by 8 pixels:
merged above, of all images in one place below. Each pair looks nearly the same."></div>
</html>
"""


def main(folder: Path) -> None:
    images, digits = load_digits(return_X_y=True)
    public, images, digits = images[:PUBLIC], images[PUBLIC:], digits[PUBLIC:]
    owners = {
        "owner of 0-3": images[digits <= 3],
        "owner of 4-6": images[(digits >= 4) & (digits <= 6)],
        "owner of 7-9": images[digits >= 7],
    }
    summaries = {}
    for name, rows in owners.items():
        pca = fedpca.StreamingPCA(n_components=RANK)
        for start in range(0, len(rows), 32):
            pca.partial_fit(rows[start : start + 32])
        summaries[name] = pca.subspace_
    merged = fedpca.merge(summaries.values(), rank=RANK)
    pooled = fedpca.Subspace.from_rows(images, rank=RANK)

    center = public.mean(axis=0)
    bound = float(np.quantile(np.linalg.norm(public - center, axis=1), 0.9))
    private = {}
    for epsilon in (4, 1):
        privacy = fedpca.Privacy(epsilon, delta=1e-5, bound=bound, center=center)
        releases = [
            fedpca.StreamingPCA(RANK, privacy=privacy).fit(rows).release() for rows in owners.values()
        ]
        private[f"merged, private, epsilon = {epsilon}"] = fedpca.merge(releases, rank=RANK)

    clients = {
        f"{name}, {part}": np.array_split(rows, 6)
        for name, whole in owners.items()
        for part, rows in enumerate(np.array_split(whole, 4))
    }
    faults = Faults(stragglers=0.2, late=0.2, dropouts=0.1, duplicates=0.3, crashes=0.1, seed=5)
    storm = simulate(clients, RANK, faults=faults, fanout=4)

    models = {name: summary.truncate(RANK) for name, summary in summaries.items()}
    models |= {"merged": merged, "merged, after a storm": storm.model} | private
    lines = []
    for name, model in models.items():
        share = captured_variance(model, images)
        print(f"{name:28} {model.count:5.0f} images, captures {share:7.2%} of what {RANK} directions can")
        lines.append(f"<tr><td>{name}<td>{model.count:.0f}<td>{share:.2%}")

    folder.mkdir(parents=True, exist_ok=True)
    merged.save(folder / "model.safetensors")
    one, quietly = models["owner of 0-3"], next(iter(private))
    private[quietly].save(folder / "private-model.safetensors")
    draw_scores(
        folder / "scores.png",
        images,
        digits,
        {"owner of 0-3 alone": one, "merged": merged, quietly: private[quietly]},
    )
    draw_storm(folder / "storm.png", storm, len(images))
    draw_spectrum(folder / "spectrum.png", pooled, private)
    draw_components(folder / "components.png", {"merged": merged, "in one place": pooled})
    picture = {
        name: base64.b64encode((folder / f"{name}.png").read_bytes()).decode()
        for name in ("scores", "components", "spectrum", "storm")
    }
    page = PAGE.format(
        table="\n".join(lines),
        rank=RANK,
        count=merged.count,
        kilobytes=summaries["owner of 0-3"].components.nbytes / 1000,
        angle=np.degrees(principal_angles(merged.truncate(5), pooled.truncate(5)).max()),
        crashes=storm.crashes,
        silent=len(storm.dropped_out),
        public=PUBLIC,
        certificates=certificate_rows([model.certificate for model in private.values()]),
        **picture,
    )
    (folder / "index.html").write_text(page, encoding="utf-8")
    write_report(
        folder / "report.html",
        storm.model,
        rows=images,
        color=digits,
        run=storm,
        title="Digits, after a storm",
        pictures=folder / "report",
    )


def draw_scores(
    path: Path, images: np.ndarray, digits: np.ndarray, models: dict[str, fedpca.Subspace]
) -> None:
    figure, axes = plt.subplots(
        1, len(models), figsize=(12, 4.2), sharex=True, sharey=True, layout="constrained"
    )
    for axis, (name, model) in zip(axes, models.items(), strict=True):
        first, second = model.project(images)[:, :2].T
        points = axis.scatter(first, second, c=digits, cmap="tab10", vmin=-0.5, vmax=9.5, s=6)
        axis.set(title=name, xlabel="component 1", aspect="equal")
    axes[0].set_ylabel("component 2")
    figure.colorbar(points, ax=axes, ticks=range(10), label="digit")
    figure.savefig(path, dpi=110)


def draw_storm(path: Path, storm: Simulation, everything: int) -> None:
    figure, axis = plt.subplots(figsize=(12, 3.2), layout="constrained")
    times, rows = zip(*((delivery.time, delivery.rows) for delivery in storm.timeline), strict=True)
    axis.step(times, rows, where="post", label="behind the model")
    crashes = [(delivery.time, delivery.rows) for delivery in storm.timeline if delivery.crashed]
    axis.plot(*zip(*crashes, strict=True), "x", color="C3", label="an aggregator is killed and restarted")
    axis.axhline(everything, color="0.6", linestyle="--", label="all images")
    axis.set(xlabel="time", ylabel="images", ylim=(0, None))
    axis.legend(loc="lower right")
    figure.savefig(path, dpi=110)


def certificate_rows(certificates: list[dict[str, object]]) -> str:
    shown = ("epsilon", "delta", "adjacency", "unit", "mechanism", "sampler", "merged", "assumes")
    return "\n".join(
        f"<tr><td>{name}" + "".join(f"<td>{certificate[name]}" for certificate in certificates)
        for name in shown
    )


def draw_spectrum(path: Path, pooled: fedpca.Subspace, private: dict[str, fedpca.Subspace]) -> None:
    figure, axes = plt.subplots(1, len(private), figsize=(12, 3.6), sharey=True, layout="constrained")
    places = np.arange(1, RANK + 1)
    for axis, (name, model) in zip(axes, private.items(), strict=True):
        axis.bar(places, pooled.singular_values**2 / pooled.count, color="0.8", label="all in one place")
        axis.plot(places, model.singular_values**2 / model.count, "o-", label=name)
        edge = model.certificate.noise_edge / model.count
        axis.axhline(edge / 2, color="C3", linestyle="--", label="below: lost in the noise")
        axis.set(xlabel="component", xticks=places)
        axis.legend()
    axes[0].set_ylabel("variance")
    figure.savefig(path, dpi=110)


def draw_components(path: Path, models: dict[str, fedpca.Subspace], shown: int = 8) -> None:
    figure, axes = plt.subplots(len(models), shown, figsize=(12, 3.4), layout="constrained")
    reference = next(iter(models.values())).components
    for row, (name, model) in zip(axes, models.items(), strict=True):
        for place, axis in enumerate(row):
            # A direction and its negative are the same: draw both models the same way round.
            component = model.components[place] * np.sign(model.components[place] @ reference[place])
            limit = np.abs(component).max()
            axis.imshow(component.reshape(8, 8), cmap="RdBu", vmin=-limit, vmax=limit)
            axis.set(xticks=[], yticks=[], title=f"{name} {place + 1}")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/demo"))
