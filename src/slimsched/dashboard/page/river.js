"use strict";
// A model as a river: at each segment it is as thick as the choices that run there are wide, in the colours of the choices.

const RIVER = { step: 250, H: 100, flat: 0.32 }; // the length of a segment; half of its flat part, as a share of the length

function layerEdges(frame, model) { // for each choice and segment, the lower and upper edge of its layer, centred on the middle
  const edges = model.choices.map(() => []);
  for (const stage of model.stages) {
    const parts = model.choices.map((place) => frame.mix[stage.n][place] * (stage.sizes.get(place) ?? 0) * (RIVER.H - 4));
    let at = RIVER.H / 2 + total(parts) / 2;
    parts.forEach((part, n) => { edges[n].push([at, at - part]); at -= part; });
  }
  return edges;
}

function through(heights, start, from = 0, segments = heights.length) { // a smooth line through the segments, or some of them
  const { step } = RIVER, flat = RIVER.flat * step;
  const points = heights.flatMap((y, at) => {
    const n = from + at;
    return [[n === 0 ? 0 : (n + 0.5) * step - flat, y], [n === segments - 1 ? segments * step : (n + 0.5) * step + flat, y]];
  });
  if (start === "L") points.reverse();
  return points.map(([x, y], n) => {
    if (n === 0) return `${start}${x},${y.toFixed(1)}`;
    const [before, was] = points[n - 1];
    if (was === y) return `L${x},${y.toFixed(1)}`;
    const half = (x + before) / 2;
    return `C${half},${was.toFixed(1)} ${half},${y.toFixed(1)} ${x},${y.toFixed(1)}`;
  }).join(" ");
}

function broadRuns(pairs) { // [from, to) of neighbouring segments where a layer has room for drops
  const broad = pairs.map(([low, high]) => low - high > 9), starts = broad.flatMap((is, n) => (is && !broad[n - 1] ? [n] : []));
  return starts.map((from) => { const end = broad.indexOf(false, from); return [from, end < 0 ? broad.length : end]; });
}

function newModel(model, layout) { // a model's river, and its segments below
  const width = RIVER.step * model.stages.length;
  const svg = draw("svg", { class: "river", viewBox: `0 0 ${width} ${RIVER.H}`, preserveAspectRatio: "none", role: "img", "aria-label": "Choices in use by segment" });
  svg.append(draw("rect", { class: "banks", x: 0, y: 0, width, height: RIVER.H }));
  for (const place of model.choices) {
    const layer = draw("path", { class: "layer" });
    layer.style.fill = layout.shades[place];
    svg.append(layer);
  }
  svg.append(...model.choices.map(() => draw("path", { class: "drops" })));
  svg.append(...model.stages.slice(1).map((_, n) => draw("line", { x1: RIVER.step * (n + 1), x2: RIVER.step * (n + 1), y1: 0, y2: RIVER.H })));
  const segments = model.stages.map((stage) => {
    const item = make("li", {}, make("strong", {}, `Segment ${stage.segment + 1}`), make("div", {}, "–"), make("div", { class: "rate" }, ""), make("div", { class: "mix" }, make("span", { class: "quiet" }, ""), newSpark()));
    item.style.borderColor = stage.colour;
    return item;
  });
  const inside = make("div", { class: "inside" }, svg, make("ol", { class: "flow" }, ...segments));
  const long = model.stages.length > 4 ? { tabindex: "0", role: "region", "aria-label": `Segments of ${model.name}` } : {}; // it may scroll
  const scroll = make("div", { class: "scroll", ...long }, inside), box = make("div", { class: "model" }, scroll);
  if (layout.several) box.prepend(make("div", { class: "head" }, make("h3", {}, model.name), make("p", { class: "quiet legend" }, ...choiceLegend(layout, model.choices))));
  box.style.setProperty("--stages", model.stages.length);
  return box;
}

function showModel(box, model, frame, shown) {
  river(box.querySelector(".river"), model, frame);
  model.stages.forEach((stage, n) => {
    const [, line, rate, mix] = box.querySelectorAll("li")[n].children, [mean, spot] = mix.children, at = total(frame.servers.map((s) => s.at[stage.n]));
    put(line, `${count(frame.waiting[stage.n])} waiting, ${count(at)} at servers`);
    put(rate, `→ ${perSecond(frame.finished_per_s[stage.n])}`);
    put(mean, saysMix(frame, stage));
    spark(spot, shown.map((f) => meanSize(f, stage)), 0, 1);
  });
}

function river(svg, model, frame) {
  const edges = layerEdges(frame, model), layers = svg.querySelectorAll(".layer"), drops = svg.querySelectorAll(".drops");
  const rate = total(model.stages.map((stage) => frame.finished_per_s[stage.n])) / model.stages.length, pace = rate > 0 ? Math.min(4, Math.max(1, Math.round(Math.log10(rate)))) : 0;
  edges.forEach((pairs, n) => {
    const runs = pairs.some(([low, high]) => low - high > 0.01);
    layers[n].setAttribute("d", runs ? `${through(pairs.map(([low]) => low), "M")} ${through(pairs.map(([, high]) => high), "L")} Z` : "");
    drops[n].setAttribute("d", broadRuns(pairs).map(([from, to]) => through(pairs.slice(from, to).map(([low, high]) => (low + high) / 2), "M", from, pairs.length)).join(" "));
    drops[n].setAttribute("class", `drops pace${pace}`);
  });
  const says = model.stages.map((stage) => `segment ${stage.segment + 1}: ${saysMix(frame, stage) || "nothing"}`);
  svg.setAttribute("aria-label", `Choices in use by ${model.name}, ${says.join(", ")}`);
}
