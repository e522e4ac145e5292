// What readers can explore. Python has computed the numbers and drawn the pictures: this moves, colors and finds.
// All text is set as text, never as markup; all colors are CSS, so that they follow light and dark mode.

const NEAR = 11; // between the pointer and a point that it is at, in units of a picture
const KEYS = {
  ArrowLeft: ["pan", 40, 0], ArrowRight: ["pan", -40, 0], ArrowUp: ["pan", 0, 40], ArrowDown: ["pan", 0, -40],
  "+": ["zoom", 1.5], "=": ["zoom", 1.5], "-": ["zoom", 1 / 1.5], 0: ["reset"], n: ["step", 1], p: ["step", -1],
  Escape: ["inspect", null], Enter: ["pick"],
};

const find = (selector, host = document) => [...host.querySelectorAll(selector)];
const tell = (what, row) => document.dispatchEvent(new CustomEvent(what, { detail: row }));

const set = (element, attributes) => {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};

/** An element with attributes and children; of SVG if its name begins with "svg:". */
function make(name, attributes = {}, ...children) {
  const [tag, space] = name.split(":").reverse();
  const made = space ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  made.append(...children);
  return set(made, attributes);
}

/** A number with few digits, minus signs, and an exponent where it is very large or small. */
function format(value, maximumSignificantDigits = 4, usual = "standard") {
  if (value === null) return "–";
  const size = Math.abs(value), notation = size >= 1e9 || (size < 1e-4 && size > 0) ? "scientific" : usual;
  const text = value.toLocaleString("en-US", { maximumSignificantDigits, notation });
  return text.replace("E", "e").replace("K", "k").replaceAll("-", "−");
}

/** What line i of a column says. */
const textOf = ({ texts, codes, values, number }, i) =>
  texts ? texts[codes ? codes[i] : i] : number ? format(values[i]) : String(values[i]);

/** About `count` round numbers of a range, as [place, text]; of a range of logarithms if `isLog`. */
function ticks([low, high], count, isLog) {
  const arePowers = isLog && high - low > 1.6, areValues = isLog && !arePowers; // far apart, and close together
  const [from, to] = areValues ? [10 ** low, 10 ** high] : [low, high], rough = (to - from) / count;
  const unit = 10 ** Math.floor(Math.log10(rough)), round = unit * [1, 2, 2.5, 5, 10].find(by => by * unit >= rough);
  const step = arePowers ? Math.ceil(round) : round, isLarge = !arePowers && Math.max(-from, to) >= 1e4;
  return Array.from({ length: Math.floor(to / step) - Math.ceil(from / step) + 1 }, (_, i) => {
    const at = Number(((Math.ceil(from / step) + i) * step).toPrecision(12)), value = arePowers ? 10 ** at : at;
    return [areValues ? Math.log10(at) : at, format(value, 7, isLarge ? "compact" : "standard")];
  });
}

/** The colors of rows. It tells "paint" when they change; who marks a row, or none (null), tells "mark". */
class Palette {
  constructor({ columns, color }) {
    this.columns = columns;
    for (const button of find("[data-legend] button")) button.addEventListener("click", () => {
      button.ariaPressed = String(button.ariaPressed === "false");
      tell("paint");
    });
    this.choose(color);
  }
  /** Color by the column of this number; 0 is none. */
  choose(number) {
    this.column = number ? this.columns[number] : {};
    for (const legend of find("[data-legend]")) legend.hidden = Number(legend.dataset.legend) !== number;
    this.groups = find("[data-legend]:not([hidden]) button");
    for (const button of this.groups) button.ariaPressed = "true";
    tell("paint");
  }
  shows(i) { return this.groups[this.column.groups?.[this.column.codes[i]]]?.ariaPressed !== "false"; }
  fill(i) {
    const { codes, groups, colors, places } = this.column, place = places?.[codes[i]] ?? null;
    const series = groups ? colors[groups[codes[i]]] : places ? 0 : 1, step = Math.floor(place / 100) + 1;
    if (place === null) return series ? `var(--series-${series})` : "var(--faint)";
    return `color-mix(in oklab, var(--ramp-${step}) ${100 - place % 100}%, var(--ramp-${step + 1}))`;
  }
}

