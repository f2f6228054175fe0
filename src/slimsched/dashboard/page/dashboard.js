"use strict";
// Shows frames (telemetry/frame.py): live ones from the server's stream, or those of a recorded run.

const KEPT = 240; // frames the charts reach back
const WIDTHS = ["0.25", "0.5", "0.75", "1"];
const $ = (id) => document.getElementById(id);
let frames = [], mode = "live", connection = null, lastNews = "", playing = null;

// -- small pieces

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
const known = (value, write) => (value === null || value === undefined ? "–" : write(value));
const count = (value) => Math.round(value).toLocaleString("en");
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const finePercent = (value) => `${(100 * value).toFixed(2)} %`;
const millis = (value) => (value < 1 ? `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(2)} s`);
const joules = (value) => (value < 1 ? `${(1000 * value).toFixed(0)} mJ` : `${value.toFixed(2)} J`);
const perSecond = (value) => `${value < 10 ? value.toFixed(1) : count(value)} /s`;
const bytes = (value) => (value < 1e9 ? `${(value / 1e6).toFixed(0)} MB` : `${(value / 1e9).toFixed(2)} GB`);
const total = (values) => values.reduce((sum, value) => sum + value, 0);

function bar(element, shares, kind) { // stacked parts of a whole
  while (element.children.length < shares.length) element.append(make("i"));
  shares.forEach((share, n) => {
    element.children[n].className = kind === "load" ? "load" : `${kind}${n}`;
    element.children[n].style.width = `${Math.min(100, 100 * share)}%`;
  });
}

// -- tiles and charts

const TILES = [
  ["median latency", (f) => known(f.latency_p50_s, millis)],
  ["99th percentile", (f) => known(f.latency_p99_s, millis), "p99"],
  ["in time", (f) => known(f.slo, percent)],
  ["predicted accuracy", (f) => known(f.accuracy, percent)],
  ["of fluid bound", (f) => known(f.bound_share, percent)],
  ["goodput", (f) => perSecond(f.goodput_per_s), "goodput"],
  ["energy a request", (f) => known(f.energy_j, joules)],
];
const CHARTS = [
  ["Latency", millis, [["p50", "--s0", (f) => f.latency_p50_s], ["p95", "--s2", (f) => f.latency_p95_s], ["p99", "--bad", (f) => f.latency_p99_s]]],
  ["Requests a second", count, [["arriving", "--quiet", (f) => f.arrival_per_s], ["in time", "--good", (f) => f.goodput_per_s]]],
  ["Accuracy", finePercent, [["predicted", "--accent", (f) => f.accuracy], ["fluid bound", "--quiet", (f) => f.bound_accuracy]], true],
  ["Answered in time", percent, [["share", "--good", (f) => f.slo]]],
  ["Energy a request", joules, [["above idle", "--s2", (f) => f.energy_j]]],
  ["Under way", count, [["at the gateway", "--quiet", (f) => total(f.waiting)], ["at servers", "--accent", (f) => total(f.servers.map((s) => total(s.at)))]]],
];

