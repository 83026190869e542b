// Reads /loads again and again, and writes tables. All text of servers goes through textContent.
"use strict";

const KEPT = 60; // Points of a sparkline.
const SHOWN = 8; // Partitions of a server.
const LOOK_S = 30; // A look waits for servers that do not answer.
const rates = new Map(); // Last batches per second, by address of a server.
let before = null;

// The token goes from the link into the tab, so that neither the address bar nor bookmarks keep it.
const given = new URLSearchParams(location.hash.slice(1));
for (const [name, value] of given) sessionStorage.setItem(name, value);
if (given.size) history.replaceState(null, "", location.pathname);
addEventListener("hashchange", () => location.reload()); // Another link in the same tab.
const token = sessionStorage.getItem("token") ?? "";
const intervalMs = 1000 * Math.max(Number(sessionStorage.getItem("interval")) || 1, 0.1);

const element = (id) => document.getElementById(id);
const number = (value, digits = 0) =>
  value === null ? "-" : value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const sum = (items, of) => items.reduce((total, each) => total + of(each), 0);
const MB = 1e6;

function bytes(value) {
  if (value === null) return "-";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const place = value < 1000 ? 0 : Math.min(Math.floor(Math.log10(value) / 3), units.length - 1);
  return `${number(value / 1000 ** place, place && value / 1000 ** place < 100 ? 1 : 0)} ${units[place]}`;
}

