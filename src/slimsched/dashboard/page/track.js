"use strict";
// The track of a server: its state, its requests, the choices it runs, its utilization, power and memory.

const MANY = 12;
const CELLS = ["requests", "choices", "utilization", "power", "memory", "instances"];

function buildTracks(list, servers) { // a long list scrolls, with servers that are down at the top
  list.replaceChildren(...servers.map(newTrack));
  list.classList.toggle("many", servers.length > MANY);
  if (servers.length > MANY) list.setAttribute("tabindex", "0");
  else list.removeAttribute("tabindex");
}

function newTrack(s) {
  const cell = (name, ...inside) => make("div", { class: `cell ${name}` }, make("span", { class: "label" }, name), ...inside, make("span", { class: "figure" }, ""));
  const whole = () => make("span", { class: "bar", role: "img" });
  const inside = { requests: [whole()], choices: [whole()], utilization: [newSpark()], power: [newSpark()], memory: [], instances: [] };
  return make("li", { "data-server": s.name },
    make("h3", {}, make("span", { title: s.name }, s.name), make("span", { class: "chip" }, "")),
    ...CELLS.map((name) => cell(name, ...inside[name])));
}

function track(element, s, past, max, phase, layout) {
  const state = s.up ? (phase === "draining" ? "draining" : "up") : s.given_up ? "given up" : phase === "starting" ? "starting" : "down";
  element.className = s.given_up ? "down" : state;
  const chip = element.querySelector(".chip");
  put(chip, state);
  chip.className = `chip ${element.className}`;
  const cell = Object.fromEntries(CELLS.map((name, n) => [name, element.children[n + 1]]));
  const figure = (name, text) => put(cell[name].lastChild, text);
  const stack = (name, shares, colours, says) => {
    bar(cell[name].children[1], shares, colours);
    cell[name].children[1].setAttribute("aria-label", shares.map((share, n) => share && says(n)).filter(Boolean).join(", ") || "none");
  };
  stack("requests", s.at.map((n) => n / max), layout.stages.map((stage) => stage.colour), (n) => `${s.at[n]} before segment ${layout.stages[n].label}`);
  figure("requests", `${count(total(s.at))}${s.queued ? `, ${count(s.queued)} queued` : ""}`);
  stack("choices", s.choices, layout.shades, (n) => `${percent(s.choices[n])} at ${layout.names[n]}`);
  figure("choices", perSecond(s.examples_per_s));
  spark(cell.utilization.children[1], past.map((one) => one.utilization), 0, 1);
  figure("utilization", percent(s.utilization));
  spark(cell.power.children[1], past.map((one) => one.power_w), 0, 1);
  figure("power", `${s.power_w.toFixed(0)} W`);
  figure("memory", bytes(s.vram_bytes));
  figure("instances", String(s.instances));
}
