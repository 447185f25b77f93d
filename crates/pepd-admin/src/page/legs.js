// The legs: what is sent over each, what is lost, and how long round trips are, over time.

import { ask } from "./ask.js";
import { columnWidth, curve, outagesOf, placeCursor, timeAt } from "./chart.js";
import { byId, bytes, clock, duration, html, LINKS, list, NONE, percent, rate, say, time } from "./show.js";

/** What is shown of each step: the seconds across, and what is too far apart to be joined. */
const STEPS = { second: { span: 600, gap: 2.5 }, minute: { span: 86_400, gap: 150 } };

/** Looks after which a day's minutes are asked for again. */
const MINUTE = 30;

/** What limits a rate that is found, in words. */
const LIMITS = {
  looking: "looking for what its path carries",
  applications: "its connections have less to send",
  ceiling: "its configured rate is the limit",
  link: "its link is full",
  others: "its link is full, of others' as well",
  drops: "its link drops at once what is too much",
};

export class Legs {
  constructor() {
    /** The points of each leg, by its name. */
    this.points = new Map();
    this.step = "second";
    this.looks = 0;
    this.status = null;
    this.breaks = [];
    this.cursor = null;
    this.span = [0, 1];
    const holder = byId("legs-list");
    holder.addEventListener("pointermove", (event) => this.point(event.target.closest(".panel"), timeAt(event, this.span)));
    holder.addEventListener("pointerleave", () => this.point(null, null));
    byId("legs-step").addEventListener("change", (event) => {
      this.step = event.target.value;
      this.forget();
      if (this.status) this.look(this.status);
    });
  }

  /** Another daemon answers, or other steps are wanted. */
  forget() {
    this.points.clear();
    this.looks = 0;
  }

  /** Asks for what has come since the last time, and shows it. */
  async look(status, breaks = this.breaks) {
    this.status = status;
    this.breaks = breaks;
    const used = status.legs.filter((leg) => leg.sent_bytes > 0);
    byId("legs").hidden = used.length === 0;
    const { step } = this;
    const isDue = step === "second" || this.looks % MINUTE === 0;
    this.looks += 1;
    if (isDue) await Promise.all(used.map((leg) => this.ask(leg.leg, step)));
    if (step === this.step) this.draw();
  }

  async ask(leg, step) {
    const known = step === "second" ? (this.points.get(leg) ?? []) : [];
    const query = new URLSearchParams({ step, since: known.at(-1)?.time ?? 0 });
    const history = await ask(`v1/legs/${encodeURIComponent(leg)}/history?${query}`);
    // Somebody may have chosen others meanwhile.
    if (!history || step !== this.step) return;
    const first = Date.now() / 1000 - STEPS[step].span - 60;
    this.points.set(leg, [...known, ...history.points].filter((point) => point.time > first));
  }

  draw() {
    const { status } = this;
    if (!status || byId("legs").hidden) return;
    const holder = byId("legs-list");
    const { span, gap } = STEPS[this.step];
    const now = status.started + status.uptime;
    // What is not there yet takes no room, but for the first minute.
    const first = [...this.points.values()].map((points) => points[0]?.time ?? now);
    this.span = [Math.max(now - span, Math.min(now - span / 10, ...first)), now];
    const common = { span: this.span, gap, width: columnWidth(holder) - 2, breaks: this.breaks };
    const used = status.legs.filter((leg) => leg.sent_bytes > 0);
    holder.replaceChildren(
      ...used.map((leg) => {
        const found = (status.rates ?? []).find((rate) => rate.leg === leg.leg) ?? null;
        const points = (this.points.get(leg.leg) ?? []).filter((point) => point.time >= this.span[0]);
        const link = status.links.find((link) => link.leg === leg.leg);
        return panel(leg, found, link, { ...common, points, outages: outagesOf(link) });
      }),
    );
    if (this.cursor) {
      const again = [...holder.children].find((child) => child.dataset.leg === this.cursor.leg);
      this.point(again ?? null, this.cursor.time);
    }
  }

