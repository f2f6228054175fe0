"use strict";
// Folds the gateway's event log (kernel/log.py) into frames as telemetry/live_view.py does. The log knows neither
// what widths are worth nor the fluid bound, so accuracy and bound stay empty.

const LOG_WINDOW_S = 1, LOG_FRAMES = 480, LOG_WIDTHS = [0.25, 0.5, 0.75, 1];
const GATEWAY = "gateway", AUTOSCALER = "autoscaler";
const [ID, ARRIVAL, DEADLINE] = [0, 1, 2]; // places in a request; a block is [id, key, requests, …], a key [segment, width, previous]

class LogView {
  constructor(header) {
    const name = (s) => ((s.count ?? 1) === 1 ? [s.name] : Array.from({ length: s.count }, (_, n) => `${s.name}-${n}`));
    this.router = header.setting.router;
    this.names = header.setting.scenario.server.flatMap(name);
    this.up = this.names.map(() => true);
    this.said = this.names.map(() => []); // last snapshots
    this.places = new Map(); // request id → { at: server or -1, segment, holder }
    this.recent = { arrived: [], answered: [], dropped: [], spent: [], ran: [] };
    this.totals = { arrived: 0, answered: 0, dropped: 0 };
    this.decisions = [];
    this.guard = {};
    this.happenings = [];
  }

  observe([now, machine, event, commands]) {
    if (machine === AUTOSCALER) for (const c of commands) this.happen(now, `autoscaler: ${c.servers} servers, ${c.reason}`);
    if (machine !== GATEWAY) return;
    this.told(now, event);
    for (const command of commands) this.asked(now, command);
  }

  told(now, event) {
    if (event.type === "RequestsArrived") {
      this.note("arrived", now, event.requests.length);
      for (const r of event.requests) this.places.set(r[ID], { at: -1, segment: 0, holder: -1 });
    } else if (event.type === "SegmentFinished") {
      const images = event.blocks.reduce((whole, block) => whole + block[2].length, 0);
      this.recent.spent.push([now, event.energy_j]);
      this.recent.ran.push([now, event.server, event.blocks[0][1][0], [event.width, ...event.ahead], images]);
      for (const [, [segment], requests] of event.blocks) for (const r of requests) {
        const place = this.places.get(r[ID]);
        if (place?.at === event.server && place.segment === segment) Object.assign(place, { at: -1, segment: Math.min(segment + 1 + (event.ahead?.length ?? 0), 3), holder: event.server });
      }
    } else if (event.type === "InputLost") {
      for (const r of event.block[2]) { const place = this.places.get(r[ID]); if (place?.at === event.server) Object.assign(place, { at: -1, segment: 0, holder: -1 }); }
    } else if (event.type === "TelemetryReceived") {
      this.said[event.server] = [...this.said[event.server].slice(-9), event.snapshot];
    } else if (event.type === "ServerDown") {
      this.turn(now, event.server, false);
      this.said[event.server] = [];
      for (const place of this.places.values()) if (place.at === event.server || (place.at === -1 && place.holder === event.server)) Object.assign(place, { at: -1, segment: 0, holder: -1 });
    } else if (event.type === "ServerUp") this.turn(now, event.server, true);
  }

  asked(now, command) {
    if (command.type === "SendBlock") {
      const [, [segment, width], requests] = command.block;
      for (const r of requests) { const place = this.places.get(r[ID]); if (place) Object.assign(place, { at: command.server, segment, holder: command.source }); }
      if (/^(guard|shadow): /.test(command.reason)) { const why = command.reason.split(" would")[0]; this.guard = { ...this.guard, [why]: (this.guard[why] ?? 0) + 1 }; }
      this.decisions = [...this.decisions.slice(-7), { at_s: now, server: this.names[command.server], segment, width, images: requests.length, reason: command.reason }];
    } else if (command.type === "Answer") {
      this.totals.answered += command.requests.length;
      for (const r of command.requests) { this.recent.answered.push([now, now - r[ARRIVAL], now <= r[DEADLINE]]); this.places.delete(r[ID]); }
    } else if (command.type === "Drop") {
      this.note("dropped", now, command.requests.length);
      for (const r of command.requests) this.places.delete(r[ID]);
    }
  }

