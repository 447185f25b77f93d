// One connection: its two directions and its two legs over the last minutes.

import { band, columnWidth, curve, outagesOf, placeCursor, timeAt } from "./chart.js";
import { byId, bytes, clock, count, dominant, duration, html, LINKS, list, percent, phaseWords, rate, say, time, total } from "./show.js";

/** Seconds that are shown at most. */
const SPAN = 300;

const segments = (n) => `${count(Math.round(n))} seg`;

export class FlowPane {
  constructor() {
    this.flow = null;
    this.points = [];
    this.links = [];
    this.breaks = [];
    this.span = [0, 1];
    this.cursor = null;
    this.ended = false;
    const pane = byId("flow");
    for (const id of ["flow-directions", "flow-legs"]) {
      const charts = byId(id);
      charts.addEventListener("pointermove", (event) => this.point(timeAt(event, this.span)));
      charts.addEventListener("pointerleave", () => this.point(null));
    }
    pane.addEventListener("keydown", (event) => this.key(event));
    byId("flow-reading").tabIndex = 0;
    byId("flow-reading").setAttribute("role", "group");
    byId("flow-reading").setAttribute("aria-label", "Figures of one second; left and right arrow keys move it");
  }

  open(flow) {
    this.flow = flow;
    this.points = [];
    this.ended = false;
    this.cursor = null;
    byId("flow").hidden = false;
    byId("flow-ended").hidden = true;
    this.draw();
    byId("flow-title").focus({ preventScroll: true });
    byId("flow").scrollIntoView({ block: "nearest" });
  }

  close() {
    this.flow = null;
    byId("flow").hidden = true;
  }

  /** Where to ask whether it is still there: a list has no answer 404, which would be logged. */
  question() {
    const { client, server } = this.flow;
    return `v1/flows?${new URLSearchParams({ client, server })}`;
  }

  update(flow, points, links, breaks) {
    this.flow = flow;
    this.links = links;
    this.breaks = breaks;
    // A process that has gone on after another does not have the points of that.
    const before = this.points.filter((point) => point.time < (points[0]?.time ?? Infinity));
    this.points = [...before, ...points].slice(-SPAN);
    this.draw();
  }

  end() {
    this.ended = true;
    byId("flow-ended").hidden = false;
  }

  /** Shows the figures of the second nearest to `time`. */
  point(time) {
    this.cursor = time;
    let nearest = null;
    if (time !== null) {
      for (const point of this.points) {
        if (nearest === null || Math.abs(point.time - time) < Math.abs(nearest.time - time)) nearest = point;
      }
    }
    placeCursor(byId("flow"), nearest ? nearest.time : null, this.span);
    say(byId("flow-reading"), nearest ? reading(nearest) : "Point at a second to read its figures, or use the arrow keys here.");
  }

  key(event) {
    if (event.key === "Escape") {
      byId("flow-close").click();
      return;
    }
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined || event.target.id !== "flow-reading" || this.points.length === 0) return;
    event.preventDefault();
    const times = this.points.map((point) => point.time);
    const at = this.cursor === null ? times.length : times.findIndex((time) => time >= this.cursor - 1e-6);
    const next = Math.min(times.length - 1, Math.max(0, (at < 0 ? times.length : at) + step));
    this.point(times[next]);
  }

  draw() {
    const { flow, points } = this;
    const end = points.at(-1)?.time ?? flow.started + flow.age;
    const now = this.ended ? end : Math.max(end, flow.started + flow.age);
    const begin = Math.max(now - SPAN, flow.started);
    this.span = [Math.min(begin, now - 30), now];
    say(byId("flow-title"), `${flow.client} → ${flow.server}`);
    const first = flow.first_byte === null ? "no byte from the server yet" : `first byte after ${time(flow.first_byte)}`;
    const handshake = flow.handshake === "early" ? "accepted early" : "established end to end";
    const came = flow.came
      ? ` · came from ${flow.came.from} ${duration(flow.came.age)} ago, and stood still for ${time(flow.came.pause)}`
      : "";
    say(
      byId("flow-facts"),
      `${flow.client_campus} → ${flow.server_campus} · since ${clock(flow.started)}, ${duration(flow.age)} · ${handshake} · ${first}${came}`,
    );
    const holder = byId("flow-directions");
    const width = columnWidth(holder);
    const shown = points.filter((point) => point.time >= this.span[0]);
    const common = { points: shown, span: this.span, width, breaks: this.breaks };
    const client = this.link(flow.client_leg);
    const upstream = this.link(flow.upstream_leg);
    const either = { ...common, outages: [...client.outages, ...(client.leg === upstream.leg ? [] : upstream.outages)] };
    holder.replaceChildren(
      direction("Down: server → client", flow.down, "down", either),
      direction("Up: client → server", flow.up, "up", either),
    );
    byId("flow-legs").replaceChildren(
      leg("Client leg", flow.client_leg, "client_leg", client, common),
      leg("Upstream leg", flow.upstream_leg, "upstream_leg", upstream, common),
    );
    this.point(this.cursor);
  }

  /** The link under a leg, with the times for which it was gone. */
  link(of) {
    const link = this.links.find((link) => link.leg === of.profile);
    return { leg: of.profile, state: link?.state ?? "up", outages: outagesOf(link) };
  }
}

