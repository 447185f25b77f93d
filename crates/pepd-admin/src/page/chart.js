// Curves, bands and ticks over the last minutes.

import { PHASES, svg, total } from "./show.js";

const LEFT = 72;
const RIGHT = 6;

/** Points further apart than this, in seconds: the connection was idle in between. */
const GAP = 2.5;

/** The space of a chart: seconds across, values upwards. */
class Space {
  constructor(width, height, [from, to], most, top = 16, bottom = 4) {
    Object.assign(this, { width, height, from, to, most, top, bottom });
  }

  x(time) {
    return LEFT + ((time - this.from) / (this.to - this.from)) * (this.width - LEFT - RIGHT);
  }

  y(value) {
    return this.height - this.bottom - (value / this.most) * (this.height - this.top - this.bottom);
  }
}

const short = (number) => number.toFixed(1);

/** A round number at or above `value`, and not far above. */
function roundUp(value, binary) {
  if (!(value > 0)) return 1;
  const unit = binary ? 1024 ** Math.floor(Math.log(value) / Math.log(1024)) : 1;
  const power = 10 ** Math.floor(Math.log10(value / unit));
  const step = [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power * unit >= value * 0.999);
  return (step ?? 10) * power * unit;
}

/** The times in which a link was gone, from and to. */
export function outagesOf(link) {
  return (link?.outages ?? []).map(({ begun, ended }) => [begun, ended ?? Infinity]);
}

/** The times in which a link was gone, behind everything else. */
function shades(outages, space) {
  const y = space.top;
  const height = space.height - space.top - space.bottom;
  return outages
    .map(([begun, ended]) => [Math.max(begun, space.from), Math.min(ended, space.to)])
    .filter(([begun, ended]) => ended > begun)
    .map(([begun, ended]) => {
      const x = space.x(begun);
      const width = Math.max(1, space.x(ended) - x);
      return svg("rect", { x: short(x), y, width: short(width), height, class: "outage" });
    });
}

/** When another process of the daemon went on, across everything else. */
function crossings(breaks, space, bottom) {
  return breaks
    .filter(({ time }) => time > space.from && time < space.to)
    .map(({ time }) => {
      const x = short(space.x(time));
      const line = svg("line", { x1: x, x2: x, y1: space.top, y2: bottom, class: "break" });
      line.append(svg("title", {}, "Another process of the daemon went on here."));
      return line;
    });
}

/** Parts of a line: what is further apart than a gap is not joined. */
function parts(points, value, gap) {
  const found = [];
  let last = null;
  for (const point of points) {
    const known = value(point);
    if (known === null || known === undefined) continue;
    if (last === null || point.time - last > gap) found.push([]);
    found.at(-1).push([point.time, known]);
    last = point.time;
  }
  return found;
}

/** The places of a part of a line; a single one is a line too. */
function places(part, space) {
  const line = part.map(([time, v]) => `${short(space.x(time))},${short(space.y(v))}`);
  if (line.length === 1) line.push(`${short(space.x(part[0][0]) + 2)},${short(space.y(part[0][1]))}`);
  return line;
}

/**
 * A curve of `value` over `points`, whose axis goes to `floor` at least; where there is no value there is none.
 * `words` gives a value in words; `area` fills below; `bars`, a second value, is drawn as ticks; `lines` are
 * other values and how they are drawn; `outages` are shaded, `breaks` crossed; `gap` is what is too far apart to be joined, in
 * seconds; `ages` writes how long ago things were below.
 */
export function curve({ title, points, span, width, height = 92, value, words, kind, area, binary, bars, lines = [], floor = 0, note = "", outages = [], breaks = [], gap = GAP, ages = false }) {
  const known = (of) => points.map(of).filter((v) => v !== null && v !== undefined);
  const values = known(value);
  const most = roundUp(Math.max(floor, ...values, ...lines.flatMap((line) => known(line.value))), binary);
  const space = new Space(width, height, span, most, 16, ages ? 16 : 4);
  const shaded = shades(outages, space);
  const drawn = [...shaded];
  if (shaded.length > 0) note += " · shaded: link gone";
  for (const share of [0, 0.5, 1]) {
    const y = space.y(most * share);
    drawn.push(
      svg("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, class: "gridline" }),
      svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, share === 0 ? "0" : words(most * share)),
    );
  }
  if (bars) drawn.push(...ticks(points, bars, space));
  if (ages) drawn.push(...axis(space));
  for (const line of lines) {
    for (const part of parts(points, line.value, gap)) {
      drawn.push(svg("polyline", { points: places(part, space).join(" "), class: `curve s-${line.kind}` }));
    }
  }
  for (const part of parts(points, value, gap)) {
    if (area && part.length > 1) {
      const base = short(space.y(0));
      const line = places(part, space);
      const closed = [`${short(space.x(part[0][0]))},${base}`, ...line, `${short(space.x(part.at(-1)[0]))},${base}`];
      drawn.push(svg("polygon", { points: closed.join(" "), class: `area a-${kind}` }));
    }
    drawn.push(svg("polyline", { points: places(part, space).join(" "), class: `curve s-${kind}` }));
  }
  drawn.push(...crossings(breaks, space, space.height - space.bottom));
  const now = values.length > 0 ? words(values.at(-1)) : "nothing yet";
  const highest = values.length > 0 ? `, at most ${words(Math.max(...values))}` : "";
  drawn.push(svg("text", { x: LEFT, y: 11, class: "title" }, `${title}: ${now}${note}`));
  return chart(width, height, `${title}: now ${now}${highest}`, drawn);
}

