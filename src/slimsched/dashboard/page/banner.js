"use strict";
// What an operator asks first: is my goal kept, if not why, and what is done about it. Then the load, and faults.

const VERDICTS = { kept: "ready", broken: "lost", undecided: "starting" }; // the chip of each word
const ENDS = [["in time", "in_time", "var(--good)"], ["late", "late", "var(--warn)"], ["refused", "refused", "var(--bad)"], ["failed", "failed", "var(--s3)"]];
const BUSY = 0.85, NOTABLE = 0.01; // devices are the limit from this utilization on; shares below this are not told
let hadNoMemory = null;

const clock = (frame, at) => (given(frame.began_unix_s) ? new Date(1000 * (frame.began_unix_s + at)).toLocaleTimeString("en-GB") : `${at.toFixed(1)} s`);
const broken = (frame) => frame.limits.filter(({ word }) => word === "broken");

function banner(frame) {
  const { limits = [], run_limits = [] } = frame, lost = broken(frame).length, unsure = limits.filter(({ word }) => word === "undecided").length;
  $("banner").hidden = !limits.length && !unkept(frame) && $("goal-open").hidden;
  $("banner").className = `card ${lost ? "broken" : unsure ? "undecided" : "kept"}`;
  const says = lost ? `The goal is broken: ${lost} of ${limits.length} limit${limits.length > 1 ? "s" : ""}` : unsure ? "The goal is undecided" : limits.length ? "The goal is kept" : "No limits are set";
  const all = offered(frame), missing = all ? 1 - frame.goodput_per_s / all : 0;
  put($("banner-says"), `${says}${missing >= NOTABLE ? `; ${wholePercent(missing)} of the load is not answered in time` : ""}`);
  while ($("limits").children.length < limits.length) $("limits").append(make("li", {}, make("span", {}, ""), " ", make("b", {}, ""), " ", make("span", {}, ""), " ", make("span", { class: "quiet" }, "")));
  while ($("limits").children.length > limits.length) $("limits").lastChild.remove();
  limits.forEach(({ limit, word, says: figure }, n) => {
    const [chip, text, now, whole] = $("limits").children[n].children, run = run_limits[n];
    chip.className = `chip ${VERDICTS[word]}`;
    put(chip, word);
    put(text, limit);
    put(now, figure);
    put(whole, run ? `(last minute; since it was set: ${run.word})` : "");
  });
  put($("why"), unkept(frame) ? reasons(frame).join(" ") : "");
  put($("does"), unkept(frame) ? doing(frame) : "");
}

const offered = (frame) => total(Object.values(frame.ended_per_s));
const unkept = (frame) => broken(frame).length > 0 || frame.servers.some((s) => !s.up && given(s.since_s)) || offered(frame) - frame.goodput_per_s > NOTABLE * offered(frame);

function reasons(frame) { // why the goal is broken, or requests are not answered in time: what is known to bind
  const up = frame.servers.filter((s) => s.up), down = frame.servers.filter((s) => !s.up), said = [];
  const at = `At ${perSecond(frame.arrival_per_s)}`, busy = total(up.map((s) => s.utilization)) / (up.length || 1);
  for (const { limit } of broken(frame)) {
    const floor = Number(limit.match(/accuracy>=([\d.]+)/)?.[1]) / 100, best = Math.max(frame.bound_accuracy ?? 0, frame.sure_bound_accuracy ?? 0);
    if (best && floor > best) said.push(`${at} no router can keep ${limit}: with all servers up the best is ${finePercent(best)}.`);
  }
  if (down.length) said.push(`${down.length} of ${frame.servers.length} servers ${down.length > 1 ? "are" : "is"} down.`);
  if (frame.phase === "gateway full") said.push("The gateway is full: calls wait for it, not for devices.");
  const noMemory = total(frame.servers.map((s) => s.no_memory ?? 0));
  if (hadNoMemory !== null && noMemory > hadNoMemory) said.push("Memory binds: models were not loaded because it is full.");
  hadNoMemory = noMemory;
  if (!frame.arrival_per_s) return said;
  if (busy > BUSY) said.push(`Device time binds: devices are busy ${wholePercent(busy)} of the time.`);
  else if (!said.length) said.push(`Devices are busy ${wholePercent(busy)} of the time only: what binds is the time that requests have, or the gateway.`);
  const waiting = total(frame.waiting);
  if (waiting > frame.goodput_per_s) said.push(`${count(waiting)} requests wait at the gateway.`);
  return said;
}

function doing(frame) { // what the server does about it, in words
  const ran = frame.names.map((name, n) => [name, frame.choices[n]]).filter(([, share]) => share >= NOTABLE).sort((a, b) => b[1] - a[1]).slice(0, 3);
  const ends = ENDS.slice(1).map(([name, key]) => [name, frame.ended_per_s[key] / (offered(frame) || 1)]).filter(([, share]) => share >= NOTABLE);
  const does = ran.length ? [`serves ${ran.map(([name, share]) => `${wholePercent(share)} at ${name}`).join(", ")}`] : [];
  const told = [...does, ...ends.map(([name, share]) => (name === "refused" ? `refuses ${wholePercent(share)}` : `${wholePercent(share)} ${name === "late" ? "come late" : "fail"}`))];
  return told.length ? `What it does: ${told.join("; ")}.` : "";
}

function load(frame) {
  const all = offered(frame), shares = ENDS.map(([, key]) => (all ? frame.ended_per_s[key] / all : 0));
  bar($("outcomes"), shares, ENDS.map(([, , colour]) => colour));
  const says = ENDS.map(([name], n) => `${percent(shares[n])} ${name}`);
  $("outcomes").setAttribute("aria-label", says.join(", "));
  if (!$("outcome-legend").children.length) $("outcome-legend").append(...ENDS.map(([name, , colour]) => swatch(colour, name)));
  ENDS.forEach(([name], n) => put($("outcome-legend").children[n].lastChild, all ? `${name} ${percent(shares[n])}` : name));
  const { in_time, late, refused, failed } = frame.outcomes, ended = in_time + late + refused + failed;
  put($("totals"), `${perSecond(frame.arrival_per_s)} offered; since the start ${count(frame.arrived)} offered = ${count(in_time)} in time + ${count(late)} late + ${count(refused)} refused + ${count(failed)} failed + ${count(Math.max(0, frame.arrived - ended))} under way`);
}

function faults(frame) { // in the header, as long as they last
  const down = frame.servers.filter((s) => !s.up && (given(s.since_s) || s.given_up));
  $("faults").hidden = !down.length || frame.phase === "starting";
  $("faults").className = "chip down";
  put($("faults"), `${down.length} of ${frame.servers.length} servers down since ${down.length ? clock(frame, Math.min(...down.map((s) => s.since_s ?? 0))) : ""}`);
}

function happened(frame) { // newest first; what is alike stands once, with how often
  const groups = new Map();
  for (const { at_s, text, kind } of frame.happenings.toReversed()) {
    const key = kind === "verdict" ? text.split(":")[0].replace(/ (again)$/, "") : text, found = groups.get(key);
    groups.set(key, found ? { ...found, times: found.times + 1 } : { at_s, text, times: 1 });
  }
  return [...groups.values()].map(({ at_s, text, times }) => `${clock(frame, at_s)}: ${text}${times > 1 ? ` (${times} times)` : ""}`);
}
