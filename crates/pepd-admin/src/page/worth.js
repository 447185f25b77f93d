// What splitting is worth: connections that are split beside some that are not.

import { byId, count, html, percent, rate, say, time } from "./show.js";

const NAMES = {
  first_byte: "first byte",
  up_to_10kB: "up to 10 kB",
  up_to_100kB: "up to 100 kB",
  up_to_1MB: "up to 1 MB",
  longer: "longer than 1 MB",
};

const median = (quantity, of) => {
  if (of.median === null) return "–";
  return quantity === "longer" ? rate(of.median) : time(of.median);
};

/** Says no more than what the interval says. */
function verdict({ gain, split, unsplit }, fewest) {
  if (!gain) return `not enough yet: ${Math.min(split.connections, unsplit.connections)} of ${fewest}`;
  const figures = `${gain.factor.toFixed(2)} (${gain.low.toFixed(2)} to ${gain.high.toFixed(2)})`;
  return gain.low > 1 || gain.high < 1 ? figures : `${figures}, maybe the same`;
}

function rows(pair, fewest) {
  return pair.compared.map((compared, at) => {
    const { quantity, split, unsplit } = compared;
    const cells = [median(quantity, split), count(split.connections), median(quantity, unsplit), count(unsplit.connections)];
    return html(
      "tr",
      at === 0 ? {} : { class: "second" },
      at === 0 ? html("th", { scope: "rowgroup", rowspan: pair.compared.length }, `${pair.client_campus} → ${pair.server_campus}`) : null,
      html("td", {}, NAMES[quantity] ?? quantity),
      ...cells.map((text) => html("td", { class: "number" }, text)),
      html("td", {}, verdict(compared, fewest)),
    );
  });
}

/** What becomes of new connections, where that depends on it. */
function choice({ client_campus, server_campus, choice: chosen }) {
  const explores = chosen.explores ? " for now: it is found out on half of them" : "";
  return `${client_campus} → ${server_campus}: auto ${chosen.splits ? "splits" : "routes"} new connections${explores}.`;
}

let shown = "";

export function showWorth({ worth }) {
  byId("worth").hidden = !worth;
  const text = JSON.stringify(worth);
  if (!worth || text === shown) return;
  shown = text;
  say(byId("worth-share"), percent(worth.unsplit));
  const all = worth.pairs.flatMap((pair) => rows(pair, worth.fewest));
  const none = html("tr", {}, html("td", { colspan: 7, class: "quiet" }, "No connection that is watched has ended yet."));
  const choices = worth.pairs.filter((pair) => pair.choice).map((pair) => html("li", {}, choice(pair)));
  byId("worth-choices").replaceChildren(...choices);
  byId("worth-pairs").tBodies[0].replaceChildren(...(all.length ? all : [none]));
}