/** A picture to move and zoom, whose points tell their values. */
class Plot {
  constructor(figure, plot, tables, palette) {
    const part = name => figure.querySelector(name), { columns, size } = tables[plot.table];
    Object.assign(this, { plot, palette, columns, features: tables.features.columns, at: null, marked: null });
    Object.assign(this, { box: part(".plot"), tooltip: part(".tooltip"), spoken: part(".spoken") });
    Object.assign(this, { lists: find(".axis", figure), toggle: part(".toggle") });
    this.adopt(figure.parentElement.querySelector(".still svg").cloneNode(true), size);
    this.listen(new Map());
    part(".zoom").addEventListener("click", ({ target }) => this.press(target.dataset.key));
    part(".controls").addEventListener("change", ({ target }) =>
      target.matches(".color") ? palette.choose(Number(target.value)) : this.reset());
    this.reset();
    this.paint();
    document.addEventListener("paint", () => this.paint());
    if (palette) document.addEventListener("mark", ({ detail: row }) => { this.marked = row; this.drawRing(); });
  }
  /** Take over a picture of Python's: what is redrawn goes, and points and names are drawn in its frame. */
  adopt(picture, size) {
    this.box.prepend(picture);
    for (const each of find(".redrawn, defs", picture)) each.remove();
    for (const each of find("*", picture)) ["id", "clip-path"].forEach(key => each.removeAttribute(key));
    const { x, y, width, height } = picture.querySelector(".frame").getBBox();
    Object.assign(this, { frame: [[x, width], [y + height, -height]], width: picture.viewBox.baseVal.width });
    Object.assign(this, { names: make("svg:g"), ring: make("svg:circle", { class: "ring", r: 5.5 }) });
    this.guides = find(".guide path", picture);
    this.dots = Array.from({ length: size }, () => make("svg:circle", { class: "dot", r: 2.6 }));
    this.scales = find(".scale", picture).map(scale => {
      const all = find(".tick", scale), label = scale.querySelector(".label text");
      for (const tick of all) tick.remove();
      return { host: scale.appendChild(make("svg:g")), tick: all[0], label };
    });
    const inside = { x, y, width, height, viewBox: `${x} ${y} ${width} ${height}` };
    picture.append(make("svg:svg", inside, ...find(".guide", picture), ...this.dots, this.names, this.ring));
    set(picture, { viewBox: `0 0 ${this.width} ${y + height + 38}` }); // without the legend
  }
  pixel(k, value) {
    const [low, high] = this.view[k], [start, length] = this.frame[k];
    return start + (value - low) / (high - low) * length;
  }
  isInView(k, value) { return (value - this.view[k][0]) * (value - this.view[k][1]) <= 0; }
  /** Show the components that are chosen, from where all points are seen. */
  reset() {
    const isOn = Boolean(this.toggle?.checked), { axes, names = {} } = this.plot.states[Number(isOn)];
    this.box.classList.toggle("on", isOn);
    this.chosen = [0, 1].map(k => this.lists[k]?.selectedIndex ?? k);
    this.shown = this.chosen.map(k => axes[k]);
    this.points = this.shown.map(({ columns: [column], least }) => this.columns[column].values.map(
      value => least ? Math.log10(Math.max(value, least)) : value));
    Object.assign(this, { named: names, view: this.shown.map(axis => axis.range), zoomed: 1 });
    this.move(range => range);
  }
  /** Change what is in view: `change` is a function of the range of an axis, and the number of the axis. */
  move(change) {
    this.view = this.view.map(change);
    this.inspect(null);
    this.pending ??= requestAnimationFrame(() => { this.pending = null; this.draw(); });
  }
  zoom(factor, place = this.frame.map(([start, length]) => start + length / 2)) {
    if (this.zoomed * factor < 0.25 || this.zoomed * factor > 1e4) return;
    this.zoomed *= factor;
    this.move(([low, high], k) => {
      const at = low + (place[k] - this.frame[k][0]) / this.frame[k][1] * (high - low);
      return [at - (at - low) / factor, at + (high - at) / factor];
    });
  }
  pan(...by) { this.move((range, k) => range.map(end => end - by[k] / this.frame[k][1] * (range[1] - range[0]))); }
  paint() {
    this.dots.forEach(({ style }, i) =>
      Object.assign(style, { fill: this.palette?.fill(i) ?? "", display: this.shows(i) ? "" : "none" }));
    this.drawRing();
  }
  draw() {
    this.places = this.points.map((values, k) => values.map(value => this.pixel(k, value)));
    this.dots.forEach((dot, i) => set(dot, { cx: this.places[0][i].toFixed(1), cy: this.places[1][i].toFixed(1) }));
    this.guides.forEach((guide, line) => { // null is the edge of the frame
      const [x, y] = this.plot.guides[line].map((ends, k) => ends.map((at, i) => this.pixel(k, at ?? this.view[k][i])));
      set(guide, { d: `M${x.map((at, i) => [at, y[i]]).join("L")}` });
    });
    this.scales.forEach((scale, k) => this.drawScale(scale, this.shown[k], k));
    this.drawNames(this.frame, this.named, []);
    this.drawRing();
  }
  drawScale({ host, tick, label }, axis, k) {
    const [[left, width], [bottom, height]] = this.frame;
    const all = (axis.ticks ?? ticks(this.view[k], k ? 6 : 5, axis.least)).filter(([value]) => this.isInView(k, value));
    if (label) label.textContent = axis.label;
    host.replaceChildren(...all.map(([value, text]) => {
      const made = tick.cloneNode(true), line = made.querySelector("path"), at = this.pixel(k, value);
      const place = k ? { y: at + 4.5 } : { x: Math.min(at, left + width + 2 - 3.6 * text.length) }; // in the picture
      if (line) set(line, { d: k ? `M${left} ${at}h${width}` : `M${at} ${bottom}v${height}` });
      set(made.querySelector("text"), { transform: "", ...place }).textContent = text;
      return made;
    }));
  }
  /** Arrows and names of the strongest features; names cover neither each other nor the edge. */
  drawNames([[left, width], [bottom, height]], { order, columns, factors }, taken) {
    const [p, q] = [...this.chosen].sort((a, b) => a - b), factor = factors?.[p][q - p - 1] ?? 1;
    const [middle, level] = [this.pixel(0, 0), this.pixel(1, 0)];
    this.names.replaceChildren();
    for (const i of order?.[p][q - p - 1] ?? []) {
      const [x, y] = this.chosen.map((c, k) => this.pixel(k, factor * this.features[columns[c]].values[i]));
      const far = Math.hypot(x - middle, y - level) / 7 || 1, [u, v] = [(x - middle) / far, (y - level) / far];
      const d = `M${middle} ${level}L${x} ${y}l${-u - v / 2} ${u / 2 - v}M${x} ${y}l${v / 2 - u} ${-u / 2 - v}`;
      if (factors) this.names.append(make("svg:path", { class: "arrow", d }));
      const text = textOf(this.features[0], i).replace(/^(.{12}).{2,}(.{7})$/u, "$1…$2");
      const name = this.names.appendChild(make("svg:text", { class: "name", y: y + 4 }, text));
      const wide = name.getBBox().width, beside = x >= middle ? [x + 5, x - 5 - wide] : [x - 5 - wide, x + 5];
      const isFree = (at, h) => taken.every(o => at > o.to || at + wide < o.from || Math.abs(h - o.y) > 13);
      const isInside = (at, h) => at > left && at + wide < left + width && h > bottom + height + 9 && h < bottom - 5;
      const spots = [0, -12, 12].flatMap(rise => beside.map(at => [at, y + rise])); // beside it, or above, or below
      const [from, h] = spots.find(spot => isInside(...spot) && isFree(...spot)) ?? [];
      if (from === undefined) { name.remove(); continue; }
      set(name, { x: from, y: h + 4 });
      taken.push({ from, to: from + wide, y: h });
    }
  }
  drawRing() {
    const i = this.at ?? this.marked, isSeen = i !== null && this.places && this.shows(i);
    if (isSeen) set(this.ring, { cx: this.places[0][i], cy: this.places[1][i] });
    set(this.ring, { visibility: isSeen ? "visible" : "hidden" });
  }
  shows(i) { return (this.palette?.shows(i) ?? true) && !this.plot.without?.includes(i); }
  /** The points in view, as their numbers. */
  inView() {
    return [...this.dots.keys()].filter(i => this.shows(i) && this.points.every((at, k) => this.isInView(k, at[i])));
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
    const told = new Set([...this.plot.facts, ...this.shown.flatMap(axis => axis.columns)].map(k => this.columns[k]));
    const facts = [...told].filter(({ name }) => name).map(column => [column.name, textOf(column, i) || "–"]);
    const line = ([name, text]) => make("div", {}, make("span", {}, name), make("bdi", {}, text));
    this.tooltip.replaceChildren(...facts.map(line));
    if (aloud) this.spoken.textContent = facts.map(fact => fact.join(": ")).join(", ");
    const [x, y] = this.places.map(places => places[i] / this.scale), room = this.box.clientWidth;
    const { offsetWidth: wide, offsetHeight: tall } = this.tooltip, left = x + (x + 14 > room - wide ? -14 - wide : 14);
    this.tooltip.style.translate = `${Math.max(0, Math.min(left, room - wide))}px ${Math.max(0, y - tall / 2)}px`;
  }
  /** Go to the next (1) or previous (-1) point in view, from left to right. */
  step(by) {
    const order = this.inView().sort((a, b) => this.points[0][a] - this.points[0][b] || a - b);
    const from = this.at === null ? Math.min(0, -by) : order.indexOf(this.at);
    if (order.length) this.inspect(order.at((from + by) % order.length), true);
  }
  pick() { if (this.palette) tell("mark", this.at); }
  press(key = "") {
    const [act, ...values] = KEYS[key] ?? KEYS[key.toLowerCase()] ?? [];
    if (act) this[act](...values);
    return act;
  }
  get scale() { return this.width / this.box.clientWidth; } // units of the picture per pixel
  place({ clientX, clientY }, { left, top } = this.box.getBoundingClientRect()) {
    return [(clientX - left) * this.scale, (clientY - top) * this.scale];
  }
  /** By key, mouse and touch; `pointers` are those pressed, and where they were last. */
  listen(pointers) {
    const { box } = this, on = (type, act) => box.addEventListener(type, act, { passive: false });
    const isHeld = event => event.ctrlKey || event.metaKey, apart = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
    let moved = false; // since a pointer was pressed
    on("keydown", event => { if (!isHeld(event) && !event.altKey && this.press(event.key)) event.preventDefault(); });
    on("wheel", event => { // scrolls the page, unless the plot was clicked before or a key is held
      if (!isHeld(event) && document.activeElement !== box) return;
      event.preventDefault();
      this.zoom(Math.exp(-Math.max(-100, Math.min(100, event.deltaY)) * 0.003), this.place(event));
    });
    on("pointerdown", event => {
      moved = pointers.size > 0;
      pointers.set(event.pointerId, this.place(event));
      box.setPointerCapture(event.pointerId);
    });
    on("pointermove", event => { // points with none pressed, pans with one, zooms with two
      const now = this.place(event), before = pointers.get(event.pointerId);
      if (!before) return event.pointerType === "mouse" && this.inspect(this.nearest(now));
      if (!moved && apart(now, before) < 4) return;
      moved = true;
      pointers.set(event.pointerId, now);
      const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
      if (!other) this.pan(now[0] - before[0], now[1] - before[1]);
      else if (apart(before, other) > 10) this.zoom(apart(now, other) / apart(before, other), other);
    });
    on("pointerup", event => {
      if (!pointers.delete(event.pointerId) || moved) return;
      this.inspect(this.nearest(this.place(event)));
      this.pick();
    });
    on("pointercancel", event => pointers.delete(event.pointerId));
    for (const type of ["pointerleave", "blur"]) on(type, event => event.pointerType !== "touch" && this.inspect(null));
  }
}

