"use strict";
// The track of a server: its state, its requests, the widths it runs, its utilization, power and memory.

const MANY = 12;
const CELLS = ["requests", "widths", "utilization", "power", "memory", "instances"];

function buildTracks(list, servers) { // a long list scrolls, with servers that are down at the top
  list.replaceChildren(...servers.map(newTrack));
  list.classList.toggle("many", servers.length > MANY);
  if (servers.length > MANY) list.setAttribute("tabindex", "0");
  else list.removeAttribute("tabindex");
}

function newTrack(s) {
  const cell = (name, ...inside) => make("div", { class: `cell ${name}` }, make("span", { class: "label" }, name), ...inside, make("span", { class: "figure" }, ""));
  const whole = () => make("span", { class: "bar", role: "img" });
  const inside = { requests: [whole()], widths: [whole()], utilization: [newSpark()], power: [newSpark()], memory: [], instances: [] };
  return make("li", { "data-server": s.name },
    make("h3", {}, make("span", {}, s.name), make("span", { class: "chip" }, "")),
    ...CELLS.map((name) => cell(name, ...inside[name])));
}

function track(element, s, past, max, phase) {
  const state = s.up ? (phase === "draining" ? "draining" : "up") : phase === "starting" ? "starting" : "down";
  element.className = state;
  const chip = element.querySelector(".chip");
  put(chip, state);
  chip.className = `chip ${state}`;
  const cell = Object.fromEntries(CELLS.map((name, n) => [name, element.children[n + 1]]));
  const figure = (name, text) => put(cell[name].lastChild, text);
  const stack = (name, shares, kind, says) => { bar(cell[name].children[1], shares, kind); cell[name].children[1].setAttribute("aria-label", says); };
  stack("requests", s.at.map((n) => n / max), "s", s.at.map((n, i) => `${n} before segment ${i + 1}`).join(", "));
  figure("requests", `${count(total(s.at))}${s.queued ? `, ${count(s.queued)} queued` : ""}`);
  stack("widths", s.widths, "w", s.widths.map((w, i) => `${percent(w)} at width ${WIDTHS[i]}`).join(", "));
  figure("widths", perSecond(s.images_per_s));
  spark(cell.utilization.children[1], past.map((one) => one.utilization), 0, 1);
  figure("utilization", percent(s.utilization));
  spark(cell.power.children[1], past.map((one) => one.power_w), 0, 1);
  figure("power", `${s.power_w.toFixed(0)} W`);
  figure("memory", bytes(s.vram_bytes));
  figure("instances", String(s.instances));
}
