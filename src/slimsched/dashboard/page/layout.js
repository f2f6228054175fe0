"use strict";
// The layout of what is shown: models, their stages (segments) and choices, as a frame names them, with colours and sizes.
// A choice's size is what its name says if the names of its stage are numbers, else its place from narrow to wide.

const RAMPS = 4, STAGE_COLOURS = 8; // how many of each dashboard.css has

function layoutOf(frame) {
  const shades = shadesOf(frame);
  const stages = frame.stages.map((label, n) => {
    const names = frame.stage_choices[n].map((place) => frame.names[place]), sizes = new Map();
    const numbers = names.map(Number), most = Math.max(...numbers), numeric = numbers.every((number) => number > 0);
    frame.stage_choices[n].forEach((place, at) => sizes.set(place, numeric ? numbers[at] / most : (at + 1) / names.length));
    return { n, label, model: frame.stage_models[n], sizes, numeric, most, colour: stageColour(n) };
  });
  const models = frame.models.map((name, m) => {
    const own = stages.filter((stage) => stage.model === m), used = new Set(own.flatMap((stage) => [...stage.sizes.keys()]));
    own.forEach((stage, segment) => { stage.segment = segment; });
    return { name, stages: own, choices: frame.names.map((_, place) => place).filter((place) => used.has(place)) };
  });
  return { key: layoutKey(frame), models, stages, names: frame.names, shades, several: models.length > 1 };
}

const layoutKey = (frame) => JSON.stringify([frame.models, frame.stages, frame.names, frame.stage_choices]);

function shadesOf(frame) { // models that share names share a ramp of colours; unrelated ones have ramps of their own
  const family = frame.names.map((_, place) => place);
  frame.models.forEach((_, m) => {
    const used = new Set(frame.stage_choices.filter((_choices, n) => frame.stage_models[n] === m).flat().map((place) => family[place]));
    const first = Math.min(...used);
    family.forEach((one, place) => { if (used.has(one)) family[place] = first; });
  });
  const families = [...new Set(family)];
  return frame.names.map((_, place) => {
    const members = family.map((one, n) => [one, n]).filter(([one]) => one === family[place]).map(([, n]) => n);
    const at = members.length > 1 ? members.indexOf(place) / (members.length - 1) : 0.67, ramp = families.indexOf(family[place]) % RAMPS;
    const [from, to, way] = at < 0.5 ? ["narrow", "middle", 2 * at] : ["middle", "wide", 2 * at - 1];
    return `color-mix(in srgb, var(--${to}${ramp}) ${Math.round(100 * way)}%, var(--${from}${ramp}))`;
  });
}

function stageColour(n) { // a second round of the colours is closer to the ink
  const colour = `var(--s${n % STAGE_COLOURS})`;
  return n < STAGE_COLOURS ? colour : `color-mix(in oklab, ${colour} 55%, var(--ink))`;
}

function meanSize(frame, stage) { // from 0 to 1, weighed by the examples that ran; null if none ran
  const shares = frame.mix[stage.n];
  return total(shares) ? total([...stage.sizes].map(([place, size]) => shares[place] * size)) : null;
}

function saysMix(frame, stage) { // the mix of choices in words: a mean where names are numbers, else the most frequent one
  const size = meanSize(frame, stage), shares = frame.mix[stage.n];
  if (size === null) return "";
  if (stage.numeric) return `mean ${(size * stage.most).toFixed(2)}`;
  const place = shares.indexOf(Math.max(...shares));
  return `${shares[place] > 0.995 ? "all" : percent(shares[place])} ${frame.names[place]}`;
}

function modelShares(frame, model, place) { // the share of one choice in all that a model's segments ran; null if nothing ran
  const ran = total(model.stages.map((stage) => frame.finished_per_s[stage.n]));
  return ran ? total(model.stages.map((stage) => frame.finished_per_s[stage.n] * frame.mix[stage.n][place])) / ran : null;
}

function stageLegend(layout) {
  return layout.models.flatMap((model) => [...(layout.several ? [make("span", { class: "group" }, model.name)] : []), ...model.stages.map((stage) => swatch(stage.colour, String(stage.segment + 1)))]);
}

const choiceLegend = (layout, places = layout.names.map((_, place) => place)) => places.map((place) => swatch(layout.shades[place], layout.names[place]));
