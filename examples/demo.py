"""Three-owner demo on handwritten digits: stream, merge, add faults, add privacy; writes an HTML report.

Run `make demo`, or `python examples/demo.py [FOLDER]`. It writes index.html and report.html to FOLDER, by
default build/demo.
"""

import io
import re
import sys
import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fedpca
from fedpca.federation.one_process.simulate import Faults, Simulation, simulate
from fedpca.metrics import captured_variance, principal_angles
from fedpca.report import write_report
from fedpca.summaries.certificate import Certificate

RANK = 10

INK = "#123456"  # stands for the page's own text color
BLUE, RED = "#2f81d6", "#d9483b"  # readable on white and on black
DIVERGING = LinearSegmentedColormap.from_list("", [RED, (0.5, 0.5, 0.5, 0.0), BLUE])  # transparent at zero
STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 12,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>fedpca demo: three owners of digits</title>
<style>
  :root {{ color-scheme: light dark; }}
  body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
  .charts {{ display: grid; gap: 1rem; }}
  @media (min-width: 40rem) {{ .charts {{ grid-auto-flow: column; grid-auto-columns: 1fr; }} }}
  svg {{ display: block; width: 100%; max-width: 32rem; height: auto; }}
  table {{ border-collapse: collapse; }}
  th, td {{ padding: .2rem 1rem .2rem 0; text-align: right; vertical-align: baseline; }}
  th:first-child, td:first-child, .text th, .text td {{ text-align: left; }}
