"use strict";
// Folds the gateway's event log (kernel/log.py) into frames as telemetry/live_view.py does. The log knows neither
// what choices are worth nor the fluid bound, so accuracy and bound stay empty.

const LEAST = 1e-5, STEP = 0.02, STEPS = 1024; // of latencies
const LOG_WINDOW_S = 1, LOG_FRAMES = 480;
const GATEWAY = "gateway", AUTOSCALER = "autoscaler";
// Places in a request, a block and a key: they are written as arrays.
const [ID, ARRIVAL, DEADLINE, REQUEST_MODEL, TRAIL, COUNT] = [0, 1, 2, 9, 10, 11], WHY = 5, [KEY, REQUESTS] = [1, 2], [SEGMENT, CHOICE, AHEAD, KEY_MODEL] = [0, 1, 3, 4];

// A request may stand for several examples, with ids that follow its own.
const examplesOf = (requests) => requests.flatMap((r) => ((r[COUNT] ?? 1) === 1 ? [r] : Array.from({ length: r[COUNT] }, (_, n) => [r[ID] + n, ...r.slice(1)])));

class LogStages { // numbers the segments of all models and the names of all choices, as telemetry/stage.py does
  constructor(models) {
    this.models = models;
    this.first = [];
    this.labels = [];
    this.modelOf = [];
    this.names = [];
    models.forEach(({ name, segments }, model) => {
      this.first.push(this.labels.length);
      segments.forEach((names, segment) => {
        this.labels.push(models.length > 1 ? `${name} ${segment + 1}` : String(segment + 1));
        this.modelOf.push(model);
        this.merge(names);
      });
    });
    this.choices = models.flatMap(({ segments }) => segments.map((names) => names.map((name) => this.names.indexOf(name))));
  }

  merge(names) { // each new name goes before the next wider one that is known
    names.forEach((name, at) => {
      if (this.names.includes(name)) return;
      const wider = names.slice(at).find((other) => this.names.includes(other));
      this.names.splice(wider === undefined ? this.names.length : this.names.indexOf(wider), 0, name);
    });
  }

  last(model) { return (this.first[model + 1] ?? this.labels.length) - 1; }

  beginning(stage) { return this.first[this.modelOf[stage]]; }

  stage(key) { return this.first[key[KEY_MODEL] ?? 0] + key[SEGMENT]; }

  name(stage, choice) { // its number among all names; without names in the log, the choice's number is its name
    const { segments, numbered } = this.models[this.modelOf[stage]];
    return this.names.indexOf(numbered ? String(choice) : segments[stage - this.first[this.modelOf[stage]]][choice]);
  }
}

async function numberedModels(lines) { // for a log that does not name its models: the choices that occur, by number
  const seen = [];
  const note = (key, choices) => choices.forEach((choice, n) => {
    const segments = (seen[key[KEY_MODEL] ?? 0] ??= []);
    (segments[key[SEGMENT] + n] ??= new Set()).add(choice);
  });
  for await (const line of lines) {
    const entry = JSON.parse(line);
    if (!Array.isArray(entry) || entry[1] !== GATEWAY) continue;
    if (entry[2].type === "SegmentFinished") note(entry[2].blocks[0][KEY], ranAt(entry[2]));
    for (const { type, block } of entry[3]) if (type === "SendBlock") note(block[KEY], [block[KEY][CHOICE], ...(block[KEY][AHEAD] ?? [])]);
  }
  if (!seen.length) throw new Error("no request was sent to a server, and the log does not name its models");
  const names = (choices) => [...(choices ?? [])].sort((a, b) => a - b).map(String);
  return Array.from(seen, (segments, m) => ({ name: `model ${m + 1}`, numbered: true, segments: Array.from(segments ?? [[]], names) }));
}

const ranAt = (event) => [event.choice ?? event.width, ...(event.ahead ?? [])]; // logs of the first version say width

function goalText(goal) { // as format_goals in serving/routing/goal.py
  const shown = (number) => String(Number(number.toPrecision(6)));
  const one = (g) => [
    ...(g.min_accuracy ? [`accuracy>=${shown(100 * g.min_accuracy)}`] : []), ...(g.energy_j ? [`energy<=${shown(1e3 * g.energy_j)}mJ`] : []), ...(g.power_w ? [`power<=${shown(g.power_w)}W`] : []),
    ...["p99", "p95", "mean"].filter((figure) => g[`${figure}_s`]).map((figure) => `${figure}<=${shown(1e3 * g[`${figure}_s`])}ms`),
    g.objective === "accuracy" ? "max accuracy" : `min ${g.objective}`,
  ].join(", ");
  return [one(goal), ...Object.entries(goal.by_model).map(([model, own]) => `${model}: ${one(own)}`)].join("; ");
}

