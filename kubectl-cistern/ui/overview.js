// The overview: what is wrong and what to do, then each pool with its fullest nodes.

import { bar, legend, tone } from "./bar.js";
import { badge, el, fill, message } from "./dom.js";
import { age, count, counted, matches, percent, share, size, time, words } from "./format.js";

/** Nodes of a pool that are shown: those not ready, then the fullest. */
const NODES = 8;
/** Problems that are shown at first, and that each further step adds. */
const STEP = 100;

/** Returns the link to the object of a problem. */
function link(problem) {
  const several = problem.count > 1;
  const at = (view, key) => `#${view}/${encodeURIComponent(key)}`;
  if (several && problem.node) return `#${problem.kind === "PoolSnapshot" ? "snapshots" : "volumes"}?q=${encodeURIComponent(problem.node)}`;
  if (problem.kind === "PoolVolume") return at("volumes", problem.name);
  if (problem.kind === "PoolSnapshot") return at("snapshots", problem.name);
  if (problem.kind === "Pool") return at("nodes", `${problem.node}/${problem.name}`);
  if (problem.node) return `#nodes?q=${encodeURIComponent(problem.node)}`;
  if (problem.kind === "StoragePool") return `#nodes?q=${encodeURIComponent(problem.name)}`;
  return null;
}

/** Draws a problem: the object, the reason, and what to do. */
export function drawProblem(problem) {
  const kinds = { PoolVolume: "Volume", PoolSnapshot: "Snapshot", StorageNode: "Node", StoragePool: "Pool" };
  const kind = kinds[problem.kind] ?? problem.kind;
  const several = problem.count > 1 ? `${counted(problem.count, kind.toLowerCase())}, one of them ${problem.name}` : `${kind} ${problem.name}`;
  const whose = problem.node && problem.node !== problem.name ? `${several} on ${problem.node}` : several;
  const target = link(problem);
  const tone = problem.severity === "Error" ? "bad" : "warning";
  return el(
    "li",
    { class: `problem ${tone}` },
    el(
      "header",
      {},
      badge(words(problem.reason), tone),
      el("h3", {}, target ? el("a", { href: target }, whose) : whose),
      problem.since ? el("time", { class: "since", datetime: problem.since, title: time(problem.since) }, age(problem.since)) : null,
    ),
    el("p", {}, el("span", { class: "unseen" }, `${problem.severity}: `), message(problem.message)),
  );
}

/** Draws a pool with its bar and its nodes. */
function drawPool(pool) {
  const ready = pool.nodesReady === pool.nodes.length && pool.ready === "True";
  const nodes = [...pool.nodes].sort(
    (a, b) => (a.ready === "True") - (b.ready === "True") || (percent(b) ?? 0) - (percent(a) ?? 0),
  );
  const state = `${count(pool.nodesReady)} of ${counted(pool.nodes.length, "node")} ready`;
  return el(
    "article",
    { class: "pool" },
    el("header", {}, el("h3", {}, pool.name), el("span", { class: "quiet" }, pool.source), badge(state, ready ? "good" : "bad")),
    el(
      "p",
      { class: "sum" },
      el("strong", {}, size(pool.reservedBytes)),
      el("span", { class: "quiet" }, `of ${size(pool.usableBytes)} reserved`),
      el("span", { class: tone(pool) ? `badge ${tone(pool)}` : "quiet" }, share(pool)),
    ),
    bar(pool, "large"),
    legend(pool),
    el(
      "p",
      { class: "quiet" },
      `${counted(pool.volumes, "volume")}, ${counted(pool.snapshots, "snapshot")}; a new volume may have up to ${size(pool.largestVolumeBytes)}`,
    ),
    pool.nodes.length > 0 ? el("ul", { class: "nodes", "aria-label": `Nodes of ${pool.name}` }, nodes.slice(0, NODES).map((node) => drawNode(pool, node))) : null,
    pool.nodes.length > NODES ? el("a", { class: "all", href: `#nodes?q=${encodeURIComponent(pool.name)}` }, `All ${counted(pool.nodes.length, "node")}`) : null,
  );
}

function drawNode(pool, node) {
  const key = encodeURIComponent(`${node.node}/${pool.name}`);
  const usable = node.ready === "True" ? el("span", { class: "share" }, share(node)) : badge("Not ready", "bad");
  return el("li", {}, el("a", { href: `#nodes/${key}` }, el("span", { class: "name", title: node.node }, node.node), bar(node), usable));
}

export class Overview {
  constructor() {
    this.limit = STEP;
    this.title = el("h2", { id: "problems-title" });
    this.well = el("p", { class: "well" }, badge("No problems are known.", "good"));
    this.problems = el("ul", { class: "problems", "aria-labelledby": "problems-title" });
    this.more = el("button", { class: "button more", type: "button", onclick: () => this.showMore() });
    this.poolsTitle = el("h2", {});
    this.pools = el("div", { class: "pools" });
    this.empty = el(
      "div",
      { class: "empty" },
      el("h2", {}, "There are no pools yet"),
      el("p", {}, "A StoragePool says which disks of which nodes hold volumes. Create one: ", el("code", {}, "kubectl apply -f pool.yaml")),
      el("p", {}, "The fields are explained by ", el("code", {}, "kubectl explain storagepool.spec")),
    );
    this.element = el("div", { class: "view" }, this.title, this.well, this.problems, this.more, this.poolsTitle, this.pools, this.empty);
    this.needs = [];
  }

  showMore() {
    this.limit += STEP;
    this.show(this.data, this.search);
  }

  show(data, search) {
    Object.assign(this, { data, search });
    const { status } = data;
    if (!status) return;
    const found = status.wrong.filter((problem) => matches(problem, search));
    const shown = found.slice(0, this.limit);
    this.title.textContent = status.wrong.length ? `What is wrong (${count(found.length)})` : "What is wrong";
    this.well.hidden = status.wrong.length > 0;
    this.problems.hidden = shown.length === 0;
    const key = (it) => [it.kind, it.name, it.node, it.pool, it.reason].join("\n");
    fill(this.problems, shown, key, drawProblem);
    this.more.hidden = shown.length === found.length;
    this.more.textContent = `Show more (${count(found.length - shown.length)} left)`;
    const pools = status.pools.filter((pool) => matches({ name: pool.name, source: pool.source }, search));
    this.poolsTitle.textContent = `Pools (${count(pools.length)})`;
    this.poolsTitle.hidden = status.pools.length === 0;
    this.empty.hidden = status.pools.length > 0;
    fill(this.pools, pools, (pool) => pool.name, drawPool);
  }

  /** Shows the ages as they are now. */
  refresh() {
    for (const since of this.problems.querySelectorAll("time")) since.textContent = age(since.dateTime);
  }
}
