// What readers can explore. Python has computed the numbers and drawn the pictures: this moves, colors and finds.
// All text is set as text, never as markup; all colors are CSS, so that they follow light and dark mode.

const NEAR = 11; // between the pointer and a point that it is at, in units of a picture
const KEYS = {
  ArrowLeft: ["pan", 40, 0], ArrowRight: ["pan", -40, 0], ArrowUp: ["pan", 0, 40], ArrowDown: ["pan", 0, -40],
  "+": ["zoom", 1.5], "=": ["zoom", 1.5], "-": ["zoom", 1 / 1.5], 0: ["reset"], n: ["step", 1], p: ["step", -1],
  Escape: ["inspect", null], Enter: ["pick"],
};

function set(element, attributes) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** An element with attributes and children; of SVG if its name begins with "svg:". */
function make(name, attributes = {}, ...children) {
  const [tag, space] = name.split(":").reverse();
  const made = space ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  made.append(...children);
  return set(made, attributes);
}

/** A number with few digits, minus signs, and an exponent where it is very large or small. */
function format(value, digits = 4, notation = "standard") {
  const size = Math.abs(value);
  const text = value === null ? "–" : size >= 1e9 || (size < 1e-4 && size > 0)
    ? value.toExponential(digits - 2).replace(/\.?0*e\+?/, "e")
    : value.toLocaleString("en-US", { maximumSignificantDigits: digits, notation }).replace("K", "k");
  return text.replaceAll("-", "−");
}

/** What line i of a column says. */
function textOf({ texts, codes, values, number }, i) {
  return texts ? texts[codes ? codes[i] : i] : number ? format(values[i]) : String(values[i]);
}

/** About `count` round numbers of a range, as [place, text]; of a range of logarithms if `isLog`. */
function ticks([low, high], count, isLog) {
  const arePowers = isLog && high - low > 1.2, areValues = isLog && !arePowers; // far apart, and close together
  const [from, to] = areValues ? [10 ** low, 10 ** high] : [low, high], rough = (to - from) / count;
  const unit = 10 ** Math.floor(Math.log10(rough)), round = unit * [1, 2, 2.5, 5, 10].find(by => by * unit >= rough);
  const step = arePowers ? Math.ceil(round) : round, first = Math.ceil(from / step);
  const notation = !arePowers && Math.max(-from, to) >= 1e4 ? "compact" : "standard";
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, i) => {
    const at = Number(((first + i) * step).toPrecision(12));
    return [areValues ? Math.log10(at) : at, format(arePowers ? Number(`1e${at}`) : at, 7, notation)];
  });
}

/** The colors of rows. Views listen to the document: "paint" says that colors changed, "mark" which row is marked. */
class Palette {
  constructor({ columns, color }) {
    Object.assign(this, { columns, legends: document.querySelectorAll("[data-legend]") });
    for (const legend of this.legends) legend.querySelectorAll("button").forEach((button, group) =>
      button.addEventListener("click", () => {
        if (!this.hidden.delete(group)) this.hidden.add(group);
        this.paint();
      }));
    this.choose(color);
  }

  /** Color by the column of this number; 0 is none. */
  choose(number) {
    Object.assign(this, { number, column: number ? this.columns[number] : {}, hidden: new Set() });
    this.paint();
  }

  paint() {
    for (const legend of this.legends) {
      legend.hidden = Number(legend.dataset.legend) !== this.number;
      legend.querySelectorAll("button").forEach((each, group) => set(each, { "aria-pressed": !this.hidden.has(group) }));
    }
    document.dispatchEvent(new Event("paint"));
  }

  shows(i) { return !this.hidden.has(this.column.groups?.[this.column.codes[i]]); }

  fill(i) {
    const { codes, groups, colors, places } = this.column, place = places?.[codes[i]] ?? null;
    const series = groups ? colors[groups[codes[i]]] : places ? 0 : 1, step = Math.floor(place / 100) + 1;
    if (place === null) return series ? `var(--series-${series})` : "var(--faint)";
    return `color-mix(in oklab, var(--ramp-${step}) ${100 - place % 100}%, var(--ramp-${step + 1}))`;
  }
}