function chart(figure, [title, write, series, floating], shown) {
  const W = 360, H = 144, left = 52, right = 8, top = 8, bottom = 20;
  const all = series.flatMap(([, , get]) => shown.map(get)).filter((v) => v !== null && v !== undefined);
  const svg = figure.querySelector("svg");
  if (!all.length || shown.length < 2) { svg.replaceChildren(); return; }
  let low = floating ? Math.min(...all) : 0, high = Math.max(...all);
  if (high - low < 1e-9) { high += Math.abs(high) * 0.05 || 1; if (floating) low -= Math.abs(low) * 0.05; }
  const from = shown[0].at_s, to = shown.at(-1).at_s;
  const x = (at) => left + ((W - left - right) * (at - from)) / (to - from || 1);
  const y = (value) => H - bottom - ((H - top - bottom) * (value - low)) / (high - low);
  const node = (tag, attributes, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  };
  const parts = [];
  for (const value of [low, (low + high) / 2, high]) {
    parts.push(node("line", { x1: left, x2: W - right, y1: y(value), y2: y(value) }));
    parts.push(node("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, write(value)));
  }
  parts.push(node("text", { x: left, y: H - 5 }, `${from.toFixed(0)} s`));
  parts.push(node("text", { x: W - right, y: H - 5, "text-anchor": "end" }, `${to.toFixed(1)} s`));
  const says = [];
  for (const [name, colour, get] of series) {
    const points = shown.filter((f) => get(f) !== null && get(f) !== undefined).map((f) => `${x(f.at_s).toFixed(1)},${y(get(f)).toFixed(1)}`);
    const line = node("polyline", { points: points.join(" ") });
    line.style.stroke = `var(${colour})`;
    parts.push(line);
    says.push(`${name} ${known(get(shown.at(-1)), write)}`);
  }
  svg.replaceChildren(...parts);
  svg.setAttribute("aria-label", `${title}: now ${says.join(", ")}`);
}

// -- one frame

function server(lane, s, most, phase) {
  const state = s.up ? (phase === "draining" ? "draining" : "up") : phase === "starting" ? "starting" : "down";
  lane.className = state;
  const chip = lane.querySelector(".chip");
  put(chip, state);
  chip.className = `chip ${state}`;
  const rows = lane.querySelectorAll(".row");
  const fill = (n, shares, kind, text, says) => {
    bar(rows[n].children[1], shares, kind);
    rows[n].children[1].setAttribute("aria-label", says);
    put(rows[n].children[2], text);
  };
  fill(0, s.at.map((n) => n / most), "s", count(total(s.at)), s.at.map((n, i) => `${n} before segment ${i + 1}`).join(", "));
  fill(1, s.widths, "w", perSecond(s.images_per_s), s.widths.map((w, i) => `${percent(w)} at width ${WIDTHS[i]}`).join(", "));
  fill(2, [s.utilization], "load", percent(s.utilization), percent(s.utilization));
  put(lane.querySelector(".facts"), `${s.power_w.toFixed(0)} W · ${bytes(s.vram_bytes)} · ${s.instances} instances · ${count(s.queued)} queued`);
}

function show(frame, shown) {
  put($("phase"), mode === "recorded" ? "recorded" : frame.phase);
  $("phase").className = `chip ${mode === "recorded" ? "recorded" : frame.phase}`;
  put($("router"), `· router ${frame.router}`);
  put($("clock"), `· ${frame.at_s.toFixed(1)} s`);
  TILES.forEach(([, write], n) => put($("tiles").children[n].lastChild, write(frame)));
  frame.waiting.forEach((waiting, n) => {
    const at = total(frame.servers.map((s) => s.at[n]));
    const [, line, rate] = $("flow").children[n].children;
    put(line, `${count(waiting)} wait, ${count(at)} at servers`);
    put(rate, `→ ${perSecond(frame.finished_per_s[n])}`);
  });
  put($("totals"), `${count(frame.arrived)} arrived, ${count(frame.answered)} answered, ${count(frame.dropped)} given up; ${perSecond(frame.arrival_per_s)} arriving`);
  const lanes = $("servers"), most = Math.max(1, ...frame.servers.map((s) => total(s.at)));
  if (lanes.children.length !== frame.servers.length) lanes.replaceChildren(...frame.servers.map(newLane));
  frame.servers.forEach((s, n) => server(lanes.children[n], s, most, frame.phase));
  CHARTS.forEach((spec, n) => chart($("charts").children[n], spec, shown));
  $("decisions").replaceChildren(...frame.decisions.toReversed().map((d) => make("tr", {},
    ...[`${d.at_s.toFixed(2)} s`, d.server, String(d.segment + 1), String(d.width), String(d.images), d.reason].map((text) => make("td", {}, text)))));
  const told = frame.happenings.toReversed().map((h) => `${h.at_s.toFixed(1)} s: ${h.text}`);
  if ($("happenings").textContent !== told.join("")) $("happenings").replaceChildren(...told.map((text) => make("li", {}, text)));
  const news = told[0] ?? "";
  if (news !== lastNews) { lastNews = news; put($("news"), news); }
}

function newLane(s) {
  const row = (name) => make("div", { class: "row" }, make("span", {}, name), make("span", { class: "bar", role: "img" }), make("span", {}, ""));
  return make("li", { "data-server": s.name },
    make("h3", {}, make("span", {}, s.name), make("span", { class: "chip" }, "")),
    row("requests"), row("widths"), row("utilization"), make("p", { class: "quiet facts" }));
}

function build() {
  $("tiles").append(...TILES.map(([name, , id]) => make("div", {}, make("dt", {}, name), make("dd", id ? { id } : {}, "–"))));
  $("flow").append(...[1, 2, 3, 4].map((n) => make("li", { class: `s${n - 1}` }, make("strong", {}, `Segment ${n}`), make("div", {}, "–"), make("div", { class: "rate" }, ""))));
  const key = (kind, n, name) => make("span", {}, make("i", { class: `${kind}${n}` }), name);
  $("legend").append("requests before segment", ...[0, 1, 2, 3].map((n) => key("s", n, String(n + 1))), "images run at width", ...WIDTHS.map((w, n) => key("w", n, w)));
  $("charts").append(...CHARTS.map(([title, , series]) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 360 144");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", title);
    const legend = make("span", { class: "quiet legend" }, ...series.map(([name, colour]) => {
      const swatch = make("i");
      swatch.style.background = `var(${colour})`;
      return make("span", {}, swatch, name);
    }));
    return make("figure", {}, make("figcaption", {}, title), legend, svg);
  }));
}

// -- live: server-sent events, read with fetch because EventSource cannot send a token