class LogView {
  constructor(header, models) {
    const name = (s) => ((s.count ?? 1) === 1 ? [s.name] : Array.from({ length: s.count }, (_, n) => `${s.name}-${n}`));
    this.router = header.setting.router;
    this.stages = new LogStages(models);
    this.names = header.setting.scenario.server.flatMap(name);
    this.up = this.names.map(() => true);
    this.givenUp = this.names.map(() => false);
    this.said = this.names.map(() => []); // last snapshots
    this.places = new Map(); // request id → { at: server or -1, stage, holder }
    this.recent = { arrived: [], answered: [], dropped: [], spent: [], ran: [] };
    this.totals = { arrived: 0, answered: 0, dropped: 0 };
    this.decisions = [];
    this.guard = {};
    this.judged = {};
    this.happenings = [];
    this.fell = new Set();
  }

  observe([now, machine, event, commands]) {
    if (machine === AUTOSCALER) for (const c of commands) this.happen(now, `autoscaler: ${c.servers} servers, ${c.reason}`);
    if (machine !== GATEWAY) return;
    this.told(now, event);
    for (const command of commands) this.asked(now, command);
  }

  told(now, event) {
    const { stages } = this;
    if (event.type === "RequestsArrived") {
      const requests = examplesOf(event.requests);
      this.note("arrived", now, requests.length);
      for (const r of requests) this.places.set(r[ID], { at: -1, stage: stages.first[r[REQUEST_MODEL] ?? 0], holder: -1 });
    } else if (event.type === "SegmentFinished") {
      const choices = ranAt(event), examples = event.blocks.reduce((whole, block) => whole + examplesOf(block[REQUESTS]).length, 0);
      this.recent.spent.push([now, event.energy_j]);
      this.recent.ran.push([now, event.server, stages.stage(event.blocks[0][KEY]), choices, examples]);
      for (const block of event.blocks) {
        const next = Math.min(stages.stage(block[KEY]) + choices.length, stages.last(block[KEY][KEY_MODEL] ?? 0));
        this.move(block, event.server, { at: -1, stage: next, holder: event.server });
      }
    } else if (event.type === "InputLost") {
      this.move(event.block, event.server, { at: -1, stage: stages.beginning(stages.stage(event.block[KEY])), holder: -1 });
    } else if (event.type === "TelemetryReceived") {
      this.said[event.server] = [...this.said[event.server].slice(-9), event.snapshot];
    } else if (event.type === "ServerDown") {
      this.turn(now, event.server, false);
      this.said[event.server] = [];
      for (const place of this.places.values()) if (place.at === event.server || (place.at === -1 && place.holder === event.server)) Object.assign(place, { at: -1, stage: stages.beginning(place.stage), holder: -1 });
    } else if (event.type === "ServerGivenUp") {
      this.givenUp[event.server] = true;
      this.happen(now, event.reason);
    } else if (event.type === "ServerUp") {
      this.givenUp[event.server] = false;
      this.turn(now, event.server, true);
    } else if (event.type === "GoalChanged") {
      this.happen(now, `the goal is now: ${goalText(event.goal)}`, "goal");
    }
  }

  move(block, server, to) { // a stale report moves nothing
    const stage = this.stages.stage(block[KEY]);
    for (const r of examplesOf(block[REQUESTS])) {
      const place = this.places.get(r[ID]);
      if (place?.at === server && place.stage === stage) Object.assign(place, to);
    }
  }

  asked(now, command) {
    if (command.type === "SendBlock") {
      const key = command.block[KEY], requests = examplesOf(command.block[REQUESTS]), stage = this.stages.stage(key);
      for (const r of requests) { const place = this.places.get(r[ID]); if (place) Object.assign(place, { at: command.server, stage, holder: command.source }); }
      if (/^(guard|shadow): /.test(command.reason)) { const why = command.reason.split(" would")[0]; this.guard = { ...this.guard, [why]: (this.guard[why] ?? 0) + 1 }; }
      this.decisions = [...this.decisions.slice(-7), { at_s: now, server: this.names[command.server], stage: this.stages.labels[stage], choice: this.choiceName(stage, key[CHOICE]), examples: requests.length, reason: this.explained(command, stage) }];
    } else if (command.type === "Answer") {
      const requests = examplesOf(command.requests);
      this.totals.answered += requests.length;
      for (const r of requests) {
        this.recent.answered.push([now, now - r[ARRIVAL], now <= r[DEADLINE]]);
        this.places.delete(r[ID]);
        const why = r[TRAIL]?.[WHY];
        if (why) this.judged = { ...this.judged, [why]: (this.judged[why] ?? 0) + 1 };
      }
    } else if (command.type === "Drop") {
      const requests = examplesOf(command.requests);
      this.note("dropped", now, requests.length);
      for (const r of requests) this.places.delete(r[ID]);
    }
  }

  choiceName(stage, choice) { return this.stages.names[this.stages.name(stage, choice)] ?? String(choice); }

  explained(command, stage) { // as serving/telemetry/explanation.py
    if (!command.why) return command.reason;
    const [binding, worth, cost, server, choice, behind] = command.why;
    const decides = binding === "" ? "device time is free" : binding === "load" ? "the load decides" : `${binding} decides`;
    const other = server < 0 ? "" : `; next best ${this.names[server]} at ${this.choiceName(stage, choice)}, ${(100 * behind).toFixed(3)} points worse`;
    return `${command.reason}: ${(100 * worth).toFixed(2)} % within reach for ${(1e3 * cost).toFixed(3)} ms of device time; ${decides}${other}`;
  }