const mark = row => document.dispatchEvent(new CustomEvent("mark", { detail: row }));

/** A picture to move and zoom, whose points tell their values. */
class Plot {
  constructor(figure, plot, tables, palette) {
    const part = name => figure.querySelector(name);
    Object.assign(this, { plot, palette, ...tables[plot.table], features: tables.features.columns, at: null, marked: null });
    Object.assign(this, { box: part(".plot"), tooltip: part(".tooltip"), spoken: part(".spoken"), toggle: part(".toggle") });
    this.lists = figure.querySelectorAll(".axis");
    this.adopt(figure.parentElement.querySelector(".still svg").cloneNode(true));
    this.listen(new Map());
    part(".zoom").addEventListener("click", ({ target }) => this.press(target.dataset.key));
    part(".controls").addEventListener("change", ({ target }) =>
      target.matches(".color") ? palette.choose(Number(target.value)) : this.reset());
    if (palette) document.addEventListener("paint", () => this.paint());
    if (palette) document.addEventListener("mark", ({ detail }) => { this.marked = detail; this.drawRing(); });
    this.reset();
    this.paint();
  }

  /** Take over a picture of Python's: what is redrawn goes, and points and names are drawn in its frame. */
  adopt(picture) {
    this.box.prepend(picture);
    for (const each of picture.querySelectorAll(".redrawn, defs")) each.remove();
    this.scales = [...picture.querySelectorAll(".scale")].map(scale => {
      const all = scale.querySelectorAll(".tick"), host = scale.appendChild(make("svg:g"));
      for (const each of all) each.remove();
      return { host, tick: all[0], label: scale.querySelector(".label text") };
    });
    const { x, y, width, height } = picture.querySelector(".frame").getBBox(), guides = picture.querySelectorAll(".guide");
    this.dots = Array.from({ length: this.size }, () => make("svg:circle", { class: "dot", r: 2.6 }));
    Object.assign(this, { guides, names: make("svg:g"), ring: make("svg:circle", { class: "ring", r: 5.5 }) });
    Object.assign(this, { frame: [[x, width], [y + height, -height]], width: picture.viewBox.baseVal.width });
    const inside = { x, y, width, height, viewBox: `${x} ${y} ${width} ${height}` };
    picture.append(make("svg:svg", inside, ...guides, ...this.dots, this.names, this.ring));
    for (const each of picture.querySelectorAll("*")) ["id", "clip-path"].forEach(key => each.removeAttribute(key));
    set(picture, { viewBox: `0 0 ${this.width} ${y + height + 38}` }); // without the legend
  }

  pixel(k, value) {
    const [low, high] = this.view[k], [start, length] = this.frame[k];
    return start + (value - low) / (high - low) * length;
  }

  /** Show the components that are chosen, from where all points are seen. */
  reset() {
    const isOn = Boolean(this.toggle?.checked), { axes, names } = this.plot.states[Number(isOn)];
    this.box.classList.toggle("on", isOn);
    this.chosen = [0, 1].map(k => this.lists[k]?.selectedIndex ?? k);
    Object.assign(this, { shown: this.chosen.map(k => axes[k]), named: names });
    this.points = this.shown.map(({ columns: [column], least }) => this.columns[column].values.map(
      value => least ? Math.log10(Math.max(value, least)) : value));
    const ranges = this.shown.map(axis => axis.range), wider = ranges[Number(ranges[1][1] > ranges[0][1])];
    this.view = this.plot.square ? [wider, wider] : ranges;
    this.home = this.view[0][1] - this.view[0][0];
    this.move(range => range);
  }

  /** Change what is in view: `change` is a function of the range of an axis, and the number of the axis. */
  move(change) {
    this.view = this.view.map(change);
    this.inspect(null);
    this.pending ??= requestAnimationFrame(() => { this.pending = null; this.draw(); });
  }

  zoom(factor, place = this.frame.map(([start, length]) => start + length / 2)) {
    const zoomed = this.home / (this.view[0][1] - this.view[0][0]) * factor;
    if (zoomed > 0.25 && zoomed < 1e4) this.move(([low, high], k) => {
      const at = low + (place[k] - this.frame[k][0]) / this.frame[k][1] * (high - low);
      return [at - (at - low) / factor, at + (high - at) / factor];
    });
  }