function listed(partitions) {
  const more = partitions.length - SHOWN;
  return partitions.slice(0, SHOWN).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

function made(tag, text, kind = "") {
  const found = document.createElement(tag);
  found.textContent = text;
  if (kind) found.className = kind;
  return found;
}

// A column is [title, cell of a row, class]; a cell is text or a node.
function fill(id, columns, rows, none) {
  const head = document.createElement("thead");
  const titles = head.insertRow();
  for (const [title, , kind] of columns) {
    const cell = made("th", title, kind);
    cell.scope = "col";
    titles.append(cell);
  }
  const body = document.createElement("tbody");
  for (const row of rows) {
    const line = body.insertRow();
    columns.forEach(([, cell, kind], place) => {
      const found = made(place ? "td" : "th", "", kind);
      if (!place) found.scope = "row";
      found.append(cell(row));
      line.append(found);
    });
  }
  if (!rows.length) {
    const cell = made("td", none, "none");
    cell.colSpan = columns.length;
    body.insertRow().append(cell);
  }
  element(id).replaceChildren(...(rows.length ? [head, body] : [body]));
}

// Change per second since the look before, or null where there is none.
function rate(now, loads, of) {
  const earlier = before?.servers.find((each) => each.address === now.address);
  const seconds = before ? loads.at_s - before.at_s : 0;
  if (!earlier?.workers || !now.workers || seconds <= 0) return null;
  return Math.max(of(now) - of(earlier), 0) / seconds;
}

function state(server) {
  if (!server.workers) return made("span", server.away ? "away" : "error", "bad");
  if (server.error) return made("span", "version", "bad");
  return server.ready ? made("span", "ready", "good") : made("span", server.reason || "not ready", "warn");
}

function sparkline(values) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${KEPT} 18`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const most = Math.max(...values, 1e-9);
  const line = document.createElementNS(svg.namespaceURI, "polyline");
  const shift = KEPT - values.length;
  line.setAttribute("points", values.map((each, place) => `${place + shift},${17 - (16 * each) / most}`).join(" "));
  line.setAttribute("vector-effect", "non-scaling-stroke");
  svg.append(line);
  return svg;
}

function batches(row) {
  const cell = document.createDocumentFragment();
  if (row.batchRate !== null) cell.append(sparkline(rates.get(row.address)));
  cell.append(number(row.batchRate, 1));
  return cell;
}

const answers = (of) => (row) => (row.workers ? of(row) : "-");

const SERVERS = [
  ["server", (row) => `${row.rank} ${row.address}`, "text"],
  ["state", state, "text"],
  ["batches/s", batches],
  ["bytes/s", (row) => bytes(row.byteRate)],
  ["busy", answers((row) => `${row.busy} of ${row.workers}`)],
  ["queue", answers((row) => number(sum(row.channels, (each) => each.queued)))],
  ["channels", answers((row) => number(row.channels.length))],
  ["jobs", answers((row) => number(row.jobs))],
  ["memory", answers((row) => bytes(row.rss_bytes))],
  ["ready", answers((row) => bytes(row.ready_bytes))],
  ["cores", (row) => number(row.cores, 2)],
  ["batches", answers((row) => number(row.batches))],
  ["refused", answers((row) => number(row.totals.refused))],
  ["partitions", (row) => listed(row.partitions), "text"],
];

const CHANNELS = [
  ["channel", (row) => (row.name ? `${row.key}/${row.name}` : `job ${row.job}`), "text"],
  ["server", (row) => String(row.rank)],
  ["by", (row) => (row.interactive ? `${row.transport}, on request` : row.transport), "text"],
  ["batches", (row) => number(row.batches)],
  ["shared", (row) => number(row.shared)],
  ["bytes", (row) => bytes(row.bytes)],
  ["queue", (row) => number(row.queued)],
  ["sampling ms", (row) => number((1e3 * row.sampling_s) / Math.max(row.batches, 1), 1)],
  ["waiting ms", (row) => number((1e3 * row.waiting_s) / Math.max(row.batches, 1), 1)],
  ["idle s", (row) => number(row.idle_s)],
];

const PEERS = [
  ["server", (row) => String(row.rank), "text"],
  ["calls to", (row) => String(row.server)],
  ["calls", (row) => number(row.calls)],
  ["received", (row) => bytes(row.bytes_in)],
  ["sent", (row) => bytes(row.bytes_out)],
  ["retries", (row) => number(row.retries)],
];

function total(rows, of) {
  const known = rows.map(of).filter((each) => each !== null);
  return known.length ? sum(known, (each) => each) : null;
}

function show(loads) {
  const rows = loads.servers.map((each) => ({
    ...each,
    batchRate: rate(each, loads, (server) => server.batches),
    byteRate: rate(each, loads, (server) => server.bytes),
    cores: rate(each, loads, (server) => server.totals.cpu_s),
  }));
  for (const row of rows) {
    const points = rates.get(row.address) ?? [];
    if (row.batchRate !== null) points.push(row.batchRate);
    rates.set(row.address, points.slice(-KEPT));
  }
  const here = rows.filter((row) => row.workers);
  const totals = [
    ["servers ready", `${rows.filter((row) => row.ready && !row.error).length} of ${rows.length}`],
    ["batches/s", number(total(rows, (row) => row.batchRate), 1)],
    ["bytes/s", bytes(total(rows, (row) => row.byteRate))],
    ["queue", number(sum(here, (row) => sum(row.channels, (each) => each.queued)))],
    ["memory", bytes(sum(here, (row) => row.rss_bytes))],
    ["jobs", number(Math.max(0, ...here.map((row) => row.jobs)))],
  ];
  element("totals").replaceChildren(
    ...totals.map(([name, value]) => {
      const tile = document.createElement("div");
      tile.append(made("dt", name), made("dd", value));
      return tile;
    }),
  );
  element("warnings").replaceChildren(
    ...loads.warnings.map((each) => made("li", each.text, each.severity === "error" ? "bad" : "")),
  );
  const of = (name) => here.flatMap((row) => row[name].map((each) => ({ ...each, rank: row.rank })));
  fill("servers", SERVERS, rows, "no server");
  fill("channels", CHANNELS, of("channels").sort((a, b) => a.idle_s - b.idle_s), "no trainer has a channel open");
  fill("peers", PEERS, of("peers"), "no server has asked another one");
  element("graph").textContent = loads.graph.slice(0, 12);
  element("view").hidden = false;
  before = loads;
}

function tell(text, stale) {
  element("status").textContent = text;
  for (const id of ["status", "view"]) element(id).classList.toggle("stale", stale);
}

// Show one look. Return whether to go on: a reply that cannot be shown does not end the page.
async function look() {
  let reply;
  try {
    const headers = { Authorization: `Bearer ${token}` };
    reply = await fetch("loads", { headers, cache: "no-store", signal: AbortSignal.timeout(1000 * LOOK_S) });
  } catch {
    tell("gigl-loader top does not answer: has it ended?", true);
    return true;
  }
  try {
    if (reply.ok) {
      show(await reply.json());
      tell(`as of ${new Date().toLocaleTimeString()}`, false);
    } else {
      tell((await reply.text()).trim(), true);
    }
  } catch (error) {
    tell(`this look cannot be shown: ${error.message}`, true);
  }
  return reply.status !== 401;
}

async function follow() {
  while (await look()) await new Promise((resume) => setTimeout(resume, intervalMs));
}

follow();
