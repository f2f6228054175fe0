"use strict";
// The goal: the form that sets it (docs/goals.md).

const LIMITS = [ // figure in a clause, field of GET /v2/goal, its size in the form's unit, unit in the clause; in the form's order
  ["accuracy", "min_accuracy", 100, ""],
  ["energy", "energy_mj", 1, "mJ"],
  ["power", "power_w", 1, "W"],
  ["p99", "p99_ms", 1, "ms"],
  ["p95", "p95_ms", 1, "ms"],
  ["mean", "mean_ms", 1, "ms"],
];
const OF_ALL = ["energy", "power"]; // those of all models together: no model has one of its own
let goalNow = null, goalSetAt = null; // as GET /v2/goal says it

function goalOfFigures() { // the limits that figures over all models can be held against
  if (!goalNow?.models) return goalNow;
  return Object.fromEntries(Object.entries(goalNow).filter(([name]) => OF_ALL.some((figure) => name.startsWith(`${figure}_`))));
}

async function goal(method, asked) { // read or change the goal; the form is hidden if the router follows no goal
  try {
    const response = await fetch("v2/goal", { method, body: asked && JSON.stringify(asked), headers: credentials() });
    const now = await response.json();
    if (!response.ok) return put($("goal-says"), method === "PUT" ? now.error : "");
    $("goal-open").hidden = !now.goal;
    goalNow = now.goal ? now : null;
    if (goalNow) fillGoalForm();
  } catch (error) {
    put($("goal-says"), `The goal could not be read: ${error.message}`);
  }
}

function fillGoalForm() { // with the goal of the model that is chosen, or with the general one
  const model = $("goal-model").value, own = goalNow.models?.[model], shown = own ?? goalNow;
  $("goal-objective").value = shown.objective === "accuracy" ? "max accuracy" : `min ${shown.objective}`;
  for (const [figure, field, size] of LIMITS) $(`goal-${figure}`).value = shown[field] ? +(size * shown[field]).toFixed(2) : "";
  for (const figure of OF_ALL) $(`goal-${figure}`).disabled = Boolean(model);
  $("goal-drop").hidden = !own;
  const others = Object.entries(goalNow.models ?? {}).map(([name, { goal }]) => `${name}: ${goal}`);
  put($("goal-says"), `Now: ${[goalNow.goal, ...others].join("; ")}`);
}

function goalInForm() { // as PUT /v2/goal takes it
  const model = $("goal-model").value || undefined;
  const clauses = LIMITS.map(([figure, , , unit]) => {
    const { value, disabled } = $(`goal-${figure}`);
    if (!value || disabled) return "";
    if (figure === "accuracy") return `accuracy>=${value > 1 ? value : value / 100}`; // up to 1, the server reads a share
    return `${figure}<=${value}${unit}`;
  });
  return { goal: [...clauses, $("goal-objective").value].filter(Boolean).join(", "), model };
}

function offerModels(models) { // with one model there is nothing to choose
  const offered = [...$("goal-model").options].slice(1).map(({ value }) => value);
  if (offered.join("\n") === models.join("\n")) return;
  $("goal-model").replaceChildren(make("option", { value: "" }, "all models"), ...models.map((name) => make("option", { value: name }, name)));
  $("goal-for").hidden = models.length < 2;
}

function followGoal(frame) { // somebody else may have set it
  const at = frame.happenings.findLast(({ kind }) => kind === "goal")?.at_s ?? goalSetAt;
  if (at !== goalSetAt) { goalSetAt = at; goal("GET"); }
  offerModels(frame.models);
}

$("goal-form").addEventListener("submit", (event) => { event.preventDefault(); goal("PUT", goalInForm()); });
$("goal-model").addEventListener("change", fillGoalForm);
$("goal-drop").addEventListener("click", () => goal("PUT", { goal: null, model: $("goal-model").value }));
$("goal-open").addEventListener("click", () => $("goal-dialog").showModal());
$("goal-close").addEventListener("click", () => $("goal-dialog").close());
