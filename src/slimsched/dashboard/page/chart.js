"use strict";
// Line charts over time. Charts have axes, a reading at the pointer, goals and faults; sparks are small and bare.

const CHART = { W: 360, H: 158, left: 60, right: 8, top: 18, bottom: 20 };
const MARKS = { down: "fault", up: "return", goal: "change" }; // kinds of happenings that charts mark, with their style
const MARK_ROOM = 34; // a mark closer than this to the one before has no label
const GOAL_ROOM = 26; // between the labels of two goals
const CHARTS = [
  ["Latency", millis, [["p50", "var(--s0)", (f) => f.latency_p50_s], ["p95", "var(--s2)", (f) => f.latency_p95_s], ["p99", "var(--bad)", (f) => f.latency_p99_s]], { goals: (g) => [["p99", g.p99_ms / 1000], ["p95", g.p95_ms / 1000]] }],
  ["Requests per second", shortNumber, [["offered", "var(--quiet)", (f) => f.arrival_per_s], ["refused", "var(--bad)", (f) => f.ended_per_s.refused], ["late", "var(--warn)", (f) => f.ended_per_s.late], ["in time", "var(--good)", (f) => f.goodput_per_s]], {}],
  ["Accuracy", finePercent, [["predicted", "var(--accent)", (f) => f.accuracy], ["fluid bound", "var(--quiet)", (f) => f.bound_accuracy], ["bound when sure", "var(--warn)", (f) => f.sure_bound_accuracy]], { floating: true, goals: (g) => [["", g.min_accuracy]] }],
  ["Distance from the fluid bound", percent, [["missing", "var(--bad)", (f) => (given(f.bound_share) ? Math.max(0, 1 - f.bound_share) : null)]], {}],
  ["Answered in time, of what was offered", percent, [["share", "var(--good)", (f) => f.slo]], { most: 1 }],
  ["Energy per request", joules, [["above idle", "var(--s2)", (f) => f.energy_j]], { goals: (g) => [["", g.energy_mj / 1000]] }],
  ["Under way", shortNumber, [["at the gateway", "var(--quiet)", (f) => total(f.waiting)], ["at servers", "var(--accent)", (f) => total(f.servers.map((s) => total(s.at)))]], {}],
  ["Power", watts, [["all servers", "var(--s3)", (f) => total(f.servers.map((s) => s.power_w))]], { goals: (g) => [["", g.power_w]] }],
];

function chartsOf(layout) { // those of every run, and the choices of each model
  const choices = (model) => model.choices.map((place) => [layout.names[place], layout.shades[place], (f) => modelShares(f, model, place)]);
  return [...CHARTS, ...layout.models.map((model) => [layout.several ? `Choices of ${model.name}` : "Choices", wholePercent, choices(model), { stacked: true, most: 1 }])];
}

const wholePercent = (value) => `${(100 * value).toFixed(0)} %`;

function shortNumber(value) { // one decimal for small numbers
  return value < 10 && value % 1 ? value.toFixed(1) : count(value);
}

function roundStep(range) { // 1, 2, 2.5 or 5 times a power of ten, so that the axis has two to four steps
  const rough = range / 3, power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
}

function scale(values, { floating, most }) {
  let low = floating ? Math.min(...values) : 0, high = most ?? Math.max(...values);
  if (high - low < 1e-9) { high += Math.abs(high) * 0.01 || 1; if (floating) low -= Math.abs(low) * 0.01; }
  const step = roundStep(high - low), first = Math.floor(low / step + 1e-6) * step;
  const ticks = [];
  for (let tick = first; tick < high + step * 0.999; tick += step) ticks.push(tick);
  return ticks;
}

function newChart([title, , series]) {
  const svg = draw("svg", { viewBox: `0 0 ${CHART.W} ${CHART.H}`, role: "img", "aria-label": title });
  const legend = make("span", { class: "quiet legend" }, ...series.map(([name, colour]) => {
    const mark = make("i");
    mark.style.background = colour;
    return make("span", {}, mark, `${name} `, make("b", {}, ""));
  }));
  const figure = make("figure", {}, make("figcaption", {}, title), legend, svg);
  svg.addEventListener("pointermove", (event) => { figure.dataset.at = (event.clientX - svg.getBoundingClientRect().left) / svg.getBoundingClientRect().width; });
  svg.addEventListener("pointerleave", () => { delete figure.dataset.at; });
  return figure;
}

