// Connections that moved: to and from each neighbor.

import { byId, count, html, say, time } from "./show.js";

const CELLS = [
  (of) => count(of.given),
  (of) => count(of.taken),
  (of) => count(of.lost),
  (of) => (of.given + of.lost === 0 ? "–" : time(of.longest_pause)),
];

let shown = "";

export function showMoves({ moves }) {
  const any = (moves?.neighbors.length ?? 0) > 0;
  byId("moves").hidden = !any;
  const text = JSON.stringify(moves);
  if (!any || text === shown) return;
  shown = text;
  const rows = moves.neighbors.map((of) =>
    html("tr", {}, html("th", { scope: "row" }, of.neighbor), ...CELLS.map((cell) => html("td", { class: "number" }, cell(of)))),
  );
  byId("moves-neighbors").tBodies[0].replaceChildren(...rows);
  say(byId("moves-sent-on"), count(moves.sent_on));
  say(byId("moves-refused"), count(moves.refused));
}