  /** Shows the figures of the step nearest to `time`. */
  point(panel, time) {
    const leg = panel?.dataset.leg;
    this.cursor = panel && time !== null ? { leg, time } : null;
    let nearest = null;
    for (const point of this.cursor ? (this.points.get(leg) ?? []) : []) {
      if (nearest === null || Math.abs(point.time - time) < Math.abs(nearest.time - time)) nearest = point;
    }
    placeCursor(byId("legs-list"), null, this.span);
    if (nearest) placeCursor(panel, nearest.time, this.span);
    say(byId("legs-reading"), nearest ? reading(leg, nearest) : "Point at a time to read its figures.");
  }
}

function panel(leg, found, link, common) {
  const limit = LINKS[link?.state] ?? (found?.limit ? `: ${LIMITS[found.limit] ?? found.limit}` : "");
  const loaded = leg.loaded_rtt;
  return html(
    "div",
    { class: "panel", "data-leg": leg.leg },
    html("h3", {}, `[leg.${leg.leg}]${found ? ", find-rate" : ""}${limit}`),
    html(
      "p",
      { class: "felt" },
      html("span", { class: "quiet" }, "Round trip idle "),
      html("b", {}, time(leg.least_rtt)),
      html("span", { class: "quiet" }, loaded ? ", under load " : ", not under load of late"),
      loaded ? html("b", {}, time(loaded.median)) : null,
      loaded ? html("span", { class: "quiet" }, `, one in twenty over ${time(loaded.p95)}`) : null,
    ),
    curve({
      ...common,
      title: "Sent",
      note: found ? " · line: what the link carries" : "",
      floor: 1000,
      value: (point) => point.sent,
      words: rate,
      kind: "goodput",
      area: true,
      lines: found ? [{ value: (point) => point.path?.capacity, kind: "capacity" }] : [],
    }),
    curve({
      ...common,
      title: found ? "Lost" : "Sent again",
      note: found ? " · line: sent again" : "",
      height: 62,
      floor: 0.01,
      value: found ? (point) => point.path?.loss : (point) => point.resent,
      words: percent,
      kind: "lost",
      lines: found ? [{ value: (point) => point.resent, kind: "slow" }] : [],
    }),
    found
      ? curve({ ...common, title: "Queue before the link", height: 62, floor: 0.01, value: (point) => point.path?.queue, words: time, kind: "queue", area: true })
      : null,
    curve({
      ...common,
      title: "Round trip",
      note: " · above: p95, below: least",
      ages: true,
      height: 104,
      floor: 0.0001,
      value: (point) => point.rtt,
      words: time,
      kind: "rtt",
      lines: [
        { value: (point) => point.slow_rtt, kind: "slow" },
        { value: (point) => point.least_rtt, kind: "capacity" },
      ],
    }),
    list(
      ["Sent, 10 s", rate(leg.sent)],
      ["Sent again, 5 min", percent(leg.resent)],
      ["Load adds", loaded ? time(loaded.added) : null],
      ["Busy", duration(leg.busy_seconds)],
      ["Sent in all", bytes(leg.sent_bytes)],
      ["Link carries", found ? rate(found.capacity) : null],
      ["May send", found ? rate(found.rate) : null],
    ),
  );
}

function reading(leg, point) {
  const { path } = point;
  const words = [
    `[leg.${leg}] ${clock(point.time)}`,
    `sent ${rate(point.sent)}, ${percent(point.resent)} again`,
    `round trip ${time(point.rtt)}, slowest ${time(point.slow_rtt)}, least ${time(point.least_rtt)}`,
    path ? `carries ${rate(path.capacity)}, ${percent(path.loss)} lost, queue ${time(path.queue)}` : null,
    path ? (LIMITS[path.limit] ?? NONE) : null,
  ];
  return words.filter((part) => part !== null).join(" · ");
}
