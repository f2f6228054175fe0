"use strict";
// Shows frames (telemetry/live_view.py), either live from the server's stream or from a recorded run.

const KEPT_FRAMES = 240; // how many past frames the charts show
const MACHINE_MS = 10000;
const SILENT_MS = 4000; // without a frame for this time, the page says that its figures are old
let frames = [], layout = null, charts = [], mode = "live", connection = null, lastNews = "", playing = null, lastMessageAt = 0;

const TILES = [ // name, figure, how to write it, its id; for a goal: its limit in the figure's unit; shown only if limited
  ["median latency", (f) => f.latency_p50_s, millis, "p50"],
  ["mean latency", (f) => f.latency_mean_s, millis, "mean", (g) => g.mean_ms / 1000, true],
  ["95th percentile", (f) => f.latency_p95_s, millis, "p95", (g) => g.p95_ms / 1000, true],
  ["99th percentile", (f) => f.latency_p99_s, millis, "p99", (g) => g.p99_ms / 1000],
  ["in time", (f) => f.slo, percent, "in-time"],
  ["predicted accuracy", (f) => f.accuracy, percent, "accuracy", (g) => g.min_accuracy],
  ["of fluid bound", (f) => f.bound_share, percent, "bound"],
  ["goodput", (f) => f.goodput_per_s, perSecond, "goodput"],
  ["energy per request", (f) => f.energy_j, joules, "energy", (g) => g.energy_mj / 1000],
  ["power", (f) => total(f.servers.map((s) => s.power_w)), watts, "power", (g) => g.power_w, true],
];
const MOST_TILES = 7; // in one row on a desktop

// -- one frame

function tile(element, [, get, write, id, limitOf, ifLimited], frame, shown) {
  const value = get(frame), [, figure, line, says] = element.children, limit = limitOf?.(goalOfFigures() ?? {}) || null;
  element.hidden = Boolean(ifLimited) && limit === null;
  put(figure, known(value, write));
  spark(line, shown.map(get), ["in-time", "bound"].includes(id) ? 0 : null, ["in-time", "bound"].includes(id) ? 1 : null);
  const words = frame.limits.filter((one) => one.limit.replace(/^.*: /, "").startsWith(id)).map(({ word }) => word);
  element.className = limit === null ? "" : words.includes("broken") ? "missed" : words.length && words.every((word) => word === "kept") ? "kept" : "";
  const source = id === "energy" && frame.energy_source ? `above idle, ${frame.energy_source}` : "";
  put(says, limit === null ? source : `goal ${id === "accuracy" ? "at least" : "at most"} ${write(limit)}${words.length ? `: ${words[0]}` : ""}`);
}

function tiles(frame, shown) { // those that only a goal makes interesting may need a second row
  TILES.forEach((spec, n) => tile($("tiles").children[n], spec, frame, shown));
  const seen = [...$("tiles").children].filter((element) => !element.hidden), rows = Math.ceil(seen.length / MOST_TILES);
  $("tiles").style.setProperty("--columns", Math.ceil(seen.length / rows));
  seen.at(-1).classList.toggle("odd", seen.length % 2 === 1);
}

function show(frame, shown) {
  put($("phase"), mode === "recorded" ? "recorded" : frame.phase);
  $("phase").className = `chip ${mode === "recorded" ? "recorded" : frame.phase}`;
  put($("router"), `router ${frame.router.split(":")[0]}`);
  put($("clock"), clock(frame, frame.at_s));
  banner(frame);
  load(frame);
  faults(frame);
  tiles(frame, shown);
  if (layout?.key !== layoutKey(frame)) buildLayout(frame);
  layout.models.forEach((model, n) => showModel($("models").children[n], model, frame, shown));
  const tracks = $("servers"), most = Math.max(1, ...frame.servers.map((s) => total(s.at)));
  if (frame.servers.some((s, n) => tracks.children[n]?.dataset.server !== s.name) || tracks.children.length !== frame.servers.length) buildTracks(tracks, frame.servers);
  frame.servers.forEach((s, n) => track(tracks.children[n], s, shown.map((f) => f.servers[n]), most, frame.phase, layout));
  charts.forEach((spec, n) => chart($("charts").children[n], spec, shown, goalOfFigures()));
  decisions(frame);
  const events = happened(frame);
  if ($("happenings").textContent !== events.join("")) $("happenings").replaceChildren(...events.map((text) => make("li", {}, text)));
  if (mode === "live") followGoal(frame);
  const news = events[0] ?? "";
  if (news !== lastNews) { lastNews = news; put($("news"), news); }
}

function decisions(frame) {
  $("decisions").replaceChildren(...frame.decisions.toReversed().map((d) => {
    const row = make("tr", {}, ...[clock(frame, d.at_s), d.server, d.stage, d.choice, String(d.examples), d.reason].map((text) => make("td", {}, text)));
    const place = frame.names.indexOf(d.choice), glyph = make("i", { class: "glyph", "aria-hidden": "true" });
    glyph.style.background = layout.shades[place];
    glyph.style.width = `${1.6 * (layout.stages[frame.stages.indexOf(d.stage)]?.sizes.get(place) ?? 1)}rem`;
    row.children[3].prepend(glyph);
    return row;
  }));
  const judged = Object.entries(frame.judged ?? {});
  $("judged").hidden = !judged.length;
  put($("judged"), `Why answers were sent: ${judged.map(([why, n]) => `${count(n)} × ${why}`).join(", ")}.`);
  const guarded = Object.entries(frame.guard ?? {});
  $("guard").hidden = !guarded.length;
  put($("guard"), `The guard decided instead of the learned router: ${guarded.map(([why, n]) => `${count(n)} × ${why}`).join(", ")}.`);
}

