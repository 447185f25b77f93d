// The campuses, the boxes and what lies between, as a picture.

import { byId, percent, rate, svg, time } from "./show.js";

/** Below this width, in pixels, campuses stand below one another. */
const NARROW = 700;

const ROW = 96;

/** What is known of the legs towards each campus, over all pairs. */
function towards(status) {
  const campuses = new Map(
    status.campuses.map((campus) => [
      campus.name,
      { campus, to: 0, from: 0, rtt: [], lost: [], live: 0, limits: [] },
    ]),
  );
  for (const pair of status.pairs) {
    const client = campuses.get(pair.client_campus);
    const server = campuses.get(pair.server_campus);
    const name = `${pair.client_campus} → ${pair.server_campus}`;
    // What the other direction waits for, requests and acknowledgements, is nobody's bottleneck.
    const main = pair.down.goodput >= pair.up.goodput ? pair.down : pair.up;
    for (const [end, leg, to, from] of [
      [client, pair.client_leg, pair.down, pair.up],
      [server, pair.upstream_leg, pair.up, pair.down],
    ]) {
      // A campus that a reload has taken away.
      if (!end) continue;
      end.to += to.goodput;
      end.from += from.goodput;
      end.live += pair.live;
      if (leg.rtt !== null) end.rtt.push([leg.rtt, pair.live]);
      if (leg.retransmitted !== null) end.lost.push([leg.retransmitted, pair.live]);
      if (waitsFor(main, main === to ? "backpressured" : "starved")) end.limits.push(name);
    }
  }
  return [...campuses.values()];
}

/** Whether a direction of a pair spent most of the last seconds so, and had much to carry. */
function waitsFor(direction, phase) {
  const phases = direction.recent_phases;
  const all = phases.free + phases.starved + phases.backpressured;
  return all >= 3 && phases[phase] / all > 0.5 && direction.goodput > 10_000;
}

function mean(weighted) {
  const all = weighted.reduce((sum, [, weight]) => sum + weight, 0);
  if (!(all > 0)) return null;
  return weighted.reduce((sum, [value, weight]) => sum + value * weight, 0) / all;
}

function figures(end) {
  const rtt = mean(end.rtt);
  const lost = mean(end.lost);
  if (rtt === null) return "no live connection";
  return `RTT ${time(rtt)} · ${lost === null ? "loss not known" : `${percent(lost)} lost`}`;
}

/** The more it carries the wider: a pixel for each factor of ten above a kbit/s. */
const width = (end) => 1.5 + Math.max(0, Math.log10(Math.max(end.to, end.from, 1)) - 3);

const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function text(x, y, words, kind, anchor = "start") {
  return svg("text", { x, y, class: kind, "text-anchor": anchor }, words);
}

function prefixes(campus) {
  const [first = "", ...more] = campus.prefixes;
  return more.length > 0 ? `${first} +${more.length}` : first;
}

function wireClass(end, peer) {
  if (peer?.liveness === "silent") return "wire silent";
  return end?.limits.length > 0 ? "wire limits" : "wire";
}

/** A peer's liveness: words and the class of their colour. */
function liveness(peer) {
  switch (peer.liveness) {
    case "answering":
      return [`answers, ${time(peer.rtt)}`, "good"];
    case "silent":
      return ["✕ silent", "bad"];
    case "unprobed":
      return ["not probed", "figure"];
    default:
      return ["probing…", "figure"];
  }
}

function campusBox(end, x, y, w) {
  const { campus } = end;
  const title = svg("title", {}, `${campus.name}: ${campus.prefixes.join(", ")}`);
  return svg(
    "g",
    {},
    title,
    svg("rect", { x, y, width: w, height: 60, rx: 8, class: "box campus" }),
    text(x + 12, y + 24, shorten(campus.name, 18), "strong"),
    text(x + 12, y + 44, shorten(prefixes(campus), 22), ""),
  );
}

/** The wire between this box and the next stop towards a campus, with its leg's figures. */
function wire(end, peer, x1, x2, y, outward) {
  const middle = (x1 + x2) / 2;
  // Away from this box, and towards it.
  const [away, back] = outward > 0 ? ["→", "←"] : ["←", "→"];
  const flow = `${away} ${rate(end.to)}   ${back} ${rate(end.from)}`;
  const parts = [
    svg("line", { x1, x2, y1: y, y2: y, class: wireClass(end, peer), "stroke-width": width(end) }),
    text(middle, y - 10, figures(end), "figure", "middle"),
    text(middle, y + 20, flow, "figure", "middle"),
    text(middle, y - 26, `[leg.${end.campus.leg}]`, "", "middle"),
  ];
  if (end.limits.length > 0) {
    const most = end.limits.length > 1 ? `${end.limits.length} pairs` : end.limits[0];
    parts.push(text(middle, y + 36, `◆ limits ${most}`, "mark", "middle"));
  }
  return svg("g", {}, ...parts);
}