function chart(figure, [title, write, series, options], shown, goalNow) {
  const { W, H, left, right, top, bottom } = CHART, svg = figure.querySelector("svg");
  const all = series.flatMap(([, , get]) => shown.map(get)).filter(given);
  if (!all.length || shown.length < 2) {
    svg.replaceChildren(draw("text", { x: W / 2, y: H / 2, "text-anchor": "middle" }, "nothing to show yet"));
    return;
  }
  const goals = ((goalNow && options.goals?.(goalNow)) || []).filter(([, limit]) => limit);
  const ticks = scale([...all, ...goals.map(([, limit]) => limit)], options), low = ticks[0], high = ticks.at(-1);
  const from = shown[0].at_s, to = shown.at(-1).at_s;
  const x = (at) => left + ((W - left - right) * (at - from)) / (to - from || 1);
  const y = (value) => H - bottom - ((H - top - bottom) * (value - low)) / (high - low);
  const parts = ticks.flatMap((tick) => [
    draw("line", { x1: left, x2: W - right, y1: y(tick), y2: y(tick) }),
    draw("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, write(tick)),
  ]);
  parts.push(draw("text", { x: left, y: H - 5 }, clock(shown[0], from)), draw("text", { x: W - right, y: H - 5, "text-anchor": "end" }, clock(shown.at(-1), to)));
  const at = figure.dataset.at === undefined ? null : from + ((Number(figure.dataset.at) * W - left) / (W - left - right)) * (to - from);
  const read = at === null ? shown.at(-1) : shown.reduce((best, f) => (Math.abs(f.at_s - at) < Math.abs(best.at_s - at) ? f : best));
  if (options.stacked) parts.push(...layers(series, shown, x, y));
  series.forEach(([, colour, get], n) => {
    const filled = !options.stacked && series.length <= 2 && n === series.length - 1 && !options.floating;
    for (const run of options.stacked ? [] : runsOf(shown, (f) => given(get(f)))) {
      const points = run.map((f) => `${x(f.at_s).toFixed(1)},${y(get(f)).toFixed(1)}`), [first, last] = [run[0], run.at(-1)];
      if (filled) parts.push(tinted("polygon", "fill", colour, `${x(first.at_s)},${y(low)} ${points.join(" ")} ${x(last.at_s)},${y(low)}`));
      parts.push(tinted("polyline", "stroke", colour, points.length > 1 ? points.join(" ") : `${points[0]} ${points[0]}`)); // a lone figure is a dot
    }
    put(figure.querySelectorAll("b")[n], known(get(read), write));
  });
  const happenings = shown.at(-1).happenings.filter(({ kind, at_s }) => MARKS[kind] && at_s >= from && at_s <= to);
  parts.push(...marks(happenings, x));
  const drawn = goals.map(([figure, limit], n) => goalLine(happenings, x, y(limit), goals.length > 1 ? figure : "goal", n));
  parts.push(...drawn.map(([line]) => line), ...drawn.map(([, label]) => label)); // no line crosses a label
  if (at !== null) parts.push(draw("line", { class: "reading", x1: x(read.at_s), x2: x(read.at_s), y1: top, y2: H - bottom }), draw("text", { x: Math.min(W - 50, Math.max(left, x(read.at_s) + 4)), y: top + 8 }, clock(read, read.at_s)));
  svg.replaceChildren(...parts);
  svg.setAttribute("aria-label", `${title}: now ${series.map(([name, , get]) => `${name} ${known(get(shown.at(-1)), write)}`).join(", ")}${goals.map(([figure, limit]) => `, goal ${figure} ${write(limit)}`.replace("  ", " ")).join("")}`);
}

function runsOf(list, present) { // parts of a list without a gap: nothing is drawn where there is no figure
  const runs = [];
  list.forEach((one, n) => {
    if (!present(one)) return;
    if (n && present(list[n - 1])) runs.at(-1).push(one);
    else runs.push([one]);
  });
  return runs;
}

function tinted(tag, property, colour, points) {
  const shape = draw(tag, { points });
  shape.style[property] = colour;
  return shape;
}

function marks(happenings, x) { // a line for each, and above the chart a word where there is room
  const { W, H, top, bottom } = CHART;
  let end = -Infinity;
  return happenings.flatMap(({ at_s, text, kind }) => {
    const line = draw("line", { class: MARKS[kind], x1: x(at_s), x2: x(at_s), y1: top, y2: H - bottom });
    line.append(draw("title", {}, text));
    const start = Math.min(x(at_s), W - MARK_ROOM);
    if (start - end < MARK_ROOM) return [line];
    end = start;
    return [line, draw("text", { class: MARKS[kind], x: start, y: top - 6 }, kind)];
  });
}

function goalLine(happenings, x, height, label, place) { // from the last change of the goal on; labels stand side by side
  const { W, left, right, top } = CHART, changed = happenings.findLast(({ kind }) => kind === "goal");
  const above = height - 4 > top + 10;
  return [
    draw("line", { class: "goal", x1: changed ? x(changed.at_s) : left, x2: W - right, y1: height, y2: height }),
    draw("text", { class: "goal", x: W - right - 2 - place * GOAL_ROOM, y: above ? height - 4 : height + 12, "text-anchor": "end" }, label),
  ];
}

function layers(series, shown, x, y) { // shares on top of each other
  return runsOf(shown, (f) => given(series[0][2](f))).filter((run) => run.length > 1).flatMap((run) => {
    const below = run.map(() => 0);
    return series.map(([, colour, get]) => {
      const points = () => run.map((f, n) => `${x(f.at_s).toFixed(1)},${y(below[n]).toFixed(1)}`);
      const floor = points();
      run.forEach((f, n) => { below[n] += get(f); });
      const layer = tinted("polygon", "fill", colour, [...points(), ...floor.reverse()].join(" "));
      layer.setAttribute("class", "layer");
      return layer;
    });
  });
}

function spark(svg, values, least, most) { // a small line without labels; the figure stands beside it
  const every = Math.ceil(values.length / 60); // a small picture cannot show more points
  const kept = values.map((value, n) => [n, value]).filter(([n]) => (values.length - 1 - n) % every === 0);
  const only = kept.map(([, value]) => value).filter(given);
  if (only.length < 2) { svg.replaceChildren(); return; }
  const low = Math.min(least ?? Infinity, ...only), high = Math.max(most ?? -Infinity, ...only);
  const x = (n) => (100 * n) / (values.length - 1), y = (value) => 22 - (20 * (value - low)) / (high - low || 1);
  svg.replaceChildren(...runsOf(kept, ([, value]) => given(value)).filter((run) => run.length > 1).flatMap((run) => {
    const points = run.map(([n, value]) => `${x(n).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    return [draw("polygon", { points: `${x(run[0][0])},24 ${points} ${x(run.at(-1)[0])},24` }), draw("polyline", { points })];
  }));
}

const newSpark = () => draw("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" });