  note(what, now, number) { this.totals[what] += number; this.recent[what].push([now, number]); }

  turn(now, server, up) {
    if (this.up[server] === up) return;
    this.up[server] = up;
    if (!up && !this.said[server].length) return; // it has never reported
    const name = this.names[server], again = up && this.fell.has(server) ? " again" : "";
    if (!up) this.fell.add(server);
    this.happen(now, `${name.startsWith("server") ? name : `server ${name}`}: ${up ? "up" : "down"}${again}`, up ? "up" : "down");
  }

  happen(now, text, kind = "note") { this.happenings = [...this.happenings.slice(-5), { at_s: now, text, kind }]; }

  frame(now) {
    for (const [name, entries] of Object.entries(this.recent)) {
      const first = entries.findIndex(([at]) => at >= now - LOG_WINDOW_S);
      this.recent[name] = first < 0 ? [] : entries.slice(first);
    }
    const { arrived, answered, dropped, spent, ran } = this.recent, span = Math.max(1e-9, Math.min(LOG_WINDOW_S, now));
    const sum = (entries, place = 1) => entries.reduce((whole, entry) => whole + entry[place], 0);
    const shares = (counts) => { const whole = counts.reduce((a, b) => a + b, 0); return counts.map((n) => (whole ? n / whole : 0)); };
    const latency = answered.map((a) => a[1]).sort((a, b) => a - b);
    const percentile = (q) => { // in steps of two per cent, as recent.py does
      if (!latency.length) return null;
      const value = Math.max(latency[Math.floor((latency.length - 1) * q)], LEAST);
      const step = Math.min(STEPS - 1, Math.trunc(Math.log(value / LEAST) / STEP));
      return LEAST * Math.exp((step + 0.5) * STEP);
    };
    const { stages } = this, byStage = () => stages.labels.map(() => 0), byName = () => stages.names.map(() => 0);
    const at = [...this.names, ""].map(byStage); // the gateway is last
    for (const place of this.places.values()) at.at(place.at)[place.stage] += 1;
    const choices = this.names.map(byName), mix = stages.labels.map(byName);
    for (const [, server, stage, ranAs, size] of ran) ranAs.forEach((choice, n) => {
      const name = stages.name(stage + n, choice);
      choices[server][name] += size;
      mix[stage + n][name] += size;
    });
    const inTime = answered.filter((a) => a[2]).length, left = answered.length + sum(dropped);
    const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : 0);
    return {
      at_s: now, phase: "recorded", router: this.router, ...this.totals, waiting: at.at(-1), finished_per_s: mix.map((counts) => counts.reduce((a, b) => a + b, 0) / span),
      arrival_per_s: sum(arrived) / span, goodput_per_s: inTime / span, latency_mean_s: answered.length ? sum(answered) / answered.length : null, latency_p50_s: percentile(0.5), latency_p95_s: percentile(0.95), latency_p99_s: percentile(0.99),
      slo: left ? inTime / left : null, accuracy: null, energy_j: answered.length ? sum(spent) / answered.length : null, bound_accuracy: null, bound_share: null, energy_source: "", mix: mix.map(shares),
      models: stages.models.map((model) => model.name), stages: stages.labels, stage_models: stages.modelOf, stage_choices: stages.choices, names: stages.names,
      choices: shares(stages.names.map((_, n) => sum(choices, n))),
      servers: this.names.map((name, n) => {
        const said = this.up[n] ? this.said[n] : [], last = said.at(-1);
        return {
          name, up: this.up[n], given_up: this.givenUp[n], at: at[n], queued: last ? last.queued.reduce((a, b) => a + b, 0) : 0, instances: last?.instances ?? 0, vram_bytes: last?.vram_bytes ?? 0,
          utilization: mean(said.map((s) => s.utilization)), power_w: mean(said.map((s) => s.power_w)), choices: shares(choices[n]), examples_per_s: choices[n].reduce((a, b) => a + b, 0) / span,
        };
      }),
      decisions: this.decisions, guard: this.guard, judged: this.judged, limits: [], sure_bound_accuracy: null, happenings: this.happenings,
    };
  }
}

async function framesOfLog(header, lines, again) { // the length is not known beforehand: frames grow coarser as the log goes on
  const models = header.setting.models?.length ? header.setting.models : await numberedModels(again());
  const view = new LogView(header, models);
  let frames = [], period = 0.01, next = period;
  for await (const line of lines) {
    const entry = JSON.parse(line);
    if (!Array.isArray(entry)) break; // how the log ended
    while (entry[0] > next) {
      frames.push(view.frame(next));
      if (frames.length === LOG_FRAMES) { frames = frames.filter((_, n) => n % 2); period *= 2; }
      next = frames.at(-1).at_s + period;
    }
    view.observe(entry);
  }
  return frames;
}
