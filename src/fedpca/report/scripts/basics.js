// Elements, numbers and ticks. All text is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element with attributes and children. */
function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** An SVG element with attributes, and text. */
function svg(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

/** Build the buttons of an element anew; the one that has the focus keeps its place. */
function keepingFocus(host, change) {
  const buttons = () => [...host.querySelectorAll("button")], place = buttons().indexOf(document.activeElement);
  change();
  if (place >= 0) buttons()[place]?.focus({ preventScroll: true });
}

/** A number with few digits, minus signs, and an exponent where it is very large or small. */
function format(value, digits = 4) {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const text = value === 0 ? "0" : size >= 1e9 || size < 1e-4 ? value.toExponential(digits - 2).replace(/\.?0*e\+?/, "e")
    : value.toLocaleString("en-US", { maximumSignificantDigits: digits });
  return text.replaceAll("-", "−");
}

/** The label of a tick: in thousands or millions where the axis has large numbers. */
function tickLabel(value, largest) {
  for (const [unit, suffix] of [[1e6, "M"], [1e3, "k"]]) {
    if (largest >= 1e4 && largest < 1e9 && largest >= unit && value) return format(value / unit) + suffix;
  }
  return format(value);
}

/** Round numbers between two others, about `count` of them. */
function linearTicks(low, high, count) {
  const rough = (high - low) / count, unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 2.5, 5, 10].find(factor => factor * unit >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) {
    ticks.push({ at: i * step, text: tickLabel(Number((i * step).toPrecision(6)), Math.max(-low, high)) });
  }
  return ticks;
}

/** Ticks of an axis of decimal logarithms: powers of ten, and 2 and 5 times these where it is short. */
function logTicks(low, high, count) {
  if (high - low < 0.3) {
    return linearTicks(10 ** low, 10 ** high, count).map(({ at, text }) => ({ at: Math.log10(at), text }));
  }
  const factors = high - low < 1.5 ? [1, 2, 5] : [1], every = Math.ceil((high - low) / count);
  const ticks = [];
  for (let power = Math.floor(low); power <= high; power++) {
    if (power % (factors.length > 1 ? 1 : every)) continue;
    for (const factor of factors) {
      const at = power + Math.log10(factor);
      if (at >= low && at <= high) ticks.push({ at, text: format(Number((factor * 10 ** power).toPrecision(1))) });
    }
  }
  return ticks;
}

/** The range of numbers with some room; of numbers that are all the same, or none, a range around them. */
function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) return [-1, 1];
  const room = high > low ? 0.06 * (high - low) : Math.max(1, 0.1 * Math.abs(low));
  return [low - room, high + room];
}

/** The ranges of both axes, enlarged so that they have the same length. */
function square([x0, x1, y0, y1]) {
  const half = Math.max(x1 - x0, y1 - y0) / 2, [x, y] = [(x0 + x1) / 2, (y0 + y1) / 2];
  return [x - half, x + half, y - half, y + half];
}

/** The numbers below `count` in an order that mixes them, the same every time. */
function shuffled(count) {
  const order = Array.from({ length: count }, (_, i) => i);
  let state = 1;
  for (let i = count - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const j = Math.floor(state / 2 ** 32 * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}