/** A table to search and sort: the first lines of those that match, and more on request. */
class Table {
  constructor(figure, { columns, size }, hasMarks) {
    const part = name => figure.querySelector(name), shown = columns.filter(column => !column.hidden);
    const words = i => shown.map(column => column.number ? "" : textOf(column, i).toLowerCase()).join("\n");
    Object.assign(this, { columns: shown, hasMarks, lines: 25, sorted: null, sign: 1, marked: null, first: null });
    Object.assign(this, { search: part("input"), status: part("[role=status]"), more: part(".more") });
    Object.assign(this, { heads: find("thead th", figure), body: part("tbody") });
    this.words = Array.from({ length: size }, (_, i) => words(i));
    this.search.addEventListener("input", () => this.show({ lines: 25 }));
    this.more.addEventListener("click", () => this.show({ lines: 4 * this.lines }));
    this.heads.forEach((head, k) => head.firstChild.addEventListener("click", () =>
      this.show({ sorted: k, sign: this.sorted === k ? -this.sign : shown[k].number ? -1 : 1 })));
    if (hasMarks) document.addEventListener("mark", ({ detail: row }) =>
      this.show({ marked: row, first: this.drawn.includes(row) ? this.first : row })); // where it is seen
    this.show({});
  }
  show(change) {
    const { sorted, sign, lines, body } = Object.assign(this, change), query = this.search.value.trim().toLowerCase();
    const found = this.ordered([...this.words.keys()].filter(i => this.words[i].includes(query)));
    const focused = [...body.children].findIndex(line => line.contains(document.activeElement));
    this.drawn = found.slice(0, lines);
    body.replaceChildren(...this.drawn.map(i => this.line(i)));
    body.children[focused]?.querySelector("button").focus({ preventScroll: true });
    this.heads.forEach((head, k) => { head.ariaSort = k !== sorted ? "none" : sign < 0 ? "descending" : "ascending"; });
    const [some, all] = [found.length, this.words.length].map(count => count.toLocaleString("en-US"));
    this.status.textContent = `${some} of ${all} ${this.status.dataset.noun}`;
    this.more.hidden = found.length <= lines;
  }
  /** Lines as they are sorted, the one to be seen before them; unknown values come last in either direction. */
  ordered(lines) {
    const { values, codes, known, absolute } = this.columns[this.sorted] ?? {};
    const keys = (values ?? codes)?.map(key => key === null || key >= known ? null : absolute ? Math.abs(key) : key);
    const compare = (a, b) => (keys[a] === null) - (keys[b] === null) || this.sign * (keys[a] - keys[b]) || a - b;
    return (keys ? lines.sort(compare) : lines).sort((a, b) => (b === this.first) - (a === this.first));
  }
  line(i) {
    const isMarked = i === this.marked, cells = this.columns.map((column, k) => make(k ? "td" : "th",
      k ? { class: column.number ? "number" : "" } : { scope: "row" }, make("bdi", {}, textOf(column, i))));
    if (this.hasMarks) {
      const pressed = { type: "button", "aria-pressed": isMarked, title: "Mark in the plots" };
      cells[0].append(make("button", pressed, ...cells[0].children));
      cells[0].firstChild.addEventListener("click", () => tell("mark", isMarked ? null : i));
    }
    return make("tr", { class: isMarked ? "picked" : "" }, ...cells);
  }
}

const { tables, plots } = JSON.parse(document.getElementById("report-data").textContent);
const palette = tables.rows && new Palette(tables.rows);
for (const figure of find("[data-view]")) {
  const name = figure.dataset.view, plot = plots[name];
  figure.hidden = false;
  if (plot) new Plot(figure, plot, tables, plot.table === "rows" ? palette : null);
  else new Table(figure, tables[name], name === "rows");
}