function wide(status, ends, w) {
  const peers = new Map(status.peers.map((peer) => [peer.name, peer]));
  // A via that is neither of this box nor routing is a peer's name, probed or not.
  const remote = (end) => !["local", "routing"].includes(end.campus.via);
  let left = ends.filter((end) => !remote(end));
  let right = ends.filter(remote);
  right.sort((a, b) => a.campus.via.localeCompare(b.campus.via));
  if (right.length === 0) {
    right = left.splice(Math.ceil(left.length / 2));
  }
  const rows = Math.max(left.length, right.length, 1);
  const h = rows * ROW + 8;
  const [side, own, hop] = [168, 132, 124];
  // The own box stands further left where there are helper boxes to the right.
  const far = right.some(remote);
  const ownX = far ? side + (w - 2 * side - own - hop) * 0.42 : (w - own) / 2;
  const parts = [];
  left.forEach((end, row) => {
    const y = rowY(row, left.length, h);
    parts.push(wire(end, null, ownX, side, y, -1), campusBox(end, 0.5, y - 30, side));
  });
  const hopX = w - side - hop - 44;
  const via = new Map();
  right.forEach((end, row) => {
    const y = rowY(row, right.length, h);
    const peer = remote(end) ? (peers.get(end.campus.via) ?? null) : null;
    const next = remote(end) ? hopX : w - side;
    parts.push(wire(end, peer, ownX + own, next, y, 1), campusBox(end, w - side - 0.5, y - 30, side));
    if (remote(end)) {
      parts.push(svg("line", { x1: hopX + hop, x2: w - side, y1: y, y2: y, class: "wire" }));
      const span = via.get(end.campus.via) ?? { peer, from: y, to: y };
      span.to = y;
      via.set(end.campus.via, span);
    }
  });
  for (const [name, { peer, from, to }] of via) {
    const y = (from + to) / 2;
    parts.push(
      svg("rect", { x: hopX, y: from - 30, width: hop, height: to - from + 60, rx: 8, class: "box" }),
      text(hopX + hop / 2, y - 4, shorten(name, 15), "strong", "middle"),
    );
    if (peer) {
      const [words, kind] = liveness(peer);
      parts.push(text(hopX + hop / 2, y + 14, words, kind, "middle"));
    }
  }
  parts.push(
    svg("rect", { x: ownX, y: 8, width: own, height: h - 16, rx: 10, class: "box own" }),
    text(ownX + own / 2, h / 2 - 4, shorten(status.node, 15), "strong", "middle"),
    text(ownX + own / 2, h / 2 + 14, "this box", "", "middle"),
  );
  return [h, parts];
}

const rowY = (row, rows, h) => ((row + 0.5) * h) / rows;

function narrow(status, ends, w) {
  const peers = new Map(status.peers.map((peer) => [peer.name, peer]));
  const parts = [
    svg("rect", { x: 1, y: 1, width: w - 2, height: 42, rx: 10, class: "box own" }),
    text(14, 27, `${shorten(status.node, 22)}, this box`, "strong"),
  ];
  let y = 56;
  let last = y;
  const wires = svg("g");
  parts.push(wires);
  for (const end of ends) {
    const lines = [
      [shorten(`${end.campus.name} · ${prefixes(end.campus)}`, Math.floor((w - 60) / 7.4)), "strong"],
      [`[leg.${end.campus.leg}] ${figures(end)}`, "figure"],
      [`→ ${rate(end.to)}   ← ${rate(end.from)}`, "figure"],
    ];
    const peer = peers.get(end.campus.via) ?? null;
    if (!["local", "routing"].includes(end.campus.via)) {
      const [words, kind] = peer ? liveness(peer) : ["", ""];
      lines.push([`by ${shorten(end.campus.via, 12)} ${words}`, kind]);
    }
    if (end.limits.length > 0) {
      const most = end.limits.length > 1 ? `${end.limits.length} pairs` : end.limits[0];
      lines.push([shorten(`◆ limits ${most}`, Math.floor((w - 60) / 7)), "mark"]);
    }
    const height = 14 + lines.length * 18;
    last = y + height / 2;
    wires.append(svg("line", { x1: 14, x2: 34, y1: last, y2: last, class: wireClass(end, peer), "stroke-width": width(end) }));
    parts.push(
      svg("rect", { x: 34, y, width: w - 35, height, rx: 8, class: "box campus" }),
      ...lines.map(([words, kind], line) => text(46, y + 21 + line * 18, words, kind)),
    );
    y += height + 12;
  }
  wires.append(svg("line", { x1: 14, x2: 14, y1: 43, y2: last, class: "wire" }));
  return [y, parts];
}

/** The same for those who do not see the picture. */
function words(status, ends) {
  const campuses = ends.map((end) => {
    const limits = end.limits.length > 0 ? `, limits ${end.limits.join(" and ")}` : "";
    return `${end.campus.name}: ${figures(end)}, ${rate(end.to)} there, ${rate(end.from)} back${limits}`;
  });
  const peers = status.peers.map((peer) => `helper box ${peer.name}: ${liveness(peer)[0]}`);
  return [`This box is ${status.node}`, ...campuses, ...peers].join(". ");
}

export function showMap(status) {
  const map = byId("map");
  const w = Math.max(280, Math.floor(map.clientWidth));
  const ends = towards(status);
  const [h, parts] = (w < NARROW ? narrow : wide)(status, ends, w);
  const viewBox = `0 0 ${w} ${h}`;
  map.replaceChildren(
    svg("svg", { viewBox, role: "img", "aria-label": words(status, ends) }, ...parts),
  );
}
