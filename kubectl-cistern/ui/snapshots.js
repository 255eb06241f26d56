// Trees of volumes, their snapshots, and the volumes created from these.

import { badge, el } from "./dom.js";
import { age, claim, matches, size, time } from "./format.js";
import { Table } from "./table.js";

/** Flattens the trees to rows. A row knows its depth and its parent. */
function rows({ snapshots }) {
  const all = [];
  const add = (origin, depth, parent) => {
    const { children, ...own } = origin;
    const row = { ...own, depth, parent, claimName: claim(origin.claim) };
    Object.defineProperty(row, "parent", { enumerable: false });
    all.push(row);
    for (const child of children) add(child, depth + 1, row);
  };
  for (const origin of snapshots.origins) add(origin, 0, null);
  return all;
}

/** Keeps rows that match, and what they come from. */
function keep(items, search) {
  if (search.length === 0) return items;
  const kept = new Set();
  for (const item of items) {
    if (!matches(item, search)) continue;
    for (let row = item; row && !kept.has(row); row = row.parent) kept.add(row);
  }
  return items.filter((item) => kept.has(item));
}

const ready = (row) => {
  const words = { True: ["Ready", "good"], False: ["Not ready", "bad"], Unknown: ["Pending", "warning"] };
  return badge(...words[row.ready]);
};

const columns = [
  {
    title: "Name",
    width: "minmax(220px, 3fr)",
    draw(cell, row) {
      const lost = row.lostSource ? `${row.lostSource} (gone) → ` : "";
      const name = el("span", { class: row.kind === "Volume" ? "strong" : "" }, row.name);
      cell.style.paddingLeft = `${row.depth * 22}px`;
      cell.title = row.name;
      const branch = row.depth > 0 ? el("span", { class: "faint", "aria-hidden": "true" }, "└ ") : null;
      cell.replaceChildren(...[branch, el("span", { class: "faint" }, lost), name].filter(Boolean));
    },
  },
  { title: "Kind", width: "80px", align: "faint", text: (row) => row.kind },
  { title: "Claim", width: "minmax(120px, 1.5fr)", text: (row) => row.claimName },
  { title: "Node", width: "minmax(100px, 1fr)", text: (row) => row.node },
  { title: "Pool", width: "minmax(70px, 0.8fr)", text: (row) => row.pool },
  { title: "State", width: "110px", draw: (cell, row) => cell.replaceChildren(ready(row)) },
  { title: "Size", width: "84px", align: "end", text: (row) => size(row.sizeBytes) },
  { title: "Holds", width: "84px", align: "end", text: (row) => size(row.reservedBytes) },
  { title: "Taken", width: "60px", align: "end", text: (row) => age(row.taken) },
];

function describe(row) {
  return {
    kind: row.kind,
    title: row.name,
    of: row,
    facts: [
      ["State", ready(row)],
      ["Claim", row.claimName],
      ["Source", row.lostSource ? `${row.lostSource}, which is gone` : row.parent?.name],
      ["Group", row.group],
      ["Node", el("a", { href: `#nodes/${encodeURIComponent(`${row.node}/${row.pool}`)}` }, row.node)],
      ["Pool", row.pool],
      ["Size", size(row.sizeBytes)],
      ["Holds", size(row.reservedBytes)],
      ["Taken", time(row.taken)],
      ["Volume", row.kind === "Volume" ? el("a", { href: `#volumes/${encodeURIComponent(row.name)}` }, row.name) : ""],
    ],
  };
}

/** Creates the view. */
export function snapshots(open) {
  return new Table({
    name: "Snapshots and copies",
    needs: ["snapshots"],
    rows,
    keep,
    columns,
    key: (row) => row.name,
    describe,
    open,
    sortable: false,
    empty: () => [
      el("h2", {}, "There are no snapshots and no copies"),
      el("p", {}, "A VolumeSnapshot of a claim creates a snapshot; a claim whose ", el("code", {}, "dataSource"), " names a snapshot or a claim creates a copy."),
    ],
  });
}