/** Ticks from below where `bars` is more than nothing, the longer the more. */
function ticks(points, bars, space) {
  const most = Math.max(1, ...points.map(bars));
  return points
    .filter((point) => bars(point) > 0)
    .map((point) => {
      const height = 4 + (bars(point) / most) * 22;
      const x = short(space.x(point.time) - 1);
      return svg("rect", { x, y: space.y(0) - height, width: 2, height, class: "f-lost" });
    });
}

/** The phases of a direction as a band: each second's shares above one another. */
export function band({ title, points, span, width, height = 46, phases, breaks = [] }) {
  const space = new Space(width, height, span, 1, 16, 14);
  const drawn = [svg("rect", { x: LEFT, y: 16, width: width - LEFT - RIGHT, height: height - 30, fill: "none", class: "gridline" })];
  const bands = svg("g", { class: "phases" });
  let last = null;
  for (const point of points) {
    const of = phases(point);
    const all = total(of);
    if (all > 0) {
      const begin = last !== null && point.time - last < GAP ? last : point.time - Math.min(all, 1);
      const x = space.x(Math.max(begin, span[0]));
      const w = Math.max(0.5, space.x(point.time) - x + 0.3);
      let below = 0;
      for (const phase of PHASES) {
        const share = of[phase] / all;
        if (share > 0.001) {
          const y = space.y(below + share);
          bands.append(svg("rect", { x: short(x), y: short(y), width: short(w), height: short(space.y(below) - y), class: `f-${phase}` }));
        }
        below += share;
      }
    }
    last = point.time;
  }
  drawn.push(bands, ...crossings(breaks, space, height - 14), svg("text", { x: LEFT, y: 11, class: "title" }, title), ...axis(space));
  return chart(width, height, title, drawn);
}

/** Steps of time that are told, in seconds. */
const STEPS = [15, 30, 60, 120, 300, 3600, 7200, 14_400, 21_600];

/** How long before now, below. */
function axis(space) {
  const length = space.to - space.from;
  // A label takes so many pixels.
  const room = Math.max(2, Math.min(6, Math.floor((space.width - LEFT - RIGHT) / 56)));
  const step = STEPS.find((step) => length / step <= room) ?? STEPS.at(-1);
  const labels = [];
  for (let back = 0; back < length - step / 3; back += step) {
    const x = space.x(space.to - back);
    labels.push(svg("text", { x, y: space.height - 2, "text-anchor": back === 0 ? "end" : "middle" }, ago(back)));
  }
  return labels;
}

function ago(seconds) {
  if (seconds === 0) return "now";
  if (seconds % 3600 === 0) return `−${seconds / 3600} h`;
  return seconds % 60 === 0 ? `−${seconds / 60} min` : `−${seconds} s`;
}

/** The width of a chart in each column of a grid, in pixels. */
export function columnWidth(holder) {
  const columns = getComputedStyle(holder).gridTemplateColumns.split(" ").length;
  return Math.max(260, Math.floor((holder.clientWidth - (columns - 1) * 12) / columns));
}

function chart(width, height, label, drawn) {
  const cursor = svg("line", { y1: 14, y2: height, class: "cursor", visibility: "hidden" });
  const viewBox = `0 0 ${width} ${height}`;
  return svg("svg", { viewBox, role: "img", "aria-label": label, class: "chart" }, ...drawn, cursor);
}

/** Puts the cursor of every chart below `node` at a time, or takes it away. */
export function placeCursor(node, time, span) {
  for (const drawn of node.querySelectorAll("svg.chart")) {
    const cursor = drawn.lastChild;
    const space = new Space(drawn.viewBox.baseVal.width, 0, span, 1);
    if (time === null) {
      cursor.setAttribute("visibility", "hidden");
    } else {
      cursor.setAttribute("visibility", "visible");
      cursor.setAttribute("x1", space.x(time));
      cursor.setAttribute("x2", space.x(time));
    }
  }
}

/** The time at a place in a chart, from an event there. */
export function timeAt(event, span) {
  const drawn = event.target.closest("svg.chart");
  if (!drawn) return null;
  const { left, width } = drawn.getBoundingClientRect();
  const x = ((event.clientX - left) / width) * drawn.viewBox.baseVal.width;
  const inner = drawn.viewBox.baseVal.width - LEFT - RIGHT;
  const share = (x - LEFT) / inner;
  return share < 0 || share > 1 ? null : span[0] + share * (span[1] - span[0]);
}
