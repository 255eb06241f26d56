// Capacity as a bar: volumes, snapshots, free.

import { el } from "./dom.js";
import { percent, share, size } from "./format.js";

/** Returns what a capacity consists of. Reservations of thin volumes may exceed what is usable. */
function parts(capacity) {
  const snapshots = capacity.reservedForSnapshotsBytes;
  const volumes = Math.max(0, capacity.reservedBytes - snapshots);
  const free = Math.max(0, capacity.usableBytes - capacity.reservedBytes);
  const whole = Math.max(capacity.usableBytes, capacity.reservedBytes, 1);
  return { volumes, snapshots, free, whole };
}

/** Draws a bar; `kind` is empty or `large`. */
export function bar(capacity, kind = "") {
  const drawn = el("div", { class: `bar ${kind}`, role: "img" }, el("i", { class: "volumes" }), el("i", { class: "snapshots" }), el("i", { class: "limit" }));
  updateBar(drawn, capacity);
  return drawn;
}

/** Changes a bar to another capacity. */
export function updateBar(drawn, capacity) {
  const { volumes, snapshots, free, whole } = parts(capacity);
  const [inVolumes, inSnapshots, limit] = drawn.children;
  inVolumes.style.width = `${(100 * volumes) / whole}%`;
  inSnapshots.style.width = `${(100 * snapshots) / whole}%`;
  inVolumes.classList.toggle("some", volumes > 0);
  inSnapshots.classList.toggle("some", snapshots > 0);
  limit.hidden = capacity.reservedBytes <= capacity.usableBytes;
  limit.style.left = `${(100 * capacity.usableBytes) / whole}%`;
  const label = `${share(capacity)} of ${size(capacity.usableBytes)} reserved: volumes ${size(volumes)}, snapshots ${size(snapshots)}, free ${size(free)}`;
  drawn.setAttribute("aria-label", label);
  drawn.title = label;
}

/** Names the colours of bars; with a capacity, also its sizes. */
export function legend(capacity) {
  const sizes = capacity && parts(capacity);
  const entry = (kind, name) => el("span", { class: `key ${kind}` }, name, sizes ? el("b", {}, size(sizes[kind])) : null);
  return el("p", { class: "legend" }, entry("volumes", "Volumes"), entry("snapshots", "Snapshots"), entry("free", "Free"));
}

/** Returns the tone of a capacity, with the limits of the plugin's tables. */
export function tone(capacity) {
  const whole = percent(capacity) ?? 0;
  if (whole >= 95) return "bad";
  return whole >= 80 ? "warning" : "";
}
