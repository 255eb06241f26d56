// All volumes, with their claim and the pods that use them.

import { badge, el } from "./dom.js";
import { age, claim, size, time, words } from "./format.js";
import { drawProblem } from "./overview.js";
import { Table } from "./table.js";

const QUIET = new Set(["Degraded", "Deleting", "Pending", "Checking"]);

function tone(volume) {
  if (volume.state === "Ready") return "good";
  return QUIET.has(volume.state) ? "warning" : "bad";
}

/** Formats the first pod and the number of others. */
function pods(volume) {
  const [first, ...others] = volume.pods;
  return others.length > 0 ? `${first} +${others.length}` : (first ?? "");
}

/** Adds to each volume the name of its claim, by which it is found and sorted. */
function rows({ volumes }) {
  return volumes.items.map((volume) => ({ ...volume, claimName: claim(volume.claim) }));
}

const columns = [
  { title: "Claim", width: "minmax(160px, 2fr)", align: "strong", text: (it) => it.claimName },
  { title: "Volume", width: "minmax(130px, 2fr)", align: "faint", text: (it) => it.name },
  { title: "Node", width: "minmax(110px, 1.2fr)", text: (it) => it.node },
  { title: "Pool", width: "minmax(70px, 0.8fr)", text: (it) => it.pool },
  {
    title: "State",
    width: "130px",
    value: (it) => `${["bad", "warning", "good"].indexOf(tone(it))} ${it.state}`,
    draw: (cell, it) => cell.replaceChildren(badge(words(it.state), tone(it))),
  },
  { title: "Size", width: "82px", align: "end", descends: true, value: (it) => it.sizeBytes, text: (it) => size(it.sizeBytes) },
  { title: "Type", width: "60px", text: (it) => it.filesystem ?? "block" },
  { title: "Pods", width: "minmax(110px, 1.2fr)", text: pods },
  { title: "Age", width: "54px", align: "end", value: (it) => -Date.parse(it.created ?? 0), text: (it) => age(it.created) },
];

/** Draws the problems of a volume, without the link to itself. */
function problems(volume) {
  const own = volume.problems.map((it) => ({
    ...it,
    severity: it.severity === "Degraded" ? "Warning" : "Error",
    kind: "Volume",
    name: volume.name,
    count: 1,
  }));
  return own.length > 0 ? [el("h3", {}, "What is wrong"), el("ul", {}, own.map(drawProblem))] : [];
}

/** Formats the limits of its I/O. */
function limits(volume) {
  const known = Object.entries(volume.ioLimits ?? {}).filter(([, value]) => value !== null);
  return known.map(([name, value]) => `${words(name[0].toUpperCase() + name.slice(1))}: ${value}`).join("; ");
}

function describe(volume) {
  return {
    kind: "Volume",
    title: volume.name,
    of: volume,
    facts: [
      ["State", badge(words(volume.state), tone(volume))],
      ["Check", volume.checking],
      ["Allocation", volume.allocating],
      ["Claim", volume.claimName],
      ["Used by pods", volume.pods.join(", ") || "none"],
      ["PersistentVolume", volume.persistentVolume],
      ["Node", el("a", { href: `#nodes/${encodeURIComponent(`${volume.node}/${volume.pool}`)}` }, volume.node)],
      ["Pool", volume.pool],
      ["Size", size(volume.sizeBytes)],
      ["Reserved", size(volume.reservedBytes)],
      ["Allocated", volume.allocatedBytes === undefined ? "" : size(volume.allocatedBytes)],
      ["Type", volume.filesystem ?? "block"],
      ["Provisioning", volume.provisioning],
      ["I/O limits", limits(volume)],
      ["Created from", volume.source ? `${volume.source.kind.toLowerCase()} ${volume.source.name}` : ""],
      ["Image", volume.image],
      ["Extents", volume.extents],
      ["Created", time(volume.created)],
    ],
    sections: problems(volume),
  };
}

/** Creates the view. */
export function volumes(open) {
  return new Table({
    name: "Volumes",
    needs: ["volumes"],
    rows,
    columns,
    key: (volume) => volume.name,
    describe,
    open,
    least: "1080px",
    empty: () => [
      el("h2", {}, "There are no volumes yet"),
      el("p", {}, "A PersistentVolumeClaim with a StorageClass of the provisioner ", el("code", {}, "csi.cistern.storage"), " creates one. If a claim waits, ", el("code", {}, "kubectl describe pvc"), " says why."),
    ],
  });
}
