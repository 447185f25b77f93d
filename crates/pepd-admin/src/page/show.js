// Elements and words. Text goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) {
      node.setAttribute(name, value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** An HTML element. */
export function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Figures with their names; without those that are not known. */
export function list(...entries) {
  const pairs = entries.filter(([, words]) => words !== null && words !== undefined);
  return html("dl", {}, ...pairs.map(([term, words]) => html("div", words.length > 24 ? { class: "long" } : {}, html("dt", {}, term), html("dd", {}, words))));
}

export const byId = (id) => document.getElementById(id);

/** Sets a text only where it is another, so that a selection survives. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Three digits at least, and no more decimals than they need.
function digits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : 2);
}

function scaled(value, step, units) {
  let index = 0;
  // What would be rounded up to the next unit belongs to it.
  while (Math.abs(value) >= step * 0.9995 && index < units.length - 1) {
    value /= step;
    index += 1;
  }
  return `${index === 0 ? Math.round(value) : digits(value)} ${units[index]}`;
}

export const NONE = "–";

/** What is said of a link that is not up. */
export const LINKS = { gone: ": its link is gone", "going-down": ": its link is about to go" };

/** Bits per second. */
export const rate = (bits) => scaled(bits ?? 0, 1000, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"]);

export const bytes = (count) =>
  count === null || count === undefined ? NONE : scaled(count, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);

export const count = (n) => n.toLocaleString("en");

/** A short time, in seconds. */
export function time(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 0.0009995) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${digits(seconds * 1e3)} ms`;
  return `${digits(seconds)} s`;
}

/** A long time, in seconds. */
export function duration(seconds) {
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** A time of day, from seconds since the Unix epoch. */
export const clock = (epoch) =>
  new Date(epoch * 1000).toLocaleTimeString("en-GB", { hour12: false });

/** A share from 0 to 1. */
export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return NONE;
  const value = share * 100;
  if (value === 0) return "0 %";
  if (value < 0.01) return "< 0.01 %";
  return `${value.toFixed(value >= 10 ? 0 : value >= 1 ? 1 : 2)} %`;
}

export const PHASES = ["free", "starved", "backpressured"];

export const total = (phases) => phases.free + phases.starved + phases.backpressured;

/** The phase with most of the time, and its share; none where there was no time. */
export function dominant(phases) {
  const all = total(phases);
  if (!(all > 0)) return null;
  const phase = PHASES.reduce((a, b) => (phases[b] > phases[a] ? b : a));
  return { phase, share: phases[phase] / all };
}

/** Phases in words. */
export function phaseWords(phases) {
  const all = total(phases);
  if (!(all > 0)) return "no time yet";
  return PHASES.map((phase) => `${phase} ${percent(phases[phase] / all)}`).join(", ");
}

/** A bar of the phases' shares. Widths are set as properties: the page allows no inline style. */
export function phaseBar(bar, phases) {
  if (!bar.firstChild) {
    bar.className = "bar";
    bar.setAttribute("role", "img");
    bar.append(...PHASES.map((phase) => html("span", { class: phase })));
  }
  const all = total(phases);
  PHASES.forEach((phase, index) => {
    bar.children[index].style.width = all > 0 ? `${(100 * phases[phase]) / all}%` : "0";
  });
  bar.setAttribute("aria-label", phaseWords(phases));
  bar.title = phaseWords(phases);
}
