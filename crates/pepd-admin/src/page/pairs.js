// The campus pairs: two rows each, one for each direction.

import { byId, dominant, html, percent, phaseBar, rate, say, time } from "./show.js";

const rows = new Map();

function make() {
  const cell = (kind) => html("td", kind ? { class: kind } : {});
  const row = (direction) => {
    const cells = { goodput: cell("number"), phases: cell() };
    const bar = html("span");
    const words = html("span", { class: "bar-text" });
    cells.phases.append(bar, words);
    return { direction, ...cells, bar, words };
  };
  const name = html("th", { scope: "rowgroup", rowspan: 2 });
  const live = html("td", { class: "number wide", rowspan: 2 });
  const client = html("td", { rowspan: 2 });
  const upstream = html("td", { rowspan: 2 });
  const up = row("up");
  const down = row("down");
  const first = html("tr", {}, name, live, html("td", {}, "down ←"), down.goodput, down.phases, client, upstream);
  const second = html("tr", { class: "second" }, html("td", {}, "up →"), up.goodput, up.phases);
  return { body: [first, second], name, live, client, upstream, up, down };
}

const leg = (of) =>
  `${of.profile}: ${time(of.rtt)}, ${of.retransmitted === null ? "loss not known" : `${percent(of.retransmitted)} lost`}`;

/** What the direction is short of, in words. */
function limit(direction, phases) {
  const most = dominant(phases);
  if (!most) return "idle";
  const words = `${percent(most.share)} ${most.phase}`;
  const [incoming, outgoing] = direction === "up" ? ["client leg", "upstream leg"] : ["upstream leg", "client leg"];
  if (most.share <= 0.5 || most.phase === "free") return words;
  return `${words}: ${most.phase === "starved" ? incoming : outgoing}`;
}

export function showPairs(status) {
  const body = byId("pairs").tBodies[0];
  const wanted = new Set();
  for (const pair of status.pairs) {
    const key = JSON.stringify([pair.client_campus, pair.server_campus]);
    wanted.add(key);
    if (!rows.has(key)) {
      rows.set(key, make());
      body.append(...rows.get(key).body);
    }
    const row = rows.get(key);
    say(row.name, `${pair.client_campus} → ${pair.server_campus}`);
    say(row.live, String(pair.live));
    say(row.client, leg(pair.client_leg));
    say(row.upstream, leg(pair.upstream_leg));
    for (const direction of ["up", "down"]) {
      const { goodput, recent_phases: phases } = pair[direction];
      say(row[direction].goodput, rate(goodput));
      phaseBar(row[direction].bar, phases);
      say(row[direction].words, limit(direction, phases));
    }
  }
  for (const [key, row] of rows) {
    if (!wanted.has(key)) {
      row.body.forEach((tr) => tr.remove());
      rows.delete(key);
    }
  }
  if (status.pairs.length === 0 && !body.firstChild) {
    body.append(html("tr", { class: "none" }, html("td", { colspan: 7, class: "quiet" }, "No connection since the start.")));
  } else if (status.pairs.length > 0) {
    body.querySelector(".none")?.remove();
  }
}
