// The page: asks once a second and shows what it is told, and says so when there is no answer.

import { ask, NoAnswer, Refused } from "./ask.js";
import { FlowPane } from "./flow.js";
import { Flows } from "./flows.js";
import { Legs } from "./legs.js";
import { showMap } from "./map.js";
import { showMoves } from "./moves.js";
import { showPairs } from "./pairs.js";
import { showWorth } from "./worth.js";
import { byId, clock, count, duration, html, rate, say, time } from "./show.js";

/** Milliseconds between two looks. */
const INTERVAL = 1000;

/** The take-overs that are remembered for the charts. */
const MOST_BREAKS = 50;

const STATES = {
  splitting: ["splitting new connections", "good"],
  full: ["a limit is reached: new connections are routed, unsplit", "warn"],
  flooded: ["a flood of SYNs to many destinations: new connections are routed, unsplit", "warn"],
  blocked: ["split connections do not come through: new connections are routed, unsplit", "bad"],
  trial: ["split connections did not come through: trying whether they do now", "warn"],
  draining: ["draining: new connections are routed, unsplit", "warn"],
};

let status = null;
let awaySince = null;
let timer = null;
let looking = false;
/** How processes of the daemon have gone on after others, the first one first. */
let breaks = [];

const pane = new FlowPane();
const flows = new Flows(choose, () => look());
const legs = new Legs();

function choose(flow) {
  flows.chosen = flow.id;
  pane.open(flow);
  look();
}

byId("flow-close").addEventListener("click", () => {
  const row = document.querySelector("#flows tr.chosen button");
  flows.chosen = null;
  pane.close();
  row?.focus();
  look();
});

/** Looks once, and again in a second. */
async function look() {
  // The one under way is followed by another.
  if (looking) return;
  looking = true;
  clearTimeout(timer);
  try {
    const [now, list] = await Promise.all([ask("v1/status"), ask(flows.question())]);
    if (status && now.version !== status.version) {
      // Another daemon, and so another page.
      location.reload();
      return;
    }
    const last = now.survival?.last ?? null;
    // One that goes on with the connections of another has what they were called, and how old they are.
    if (status && last === null && Math.abs(now.started - status.started) > 0.5) restarted();
    if (last && last.time !== breaks.at(-1)?.time) breaks = [...breaks, last].slice(-MOST_BREAKS);
    status = now;
    present();
    show(now);
    flows.campuses(now.campuses.map((campus) => campus.name));
    flows.show(list);
    await legs.look(now, breaks);
    await lookAtFlow();
  } catch (error) {
    if (error instanceof Refused) flows.refused(error.message);
    else if (error instanceof NoAnswer) away();
    // A mistake of the page's own has to be seen.
    else throw error;
  } finally {
    looking = false;
    timer = setTimeout(look, document.hidden ? 10 * INTERVAL : INTERVAL);
  }
}

async function lookAtFlow() {
  if (!pane.flow || pane.ended) return;
  const { id } = pane.flow;
  const list = await ask(pane.question());
  const flow = list.flows.find((candidate) => candidate.id === id);
  if (!flow) return pane.end();
  const history = await ask(`v1/flows/${id}/history`);
  // Somebody may have chosen another meanwhile.
  if (pane.flow?.id !== id) return;
  if (history) pane.update(flow, history.points, status.links, breaks);
  else pane.end();
}

/** The daemon has answered. */
function present() {
  byId("link").classList.remove("away");
  say(byId("link-text"), `as of ${clock(Date.now() / 1000)}`);
  if (awaySince === null) return;
  awaySince = null;
  byId("away").hidden = true;
  byId("main").classList.remove("stale");
}

/** It has not. */
function away() {
  if (awaySince !== null) return;
  awaySince = Date.now() / 1000;
  const since = clock(awaySince);
  byId("link").classList.add("away");
  say(byId("link-text"), `no answer since ${since}`);
  const shown = status ? "What is shown is from before." : "";
  say(byId("away"), `The daemon does not answer since ${since}. ${shown} The page tries again each second.`);
  byId("away").hidden = false;
  byId("main").classList.add("stale");
  document.title = "✕ pepd";
}

/** Another daemon answers: its connections are others, whatever their numbers. */
function restarted() {
  breaks = [];
  flows.forget();
  legs.forget();
  if (pane.flow) pane.end();
}

function show(now) {
  document.title = `${now.node} · pepd`;
  say(byId("node"), now.node);
  const [words, kind] = STATES[now.state] ?? [now.state, "warn"];
  say(byId("state"), words);
  byId("state").className = `state ${kind}`;
  say(byId("facts"), `up ${duration(now.uptime)} · version ${now.version}${survival(now)}`);
  tiles(now);
  showList("alarms", now.alarms.map((alarm) => `${alarm.what}. Cure: ${alarm.cure}`));
  showList("advice", now.advice);
  showMap(now);
  showPairs(now);
  showWorth(now);
  showMoves(now);
}

/** Whom it has taken over from, if from anybody. */
function survival(now) {
  const last = now.survival?.last;
  if (!last) return "";
  const connections = last.connections === 1 ? "connection" : "connections";
  const went = `${count(last.connections)} ${connections} went on after ${time(last.pause)}`;
  const lost = last.lost > 0 ? `, ${count(last.lost)} were reset` : "";
  return ` · its process before ended at ${clock(last.time - last.pause)} (${last.why}): ${went}${lost} (dashed in the charts)`;
}

/** Sentences in a section of their own, which is hidden while there are none. */
function showList(id, sentences) {
  byId(id).hidden = sentences.length === 0;
  const list = byId(`${id}-list`);
  if (sentences.join("\n") !== [...list.children].map((item) => item.textContent).join("\n")) {
    list.replaceChildren(...sentences.map((sentence) => html("li", {}, sentence)));
  }
}

function tiles(now) {
  const sum = (direction) => now.pairs.reduce((all, pair) => all + pair[direction].goodput, 0);
  const limit = (name) => now.limits.find((candidate) => candidate.name === name);
  const counter = (name) => now.counters.find((candidate) => candidate.name === name)?.count ?? 0;
  const used = (name) => {
    const of = limit(name);
    return of ? [count(of.used), `of ${count(of.limit)}`] : ["–", ""];
  };
  const failed = counter("client_failed") + counter("upstream_failed") + counter("cut");
  const entries = [
    ["Connections", ...used("connections")],
    ["Goodput ↓ to clients", rate(sum("down")), "last 10 s"],
    ["Goodput ↑ to servers", rate(sum("up")), "last 10 s"],
    ["Handshakes pending", ...used("pending")],
    ["Ended with an error", count(failed), `of ${count(counter("accepted"))} accepted`],
    ["Descriptors", ...used("descriptors")],
  ];
  const holder = byId("tiles");
  entries.forEach(([name, value, more], index) => {
    if (!holder.children[index]) {
      const small = html("small");
      holder.append(html("div", {}, html("dt"), html("dd", {}, html("span"), small)));
    }
    const [term, figure] = holder.children[index].children;
    say(term, name);
    say(figure.firstChild, value);
    say(figure.lastChild, more);
  });
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});

let resized = null;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => {
    if (status) showMap(status);
    legs.draw();
    if (pane.flow) pane.draw();
  }, 100);
});

look();