  pan(...by) { this.move((range, k) => range.map(end => end - by[k] / this.frame[k][1] * (range[1] - range[0]))); }

  paint() {
    this.dots.forEach((dot, i) => {
      dot.style.fill = this.palette?.fill(i) ?? "var(--series-1)";
      dot.style.display = this.shows(i) ? "" : "none";
    });
    this.drawRing();
  }

  draw() {
    this.places = this.points.map((values, k) => values.map(value => this.pixel(k, value)));
    this.dots.forEach((dot, i) => set(dot, { cx: this.places[0][i].toFixed(1), cy: this.places[1][i].toFixed(1) }));
    const moves = this.plot.drawn.map(([low, high], k) => {
      const factor = (high - low) / (this.view[k][1] - this.view[k][0]);
      return [factor, this.pixel(k, low) - factor * this.frame[k][0]];
    });
    for (const guide of this.guides) { // a line across the frame moves along one axis
      const [[a, e], [d, f]] = moves.map((each, k) => guide.matches(k ? ".x" : ".y") ? [1, 0] : each);
      set(guide, { transform: `matrix(${a} 0 0 ${d} ${e} ${f})` });
    }
    this.scales.forEach((scale, k) => this.drawScale(scale, this.shown[k], k));
    this.drawNames();
    this.drawRing();
  }

  drawScale({ host, tick, label }, axis, k) {
    const [[left, width], [bottom, height]] = this.frame, [low, high] = this.view[k];
    const all = (axis.ticks ?? ticks(this.view[k], k ? 6 : 5, axis.least)).filter(([at]) => (at - low) * (at - high) <= 0);
    if (label) label.textContent = axis.label;
    host.replaceChildren(...all.map(([value, text]) => {
      const made = tick.cloneNode(true), words = made.querySelector("text"), line = made.querySelector("path");
      const at = this.pixel(k, value), x = Math.min(at, left + width + 2 - 3.6 * text.length); // within the picture
      if (line) set(line, { d: k ? `M${left} ${at}h${width}` : `M${at} ${bottom}v${height}` });
      set(words, { transform: "", ...(k ? { y: at + 4.5 } : { x }) }).textContent = text;
      return made;
    }));
  }

  /** Arrows and names of the strongest features; names cover neither each other nor the edge. */
  drawNames() {
    const [p, q] = [...this.chosen].sort((a, b) => a - b), { order, columns, factors } = this.named ?? {}, taken = [];
    const factor = factors?.[p][q - p - 1] ?? 1, origin = [this.pixel(0, 0), this.pixel(1, 0)];
    const [[left, width], [bottom, height]] = this.frame;
    this.names.replaceChildren();
    for (const i of order?.[p][q - p - 1] ?? []) {
      const [x, y] = this.chosen.map((c, k) => this.pixel(k, factor * this.features[columns[c]].values[i]));
      if (factors) this.names.append(make("svg:path", { class: "arrow", d: `M${origin}L${x} ${y}` }));
      const text = textOf(this.features[0], i).replace(/^(.{12}).{2,}(.{7})$/u, "$1…$2"), isRight = x >= origin[0];
      const name = this.names.appendChild(make("svg:text", { class: "name", y: y + 4 }, text));
      const fits = [isRight, !isRight].some(toRight => {
        set(name, { x: toRight ? x + 5 : x - 5, "text-anchor": toRight ? "start" : "end" });
        const { x: from, y: top, width: wide, height: tall } = name.getBBox(), [to, low] = [from + wide, top + tall];
        const isApart = other => from > other.to || to < other.from || top > other.low || low < other.top;
        const isInside = from > left && to < left + width && top > bottom + height && low < bottom;
        return isInside && taken.every(isApart) && taken.push({ from, to, top, low });
      });
      if (!fits) name.remove();
    }
  }

  drawRing() {
    const i = this.at ?? this.marked, isSeen = i !== null && this.places && this.shows(i);
    set(this.ring, { visibility: isSeen ? "visible" : "hidden" });
    if (isSeen) set(this.ring, { cx: this.places[0][i], cy: this.places[1][i] });
  }

