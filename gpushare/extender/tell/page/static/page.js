// The page reads /ui/books.json every two seconds and draws it. Names of pods and nodes are written
// as text alone, never as HTML. Of a long list only the rows that can be seen are in the document.
"use strict";

const EVERY = 2000; // milliseconds
const CELL = 64; // least width of a device in pixels
const LINE = 38; // height of a line of devices
const GAP = 8; // between devices
const MARGIN = 14; // of a row, above and below
const HUES = 9; // colours for names; one more is for all others
const MOST_SEGMENTS = 60; // on one bar
const STEP = 100; // rows that a table gets at once
const SVG = "http://www.w3.org/2000/svg";

const $ = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");
const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

let books = null; // the document as it came
let part = null; // the part of the resource that is shown
let shown = []; // the nodes in the order of the list
let tops = [0]; // where each begins, and the end
let columns = 1;
let wide = CELL; // the width of a device
let active = ""; // the node that the keys are on
let selected = ""; // the node whose pods are shown
let podsShown = STEP;
let waitingShown = window.innerWidth <= 560 ? 3 : 10; // on a telephone the nodes are near the top
let printing = false;
const hues = new Map(); // by namespace
const rows = new Map(); // the rows in the document, by node

// -- elements -----------------------------------------------------------------------------------

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children); // text becomes text
  return made;
}