function build() {
  $("tiles").append(...TILES.map(([name, , , id]) => make("div", {}, make("dt", {}, name), make("dd", { id }, "–"), newSpark(), make("dd", { class: "quiet" }, ""))));
}

function buildLayout(frame) { // another cluster, or another run, may have other models
  layout = layoutOf(frame);
  charts = chartsOf(layout);
  put($("flow-title"), layout.several ? "Requests through the models" : `Requests through ${layout.models[0].name}`);
  $("models").replaceChildren(...layout.models.map((model) => newModel(model, layout)));
  $("choice-legend").replaceChildren(...(layout.several ? [] : ["choice", ...choiceLegend(layout)]));
  $("stage-legend").replaceChildren("requests before segment", ...stageLegend(layout));
  $("server-choice-legend").replaceChildren("examples run at choice", ...choiceLegend(layout));
  $("charts").replaceChildren(...charts.map(newChart));
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
      machine();
      let rest = "";
      lastMessageAt = Date.now();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const messages = (rest + part.value).split("\n\n");
        rest = messages.pop();
        for (const message of messages) receive(message);
      }
    } catch (error) {
      if (signal.aborted) return;
    }
    lastMessageAt = 0;
    trouble("connection lost", "The connection is lost; trying again.");
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

async function machine() { // what the server chose for the machine that it stands on, and what is still being measured
  const response = mode === "live" ? await fetch("v2/machine", { cache: "no-store", headers: credentials() }).catch(() => null) : null;
  const lines = response?.ok ? (await response.json()).lines : [];
  $("machine").hidden = mode !== "live" || !lines.length;
  if ($("machine-says").textContent !== lines.join("")) $("machine-says").replaceChildren(...lines.map((line) => make("li", {}, line)));
}

function trouble(phase, news) { // shown once, until the next frame comes
  put($("phase"), phase);
  $("phase").className = "chip lost";
  put($("news"), news);
  lastNews = news;
}

function receive(message) {
  if (mode !== "live") return;
  lastMessageAt = Date.now();
  const data = JSON.parse(message.slice(message.indexOf("data: ") + 6));
  if (message.startsWith("event: trouble")) return trouble("no figures", `The server could not make a frame (${data}); see its log.`);
  frames = Array.isArray(data) ? data : [...frames.slice(1 - KEPT_FRAMES), data];
  if (frames.length) requestAnimationFrame(() => mode === "live" && show(frames.at(-1), frames));
}

function checkSilence() { // a server that hangs does not close the connection
  const silent = lastMessageAt ? Date.now() - lastMessageAt : 0;
  if (mode === "live" && silent > SILENT_MS) trouble("silent", `No frame from the server for ${Math.round(silent / 1000)} s; the figures shown are old.`);
}

function credentials() {
  const token = sessionStorage.getItem("slim-token");
  return token ? { authorization: `Bearer ${token}` } : {};
}

function askForToken(wrong) {
  $("token-form").hidden = false;
  put($("phase"), "locked");
  put($("news"), wrong ? "That token was not accepted." : "");
  $("token").focus();
}

// -- recorded: a slider over the frames of a run

function seek(index) {
  $("time").value = index;
  const frame = frames[index], says = `${frame.at_s.toFixed(2)} s of ${frames.at(-1).at_s.toFixed(1)} s`;
  put($("time-says"), says);
  $("time").setAttribute("aria-valuetext", says);
  show(frame, frames.slice(Math.max(0, index + 1 - KEPT_FRAMES), index + 1));
}

function replay(recorded) {
  connection?.abort();
  mode = "recorded";
  frames = recorded;
  goalNow = null;
  $("scrub").hidden = false;
  $("goal-open").hidden = $("machine").hidden = true;
  $("live").hidden = $("frames") !== null;
  $("time").max = frames.length - 1;
  const asked = Number(location.hash.match(/^#at=([\d.]+)/)?.[1] ?? 0); // the address can name a time: #at=3.5
  seek(Math.max(0, frames.findLastIndex((frame) => frame.at_s <= asked)));
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

async function open(file) { // a file with the frames of a run
  try {
    put($("news"), `Reading ${file.name}`);
    const lines = linesOf(file), first = JSON.parse((await lines.next()).value ?? "null");
    const recorded = [first];
    if (first?.stage_choices) for await (const line of lines) recorded.push(JSON.parse(line));
    else if (first?.setting) throw new Error(`it is an event log; make a page of it with: slim report ${file.name}`);
    else if (first?.servers) throw new Error("it was recorded by an older version; simulate the run again");
    else throw new Error("it does not hold the frames of a run");
    if (!recorded.length) throw new Error("it ends before anything happens");
    lastNews = "";
    put($("news"), "");
    replay(recorded);
  } catch (error) {
    put($("news"), `${file.name} cannot be shown: ${error.message}`);
  }
}

build();
window.addEventListener("error", (event) => trouble("page failed", `The page failed: ${event.message}`));
setInterval(checkSilence, 1000);
setInterval(machine, MACHINE_MS);
$("file").addEventListener("change", (event) => event.target.files[0] && open(event.target.files[0]));
$("time").addEventListener("input", (event) => seek(Number(event.target.value)));
$("play").addEventListener("click", play);
$("live").addEventListener("click", () => { if (playing) play(); mode = "live"; frames = []; $("scrub").hidden = $("live").hidden = true; follow(); });
$("token-form").addEventListener("submit", (event) => { event.preventDefault(); sessionStorage.setItem("slim-token", $("token").value); follow(); });
document.addEventListener("keydown", (event) => { if (event.key === " " && mode === "recorded" && ["BODY", "MAIN"].includes(event.target.tagName)) { event.preventDefault(); play(); } });
const embedded = $("frames");
if (embedded) replay(JSON.parse(embedded.textContent));
else follow();