  shows(i) { return (this.palette?.shows(i) ?? true) && !this.plot.without?.includes(i); }

  /** The points in view. */
  inView() {
    const isIn = (i, k) => (this.points[k][i] - this.view[k][0]) * (this.points[k][i] - this.view[k][1]) <= 0;
    return [...this.dots.keys()].filter(i => this.shows(i) && isIn(i, 0) && isIn(i, 1));
  }

  nearest([x, y]) {
    const away = i => Math.hypot(this.places[0][i] - x, this.places[1][i] - y);
    return this.inView().reduce((best, i) => away(i) < (best === null ? NEAR : away(best)) ? i : best, null);
  }

  /** Show the tooltip of a point, or of none (null); say it where the keyboard has led there. */
  inspect(i, aloud = false) {
    this.at = i;
    this.tooltip.hidden = i === null;
    this.drawRing();
    if (i === null) return;
    const told = [...new Set([...this.plot.facts, ...this.shown.flatMap(axis => axis.columns)])].map(k => this.columns[k]);
    const facts = told.filter(({ name }) => name).map(column => [column.name, textOf(column, i) || "–"]);
    this.tooltip.replaceChildren(...facts.map(
      ([name, text]) => make("div", {}, make("span", {}, name), make("bdi", {}, text))));
    if (aloud) this.spoken.textContent = facts.map(fact => fact.join(": ")).join(", ");
    const [x, y] = this.places.map(places => places[i] / this.scale), room = this.box.clientWidth;
    const { offsetWidth: wide, offsetHeight: tall } = this.tooltip, beside = x + 14 + wide > room ? x - 14 - wide : x + 14;
    this.tooltip.style.translate = `${Math.max(0, Math.min(beside, room - wide))}px ${Math.max(0, y - tall / 2)}px`;
  }

  /** Go to the next (1) or previous (-1) point in view, from left to right. */
  step(by) {
    const order = this.inView().sort((a, b) => this.points[0][a] - this.points[0][b] || a - b);
    const from = this.at === null ? Math.min(0, -by) : order.indexOf(this.at);
    if (order.length) this.inspect(order.at((from + by) % order.length), true);
  }

  pick() { if (this.palette) mark(this.at); }

  press(key = "") {
    const [act, ...values] = KEYS[key] ?? KEYS[key.toLowerCase()] ?? [];
    if (act) this[act](...values);
    return act;
  }

  get scale() { return this.width / this.box.clientWidth; } // units of the picture per pixel

  /** By key, mouse and touch. `pointers` are those pressed, and where they were last. */
  listen(pointers) {
    const { box } = this, on = (type, act) => box.addEventListener(type, act, { passive: false });
    const isHeld = event => event.ctrlKey || event.metaKey, apart = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
    const place = ({ clientX, clientY }, { left, top } = box.getBoundingClientRect()) =>
      [(clientX - left) * this.scale, (clientY - top) * this.scale];
    let moved = false;
    on("keydown", event => { if (!isHeld(event) && !event.altKey && this.press(event.key)) event.preventDefault(); });
    on("wheel", event => { // scrolls the page, unless the plot was clicked before or a key is held
      if (!isHeld(event) && document.activeElement !== box) return;
      event.preventDefault();
      this.zoom(Math.exp(-Math.max(-100, Math.min(100, event.deltaY)) * 0.003), place(event));
    });
    on("pointerdown", event => {
      moved = pointers.size > 0;
      pointers.set(event.pointerId, place(event));
      box.setPointerCapture(event.pointerId);
    });
    on("pointermove", event => { // points with none pressed, pans with one, zooms with two
      const now = place(event), before = pointers.get(event.pointerId);
      if (!before) return event.pointerType === "mouse" && this.inspect(this.nearest(now));
      if (!moved && apart(now, before) < 4) return;
      moved = Boolean(pointers.set(event.pointerId, now));
      const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
      if (!other) this.pan(now[0] - before[0], now[1] - before[1]);
      else if (apart(before, other) > 10) this.zoom(apart(now, other) / apart(before, other), other);
    });
    for (const type of ["pointerup", "pointercancel"]) on(type, event => {
      if (!pointers.delete(event.pointerId) || moved || type === "pointercancel") return;
      this.inspect(this.nearest(place(event)));
      this.pick();
    });
    on("pointerleave", event => { if (event.pointerType === "mouse") this.inspect(null); });
    on("blur", () => this.inspect(null));
  }
}

