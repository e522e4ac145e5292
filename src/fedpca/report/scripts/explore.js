// What a reader can explore: scores, outliers and loadings as plots, rows and features as tables.

const RAMP = 5, MAX_ARROWS = 8, MAX_LABELS = 24;
const MISSING = "var(--faint)";

/** A labeled select; `options` are its texts, and its value an index into them. */
function select(label, options, value, change) {
  const made = html("select", {}, ...options.map((text, i) => html("option", { value: i }, text)));
  made.value = value;
  made.addEventListener("change", () => change(Number(made.value)));
  return html("label", {}, html("span", {}, label), made);
}

function checkbox(label, change) {
  const made = html("input", { type: "checkbox" });
  made.addEventListener("change", () => change(made.checked));
  return html("label", { class: "check" }, made, html("span", {}, label));
}

function swatch(color) {
  const made = html("span", { class: "swatch" });
  made.style.background = color;
  return made;
}

/** The color of a place between 0 and 1 on the ramp. */
function rampColor(place) {
  const at = Math.min(Math.max(place, 0), 1) * (RAMP - 1), step = Math.min(Math.floor(at), RAMP - 2);
  const share = Math.round(100 * (1 - at + step));
  return `color-mix(in oklab, var(--ramp-${step + 1}) ${share}%, var(--ramp-${step + 2}))`;
}

/** The color of a group of values; 0 is that of missing ones. */
function groupColor(column, group) {
  return column.colors[group] ? `var(--series-${column.colors[group]})` : MISSING;
}

/** A number or time of a ramp as text, as exact as its span requires. */
function rampText(column, value, span) {
  if (column.kind !== "time") {
    return format(value, Math.min(15, Math.max(4, 2 + Math.ceil(Math.log10(Math.abs(value) / span)))));
  }
  const length = span < 600 ? 19 : span < 3 * 86400 ? 16 : 10;
  return new Date(1000 * value).toISOString().slice(0, length).replace("T", " ");
}

/** What rows have in common: their colors, which are hidden, and which is marked. */
class Palette {
  constructor(rows) {
    this.rows = rows;
    this.size = rows.number.length;
    this.listeners = [];
    this.marking = [];
    this.choose(rows.color);
  }

  /** Color by a column, or by none (-1). */
  choose(k) {
    this.column = this.rows.columns[k] ?? null;
    this.hidden = new Set();
    const column = this.column, codes = column?.codes;
    if (!column) {
      this.fills = Array(this.size).fill("var(--series-1)");
    } else if (column.kind === "category") {
      this.fills = codes.map(code => groupColor(column, column.groups[code]));
    } else {
      const known = codes.map(code => column.values[code]).filter(value => value !== null).sort((a, b) => a - b);
      const [low, high] = [0.01, 0.99].map(share => known[Math.round(share * (known.length - 1))]);
      this.range = low < high ? [low, high] : [known[0], known.at(-1)];
      this.clipped = [known[0] < this.range[0], known.at(-1) > this.range[1]];
      this.fills = codes.map(code => {
        const value = column.values[code];
        return value === null ? MISSING : rampColor((value - this.range[0]) / (this.range[1] - this.range[0]));
      });
    }
    this.changed();
  }

  changed() {
    const column = this.column;
    this.visible = Array.from({ length: this.size }, (_, i) => !this.hidden.has(column?.groups?.[column.codes[i]]));
    for (const listener of this.listeners) listener();
  }

  mark(i) { for (const listener of this.marking) listener(i); }

  /** The legend: a button per group, which hides it, or a color bar. */
  legend() {
    const column = this.column;
    if (!column) return [];
    if (column.kind !== "category") {
      const missing = html("span", { class: "missing" }, swatch(MISSING), "missing");
      return this.fills.includes(MISSING) ? [this.bar(column), missing] : [this.bar(column)];
    }
    const counts = Array(column.labels.length).fill(0);
    for (const code of column.codes) counts[column.groups[code]]++;
    return column.labels.map((label, group) => {
      const button = html("button", {
        type: "button", "aria-pressed": !this.hidden.has(group), title: `${counts[group]} rows; click to hide or show`,
      }, swatch(groupColor(column, group)), html("bdi", {}, label));
      button.addEventListener("click", () => {
        if (!this.hidden.delete(group)) this.hidden.add(group);
        this.changed();
      });
      return button;
    });
  }

  bar(column) {
    const [low, high] = this.range, span = high - low, [below, above] = this.clipped;
    const gradient = html("div", { class: "gradient" });
    const colors = Array.from({ length: RAMP }, (_, i) => `var(--ramp-${i + 1})`).join(", ");
    gradient.style.background = `linear-gradient(to right in oklab, ${colors})`;
    const texts = [low, (low + high) / 2, high].map(value => rampText(column, value, span));
    const ends = [(below ? "≤ " : "") + texts[0], texts[1], (above ? "≥ " : "") + texts[2]];
    return html("div", { class: "color-bar" }, gradient, html("div", {}, ...ends.map(text => html("span", {}, text))));
  }
}