async function follow() {
  connection?.abort();
  connection = new AbortController();
  const { signal } = connection;
  while (mode === "live" && !signal.aborted) {
    try {
      const response = await fetch("dashboard/frames", { signal, cache: "no-store", headers: credentials() });
      if (response.status === 401) return askForToken(sessionStorage.getItem("slim-token") !== null);
      if (!response.ok) throw new Error(`status ${response.status}`);
      $("token-form").hidden = true;
      goal("GET");
      let rest = "";
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const messages = (rest + part.value).split("\n\n");
        rest = messages.pop();
        for (const message of messages) receive(message);
      }
    } catch (error) {
      if (signal.aborted) return;
    }
    put($("phase"), "connection lost");
    $("phase").className = "chip lost";
    put($("news"), "The connection is lost; trying again.");
    lastNews = "lost";
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function receive(message) {
  if (mode !== "live") return;
  const data = JSON.parse(message.slice(message.indexOf("data: ") + 6));
  frames = Array.isArray(data) ? data : [...frames.slice(1 - KEPT), data];
  if (frames.length) requestAnimationFrame(() => mode === "live" && show(frames.at(-1), frames));
}

function credentials() {
  const token = sessionStorage.getItem("slim-token");
  return token ? { authorization: `Bearer ${token}` } : {};
}

async function goal(method, wish) { // read or change what the router aims for; hidden where it follows no goal
  try {
    const body = wish === undefined ? undefined : JSON.stringify({ goal: wish });
    const response = await fetch("v2/goal", { method, body, headers: credentials() });
    const now = await response.json();
    if (!response.ok) return put($("goal-says"), method === "PUT" ? now.error : "");
    $("goal-form").hidden = !now.goal;
    if (!now.goal) return;
    $("goal-objective").value = now.objective === "accuracy" ? "max accuracy" : `min ${now.objective}`;
    $("goal-accuracy").value = now.min_accuracy ? +(100 * now.min_accuracy).toFixed(2) : "";
    $("goal-p99").value = now.p99_ms ? +now.p99_ms.toFixed(2) : "";
    put($("goal-says"), `Now: ${now.goal}`);
  } catch (error) {
    put($("goal-says"), `The goal is unknown: ${error.message}`);
  }
}

function wishedGoal() {
  const [accuracy, p99] = [$("goal-accuracy").value, $("goal-p99").value];
  return [accuracy && `accuracy>=${accuracy}`, p99 && `p99<=${p99}ms`, $("goal-objective").value].filter(Boolean).join(", ");
}

function askForToken(wrong) {
  $("token-form").hidden = false;
  put($("phase"), "locked");
  put($("news"), wrong ? "That token was not accepted." : "");
  $("token").focus();
}

// -- recorded: a slider over the frames of a run folder

function seek(index) {
  $("time").value = index;
  const frame = frames[index], says = `${frame.at_s.toFixed(2)} s of ${frames.at(-1).at_s.toFixed(1)} s`;
  put($("time-says"), says);
  $("time").setAttribute("aria-valuetext", says);
  show(frame, frames.slice(Math.max(0, index + 1 - KEPT), index + 1));
}

function replay(recorded) {
  connection?.abort();
  mode = "recorded";
  frames = recorded;
  $("scrub").hidden = false;
  $("goal-form").hidden = true;
  $("live").hidden = $("frames") !== null;
  $("time").max = frames.length - 1;
  seek(0);
}

function play() {
  if (playing) { clearInterval(playing); playing = null; put($("play"), "Play"); return; }
  put($("play"), "Pause");
  if (Number($("time").value) >= frames.length - 1) seek(0);
  playing = setInterval(() => (Number($("time").value) < frames.length - 1 ? seek(Number($("time").value) + 1) : play()), 100);
}

async function* linesOf(file) {
  const head = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  const packed = head[0] === 0x1f && head[1] === 0x8b;
  const bytesIn = packed ? file.stream().pipeThrough(new DecompressionStream("gzip")) : file.stream();
  const reader = bytesIn.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    yield* lines;
  }
  if (rest) yield rest;
}

async function open(file) { // the frames of a run folder, or an event log
  try {
    put($("news"), `Reading ${file.name}`);
    const lines = linesOf(file), first = JSON.parse((await lines.next()).value ?? "null");
    let recorded = [first];
    if (first?.scenario) recorded = await framesOfLog(first, lines);
    else if (first?.servers) for await (const line of lines) recorded.push(JSON.parse(line));
    else throw new Error("it is neither an event log nor the frames of a run");
    if (!recorded.length) throw new Error("it ends before anything happens");
    lastNews = "";
    put($("news"), "");
    replay(recorded);
  } catch (error) {
    put($("news"), `${file.name} cannot be shown: ${error.message}`);
  }
}

build();
$("file").addEventListener("change", (event) => event.target.files[0] && open(event.target.files[0]));
$("time").addEventListener("input", (event) => seek(Number(event.target.value)));
$("play").addEventListener("click", play);
$("live").addEventListener("click", () => { if (playing) play(); mode = "live"; frames = []; $("scrub").hidden = $("live").hidden = true; follow(); });
$("token-form").addEventListener("submit", (event) => { event.preventDefault(); sessionStorage.setItem("slim-token", $("token").value); follow(); });
$("goal-form").addEventListener("submit", (event) => { event.preventDefault(); goal("PUT", wishedGoal()); });
const embedded = $("frames");
if (embedded) replay(JSON.parse(embedded.textContent));
else follow();