</style>
<h1>PCA of digits held by three owners</h1>
<p>Three owners hold images of different digits. Each owner streams its own images in one pass, 32 at a
time, and shares a summary of {kilobytes:.0f} kB. The merged summaries give the components of all
{count:.0f} images, which were never in one place.</p>
<table>
<tr><th>model<th>images<th>variance captured, relative to the best {rank} directions
{table}
</table>
<p>The first five merged directions differ by at most {angle:.2f} degrees from those of the pooled images.
The difference shrinks as the owners share more directions.</p>
<h2>Scores on the first two components</h2>
<div class="charts">{scores}</div>
<h2>Components as images</h2>
<p>Blue pixels have positive loadings, red pixels negative ones. The overall sign is arbitrary.</p>
<div class="charts">{components}</div>
<h2>With faults</h2>
<p>The same owners, split into clients that send a summary to their region after every batch; the regions
send theirs to the root. Some clients are slow, messages arrive twice, {dropped} clients drop out half-way,
and aggregators are killed {crashes} times and restarted from their stores. The model reflects every message
received and is bit-for-bit the same in any order. <a href="report.html">The report</a> describes this model
and its federation.</p>
<div class="charts">{growth}</div>
<h2>With differential privacy</h2>
<p>A summary without noise can reveal a single image. With <code>privacy=</code> each owner adds noise to
its sums before they leave: someone who sees all releases and knows every image except one can hardly tell
whether that one was included. The more images, the less the noise matters; the smallest components are lost
first. Only epsilon and delta are chosen. Everything else that privacy needs, the center and the length of the
images, is found with noise by all owners together, and so is how good the components are:</p>
{evaluations}
<div class="charts">{explained}</div>
<table class="text">
<tr><th>certificate<th>epsilon = 4<th>epsilon = 1
{certificates}
</table>
</html>
"""


def main(folder: Path) -> None:
    images, digits = load_digits(return_X_y=True)
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

    private = {}
    for epsilon in (4, 1):
        pca = fedpca.FederatedPCA(n_components=RANK, privacy=fedpca.Privacy(epsilon, delta=1e-5))
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of components that noise hides
            private[f"merged, private, epsilon = {epsilon}"] = pca.fit_clients(owners).model_

    clients = {
        f"{name}, {part}": np.array_split(rows, 6)
        for name, whole in owners.items()
        for part, rows in enumerate(np.array_split(whole, 4))
    }
    faults = Faults(stragglers=0.2, late=0.2, dropouts=0.1, duplicates=0.3, crashes=0.1, seed=5)
    faulty = simulate(clients, RANK, faults=faults, fanout=4)

    models = {name: summary.truncate(RANK) for name, summary in summaries.items()}
    models |= {"merged": merged, "merged, with faults": faulty.model} | private
    lines = []
    for name, model in models.items():
        share = captured_variance(model, images)
        print(f"{name:28} {model.count:5.0f} images, captures {share:7.2%} of what {RANK} directions can")
        lines.append(f"<tr><td>{name}<td>{model.count:.0f}<td>{share:.2%}")

    folder.mkdir(parents=True, exist_ok=True)
    merged.save(folder / "model.safetensors")
    best = next(iter(private))
    private[best].save(folder / "private-model.safetensors")
    with mpl.rc_context(STYLE):
        shown = {"owner of 0-3 alone": models["owner of 0-3"], "merged": merged, best: private[best]}
        charts = {
            "scores": [draw_scores(name, model, images, digits) for name, model in shown.items()],
            "components": [
                draw_components("merged", merged, merged),
                draw_components("all images in one place", pooled, merged),
            ],
            "growth": [draw_growth(faulty, len(images))],
            "explained": [draw_explained(name, model, pooled) for name, model in private.items()],
        }
    page = PAGE.format(
        table="\n".join(lines),
        rank=RANK,
        count=merged.count,
        kilobytes=summaries["owner of 0-3"].components.nbytes / 1000,
        angle=np.degrees(principal_angles(merged.truncate(5), pooled.truncate(5)).max()),
        crashes=faulty.crashes,
        dropped=len(faulty.dropped_out),
        evaluations="\n".join(evaluation_rows(private)),
        certificates=certificate_rows([model.certificate for model in private.values()]),
        **{name: "\n".join(svgs) for name, svgs in charts.items()},
    )
    (folder / "index.html").write_text(page, encoding="utf-8")
    write_report(
        folder / "report.html",
        faulty.model,
        rows=images,
        color=digits,
        run=faulty,
        title="Digits of three owners, with faults",
    )


def draw_scores(name: str, model: fedpca.Subspace, images: np.ndarray, digits: np.ndarray) -> str:
    figure = Figure(figsize=(5, 4.6), layout="constrained")
    axis = figure.subplots()
    first, second = model.project(images)[:, :2].T
    for digit in range(10):
        mine = digits == digit
        axis.scatter(first[mine], second[mine], s=7, color=f"C{digit}", label=str(digit), rasterized=True)
    axis.set(title=name, xlabel="component 1", ylabel="component 2", aspect="equal")
    axis.set(xlim=(-36, 36), ylim=(-36, 36))
    figure.legend(loc="outside lower center", ncols=5, handletextpad=0, markerscale=2)
    return svg(figure, f"Scores of all digits on the first two components: {name}.")


def draw_components(name: str, model: fedpca.Subspace, reference: fedpca.Subspace) -> str:
    figure = Figure(figsize=(5, 3), layout="constrained")
    figure.suptitle(name)
    for i, axis in enumerate(figure.subplots(2, 4).flat):
        # A direction and its negative are the same: draw both models with the same sign.
        component = model.components[i] * np.sign(model.components[i] @ reference.components[i])
        limit = np.abs(component).max()
        axis.imshow(component.reshape(8, 8), cmap=DIVERGING, vmin=-limit, vmax=limit)
        axis.set(xticks=[], yticks=[], title=i + 1)
        axis.spines[:].set_visible(True)
    return svg(figure, f"The first eight components as images of 8 by 8 pixels: {name}.")


def draw_growth(faulty: Simulation, everything: int) -> str:
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    times, rows = zip(*((delivery.time, delivery.rows) for delivery in faulty.timeline), strict=True)
    axis.step(times, rows, where="post", color=BLUE, label="in the model")
    crashes = [(delivery.time, delivery.rows) for delivery in faulty.timeline if delivery.crashed]
    axis.plot(*zip(*crashes, strict=True), "x", color=RED, label="crash and restart")
    axis.axhline(everything, color=INK, linewidth=1, linestyle="--", label="all images")
    axis.set(xlabel="time", ylabel="images", ylim=(0, None))
    axis.legend(loc="lower right")
    return svg(figure, "Images in the model over time: nearly all at the end. Crosses mark crashes.")


def draw_explained(name: str, model: fedpca.Subspace, pooled: fedpca.Subspace) -> str:
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axis = figure.subplots()
    numbers = np.arange(1, RANK + 1)
    best = 100 * np.cumsum(pooled.explained_variance_ratio)
    axis.bar(numbers, best, color="#8888", label="all images, no noise")
    if found := model.certificate.evaluation:
        shares = 100 * np.array([found.explained(k) for k in range(1, model.rank + 1)]).T
        errors = np.abs(shares[1:] - shares[0])
        axis.errorbar(
            numbers[: model.rank], shares[0], errors, fmt="o", capsize=3, color=BLUE, label="95% interval"
        )
    axis.set(title=name, xlabel="components", ylabel="explained variance, %", xticks=numbers, ylim=(0, 100))
    axis.legend(loc="upper left")
    return svg(figure, f"Explained variance: {name}, measured privately, and all images without noise.")


def svg(figure: Figure, label: str) -> str:
    """The figure as SVG within a page: its text, and the page's text color on the page's background."""
    file = io.StringIO()
    figure.savefig(file, format="svg", dpi=200, transparent=True, metadata={"Date": None})
    code = file.getvalue()
    code = code[code.index("<svg") :].replace(INK, "currentColor")
    code = re.sub('<g id="[^"]*"', "<g", code)  # the same in every figure
    code = re.sub(r"font: ([0-9.]+px) [^;\"]*", r"font-size: \1", code)
    return re.sub(r'width="[^"]*" height="[^"]*"', f'role="img" aria-label="{label}"', code, count=1)


def evaluation_rows(private: dict[str, fedpca.Subspace]) -> list[str]:
    measured = {name: model.certificate.evaluation for name, model in private.items()}
    return [f"<p><b>{name}.</b> {found.describe()}</p>" for name, found in measured.items() if found]


def certificate_rows(certificates: list[Certificate]) -> str:
    shown = ("epsilon", "delta", "adjacency", "unit", "mechanism", "clipping", "sampler", "merged", "assumes")
    return "\n".join(
        f"<tr><td>{name}" + "".join(f"<td>{getattr(certificate, name)}" for certificate in certificates)
        for name in shown
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/demo"))