/** The values of the columns of a row, for a tooltip. */
function columnFacts(rows, i) {
  return rows.columns.map(column => [column.name, column.texts[column.codes[i]] || "–"]);
}

function componentNames(data) {
  return data.components.map(({ share }, k) => `${k + 1} (${share})`);
}

// --- views ---

function scoresView(host, data) {
  const { rows, features, palette } = data, names = componentNames(data), count = rows.scores.length;
  const heights = shuffled(palette.size).map(place => (place + 0.5) / palette.size);
  let chosen = [0, Math.min(1, count - 1)], withArrows = false;
  const legend = html("div", { class: "legend", role: "group" });
  const controls = html("div", { class: "controls" });
  const draw = () => {
    const [p, q] = chosen, x = rows.scores[p], y = count > 1 ? rows.scores[q] : heights;
    plot.show({
      x, y, colors: palette.fills, visible: palette.visible, xLabel: `component ${names[p]}`,
      yLabel: count > 1 ? `component ${names[q]}` : "", home: null, cross: withArrows,
      arrows: withArrows ? arrows(features, x, y, p, q) : [],
      describe: i => [["row", String(rows.number[i])], ...columnFacts(rows, i),
        ...[...new Set(count > 1 ? chosen : [p])].map(k => [`component ${k + 1}`, format(rows.scores[k][i])])],
    });
    keepingFocus(legend, () => legend.replaceChildren(...palette.legend()));
    legend.setAttribute("aria-label", palette.column ? `Colors by ${palette.column.name}` : "Colors");
  };
  if (count > 1) {
    for (const [axis, label] of [[0, "Horizontal"], [1, "Vertical"]]) {
      controls.append(select(label, names.slice(0, count), chosen[axis], k => { chosen[axis] = k; draw(); }));
    }
  }
  if (rows.columns.length) {
    const options = ["none", ...rows.columns.map(column => column.name)];
    controls.append(select("Color", options, 1 + rows.columns.indexOf(palette.column), k => palette.choose(k - 1)));
  }
  if (count > 1) controls.append(checkbox("Features as arrows (biplot)", on => { withArrows = on; draw(); }));
  host.append(controls);
  const plot = new Scatter(host, "Scores of rows on two components", i => palette.mark(i));
  host.append(legend);
  palette.listeners.push(draw);
  palette.marking.push(i => plot.mark(i));
  draw();
}

/** Arrows of the features with the largest loadings, as long as the points allow. */
function arrows(features, x, y, p, q) {
  const tips = features.names.map((text, i) => ({ text, x: features.loadings[p][i], y: features.loadings[q][i] }));
  tips.sort((a, b) => Math.hypot(b.x, b.y) - Math.hypot(a.x, a.y));
  const shown = tips.slice(0, MAX_ARROWS);
  const reach = values => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const room = axis => reach(axis === "x" ? x : y) / reach(shown.map(tip => tip[axis]));
  const factor = 0.85 * Math.min(...["x", "y"].map(room).filter(value => value > 0 && Number.isFinite(value)));
  return shown.map(tip => ({ text: shorten(tip.text), x: factor * tip.x, y: factor * tip.y }));
}

function shorten(text) {
  return text.length > 20 ? `${text.slice(0, 12)}…${text.slice(-7)}` : text;
}

function outliersView(host, data) {
  const { rows, palette } = data;
  const logarithms = values => { // rounding errors should not stretch the axis
    const far = Math.max(...values) * 1e-9, least = Math.min(...values.filter(value => value > far)) || 1e-9;
    return values.map(value => Math.log10(Math.max(value, least)));
  };
  const [x, y] = [logarithms(rows.t2), logarithms(rows.spe)];
  const lines = ["x", "y"].map((axis, k) => [axis, rows.limits[k]]).filter(([, at]) => at !== null)
    .map(([axis, at]) => [axis, Math.log10(at)]);
  const plot = new Scatter(host, "Outlier map", i => palette.mark(i));
  const draw = () => plot.show({
    x, y, colors: palette.fills, log: true, lines, home: null,
    visible: palette.visible.map((isVisible, i) => isVisible && (rows.t2[i] > 0 || rows.spe[i] > 0)), // has values
    xLabel: "Hotelling's T²", yLabel: "SPE (squared prediction error)",
    describe: i => [["row", String(rows.number[i])], ...columnFacts(rows, i),
      ["T²", format(rows.t2[i])], ["SPE", format(rows.spe[i])]],
  });
  palette.listeners.push(draw);
  palette.marking.push(i => plot.mark(i));
  draw();
}