function direction(title, of, key, { outages, ...common }) {
  const { goodput, queue, queue_max: most } = of;
  return html(
    "div",
    { class: "panel" },
    html("h3", {}, title),
    curve({ ...common, title: "Goodput", floor: 1000, value: (point) => point[key].goodput, words: rate, kind: "goodput", area: true, outages }),
    band({ ...common, title: mostly(of.phases), phases: (point) => point[key].phases }),
    curve({ ...common, title: "Waiting in this box", height: 66, value: (point) => point[key].queue, words: bytes, kind: "queue", area: true, binary: true, floor: 65536 }),
    list(
      ["Delivered", bytes(of.bytes)],
      ["Goodput, 10 s", rate(goodput.last_ten_seconds)],
      ["Goodput, life", rate(goodput.life)],
      ["Now", of.phase ?? "ended"],
      ["Unread · pipe · unsent", `${bytes(queue.unread)} · ${bytes(queue.pipe)} · ${bytes(queue.unsent)}`],
      ["Most waiting", bytes(most)],
      ["Phases, life", phaseWords(of.phases)],
    ),
  );
}

function mostly(phases) {
  const most = dominant(phases);
  return most ? `Phases: ${most.phase} ${percent(most.share)} of its life` : "Phases";
}

function leg(title, of, key, { state, outages }, common) {
  const tcp = of.tcp;
  const share = (part) => (part === null || !(tcp.busy > 0) ? null : percent(part / tcp.busy));
  return html(
    "div",
    { class: "panel" },
    html("h3", {}, `${title} [leg.${of.profile}]${of.congestion ? `, ${of.congestion}` : ""}${LINKS[state] ?? ""}`),
    curve({ ...common, outages, title: "Round-trip time", floor: 0.0001, value: (point) => point[key].rtt, words: time, kind: "rtt" }),
    curve({
      ...common,
      title: "Window",
      note: " · ticks: retransmissions",
      floor: 10,
      value: (point) => point[key].cwnd,
      words: segments,
      kind: "cwnd",
      bars: (point) => point[key].retransmitted_segments,
    }),
    tcp === null
      ? html("p", { class: "quiet" }, "Nothing is known of its socket yet.")
      : list(
          ["RTT", `${time(tcp.rtt)} ± ${time(tcp.rtt_variation)}`],
          ["Least RTT", time(tcp.min_rtt)],
          ["Window", `${count(tcp.cwnd)} × ${tcp.mss} B`],
          ["In flight", `${count(tcp.unacked)} seg`],
          ["Retransmitted", retransmitted(tcp)],
          ["Delivery rate", tcp.delivery_rate === null ? "–" : rate(tcp.delivery_rate)],
          ["Pacing rate", tcp.pacing_rate === null ? "unlimited" : rate(tcp.pacing_rate)],
          ["Held by receiver", share(tcp.receive_window_limited)],
          ["Held by send buffer", share(tcp.send_buffer_limited)],
        ),
  );
}

function retransmitted(tcp) {
  const words = `${count(tcp.retransmitted_segments)} seg`;
  if (!(tcp.sent_bytes > 0) || tcp.retransmitted_bytes === null) return words;
  return `${words}, ${percent(tcp.retransmitted_bytes / tcp.sent_bytes)}`;
}

function reading(point) {
  const way = (name, of) => `${name} ${rate(of.goodput)}${total(of.phases) > 0 ? ` (${phaseWords(of.phases)})` : ""}`;
  const end = (name, of) =>
    `${name} ${time(of.rtt)}, cwnd ${count(of.cwnd)}${of.retransmitted_segments > 0 ? `, ${of.retransmitted_segments} retransmitted` : ""}`;
  return [
    clock(point.time),
    way("down", point.down),
    way("up", point.up),
    end("client leg", point.client_leg),
    end("upstream leg", point.upstream_leg),
  ].join(" · ");
}