/** A table to search and sort: the first lines of those that match, and more on request. */
class Table {
  constructor(figure, { columns, size }, isMarked) {
    const part = name => figure.querySelector(name), shown = columns.filter(column => !column.hidden);
    Object.assign(this, { columns: shown, isMarked, lines: 25, sorted: null, sign: 1, marked: null, first: null });
    Object.assign(this, { search: part("input"), status: part("[role=status]"), body: part("tbody"), more: part(".more") });
    const words = i => shown.map(column => column.number ? "" : textOf(column, i).toLowerCase()).join("\n");
    this.words = Array.from({ length: size }, (_, i) => words(i));
    this.search.addEventListener("input", () => this.show(25));
    this.more.addEventListener("click", () => this.show(4 * this.lines));
    this.heads = figure.querySelectorAll("thead th");
    this.heads.forEach((head, k) => head.firstChild.addEventListener("click", () => {
      this.sign = this.sorted === k ? -this.sign : shown[k].number ? -1 : 1;
      this.sorted = k;
      this.show(this.lines);
    }));
    if (isMarked) document.addEventListener("mark", ({ detail: row }) => {
      Object.assign(this, { marked: row, first: this.drawn.includes(row) ? this.first : row }); // where it is seen
      this.show(this.lines);
    });
    this.show(25);
  }

  show(count) {
    const query = this.search.value.trim().toLowerCase(), { sorted, sign, body } = this;
    const lines = this.ordered([...this.words.keys()].filter(i => this.words[i].includes(query)));
    this.heads.forEach((head, k) => set(head, {
      "aria-sort": k !== sorted ? "none" : sign < 0 ? "descending" : "ascending" }));
    Object.assign(this, { lines: count, drawn: lines.slice(0, count) });
    const focused = [...body.children].findIndex(line => line.contains(document.activeElement));
    body.replaceChildren(...this.drawn.map(i => this.line(i)));
    body.children[focused]?.querySelector("button").focus({ preventScroll: true });
    const [found, all] = [lines.length, this.words.length].map(each => each.toLocaleString("en-US"));
    this.status.textContent = `${found} of ${all} ${this.status.dataset.noun}`;
    this.more.hidden = lines.length <= count;
  }

  /** Lines as they are sorted, the one to be seen before them; unknown values come last in either direction. */
  ordered(lines) {
    const { values, codes, known, absolute } = this.columns[this.sorted] ?? {};
    const keys = (values ?? codes)?.map(key => key === null || key >= known ? null : absolute ? Math.abs(key) : key);
    const apart = (a, b) => (keys[a] === null) - (keys[b] === null) || this.sign * (keys[a] - keys[b]) || a - b;
    return (keys ? lines.sort(apart) : lines).sort((a, b) => (b === this.first) - (a === this.first));
  }

  line(i) {
    const isMarked = i === this.marked, cells = this.columns.map((column, k) => make(k ? "td" : "th",
      k ? { class: column.number ? "number" : "" } : { scope: "row" }, make("bdi", {}, textOf(column, i))));
    if (this.isMarked) {
      const pressed = { type: "button", "aria-pressed": isMarked, title: "Mark in the plots" };
      cells[0].append(make("button", pressed, ...cells[0].children));
      cells[0].firstChild.addEventListener("click", () => mark(isMarked ? null : i));
    }
    return make("tr", { class: isMarked ? "picked" : "" }, ...cells);
  }
}

const { tables, plots } = JSON.parse(document.getElementById("report-data").textContent);
const palette = tables.rows && new Palette(tables.rows);
for (const figure of document.querySelectorAll("[data-view]")) {
  const name = figure.dataset.view, plot = plots[name];
  figure.hidden = false;
  if (plot) new Plot(figure, plot, tables, plot.table === "rows" ? palette : null);
  else new Table(figure, tables[name], name === "rows");
}
document.getElementById("without-script").hidden = true;