function loadingsView(host, data) {
  const { features } = data, names = componentNames(data), size = features.names.length;
  let chosen = [0, 1], circle = false;
  const correlation = (weight, deviation, variance) =>
    variance > 0 ? Math.max(-1, Math.min(1, weight * deviation / Math.sqrt(variance))) : 0;
  const correlations = features.loadings.map((weights, k) => weights.map((weight, i) =>
    correlation(weight, data.components[k].deviation, features.variance[i])));
  const colors = Array(size).fill("var(--series-1)"), visible = Array(size).fill(true);
  const draw = () => {
    const [p, q] = chosen, from = circle ? correlations : features.loadings, [x, y] = [from[p], from[q]];
    const order = features.names.map((_, i) => i).sort((a, b) => Math.hypot(x[b], y[b]) - Math.hypot(x[a], y[a]));
    const what = circle ? "correlation with" : "loading on";
    plot.show({
      x, y, colors, visible, square: true, circle, cross: true, home: circle ? CIRCLE : null,
      xLabel: `${what} component ${p + 1}`, yLabel: `${what} component ${q + 1}`,
      labels: order.slice(0, MAX_LABELS).map(i => ({ x: x[i], y: y[i], text: shorten(features.names[i]) })),
      describe: i => [["feature", features.names[i]],
        ...[...new Set(chosen)].flatMap(k => [[`loading on ${k + 1}`, format(features.loadings[k][i])],
          [`correlation with ${k + 1}`, format(correlations[k][i])]]),
        ["explained", features.explained[i]]],
    });
  };
  const controls = html("div", { class: "controls" });
  for (const [axis, label] of [[0, "Horizontal"], [1, "Vertical"]]) {
    controls.append(select(label, names, chosen[axis], k => { chosen[axis] = k; draw(); }));
  }
  controls.append(checkbox("Correlation circle", on => { circle = on; draw(); }));
  host.append(controls);
  const plot = new Scatter(host, "Features by their loadings on two components");
  draw();
}

const CIRCLE = [-1.1, 1.1];

function rowsView(host, data) {
  const { rows, palette } = data;
  const number = (name, values) => ({ name, number: true, key: i => values[i], text: i => format(values[i]) });
  const above = (values, k) => values.map(value => rows.limits[k] !== null && value > rows.limits[k]);
  const [farT2, farSpe] = [above(rows.t2, 0), above(rows.spe, 1)];
  const outlier = i => [farT2[i] ? "T²" : "", farSpe[i] ? "SPE" : ""].filter(Boolean).join(", ");
  const columns = [
    { name: "row", key: i => rows.number[i], text: i => String(rows.number[i]) },
    ...rows.columns.map(column => ({
      name: column.name, text: i => column.texts[column.codes[i]],
      key: column.values ? i => column.values[column.codes[i]] : i => column.texts[column.codes[i]],
    })),
    ...rows.scores.map((values, k) => number(`component ${k + 1}`, values)),
    number("T²", rows.t2), number("SPE", rows.spe), { name: "above the limit of", key: outlier, text: outlier },
  ];
  const table = new DataTable(host, "rows", palette.size, columns, i => palette.mark(i));
  palette.marking.push(i => table.pick(i));
}

function featuresView(host, data) {
  const { features } = data;
  const number = (name, values) => ({ name, number: true, key: i => values[i], text: i => format(values[i]) });
  const columns = [
    { name: "feature", key: i => features.names[i], text: i => features.names[i] },
    ...features.loadings.map((values, k) => ({
      name: `loading ${k + 1}`, number: true, key: i => Math.abs(values[i]), text: i => format(values[i]),
    })),
    { name: "explained", number: true, key: i => features.shares[i], text: i => features.explained[i] },
    number("variance", features.units),
  ];
  new DataTable(host, "features", features.names.length, columns);
}

// --- start ---

const VIEWS = {
  scores: scoresView, outliers: outliersView, loadings: loadingsView, rows: rowsView, features: featuresView,
};

function start() {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  if (data.rows) data.palette = new Palette(data.rows);
  for (const card of document.querySelectorAll("[data-view]")) {
    VIEWS[card.dataset.view](card.querySelector(".live"), data);
    card.hidden = false;
    document.getElementById(card.dataset.replaces)?.classList.add("replaced");
    if (card.classList.contains("wide")) continue;
    for (const other of card.parentElement.querySelectorAll(".wide:not([data-view])")) {
      other.classList.remove("wide"); // it is beside the plot now, without its tables but for paper
      const open = isOpen => other.querySelectorAll("details").forEach(details => { details.open = isOpen; });
      open(false);
      addEventListener("beforeprint", () => open(true));
      addEventListener("afterprint", () => open(false));
    }
  }
  document.getElementById("without-script").hidden = true;
}

start();
