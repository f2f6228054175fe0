"use strict";
// The model as a river: at each segment it is as thick as the widths that run there, in the colours of the widths.

const RIVER = { W: 1000, H: 100, flat: 0.32 }; // half the flat part of a segment, as a share of its length

function layerEdges(mix) { // for each width and segment, the lower and upper edge of its layer, centred on the middle
  const edges = WIDTHS.map(() => []);
  for (const shares of mix) {
    const parts = shares.map((share, n) => share * WIDTHS[n] * (RIVER.H - 4));
    let at = RIVER.H / 2 + total(parts) / 2;
    parts.forEach((part, n) => { edges[n].push([at, at - part]); at -= part; });
  }
  return edges;
}

function through(heights, start) { // a smooth line through the four segments
  const step = RIVER.W / 4, middle = (n) => (n + 0.5) * step, flat = RIVER.flat * step;
  const points = heights.flatMap((y, n) => [[n === 0 ? 0 : middle(n) - flat, y], [n === 3 ? RIVER.W : middle(n) + flat, y]]);
  if (start === "L") points.reverse();
  return points.map(([x, y], n) => {
    if (n === 0) return `${start}${x},${y.toFixed(1)}`;
    const [before, was] = points[n - 1];
    if (was === y) return `L${x},${y.toFixed(1)}`;
    const half = (x + before) / 2;
    return `C${half},${was.toFixed(1)} ${half},${y.toFixed(1)} ${x},${y.toFixed(1)}`;
  }).join(" ");
}

function buildRiver(svg) {
  svg.append(draw("rect", { class: "banks", x: 0, y: 0, width: RIVER.W, height: RIVER.H, rx: 6 }));
  WIDTHS.forEach((_, n) => svg.append(draw("path", { class: `layer f${n}` })));
  WIDTHS.forEach(() => svg.append(draw("path", { class: "drops" })));
  for (const n of [1, 2, 3]) svg.append(draw("line", { x1: 250 * n, x2: 250 * n, y1: 0, y2: RIVER.H }));
}

function river(svg, frame) {
  const mix = frame.mix ?? WIDTHS.map(() => frame.widths), edges = layerEdges(mix);
  const layers = svg.querySelectorAll(".layer"), drops = svg.querySelectorAll(".drops");
  const rate = total(frame.finished_per_s) / 4, pace = rate > 0 ? Math.min(4, Math.max(1, Math.round(Math.log10(rate)))) : 0;
  edges.forEach((pairs, n) => {
    const runs = pairs.some(([low, high]) => low - high > 0.01);
    layers[n].setAttribute("d", runs ? `${through(pairs.map(([low]) => low), "M")} ${through(pairs.map(([, high]) => high), "L")} Z` : "");
    const broad = pairs.some(([low, high]) => low - high > 9); // drops need room
    drops[n].setAttribute("d", broad ? through(pairs.map(([low, high]) => (low + high) / 2), "M") : "");
    drops[n].setAttribute("class", `drops pace${pace}`);
  });
  const says = mix.map((_, n) => `segment ${n + 1}: ${known(meanWidth({ mix }, n), (width) => width.toFixed(2))}`);
  svg.setAttribute("aria-label", `Mean width in use, ${says.join(", ")}`);
}
