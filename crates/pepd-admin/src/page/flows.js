// The table of connections. The daemon sorts and filters: there may be thousands.

import { byId, bytes, count, duration, html, NONE, percent, phaseBar, rate, say, time } from "./show.js";

/** How many rows are shown at most. */
const MOST = 100;

/** Round-trip time, and the share that was sent again. */
function leg(of) {
  if (of.tcp === null) return NONE;
  const { rtt, sent_bytes: sent, retransmitted_bytes: again } = of.tcp;
  return sent > 0 && again !== null ? `${time(rtt)}, ${percent(again / sent)}` : time(rtt);
}

/** Heading, the order that it asks for, class, what it says. */
const COLUMNS = [
  ["Client → server", "client", "ends", null],
  ["Campuses", null, "wide", (flow) => `${flow.client_campus} → ${flow.server_campus}`],
  ["Age", "age", "number wide", (flow) => duration(flow.age)],
  ["Bytes", "bytes", "number wide", (flow) => bytes(flow.down.bytes + flow.up.bytes)],
  ["Goodput ↓", "goodput", "number", (flow) => rate(flow.down.goodput.last_second)],
  ["Phases ↓", "backpressured", "", "down"],
  ["Goodput ↑", null, "number", (flow) => rate(flow.up.goodput.last_second)],
  ["Phases ↑", null, "", "up"],
  ["Client leg, lost", "rtt", "number wide", (flow) => leg(flow.client_leg)],
  ["Upstream leg, lost", "retransmitted", "number wide", (flow) => leg(flow.upstream_leg)],
];

const ASCENDING = ["client", "server", "newest"];

const rows = new Map();

export class Flows {
  /** `choose` is told the flow that somebody wants to see; `changed` that the question is another. */
  constructor(choose, changed) {
    this.choose = choose;
    this.chosen = null;
    this.first = true;
    this.heads = COLUMNS.map(([name, order, kind]) => this.head(name, order, kind, changed));
    byId("flows").tHead.rows[0].append(...this.heads);
    byId("filter").addEventListener("submit", (event) => event.preventDefault());
    byId("filter").addEventListener("change", (event) => {
      event.target.setCustomValidity("");
      this.mark();
      changed();
    });
    this.mark();
  }

  head(name, order, kind, changed) {
    const cell = html("th", { scope: "col", class: kind });
    if (order === null) {
      cell.append(name);
      return cell;
    }
    const button = html("button", { type: "button" }, name);
    button.addEventListener("click", () => {
      byId("sort").value = order;
      this.mark();
      changed();
    });
    cell.append(button);
    return cell;
  }

  /** Says by which column the table is sorted. */
  mark() {
    const sort = byId("sort").value;
    COLUMNS.forEach(([, order], index) => {
      if (order === sort) {
        this.heads[index].setAttribute("aria-sort", ASCENDING.includes(sort) ? "ascending" : "descending");
      } else {
        this.heads[index].removeAttribute("aria-sort");
      }
    });
  }

  /** The address of what is to be shown. */
  question() {
    const query = new URLSearchParams({ sort: byId("sort").value, limit: MOST });
    for (const key of ["campus", "client", "server", "phase"]) {
      const field = byId(key);
      if (field.value.trim() !== "" && !field.validationMessage) query.set(key, field.value.trim());
    }
    return `v1/flows?${query}`;
  }

  /** The daemon does not understand a field: it is left out until it is another. */
  refused(why) {
    for (const key of ["client", "server"]) {
      const field = byId(key);
      if (field.value.trim() !== "" && !field.validationMessage) {
        field.setCustomValidity(why);
        field.reportValidity();
        return;
      }
    }
  }

  campuses(names) {
    const select = byId("campus");
    const there = [...select.options].slice(1).map((option) => option.value);
    if (there.join("\n") === names.join("\n")) return;
    const value = select.value;
    select.replaceChildren(select.options[0], ...names.map((name) => html("option", {}, name)));
    select.value = names.includes(value) ? value : "";
  }

  show(list) {
    const body = byId("flows").tBodies[0];
    const focus = document.activeElement;
    const wanted = new Set(list.flows.map((flow) => flow.id));
    for (const [id, row] of rows) {
      if (!wanted.has(id)) {
        row.tr.remove();
        rows.delete(id);
      }
    }
    list.flows.forEach((flow, index) => {
      if (!rows.has(flow.id)) rows.set(flow.id, this.row());
      const row = rows.get(flow.id);
      this.update(row, flow);
      if (body.rows[index] !== row.tr) body.insertBefore(row.tr, body.rows[index] ?? null);
    });
    // Moving a row takes the focus from what is in it.
    if (focus !== document.activeElement && focus.isConnected) focus.focus({ preventScroll: true });
    this.first = false;
    const shown = list.flows.length;
    const live = `${count(list.total)} live`;
    const matching = list.matching === list.total ? live : `${live}, ${count(list.matching)} match`;
    say(byId("flows-count"), shown < list.matching ? `${matching}; the first ${shown} are shown` : matching);
  }

  /** Nothing is known any more: the daemon is another. */
  forget() {
    for (const { tr } of rows.values()) tr.remove();
    rows.clear();
    this.first = true;
    this.chosen = null;
  }

  row() {
    const tr = html("tr", this.first ? {} : { class: "fresh" });
    const link = html("button", { type: "button" });
    const row = { tr, link, flow: null, cells: [] };
    for (const [, , kind, what] of COLUMNS) {
      const cell = html("td", { class: kind });
      if (what === null) cell.append(link);
      if (typeof what === "string") cell.append(html("span"));
      row.cells.push(cell);
    }
    tr.append(...row.cells);
    tr.addEventListener("click", () => this.choose(row.flow));
    return row;
  }

  update(row, flow) {
    row.flow = flow;
    say(row.link, `${flow.client} → ${flow.server}`);
    COLUMNS.forEach(([, , , what], index) => {
      const cell = row.cells[index];
      if (typeof what === "string") phaseBar(cell.firstChild, flow[what].phases);
      else if (what !== null) say(cell, what(flow));
    });
    row.tr.dataset.id = flow.id;
    row.tr.classList.toggle("chosen", flow.id === this.chosen);
  }
}