  note(what, now, number) { this.totals[what] += number; this.recent[what].push([now, number]); }

  turn(now, server, up) {
    if (this.up[server] === up) return;
    this.up[server] = up;
    if (up || this.said[server].length) this.happen(now, `${this.names[server]} is ${up ? "up" : "down"}`);
  }

  happen(now, text) { this.happenings = [...this.happenings.slice(-5), { at_s: now, text }]; }

  frame(now) {
    for (const [name, entries] of Object.entries(this.recent)) {
      const first = entries.findIndex(([at]) => at >= now - LOG_WINDOW_S);
      this.recent[name] = first < 0 ? [] : entries.slice(first);
    }
    const { arrived, answered, dropped, spent, ran } = this.recent, span = Math.max(1e-9, Math.min(LOG_WINDOW_S, now));
    const sum = (entries, place = 1) => entries.reduce((whole, entry) => whole + entry[place], 0);
    const shares = (counts) => { const whole = counts.reduce((a, b) => a + b, 0); return counts.map((n) => (whole ? n / whole : 0)); };
    const latency = answered.map((a) => a[1]).sort((a, b) => a - b);
    const percentile = (q) => { // linear between neighbours, as numpy does
      if (!latency.length) return null;
      const at = (latency.length - 1) * q, low = Math.floor(at), high = Math.min(low + 1, latency.length - 1);
      return latency[low] + (at - low) * (latency[high] - latency[low]);
    };
    const at = [...this.names, ""].map(() => [0, 0, 0, 0]); // the gateway is last
    for (const place of this.places.values()) at.at(place.at)[place.segment] += 1;
    const widths = this.names.map(() => [0, 0, 0, 0]), mix = LOG_WIDTHS.map(() => [0, 0, 0, 0]);
    for (const [, server, segment, ran_at, size] of ran) ran_at.forEach((w, n) => { widths[server][LOG_WIDTHS.indexOf(w)] += size; mix[segment + n][LOG_WIDTHS.indexOf(w)] += size; });
    const inTime = answered.filter((a) => a[2]).length, left = answered.length + sum(dropped);
    const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : 0);
    return {
      at_s: now, phase: "recorded", router: this.router, ...this.totals, waiting: at.at(-1), finished_per_s: mix.map((counts) => counts.reduce((a, b) => a + b, 0) / span),
      arrival_per_s: sum(arrived) / span, goodput_per_s: inTime / span, latency_p50_s: percentile(0.5), latency_p95_s: percentile(0.95), latency_p99_s: percentile(0.99),
      slo: left ? inTime / left : null, accuracy: null, energy_j: answered.length ? sum(spent) / answered.length : null, bound_accuracy: null, bound_share: null, energy_source: "", mix: mix.map(shares),
      widths: shares([0, 1, 2, 3].map((n) => widths.reduce((whole, counts) => whole + counts[n], 0))),
      servers: this.names.map((name, n) => {
        const said = this.up[n] ? this.said[n] : [], last = said.at(-1);
        return {
          name, up: this.up[n], at: at[n], queued: last ? last.queued.reduce((a, b) => a + b, 0) : 0, instances: last?.instances ?? 0, vram_bytes: last?.vram_bytes ?? 0,
          utilization: mean(said.map((s) => s.utilization)), power_w: mean(said.map((s) => s.power_w)), widths: shares(widths[n]), images_per_s: widths[n].reduce((a, b) => a + b, 0) / span,
        };
      }),
      decisions: this.decisions, guard: this.guard, happenings: this.happenings,
    };
  }
}

async function framesOfLog(header, lines) { // the length is not known beforehand: frames grow coarser as the log goes on
  const view = new LogView(header);
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
