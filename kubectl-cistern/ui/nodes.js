// All nodes, one row for each pool on each.

import { bar, legend, updateBar } from "./bar.js";
import { badge, el } from "./dom.js";
import { count, percent, share, size } from "./format.js";
import { drawProblem } from "./overview.js";
import { Table } from "./table.js";

/** Returns the state of a pool on a node in one word, and its tone. The first that is not well decides. */
function state(node, pool) {
  if (node.agent === "False") return ["Not reporting", "bad"];
  if (node.registered === "False") return ["Not registered", "bad"];
  if (!pool) return node.ready === "False" ? ["Not ready", "bad"] : ["No pool", ""];
  if (pool.ready === "False") return ["Not ready", "bad"];
  if (pool.ready === "Unknown") return ["Pending", "warning"];
  return pool.healthy === "False" ? ["Degraded", "warning"] : ["Ready", "good"];
}

/** Returns a row for each pool on each node, and one for a node without pools. */
function rows({ status }) {
  const byNode = new Map(status.nodes.map((node) => [node.name, []]));
  for (const pool of status.pools) {
    for (const place of pool.nodes) byNode.get(place.node)?.push({ ...place, pool: pool.name });
  }
  return status.nodes.flatMap((node) => {
    const pools = byNode.get(node.name);
    const each = pools.length > 0 ? pools : [null];
    return each.map((place) => {
      const [word, tone] = state(node, place);
      return { name: node.name, pool: place?.pool ?? "", word, tone, node, place };
    });
  });
}

const amount = (item, field) => item.place?.[field] ?? 0;

const columns = [
  { title: "Node", width: "minmax(150px, 2fr)", align: "strong", text: (item) => item.name },
  { title: "Pool", width: "minmax(80px, 1fr)", text: (item) => item.pool },
  {
    title: "State",
    width: "130px",
    value: (item) => ["bad", "warning", "", "good"].indexOf(item.tone),
    draw: (cell, item) => cell.replaceChildren(badge(item.word, item.tone)),
  },
  {
    title: "Reserved",
    width: "minmax(140px, 2fr)",
    descends: true,
    value: (item) => (item.place ? (percent(item.place) ?? -1) : -1),
    draw(cell, item) {
      if (!item.place) cell.replaceChildren();
      else if (cell.firstChild) updateBar(cell.firstChild, item.place);
      else cell.append(bar(item.place));
    },
  },
  { title: "", width: "52px", align: "end", text: (item) => (item.place ? share(item.place) : "") },
  {
    title: "Free",
    width: "90px",
    align: "end",
    descends: true,
    value: (item) => amount(item, "usableBytes") - amount(item, "reservedBytes"),
    text: (item) => size(Math.max(0, amount(item, "usableBytes") - amount(item, "reservedBytes"))),
  },
  { title: "Usable", width: "90px", align: "end", descends: true, value: (item) => amount(item, "usableBytes"), text: (item) => size(amount(item, "usableBytes")) },
  { title: "Volumes", width: "70px", align: "end", descends: true, value: (item) => amount(item, "volumes"), text: (item) => count(amount(item, "volumes")) },
  { title: "Snapshots", width: "84px", align: "end", descends: true, value: (item) => amount(item, "snapshots"), text: (item) => count(amount(item, "snapshots")) },
];

/** Returns the details of a pool on a node: its conditions, its capacity, and its problems. */
function describe(item, { status }) {
  const { node, place } = item;
  const problems = status.wrong.filter((it) => it.node === item.name && (!it.pool || it.pool === item.pool));
  const sections = [];
  if (place) sections.push(el("h3", {}, `Pool ${item.pool}`), bar(place, "large"), legend(place));
  if (problems.length > 0) sections.push(el("h3", {}, "What is wrong"), el("ul", {}, problems.map(drawProblem)));
  return {
    kind: "Node",
    title: item.name,
    of: [item, problems],
    facts: [
      ["State", badge(item.word, item.tone)],
      ["Ready", node.ready],
      ["Healthy", node.healthy],
      ["Agent reports", node.agent],
      ["Driver registered", node.registered],
      ["Volumes", el("a", { href: `#volumes?q=${encodeURIComponent(item.name)}` }, count(node.volumes))],
      ["Physically used", place ? size(place.usedBytes) : ""],
      ["Physically free", place ? size(place.freeBytes) : ""],
      ["Largest new volume", place ? size(place.largestVolumeBytes) : ""],
      ["Device", place?.device],
      ["Filesystem", place?.filesystemUuid],
      ["Unclaimed images", place?.orphans ? el("span", {}, `${count(place.orphans)}: `, el("code", {}, "kubectl cistern orphans")) : ""],
    ],
    sections,
  };
}

/** Creates the view. */
export function nodes(open) {
  return new Table({
    name: "Pools on nodes",
    needs: [],
    rows,
    columns,
    key: (item) => `${item.name}/${item.pool}`,
    describe,
    open,
    legend: legend(),
    empty: () => [
      el("h2", {}, "No node has a pool"),
      el("p", {}, "A StoragePool selects nodes by their labels. Compare its ", el("code", {}, "nodeSelector"), " with ", el("code", {}, "kubectl get nodes --show-labels")),
    ],
  });
}
