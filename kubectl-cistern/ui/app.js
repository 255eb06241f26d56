// Entry point: what the address names is shown, filtered by the search, and kept current.
//
// The address is #VIEW/OBJECT?q=SEARCH. All documents come from polling; each view draws them.

import { Details } from "./details.js";
import { el, fill, message, setText } from "./dom.js";
import { age, count } from "./format.js";
import { nodes } from "./nodes.js";
import { Overview } from "./overview.js";
import { Polling } from "./polling.js";
import { snapshots } from "./snapshots.js";
import { volumes } from "./volumes.js";

const element = (id) => document.getElementById(id);
const [main, search, live, banner, notes] = ["main", "search", "live", "banner", "notes"].map(element);

const data = { session: null, status: null, volumes: null, snapshots: null };
const views = { overview: new Overview(), nodes: nodes(open), volumes: volumes(open), snapshots: snapshots(open) };
const details = new Details(element("details"), () => close());
const polling = new Polling({ changed, failed });
let place = { view: "overview", object: null, query: "" };
let trouble = null;
/** The object whose row has been scrolled to. */
let reached = null;

/** Reads the address. */
function parse(hash) {
  const [path, parameters] = hash.replace(/^#/, "").split("?", 2);
  const [view, object] = path.split("/", 2);
  const query = new URLSearchParams(parameters ?? "").get("q") ?? "";
  return { view: view in views ? view : "overview", object: object ? decodeURIComponent(object) : null, query };
}

/** Writes the address without a new entry in the history. */
function write() {
  const object = place.object ? `/${encodeURIComponent(place.object)}` : "";
  const query = place.query ? `?${new URLSearchParams({ q: place.query })}` : "";
  history.replaceState(null, "", `#${place.view}${object}${query}`);
}

function current() {
  return views[place.view];
}

/** Shows what the address names. */
function route() {
  const before = place.view;
  place = parse(location.hash);
  if (search.value.trim() !== place.query) search.value = place.query;
  if (main.firstElementChild !== current().element) main.replaceChildren(current().element);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${place.view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `Cistern: ${place.view}`;
  if (before !== place.view) main.scrollTop = 0;
  polling.want(...current().needs);
  reached = null;
  draw();
}

/** Draws the view and the details. */
function draw() {
  const words = place.query.toLowerCase().split(/\s+/).filter(Boolean);
  current().show(data, words);
  if (place.object && place.object !== reached && current().grid?.activate(place.object)) reached = place.object;
  drawDetails();
}

function drawDetails() {
  const shown = place.object && current().details?.(place.object, data);
  if (shown) details.show(shown);
  else details.hide();
}

/** Opens the details of an object in the current view. */
function open(key) {
  place.object = key;
  reached = key;
  write();
  drawDetails();
}

/** Closes the details, and puts the focus back on the table. */
function close() {
  place.object = null;
  write();
  details.hide();
  (current().grid?.element ?? main).focus();
}

function changed(name, document) {
  data[name] = document;
  if (name === "session") drawSession();
  else draw();
  if (name === "status") drawCounts();
}

function failed(error) {
  trouble = error;
  drawSession();
}

/** Shows the numbers in the navigation. Problems stand out. */
function drawCounts() {
  const { status } = data;
  const numbers = { problems: status.wrong.length, nodes: status.nodes.length, volumes: status.volumes, snapshots: status.snapshots };
  for (const [name, number] of Object.entries(numbers)) {
    const shown = document.querySelector(`[data-count="${name}"]`);
    setText(shown, number > 0 ? count(number) : "");
    if (name !== "problems") continue;
    const worst = status.wrong.some((it) => it.severity === "Error") ? "bad" : "warning";
    shown.className = `count ${number > 0 ? worst : ""}`;
    shown.title = number > 0 ? `${count(number)} problems` : "";
  }
}

/** Shows the cluster, and whether the page is current. */
function drawSession() {
  const { session } = data;
  const outage = session?.outage;
  let [word, tone, text] = ["Live", "good", ""];
  if (trouble) {
    [word, tone] = ["Disconnected", "bad"];
    text = "The command kubectl cistern ui does not answer. Start it again, and open the URL that it prints.";
  } else if (outage) {
    [word, tone] = [`Outage for ${age(outage.since)}`, "bad"];
    text = `The page shows the last known state: ${outage.message}`;
  } else if (session?.listing.length > 0) {
    [word, tone] = ["Reading the cluster", "warning"];
  }
  setText(live, word);
  live.className = `live ${tone}`;
  setText(banner, text);
  banner.hidden = text === "";
  if (!session) return;
  setText(element("context"), session.context ?? session.server);
  element("context").title = session.server;
  fill(notes, session.notes, (note) => note, (note) => el("li", {}, message(note)));
  notes.hidden = session.notes.length === 0;
}

search.addEventListener("input", () => {
  place.query = search.value.trim();
  write();
  draw();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target instanceof HTMLInputElement;
  if (event.key === "/" && !isTyping) {
    search.focus();
    search.select();
  } else if (event.key === "Escape" && isTyping && search.value) {
    search.value = "";
    search.dispatchEvent(new Event("input"));
  } else if (event.key === "Escape" && details.isOpen) {
    close();
  } else if (event.key === "ArrowDown" && isTyping && current().grid) {
    current().grid.element.focus();
  } else {
    return;
  }
  event.preventDefault();
});

element("skip").addEventListener("click", () => main.focus());
addEventListener("hashchange", route);
// Ages and the length of an outage grow without news.
setInterval(() => {
  current().refresh();
  drawSession();
}, 10000);
route();
