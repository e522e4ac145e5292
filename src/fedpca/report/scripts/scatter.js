// A scatter plot in SVG: axes, zoom and pan by mouse, touch and keys, and a tooltip for the nearest point.
// All colors are CSS, so that they follow light and dark mode.

const HELP = "Arrow keys pan, plus and minus zoom, 0 resets, N and P go to the next and previous point.";
const NEAR = 14; // pixels between the pointer and a point that it is at

class Scatter {
  /**
   * @param host the element to draw in
   * @param label for screen readers
   * @param onPick called with the index of a point that was clicked
   */
  constructor(host, label, onPick = () => {}) {
    this.picture = svg("svg", {
      class: "plot", tabindex: 0, role: "application", "aria-roledescription": "scatter plot",
      "aria-label": `${label}. ${HELP}`,
    });
    this.tooltip = html("div", { class: "tooltip", hidden: "" });
    this.spoken = html("p", { class: "visually-hidden", "aria-live": "polite" });
    const buttons = html("div", { class: "zoom", role: "group", "aria-label": "Zoom" },
      this.button("+", "Zoom in", () => this.zoom(1.5)),
      this.button("−", "Zoom out", () => this.zoom(1 / 1.5)),
      this.button("Reset", "Reset the zoom", () => this.reset()));
    this.box = html("div", { class: "plot-box" }, this.picture, buttons, this.tooltip, this.spoken);
    host.append(this.box);
    this.onPick = onPick;
    this.pointers = new Map();
    this.at = null; // the point that the tooltip is about
    this.marked = null;
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  button(text, name, act) {
    const made = html("button", { type: "button", "aria-label": name, title: name }, text);
    made.addEventListener("click", act);
    return made;
  }

  /**
   * Show other points.
   *
   * `shown`: x and y, arrays of the points' coordinates (logarithms on a logarithmic axis); colors and visible, one
   * per point; describe, a function from a point to [[name, value], ...]; xLabel, yLabel ("" for no axis); and
   * optionally log, square (one unit for both axes), home (the range of both), lines ([["x" or "y", at], ...]),
   * arrows and labels ([{x, y, text}, ...]), cross and circle (true for lines through 0, and the unit circle).
   */
  show(shown) {
    const moved = !this.shown || ["x", "y", "home", "cross"].some(part => shown[part] !== this.shown[part]);
    this.shown = shown;
    if (this.dots?.length !== shown.x.length) {
      this.dots = shown.x.map(() => svg("circle", { r: 3.2 }));
      this.order = shuffled(shown.x.length);
    }
    this.dots.forEach((dot, i) => {
      dot.style.fill = shown.colors[i];
      dot.style.display = shown.visible[i] ? "" : "none";
    });
    if (moved) this.reset(); else this.redraw();
  }

  reset() {
    const { x, y, lines = [], arrows = [], home } = this.shown;
    const all = (axis, values) => [
      ...values, ...lines.filter(line => line[0] === axis).map(line => line[1]), ...arrows.map(arrow => arrow[axis]),
    ];
    this.home = home ? [...home, ...home] : [...extent(all("x", x)), ...extent(all("y", y))];
    if (this.shown.square) this.home = square(this.home);
    this.view = [...this.home];
    this.hide();
    this.redraw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  /** Enlarge by a factor around a place in pixels, by default the center. */
  zoom(factor, x = this.left + this.width / 2, y = this.top + this.height / 2) {
    const [x0, x1, y0, y1] = this.view, [h0, h1] = this.home;
    const scale = (h1 - h0) / (x1 - x0) * factor;
    if (scale > 1e4 || scale < 0.25) return;
    const [cx, cy] = [this.dataX(x), this.dataY(y)];
    this.view = [cx - (cx - x0) / factor, cx + (x1 - cx) / factor, cy - (cy - y0) / factor, cy + (y1 - cy) / factor];
    this.hide();
    this.redraw();
  }

  /** Move what is shown by so many pixels. */
  pan(dx, dy) {
    const [x0, x1, y0, y1] = this.view;
    const [x, y] = [dx * (x1 - x0) / this.width, dy * (y1 - y0) / this.height];
    this.view = [x0 - x, x1 - x, y0 + y, y1 + y];
    this.hide();
    this.redraw();
  }

  pixelX(x) { return this.left + (x - this.view[0]) / (this.view[1] - this.view[0]) * this.width; }
  pixelY(y) { return this.top + (this.view[3] - y) / (this.view[3] - this.view[2]) * this.height; }
  dataX(x) { return this.view[0] + (x - this.left) / this.width * (this.view[1] - this.view[0]); }
  dataY(y) { return this.view[3] - (y - this.top) / this.height * (this.view[3] - this.view[2]); }

  // --- drawing ---

  draw() {
    const full = this.box.clientWidth;
    if (!full || !this.shown) return;
    const { shown } = this, tall = shown.yLabel ? Math.min(Math.max(0.78 * full, 300), 430) : 190;
    const ticks = shown.log ? logTicks : linearTicks;
    const yTicks = shown.yLabel ? ticks(this.view[2], this.view[3], 6) : [];
    const longest = Math.max(...yTicks.map(tick => tick.text.length), 0);
    this.top = 34;
    this.left = shown.yLabel ? 30 + 7 * longest : 12;
    this.height = tall - this.top - 44;
    this.width = full - this.left - 12;
    if (shown.square) this.height = this.width = Math.min(this.width, 460);
    const xTicks = ticks(this.view[0], this.view[1], Math.max(4, Math.floor(this.width / 70)));
    const height = this.top + this.height + 44;
    for (const [name, value] of [["width", full], ["height", height], ["viewBox", `0 0 ${full} ${height}`]]) {
      this.picture.setAttribute(name, value);
    }
    const inside = svg("svg", {
      x: this.left, y: this.top, width: this.width, height: this.height, overflow: "hidden",
      viewBox: `${this.left} ${this.top} ${this.width} ${this.height}`,
    });
    this.drawShapes(inside);
    for (const i of this.order) {
      const [x, y] = [this.pixelX(shown.x[i]), this.pixelY(shown.y[i])];
      this.dots[i].setAttribute("cx", x.toFixed(1));
      this.dots[i].setAttribute("cy", y.toFixed(1));
    }
    inside.append(...this.order.map(i => this.dots[i]));
    this.drawNames(inside);
    this.ring = svg("circle", { class: "ring", r: 7, visibility: "hidden" });
    inside.append(this.ring);
    this.picture.replaceChildren(...this.frame(xTicks, yTicks), inside);
    this.drawRing();
  }

  frame(xTicks, yTicks) {
    const { left, top, width, height, shown } = this, bottom = top + height, parts = [];
    for (const { at, text } of xTicks) {
      const x = this.pixelX(at);
      parts.push(svg("line", { class: "grid", x1: x, x2: x, y1: top, y2: bottom }));
      const end = x + 3.8 * text.length > left + width + 10; // the label would leave the picture
      parts.push(svg("text", {
        x: end ? left + width + 10 : x, y: bottom + 17, "text-anchor": end ? "end" : "middle",
      }, text));
    }
    for (const { at, text } of yTicks) {
      const y = this.pixelY(at);
      parts.push(svg("line", { class: "grid", x1: left, x2: left + width, y1: y, y2: y }));
      parts.push(svg("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, text));
    }
    parts.push(svg("path", { class: "axis", d: `M${left} ${top}V${bottom}H${left + width}` }));
    parts.push(svg("text", { class: "axis-label", x: left + width / 2, y: bottom + 38, "text-anchor": "middle" },
      shown.xLabel));
    const middle = top + height / 2;
    if (shown.yLabel) {
      parts.push(svg("text", {
        class: "axis-label", x: 14, y: middle, transform: `rotate(-90 14 ${middle})`, "text-anchor": "middle",
      }, shown.yLabel));
    }
    return parts;
  }

  drawShapes(inside) {
    const { lines = [], circle, cross } = this.shown, [x, y] = [this.pixelX(0), this.pixelY(0)];
    const { left, top, width, height } = this;
    if (circle) {
      const r = this.pixelX(1) - x;
      inside.append(svg("circle", { class: "unit", cx: x, cy: y, r }));
    }
    if (cross) inside.append(svg("path", { class: "unit", d: `M${left} ${y}h${width}M${x} ${top}v${height}` }));
    for (const [axis, at] of lines) {
      const d = axis === "x" ? `M${this.pixelX(at)} ${top}v${height}` : `M${left} ${this.pixelY(at)}h${width}`;
      inside.append(svg("path", { class: "limit", d }));
    }
  }

  /** Arrows, and names on either side, where they cover neither each other nor the edge. */
  drawNames(inside) {
    const { arrows = [], labels = [] } = this.shown, taken = [], [ox, oy] = [this.pixelX(0), this.pixelY(0)];
    for (const { x, y, text } of [...arrows, ...labels]) {
      const [px, py] = [this.pixelX(x), this.pixelY(y)], isArrow = arrows.length > 0;
      const angle = Math.atan2(py - oy, px - ox);
      if (isArrow) {
        const head = side => `L${px - 8 * Math.cos(angle + side)} ${py - 8 * Math.sin(angle + side)}`;
        inside.append(svg("path", { class: "arrow", d: `M${ox} ${oy}L${px} ${py}${head(0.4)}M${px} ${py}${head(-0.4)}` }));
      }
      if (py < this.top + 8 || py > this.top + this.height - 4) continue;
      const wide = 7 * text.length, outward = px >= ox;
      for (const toRight of [outward, !outward]) {
        const from = toRight ? px + 6 : px - 6 - wide, box = [from, from + wide, py - 9, py + 7];
        const apart = other => box[0] > other[1] || box[1] < other[0] || box[2] > other[3] || box[3] < other[2];
        if (box[0] < this.left || box[1] > this.left + this.width || !taken.every(apart)) continue;
        taken.push(box);
        inside.append(svg("text", {
          class: "name", x: px + (toRight ? 6 : -6), y: py + 4, "text-anchor": toRight ? "start" : "end",
        }, text));
        break;
      }
    }
  }

  // --- points ---

  isInside(i) {
    const [x0, x1, y0, y1] = this.view, { x, y, visible } = this.shown;
    return visible[i] && x[i] >= x0 && x[i] <= x1 && y[i] >= y0 && y[i] <= y1;
  }

  nearest(px, py) {
    let best = null, distance = NEAR ** 2;
    this.shown.x.forEach((x, i) => {
      const d = (this.pixelX(x) - px) ** 2 + (this.pixelY(this.shown.y[i]) - py) ** 2;
      if (d < distance && this.isInside(i)) { best = i; distance = d; }
    });
    return best;
  }

  /** Show the tooltip of a point, and say it where the keyboard has led there. */
  inspect(i, aloud = false) {
    if (i === null) return this.hide();
    const facts = this.shown.describe(i);
    if (this.at !== i) {
      this.tooltip.replaceChildren(...facts.map(([name, value], k) => html("div", k ? {} : { class: "first" },
        html("span", {}, name), html("bdi", {}, value))));
    }
    this.at = i;
    this.tooltip.hidden = false;
    const [x, y] = [this.pixelX(this.shown.x[i]), this.pixelY(this.shown.y[i])];
    const { offsetWidth: wide, offsetHeight: tall } = this.tooltip, room = this.box.clientWidth;
    const beside = x + 14 + wide <= room ? x + 14 : x - 14 - wide;
    this.tooltip.style.left = `${Math.max(0, Math.min(beside, room - wide))}px`;
    this.tooltip.style.top = `${Math.max(0, y - tall / 2)}px`;
    if (aloud) this.spoken.textContent = facts.map(fact => fact.join(": ")).join(", ");
    this.drawRing();
  }

  hide() {
    this.at = null;
    this.tooltip.hidden = true;
    this.drawRing();
  }

  /** Keep a ring around a point, or around none. */
  mark(i) {
    this.marked = i;
    this.drawRing();
  }

  drawRing() {
    const i = this.at ?? this.marked;
    if (!this.ring) return;
    const seen = i !== null && this.shown.visible[i];
    this.ring.setAttribute("visibility", seen ? "visible" : "hidden");
    if (!seen) return;
    this.ring.setAttribute("cx", this.pixelX(this.shown.x[i]));
    this.ring.setAttribute("cy", this.pixelY(this.shown.y[i]));
  }

  /** Go to the next (1) or previous (-1) point that is visible, from left to right. */
  step(by) {
    const order = this.shown.x.map((_, i) => i).filter(i => this.isInside(i))
      .sort((a, b) => this.shown.x[a] - this.shown.x[b] || a - b);
    if (!order.length) return;
    const from = order.indexOf(this.at);
    this.inspect(order[from < 0 ? (by > 0 ? 0 : order.length - 1) : (from + by + order.length) % order.length], true);
  }

  // --- mouse, touch and keys ---

  listen() {
    const keys = {
      ArrowLeft: () => this.pan(40, 0), ArrowRight: () => this.pan(-40, 0),
      ArrowUp: () => this.pan(0, 40), ArrowDown: () => this.pan(0, -40),
      "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5), 0: () => this.reset(),
      n: () => this.step(1), p: () => this.step(-1), Escape: () => this.hide(),
      Enter: () => { if (this.at !== null) this.onPick(this.at); },
    };
    this.picture.addEventListener("keydown", event => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = keys[event.key] ?? keys[event.key.toLowerCase()];
      if (act) { event.preventDefault(); act(); }
    });
    // The wheel scrolls the page, unless a plot was clicked before or a key is held.
    this.picture.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.picture) return;
      event.preventDefault();
      this.zoom(Math.exp(-Math.max(-100, Math.min(100, event.deltaY)) * 0.003), ...this.place(event));
    }, { passive: false });
    this.picture.addEventListener("pointerdown", event => {
      this.pointers.set(event.pointerId, { now: this.place(event), moved: false });
      this.picture.setPointerCapture(event.pointerId);
    });
    this.picture.addEventListener("pointermove", event => this.move(event));
    const end = event => {
      const pointer = this.pointers.get(event.pointerId);
      this.pointers.delete(event.pointerId);
      if (!pointer || pointer.moved || event.type !== "pointerup") return;
      const point = this.nearest(...pointer.now);
      this.inspect(point);
      this.onPick(point);
    };
    for (const type of ["pointerup", "pointercancel"]) this.picture.addEventListener(type, end);
    this.picture.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") this.hide(); });
    this.picture.addEventListener("blur", () => this.hide());
  }

  place(event) {
    const box = this.picture.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  /** A pointer that moves: hover, pan with one, zoom with two. */
  move(event) {
    const [x, y] = this.place(event), pointer = this.pointers.get(event.pointerId);
    if (!pointer) {
      if (event.pointerType === "mouse") this.inspect(this.nearest(x, y));
      return;
    }
    const [x0, y0] = pointer.now;
    if (!pointer.moved && Math.hypot(x - x0, y - y0) < 4) return;
    const other = [...this.pointers.entries()].find(([id]) => id !== event.pointerId)?.[1];
    pointer.moved = true;
    pointer.now = [x, y];
    if (!other) return this.pan(x - x0, y - y0);
    const [ox, oy] = other.now, before = Math.hypot(x0 - ox, y0 - oy), after = Math.hypot(x - ox, y - oy);
    if (before > 10) this.zoom(after / before, ox, oy);
  }
}