function drawn(tag, properties, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function amount(units) {
  const unit = books.unit;
  return ["GiB", "MiB"].includes(unit) ? `${number(units)} ${unit}` : `${number(units)} x ${unit}`;
}

function share(units, total) {
  const percent = total ? (100 * units) / total : 0;
  return percent > 0 && percent < 1 ? "< 1 %" : `${Math.floor(percent)} %`;
}

function ago(seconds) {
  const since = Math.max(0, Math.floor(Date.now() / 1000 - seconds));
  for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (since >= size) return `${Math.floor(since / size)} ${name}`;
  return `${since} s`;
}

function put(id, ...children) {
  $(id).replaceChildren(...children);
}

// -- colours ------------------------------------------------------------------------------------

// A name keeps its colour; the largest take the first ones.
function giveHues() {
  const sums = new Map();
  for (const node of part.nodes)
    for (const { namespace, allocated } of node.pods)
      sums.set(namespace, (sums.get(namespace) || 0) + allocated);
  const largest = [...sums].sort((a, b) => b[1] - a[1]);
  for (const [name] of largest)
    if (!hues.has(name)) hues.set(name, Math.min(hues.size, HUES));
  return largest;
}

function hue(pod) {
  if ($("colours").value === "namespace") return `c${hues.get(pod.namespace) ?? HUES}`;
  let sum = 0;
  for (const letter of `${pod.namespace}/${pod.name}`) sum = (sum * 31 + letter.codePointAt(0)) >>> 0;
  return `c${sum % HUES}`;
}

// -- bars ---------------------------------------------------------------------------------------

// Segments of a bar: {units, kind, text}. Nothing is drawn twice: they follow one another.
function bar(segments, total, width, height = 16) {
  const box = { class: "bar", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" };
  const made = drawn("svg", { ...box, "aria-hidden": "true", focusable: "false" });
  let at = 0;
  for (const { units, kind, text, dim } of segments) {
    const long = (units / Math.max(total, 1)) * width;
    const gap = long > 3 ? 1 : 0;
    const place = { x: at.toFixed(2), y: 0, width: Math.max(long - gap, 0).toFixed(2), height };
    const piece = drawn("rect", { ...place, class: dim ? `${kind} dim` : kind });
    piece.append(drawn("title", {}, text));
    made.append(piece);
    at += long;
  }
  return made;
}

// What has memory here: of the cards of claims these.
const holder = () => part.holder ?? "pod";

// The pods of a node by device: [[{pod, units}]].
function byDevice(node) {
  const found = node.devices.map(() => []);
  for (const pod of node.pods)
    for (const { index, allocated } of pod.devices) found[index].push({ pod, units: allocated });
  return found;
}

function segmentsOf(node, device, held, width, wanted) {
  const dim = (pods) => Boolean(wanted) && !pods.some(({ pod }) => matches(pod, wanted));
  let groups = held.map((one) => [one]);
  // Narrower than can be seen: one segment for each namespace.
  if (held.length > Math.min(width / 3, MOST_SEGMENTS))
    groups = [...Map.groupBy(held, ({ pod }) => pod.namespace).values()];
  if (groups.length > MOST_SEGMENTS)
    groups = [...groups.slice(0, MOST_SEGMENTS - 1), groups.slice(MOST_SEGMENTS - 1).flat()];
  const segments = groups.map((pods) => {
    const units = pods.reduce((sum, one) => sum + one.units, 0);
    const { namespace, name } = pods[0].pod;
    const kin = pods.every(({ pod }) => pod.namespace === namespace);
    const many = `${plural(pods.length, holder())} of ${kin ? namespace : "several namespaces"}`;
    const text = pods.length === 1 ? `${namespace}/${name}` : many;
    const kind = pods.length > 1 && !kin ? "c9" : hue(pods[0].pod);
    return { units, kind, text: `${text}: ${amount(units)}`, dim: dim(pods) };
  });
  const left = Math.max(device.total - device.allocated, 0);
  const open = device.healthy && !node.unavailable;
  const maybe = Math.min(node.unplaced, left);
  if (maybe) {
    const text = `${amount(maybe)} of pods whose device is not known`;
    segments.push({ units: maybe, kind: "unplaced", text });
  }
  const useless = device.strandedByCores;
  if (!open) segments.push({ units: left - maybe, kind: "closed", text: node.unavailable || "closed" });
  else if (useless) segments.push({ units: useless, kind: "stranded", text: `${amount(useless)} stranded by compute` });
  else if (device.stranded)
    segments.push({ units: device.stranded, kind: "stranded", text: `${amount(device.stranded)} stranded` });
  else segments.push({ units: device.free, kind: "free", text: `${amount(device.free)} free` });
  return segments;
}

function state(node, device) {
  if (node.unavailable) return node.unavailable;
  const { healthy, stranded, strandedByCores, cores, limits, total } = device;
  return [!healthy && "closed", limits > total && `limits of ${amount(limits)} together`,
    stranded && `${amount(stranded)} stranded`, cores && `${cores} % of compute`,
    strandedByCores && `${amount(strandedByCores)} stranded by compute`].filter(Boolean).join(", ");
}

// -- the list of nodes --------------------------------------------------------------------------

function matches(pod, wanted) {
  return `${pod.namespace}/${pod.name}`.toLowerCase().includes(wanted);
}

function find() {
  return $("find").value.trim().toLowerCase();
}

function stranded(node) {
  return node.devices.reduce((sum, device) => sum + device.stranded + (device.strandedByCores ?? 0), 0);
}

const byName = new Intl.Collator("en", { numeric: true });
const ORDERS = {
  name: (a, b) => byName.compare(a.name, b.name),
  free: (a, b) => b.free - a.free,
  stranded: (a, b) => stranded(b) - stranded(a),
  full: (a, b) => b.allocated / Math.max(b.total, 1) - a.allocated / Math.max(a.total, 1),
};

function arrange() {
  const wanted = find();
  const of = (node) =>
    !wanted || node.name.toLowerCase().includes(wanted) || node.pods.some((pod) => matches(pod, wanted));
  shown = part.nodes.filter(of).sort(ORDERS[$("order").value]);
  measure();
  const none = part.nodes.length ? `No node, pod or namespace has “${find()}” in its name.` :
    `There is no node that shares ${part.resource}.`;
  $("none").hidden = shown.length > 0;
  put("none", none);
  draw(true);
}

// Reads the layout, which is slow between changes of it: once for all rows.
function measure() {
  const list = $("nodes");
  const name = window.innerWidth <= 1000 ? 128 : 168;
  const all = list.clientWidth - name - 14 - 12;
  const most = shown.reduce((found, node) => Math.max(found, node.devices.length), 1);
  const fitting = Math.max(1, Math.min(most, Math.floor((all + GAP) / (CELL + GAP))));
  columns = Math.ceil(most / Math.ceil(most / fitting)); // lines of equal length
  wide = (all + GAP) / columns - GAP;
  tops = [0];
  for (const node of shown) tops.push(tops.at(-1) + height(node));
  list.style.height = `${tops.at(-1)}px`;
}

function height(node) {
  return MARGIN + LINE * Math.max(1, Math.ceil(node.devices.length / columns));
}

// The first node that ends below this height.
function nodeAt(y) {
  let low = 0;
  let high = shown.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tops[middle + 1] <= y) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Draw the rows that can be seen, and the one that the keys are on. anew: all of them once more.
function draw(anew = false) {
  const list = $("nodes");
  const above = -list.getBoundingClientRect().top;
  let from = nodeAt(above - 200);
  let to = Math.min(shown.length, nodeAt(above + window.innerHeight + 200) + 1);
  if (printing) [from, to] = [0, shown.length];
  const wanted = new Map();
  for (let index = from; index < to; index += 1) wanted.set(shown[index].name, index);
  const kept = shown.findIndex((node) => node.name === active);
  if (kept >= 0) wanted.set(active, kept);
  for (const [name, row] of rows)
    if (anew || !wanted.has(name)) {
      row.remove();
      rows.delete(name);
    }
  // In the order of the list, which is that of a reader.
  for (const [name, index] of [...wanted].sort((a, b) => a[1] - b[1])) {
    const row = rows.get(name) ?? nodeRow(shown[index], index);
    rows.set(name, row);
    if (row.parentNode !== list) list.insertBefore(row, after(index));
  }
  mark();
}

// The row before which this one has its place.
function after(index) {
  const { children, lastElementChild } = $("nodes");
  if (!lastElementChild || Number(lastElementChild.dataset.index) < index) return null;
  for (const row of children) if (Number(row.dataset.index) > index) return row;
  return null;
}

function nodeRow(node, index) {
  const wanted = node.name.toLowerCase().includes(find()) ? "" : find();
  const held = byDevice(node);
  const devices = element("div", { class: "devices", "aria-hidden": "true" });
  devices.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  for (const device of node.devices) {
    const closed = !device.healthy || node.unavailable;
    const over = device.limits > device.total ? `, limits ${number(device.limits)}` : "";
    const text = `${number(device.allocated)}/${number(device.total)}${over}${closed ? " closed" : ""}`;
    const label = element("span", closed ? { class: "bad", title: text } : { title: text }, text);
    const segments = segmentsOf(node, device, held[device.index], wide, wanted);
    const bars = [bar(segments, device.total, wide)];
    const compute = { units: device.cores, kind: "used", text: `${device.cores} % of compute` };
    if (device.cores) bars.push(bar([compute], 100, wide, 4));
    devices.append(element("div", { class: device.cores ? "device both" : "device" }, ...bars, label));
  }
  const { unavailable } = node;
  const said = unavailable ? element("span", { class: "bad", title: unavailable }, unavailable) :
    element("span", {}, `${amount(node.allocated)} of ${number(node.total)}${aside(node)}`);
  const title = element("b", { title: node.name }, node.name);
  const name = element("div", { class: "name", "aria-hidden": "true" }, title, said);
  const row = element("div", {
    class: "node", role: "option", id: `node-${index}`,
    "aria-setsize": shown.length, "aria-posinset": index + 1, "data-index": index,
  }, element("span", { class: "unseen" }, spoken(node)), name, devices);
  row.style.transform = `translateY(${tops[index]}px)`;
  row.style.height = `${height(node)}px`;
  row.addEventListener("click", () => {
    active = node.name;
    select(node.name);
  });
  return row;
}

// The state of a node that takes some pods.
function aside(node) {
  return node.state === "open" || node.unavailable ? "" : `, ${node.state}`;
}

function spoken(node) {
  const devices = node.devices.map((device) => {
    const more = state(node, device);
    return `device ${device.index}: ${number(device.allocated)} of ${number(device.total)}${more && `, ${more}`}`;
  });
  const head = `${node.name}: ${amount(node.allocated)} of ${number(node.total)} in use by ` +
    `${plural(node.pods.length, holder())}, ${number(node.free)} free`;
  return [node.unavailable ? `${head}, ${node.unavailable}` : head + aside(node), ...devices].join("; ");
}

// Show which node the keys are on, and which is selected.
function mark() {
  const list = $("nodes");
  list.removeAttribute("aria-activedescendant");
  for (const [name, row] of rows) {
    row.setAttribute("aria-selected", name === selected ? "true" : "false");
    row.classList.toggle("active", name === active);
    if (name === active) list.setAttribute("aria-activedescendant", row.id);
  }
}

function move(index) {
  if (!shown.length) return;
  const to = Math.max(0, Math.min(shown.length - 1, index));
  active = shown[to].name;
  const top = $("nodes").getBoundingClientRect().top;
  const above = top + tops[to] - 20;
  const below = top + tops[to + 1] + 20 - window.innerHeight;
  if (above < 0) window.scrollBy(0, above);
  else if (below > 0) window.scrollBy(0, below);
  draw();
}

function onKey(event) {
  const at = shown.findIndex((node) => node.name === active);
  const page = Math.max(1, Math.floor(window.innerHeight / (MARGIN + LINE)) - 2);
  const moves = {
    ArrowDown: at + 1, ArrowUp: Math.max(at, 1) - 1, PageDown: at + page, PageUp: at - page,
    Home: 0, End: shown.length - 1,
  };
  if (event.key in moves) move(moves[event.key]);
  else if (event.key === "Enter" || event.key === " ") {
    if (active) select(active, true);
  } else if (event.key === "Escape") select("");
  else return;
  event.preventDefault();
}

// -- the pods of a node -------------------------------------------------------------------------

function select(name, focus = false) {
  selected = name;
  podsShown = STEP;
  drawDetail();
  mark();
  if (name && focus) $("detail-head").focus();
}

function close() {
  select("");
  $("nodes").focus();
}

// What filter keeps on a node for pods that are not bound yet.
function held(node) {
  return part.held.filter((each) => each.node === node.name);
}

function until(each) {
  const time = (stamp) => new Date(stamp).toLocaleTimeString();
  if (each.reservedSince) {
    const day = (stamp) => new Date(stamp).toDateString();
    const text = day(each.reservedSince) === day(each.until) ? time :
      (stamp) => new Date(stamp).toLocaleString();
    return `until it is bound; reserved since ${text(each.reservedSince)}, expected to be free at ${text(each.until)}`;
  }
  return each.until ? `until ${time(each.until)}` :
    "until kube-scheduler binds it or gives it up";
}

function drawDetail() {
  const node = part.nodes.find((each) => each.name === selected);
  $("detail").hidden = !node;
  if (!node) return;
  put("detail-head", node.name);
  const parts = [`${amount(node.allocated)} of ${number(node.total)} in use, ${number(node.free)} free.`];
  if (node.unavailable) parts.unshift(`No pod may be placed here: ${node.unavailable}.`);
  else if (node.leftOut) parts.push(`kube-scheduler's own filters object to: ${node.leftOut}.`);
  if (node.unplaced) parts.push(`${amount(node.unplaced)} belong to pods whose device is not known.`);
  if (node.keptFromScaleDown) parts.push(`Autoscalers leave it alone: ${node.keptFromScaleDown}.`);
  for (const each of held(node)) {
    const units = each.split?.reduce((sum, one) => sum + one) ?? each.units * each.devices;
    parts.push(`${amount(units)} are held for ${each.pod.namespace}/${each.pod.name} ${until(each)}.`);
  }
  put("detail-text", parts.join(" "));
  put("detail-devices", ...node.devices.map((device) => {
    const label = element("td", {}, String(device.index), " ", element("small", {}, device.model ?? ""));
    if (device.uuid) label.setAttribute("title", device.uuid);
    return element("tr", {}, label,
      element("td", { class: "number" }, `${number(device.allocated)}/${number(device.total)}`),
      element("td", { class: "number" }, number(device.free)),
      element("td", device.healthy ? {} : { class: "bad" }, state(node, device)));
  }));
  const wanted = node.name.toLowerCase().includes(find()) ? "" : find();
  const pods = wanted ? node.pods.filter((pod) => matches(pod, wanted)) : node.pods;
  const spaces = new Set(node.pods.map((pod) => pod.namespace)).size;
  const all = `${plural(node.pods.length, holder())} of ${plural(spaces, "namespace")}`;
  put("detail-count", wanted ? `${number(pods.length)} of ${all} match` : all);
  put("detail-pods", ...pods.slice(0, podsShown).map((pod) => element("tr", {},
    element("td", {}, pod.name, " ", element("small", {}, pod.namespace)),
    element("td", {}, pod.devices.map((each) => each.index).join(", ") || "not known"),
    element("td", { class: "number" }, number(pod.allocated),
      ...(pod.cores ? [" ", element("small", {}, `${pod.cores} %`)] : [])))));
  more("detail-more", pods.length - podsShown);
}

function more(id, left) {
  $(id).hidden = left <= 0;
  put(id, `Show more (${number(Math.max(left, 0))} left)`);
}

// -- everything else ----------------------------------------------------------------------------

function figure(name, value, small = "") {
  return element("div", {}, element("dt", {}, name),
    element("dd", {}, value, element("small", {}, small)));
}

function drawSummary(largest) {
  const sums = { total: 0, allocated: 0, free: 0, stranded: 0, devices: 0, useless: 0 };
  for (const node of part.nodes) {
    for (const key of ["total", "allocated", "free"]) sums[key] += node[key];
    sums.useless += node.strandedByCores ?? 0;
    sums.stranded += stranded(node) - (node.strandedByCores ?? 0);
    sums.devices += node.devices.length;
  }
  const closed = part.nodes.reduce((sum, node) => sum + node.devices.reduce((all, device) =>
    all + (device.healthy && !node.unavailable ? 0 : Math.max(device.total - device.allocated, 0)), 0), 0);
  const waits = part.pending.reduce((sum, pod) => sum + (pod.share ? 0 : pod.requested), 0);
  put("head", `${plural(part.nodes.length, "node")}, ${plural(sums.devices, "device")}, ${part.resource}`);
  document.title = `gpushare: ${number(sums.allocated)} of ${amount(sums.total)} in use`;
  put("figures",
    figure("In use", number(sums.allocated), `of ${amount(sums.total)}, ${share(sums.allocated, sums.total)}`),
    figure("Free", number(sums.free), share(sums.free, sums.total)),
    figure("of it stranded", number(sums.stranded),
      part.typical ? `less than ${amount(part.typical)} on a device` : ""),
    ...(sums.useless ? [figure("Stranded by compute", number(sums.useless), share(sums.useless, sums.total))] : []),
    figure("Closed and unused", number(closed), share(closed, sums.total)),
    figure("Pods that wait", number(part.pending.length), waits ? `for ${amount(waits)}` : ""));
  const first = largest.slice(0, HUES);
  const others = largest.slice(HUES).reduce((sum, [, units]) => sum + units, 0);
  const segments = first.map(([name, units]) =>
    ({ units, kind: `c${hues.get(name)}`, text: `${name}: ${amount(units)}` }));
  if (others) segments.push({ units: others, kind: "c9", text: `other namespaces: ${amount(others)}` });
  const rest = [["stranded", sums.stranded, "free, but too little for most pods"],
    ["free", sums.free - sums.stranded, "free"], ["closed", closed, "closed"]];
  if (sums.useless) rest.unshift(["stranded", sums.useless, "stranded: all compute of the device is given"]);
  for (const [kind, units, text] of rest) segments.push({ units, kind, text: `${text}: ${amount(units)}` });
  put("cluster-bar", bar(segments, sums.total, 1000, 18));
  const named = $("colours").value === "namespace" ? first.map(([name]) => [`c${hues.get(name)}`, name]) : [];
  if (named.length && others) named.push(["c9", "other namespaces"]);
  const kinds = [...named, ["stranded", "stranded: free, but too little for most pods"], ["free", "free"],
    ["closed", "closed"]];
  if (part.nodes.some((node) => node.unplaced)) kinds.push(["unplaced", "held, device not known"]);
  put("legend", ...kinds.map(([kind, text]) => element("li", {}, swatch(kind), text)));
  put("namespaces", ...namespaceRows(largest));
}

function swatch(kind) {
  return drawn("svg", { class: "swatch", viewBox: "0 0 11 11", "aria-hidden": "true" },
    drawn("rect", { width: 11, height: 11, class: kind }));
}

function namespaceRows(largest) {
  const counts = new Map();
  for (const node of part.nodes)
    for (const pod of node.pods) counts.set(pod.namespace, (counts.get(pod.namespace) || 0) + 1);
  const made = largest.slice(0, 20).map(([name, units]) => element("tr", {},
    element("td", {}, swatch(`c${hues.get(name)}`), name),
    element("td", { class: "number" }, number(counts.get(name))),
    element("td", { class: "number" }, amount(units))));
  if (largest.length > 20)
    made.push(element("tr", {}, element("td", { colspan: 3 }, `and ${number(largest.length - 20)} more`)));
  return made;
}

function drawGroups() {
  $("groups").hidden = !books.groups.length;
  put("groups-rows", ...books.groups.slice(0, STEP).map((group) => {
    const counts = [group.size ?? "", group.existing, group.bound, group.waiting];
    const end = group.waitsUntil ? new Date(group.waitsUntil).toLocaleTimeString("en-GB") : "";
    return element("tr", {}, element("td", {}, group.name),
      ...counts.map((count) => element("td", { class: "number" }, number(count))),
      element("td", {}, end));
  }));
}

function drawWaiting() {
  $("waiting").hidden = !part.pending.length;
  put("waiting-head", `${plural(part.pending.length, "pod")} wait${part.pending.length === 1 ? "s" : ""}`);
  put("waiting-rows", ...part.pending.slice(0, printing ? STEP : waitingShown).map((pod) => {
    const size = pod.share ? `${pod.share} % of the memory` : amount(pod.requested / pod.devices);
    const each = pod.devices > 1 ? `${size} on each of ${pod.devices} devices` : pod.devices ? size : "";
    const place = part.held.find((each) => each.pod.namespace === pod.namespace && each.pod.name === pod.name);
    const why = place ? `${place.node} is held for it ${until(place)}` :
      [pod.why ?? "is being looked at", pod.scheduler].filter(Boolean).join("; ");
    return element("tr", {},
      element("td", {}, pod.name, " ", element("small", {}, pod.namespace)),
      element("td", {}, each, pod.cores ? `, with ${pod.cores} % of compute` : ""),
      element("td", {}, pod.created ? ago(pod.created) : ""),
      element("td", {}, why));
  }));
  more("waiting-more", part.pending.length - waitingShown);
}

function drawHour() {
  $("hour").parentElement.hidden = holder() === "claim"; // binds are counted, allocations are not
  const { allocated, refused } = part.lastHour;
  const said = ({ pods, units }) => `${plural(pods, "pod")}, ${amount(units)}`;
  put("hour", element("dt", {}, "Allocated"), element("dd", {}, said(allocated)),
    element("dt", {}, "Refused"), element("dd", {}, said(refused)));
  const minutes = Math.floor((Date.now() / 1000 - books.countingSince) / 60);
  const short = minutes < 60 ? ` Counted for ${plural(Math.max(minutes, 0), "minute")}, since this process began.` : "";
  put("hour-since", `Refused: found no room at least once.${short}`);
}

function shadowText({ policy, off, choices, pods, real, books }) {
  const asked = choices.same + choices.node + choices.device;
  const sums = ({ allocated, stranded }) => `${amount(allocated)} allocated, ${amount(stranded)} stranded`;
  return `${policy}, as a shadow, would have chosen otherwise for ${choices.node + choices.device} of ` +
    `${plural(asked, "request")}; its books: ${sums(books)} (real: ${sums(real)}), ` +
    `${plural(pods.real, "pod")} refused that ran, ${plural(pods.shadow, "pod")} taken that waited.` +
    `${off ? ` It is off: ${off}` : ""}`;
}

function drawPolicy() {
  const policy = part.policy;
  const parts = [`${policy.name} ranks pods that name no policy.`];
  if (policy.since) parts[0] = `${policy.name} ranks pods that name no policy, chosen by ${policy.default}, ` +
    `since ${new Date(policy.since * 1000).toLocaleString()}.`;
  if (policy.second) {
    const points = Math.abs(policy.lead).toFixed(1);
    const how = policy.lead < 0 ? "less than" : "more than";
    parts.push(Number(points) === 0 ? `In the last trial there was no difference from ${policy.second}.` :
      `In the last trial it allocated ${points} points (error ${policy.error.toFixed(1)}) ${how} ${policy.second}` +
      `${policy.lead < 0 ? ", which may be chance" : ""}.`);
  } else if (policy.default === "auto") parts.push("There was no trial yet: it takes 100 pods.");
  if (part.shadow) parts.push(shadowText(part.shadow));
  put("policy", parts.join(" "));
  $("trial").hidden = !policy.candidates.length;
  put("trial-rows", ...policy.candidates.map((each) => element("tr", {},
    element("td", {}, each.name),
    element("td", { class: "number" }, each.allocated.toFixed(1)),
    element("td", { class: "number" }, each.refused === null ? "" : each.refused.toFixed(1)))));
}

function drawAll() {
  const wanted = $("resource").value;
  part = books.resources.find((each) => each.resource === wanted) ?? books.resources[0];
  if ($("resource").options.length !== books.resources.length)
    put("resource", ...books.resources.map((each) => element("option", {}, each.resource)));
  $("resource-label").hidden = books.resources.length < 2;
  drawSummary(giveHues());
  drawGroups();
  drawWaiting();
  drawHour();
  drawPolicy();
  drawDetail();
  arrange();
}

// -- reading ------------------------------------------------------------------------------------

let tag = "";
let last = null;

function notice(text) {
  if ($("notice").textContent === text) return;
  $("notice").hidden = !text;
  put("notice", text);
}

async function read() {
  const headers = tag ? { "If-None-Match": tag } : {};
  const answer = await fetch("/ui/books.json", { headers, cache: "no-store" });
  if (answer.status === 200) {
    books = await answer.json();
    tag = answer.headers.get("ETag");
    drawAll();
  } else if (answer.status !== 304) throw new Error((await answer.text()).trim());
  last = new Date();
  const reason = books.notReady && `This gpushare does not answer kube-scheduler now: ${books.notReady}. ` +
    "What is shown are its own books.";
  notice(reason ?? "");
}

async function readOn() {
  if (!document.hidden)
    try {
      await read();
    } catch (error) {
      const of = last ? ` What is shown is of ${last.toLocaleTimeString()}.` : "";
      notice(`No answer from gpushare: ${error.message}.${of}`);
    }
  setTimeout(readOn, EVERY);
}

let due = false;
function soon() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    if (part) draw();
  });
}

function say() {
  put("status", `${number(shown.length)} of ${plural(part.nodes.length, "node")}`);
}

function start() {
  window.addEventListener("scroll", soon, { passive: true });
  window.addEventListener("resize", () => part && arrange());
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  $("nodes").addEventListener("keydown", onKey);
  $("nodes").addEventListener("focus", () => part && !active && move(nodeAt(-$("nodes").getBoundingClientRect().top)));
  $("detail").addEventListener("keydown", (event) => event.key === "Escape" && close());
  $("close").addEventListener("click", close);
  $("tools").addEventListener("submit", (event) => event.preventDefault());
  $("find").addEventListener("input", () => part && (arrange(), drawDetail(), say()));
  $("order").addEventListener("change", () => part && arrange());
  for (const id of ["colours", "resource"]) $(id).addEventListener("change", () => part && drawAll());
  $("detail-more").addEventListener("click", () => ((podsShown += STEP), drawDetail()));
  $("waiting-more").addEventListener("click", () => ((waitingShown += STEP), drawWaiting()));
  readOn();
}

function print(on) {
  printing = on;
  if (part) {
    drawGroups();
    drawWaiting();
    arrange();
  }
}

start();
