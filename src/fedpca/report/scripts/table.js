// A table to search and sort: the first lines of those that match, and more on request.

const LINES = 25;

class DataTable {
  /**
   * @param host the element to build it in
   * @param noun what a line is, in the plural
   * @param size the number of lines
   * @param columns [{name, text(i), key(i), number}, ...]: what line i shows and is sorted by; those of text are searched
   * @param onPick called with the line that was chosen, or null
   */
  constructor(host, noun, size, columns, onPick = null) {
    Object.assign(this, { noun, size, columns, onPick });
    Object.assign(this, { sorted: null, descending: true, lines: LINES, picked: null, first: null });
    this.words = Array.from({ length: size }, (_, i) =>
      columns.filter(column => !column.number).map(column => column.text(i).toLowerCase()).join("\n"));
    this.search = html("input", { type: "search", autocomplete: "off", spellcheck: "false" });
    this.search.addEventListener("input", () => { this.lines = LINES; this.draw(); });
    this.status = html("p", { class: "rest", role: "status" });
    this.body = html("tbody");
    this.heads = columns.map((column, k) => this.head(column, k));
    this.more = html("button", { type: "button" }, "Show more");
    this.more.addEventListener("click", () => { this.lines *= 4; this.draw(); });
    const table = html("table", { class: "searchable" }, html("caption", { class: "visually-hidden" }, host.dataset.title),
      html("thead", {}, html("tr", {}, ...this.heads)), this.body);
    host.append(
      html("div", { class: "controls" }, html("label", {}, html("span", {}, `Search ${noun}`), this.search), this.status),
      html("div", { class: "scroll long", tabindex: 0, role: "region", "aria-label": host.dataset.title }, table),
      this.more);
    this.draw();
  }

  head(column, k) {
    const button = html("button", { type: "button" }, column.name);
    button.addEventListener("click", () => {
      this.descending = this.sorted === k ? !this.descending : Boolean(column.number);
      this.sorted = k;
      this.draw();
    });
    return html("th", { scope: "col", ...(column.number ? { class: "number" } : {}) }, button);
  }

  draw() {
    const query = this.search.value.trim().toLowerCase();
    const lines = [...this.words.keys()].filter(i => this.words[i].includes(query));
    if (this.sorted !== null) this.sort(lines);
    this.heads.forEach((head, k) => head.setAttribute("aria-sort",
      k !== this.sorted ? "none" : this.descending ? "descending" : "ascending"));
    if (lines.includes(this.first)) lines.unshift(...lines.splice(lines.indexOf(this.first), 1));
    this.drawn = lines.slice(0, this.lines);
    keepingFocus(this.body, () => this.body.replaceChildren(...this.drawn.map(i => this.line(i))));
    const [found, all] = [lines.length, this.size].map(count => count.toLocaleString("en-US"));
    this.status.textContent = `${found} of ${all} ${this.noun}`;
    this.more.hidden = lines.length <= this.lines;
  }

  /** Unknown values come last in either direction. */
  sort(lines) {
    const { key } = this.columns[this.sorted], sign = this.descending ? -1 : 1;
    const none = value => value === null || value === "";
    lines.sort((a, b) => {
      const [p, q] = [key(a), key(b)];
      if (none(p) || none(q)) return none(p) - none(q) || a - b;
      return sign * (typeof p === "string" ? p.localeCompare(q, "en", { numeric: true }) : p - q) || a - b;
    });
  }

  line(i) {
    const cells = this.columns.map((column, k) => html(k ? "td" : "th", {
      ...(k ? {} : { scope: "row" }), ...(column.number ? { class: "number" } : {}),
    }, html("bdi", {}, column.text(i))));
    const made = html("tr", {}, ...cells);
    if (this.onPick) {
      const button = html("button", { type: "button", "aria-pressed": i === this.picked, title: "Mark in the plots" });
      button.append(...cells[0].childNodes);
      cells[0].append(button);
      button.addEventListener("click", () => this.onPick(i === this.picked ? null : i));
      made.classList.toggle("picked", i === this.picked);
    }
    return made;
  }

  /** Highlight a line, or none (null); one that is not among those shown comes first. */
  pick(i) {
    this.picked = i;
    if (!this.drawn.includes(i)) this.first = i;
    this.draw();
  }
}
