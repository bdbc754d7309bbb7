"use strict";
const byId = (id) => document.getElementById(id);
const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)} %`;
const share = (value) => `${100 * value}%`;
const cut = (text, size) => (text.length > size ? `${text.slice(0, Math.max(1, size - 1))}\u2026` : text);
let model = null;

// All text of the model and of requests is set as text, never as HTML.
function make(name, className, parent, text) {
  const created = document.createElement(name);
  if (className) created.className = className;
  if (text !== undefined) created.textContent = text;
  if (parent) parent.append(created);
  return created;
}
function draw(name, attributes, parent, text = "") {
  const created = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) created.setAttribute(key, attributes[key]);
  created.textContent = text;
  parent.append(created);
  return created;
}

async function request(path, body) {
  let answer;
  try {
    answer = await fetch(path, body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  } catch {
    throw new Error("The service does not answer; is it still running?");
  }
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}
function complain(text) { byId("problem").textContent = text || ""; byId("problem").hidden = !text; }

// The model in one sentence.
function introduce() {
  const { test, members } = model;
  document.title = byId("title").textContent = model.name;
  const size = members > 1 ? `${members} models` : "one model";
  const what = model.kind === "nodes" ? `${model.columns.length} ${model.columns.every(({ kind }) => kind === "class") ? "classes" : "outputs"} for ${model.nodes.toLocaleString("en")} nodes` : `${model.columns.length} tasks for any molecule`;
  let quality = "";
  if (test.right !== undefined) quality = ` On held-out nodes ${test.right} of ${test.tested} were right (95 % interval ${percent(test.interval[0], 0)} to ${percent(test.interval[1], 0)}).`;
  else if (test.score !== null && test.score !== undefined) {
    const range = test.interval ? ` (95 % interval ${test.interval.map((value) => value.toFixed(2)).join(" to ")})` : "";
    const metric = test.metric[0].toUpperCase() + test.metric.slice(1);
    quality = ` ${metric} on held-out data: ${test.score.toFixed(3)}${range}.`;
  }
  byId("lead").textContent = `${what}, predicted by ${size} (${model.model}).${quality}`;
  byId(model.kind === "nodes" ? "of-nodes" : "of-molecules").hidden = false;
  model.examples.forEach((name, i) => {
    byId("hint").append(i ? ", " : "For example ");
    make("a", "", byId("hint"), name.replace(/^<|>$/g, "")).href = `#${encodeURIComponent(name)}`;
  });
  if (model.kind !== "nodes") byId("smiles").focus();
  else {
    byId("search").focus();
    if (!model.new_nodes) {
      byId("no-new").textContent = "This model knows only the nodes of its graph. Train with node features (--features types,literals) to predict new ones.";
      byId("no-new").hidden = false;
      byId("triples").disabled = byId("go-new").disabled = true;
    }
  }
}

// Numbers in their units, then probabilities as bars, with the standard deviation over the ensemble.
function bars(parent, row) {
  const { probabilities, spreads, class: best } = row, columns = model.columns, numbers = columns.filter(({ kind }) => kind === "regression").length;
  columns.forEach(({ kind, title, unit }, i) => {
    if (kind !== "regression") return;
    const line = make("p", "verdict", parent);
    make("b", "", line, `${+probabilities[i].toPrecision(4)} ${unit}`);
    line.append(title + (model.members > 1 ? `, \u00b1 ${+spreads[i].toPrecision(2)}` : ""));
  });
  const list = make("dl", "bars", parent), order = columns.map((_, i) => i).filter((i) => columns[i].kind !== "regression");
  order.sort((a, b) => probabilities[b] - probabilities[a]).slice(0, 30).forEach((i) => {
    const tasks = !["class", "multi-class"].includes(columns[i].kind);
    make("dt", "", list, cut(columns[i].title, 80));
    const track = make("div", "track", make("dd", "", list));
    make("div", columns[i].name === best || (tasks && probabilities[i] >= 0.5) ? "fill best" : "fill", track).style.width = share(probabilities[i]);
    if (tasks) make("div", "half", track);
    if (spreads[i] > 0.0005) {
      const whisker = make("div", "spread", track), from = Math.max(0, probabilities[i] - spreads[i]);
      whisker.style.left = share(from);
      whisker.style.width = share(Math.min(1, probabilities[i] + spreads[i]) - from);
    }
    const value = make("dd", "value", list, percent(probabilities[i]));
    if (model.members > 1) make("small", "", value, ` \u00b1 ${(100 * spreads[i]).toFixed(1)}`);
  });
  if (order.length > 30) make("p", "fine", parent, `The ${order.length - 30} least probable are left out.`);
  list.hidden = numbers === columns.length;
  regions(parent, row);
}
function regions(parent, { coverage, sets, intervals, warning }) {
  const percentage = percent(coverage ?? 0, 0);
  for (const [name, classes] of Object.entries(sets)) {
    if (name === "class") make("p", "note", parent, `With ${percentage} coverage: ${classes.map(titleOf).join(" or ") || "no class"}.`);
  }
  const open = Object.entries(sets).filter(([name, classes]) => name !== "class" && classes.length !== 1).map(([name]) => name);
  if (open.length) make("p", "note", parent, `Undecided at ${percentage} coverage: ${open.join(", ")}.`);
  for (const [name, ends] of Object.entries(intervals)) make("p", "note", parent, `${name}: ${ends.map((end) => (end === null ? "unbounded" : +end.toPrecision(4))).join(" to ")} with ${percentage} coverage.`);
  if (warning) make("p", "problem", parent, `Unlike the training data: ${warning}.`);
}
function explainBars(parent) {
  const calibrated = model.calibration.held_out ? "Probabilities are calibrated on held-out data." : "Probabilities are the model's own, not calibrated.";
  make("p", "fine", parent, model.members > 1 ? `${calibrated} Whiskers: one standard deviation over the ${model.members} models.` : `${calibrated} With one model there is no spread; train with --ensemble 5 to see one.`);
}
const titleOf = (name) => model.columns.find((each) => each.name === name)?.title ?? name;

function showPrediction(answer, prediction) {
  const card = make("section", "card");
  make("h2", "", card, prediction.title);
  make("p", "iri", card, prediction.node.replace(/^<|>$/g, ""));
  const verdict = make("p", "verdict");
  if (prediction.class !== undefined) {
    card.append(verdict);
    make("b", "", verdict, titleOf(prediction.class));
    verdict.append(`with probability ${percent(prediction.probability)} `);
  }
  if (prediction.label) {
    const right = prediction.label === prediction.class;
    make("span", right ? "tag good" : "tag bad", verdict, right ? "as labelled" : `labelled ${titleOf(prediction.label)}`);
  }
  bars(card, prediction);
  for (const note of answer.notes) make("p", "fine", card, note);
  explainBars(card);
  return card;
}

function effectTable(parent, answer) {
  const { reasons, saturated, explanation } = answer;
  const size = (reason) => (saturated ? reason.log_odds : reason.points), isNumber = explanation.kind === "regression", unit = isNumber ? explanation.unit || "units" : saturated ? "log-odds" : "points";
  const card = make("section", "card", parent);
  make("h3", "", card, "What the prediction rests on");
  const words = make("div", "sentences", card), predicted = answer.shown[explanation.predicted] ?? explanation.predicted;
  make("p", "note", words, `Each triple is removed in turn, and ${isNumber ? "" : saturated ? "the log-odds of " : "the probability of "}${predicted} changes. ${isNumber ? "Green: the triple raises it; red: it lowers it." : "Green: the triple supports the prediction; red: it counts against it."}`);
  answer.sentences.slice(1).forEach((sentence) => make("p", "note", words, sentence));
  const table = make("table", "", make("div", "scroll", card)), head = make("tr", "", make("thead", "", table));
  for (const text of ["triple", "attention", `change without it, ${unit}`]) make("th", "", head, text);
  const body = make("tbody", "", table), most = Math.max(1e-9, ...reasons.map((reason) => Math.abs(size(reason))));
  for (const reason of reasons.slice(0, 20)) {
    const row = make("tr", "", body), [subject, relation, object] = reason.triple, cell = make("td", "", row, `${subject} `);
    make("span", "relation", cell, relation);
    cell.append(` ${object}`);
    make("td", "", row, reason.attention === null ? "literal" : percent(reason.attention));
    const both = make("div", "both", make("td", "effect", row)), axis = make("div", "axis", both);
    make("i", size(reason) <= 0 ? "for" : "against", axis).style.width = `${(50 * Math.abs(size(reason))) / most}%`;
    make("span", "", both, `${size(reason) > 0 ? "+" : ""}${size(reason).toFixed(saturated || isNumber ? 2 : 1)}`);
  }
  if (!reasons.length) make("p", "note", card, "No triple near this node changes its prediction.");
}

function keyed(figure, keys) {
  const caption = make("figcaption", "", figure);
  for (const [name, text] of keys) { make("span", `key ${name}`, caption); caption.append(text); }
}
function showExplanation(figure, answer) {
  figure.replaceChildren();
  const svg = draw("svg", { role: "group", "aria-label": "Triples around the node, by their effect" }, figure);
  keyed(figure, [["for", "supports the prediction"], ["against", "counts against it; the wider, the larger the effect. Click a node to see its own prediction."]]);
  (onresize = () => picture(svg, answer))();
  effectTable(byId("result"), answer);
}

// One question at a time: an answer that comes late is dropped.
let turn = 0;
async function askNode(paths, body, explainBody) {
  const mine = ++turn, result = byId("result");
  complain();
  try {
    const answer = await request(paths.predict, body);
    if (mine !== turn) return;
    const grid = make("div", "grid"), prediction = answer.predictions[0];
    grid.append(showPrediction(answer, prediction));
    const figure = make("figure", "card picture", grid);
    make("p", "wait", figure, "Removing triples one by one to see which matter \u2026");
    result.replaceChildren(grid);
    if (answer.predictions.length > 1) make("p", "note", result, `${answer.predictions.length} new nodes; the first is shown. POST /predict/new returns all.`);
    const explanation = await request(paths.explain, explainBody(prediction.node));
    if (mine === turn) showExplanation(figure, Object.assign(explanation, { isNew: paths.predict !== "/predict" }));
  } catch (error) {
    if (mine !== turn) return;
    result.querySelector(".wait")?.replaceChildren("No explanation.");
    complain(error.message);
  }
}
function askKnown(node) { return askNode({ predict: "/predict", explain: "/explain" }, { nodes: [node] }, () => ({ node })); }
function askNew() {
  const triples = byId("triples").value;
  return askNode({ predict: "/predict/new", explain: "/explain/new" }, { triples }, (node) => ({ triples, node }));
}

async function askMolecule(smiles, task) {
  const mine = ++turn, result = byId("result");
  complain();
  try {
    const answer = await request("/predict", { smiles: [smiles] }), prediction = answer.predictions[0];
    if (mine !== turn) return;
    if (prediction.problem) throw new Error(`This ${prediction.problem}.`);
    const card = make("section", "card");
    make("h2", "", card, smiles);
    if (model.columns.some(({ kind }) => kind !== "regression")) make("p", "iri", card, "Probability of a positive result in each task; the dashed line is one half.");
    bars(card, prediction);
    explainBars(card);
    const explanation = await request("/explain", task ? { smiles, task } : { smiles });
    if (mine !== turn) return;
    result.replaceChildren();
    const grid = make("div", "grid", result), pair = make("div", "pair");
    grid.append(card);
    drawMolecule(grid, explanation, "effect", [["raises", `raises the ${explanation.explanation.kind === "regression" ? "value" : "probability"}`], ["lowers", "lowers it"]], model.columns.map(({ name }) => name), smiles);
    result.append(pair);
    drawMolecule(pair, explanation, "attention", [["shares", "share of the attention that starts here"]]);
    atomTable(pair, explanation);
  } catch (error) {
    if (mine !== turn) return;
    result.replaceChildren();
    complain(error.message);
  }
}
function drawMolecule(parent, answer, shade, keys, tasks, smiles) {
  const figure = make("figure", "card", parent), { task } = answer.explanation;
  const head = make("h3", "", figure, shade === "effect" ? "Effect of each atom and bond on " : `Attention for ${task}`);
  if (tasks) {
    const choice = make("select", "", head);
    choice.setAttribute("aria-label", "Task");
    for (const name of tasks) make("option", "", choice, name).selected = name === task;
    choice.addEventListener("change", () => askMolecule(smiles, choice.value));
  }
  const image = make("img", "molecule", figure); // an image runs no scripts
  image.alt = `The molecule, shaded by ${shade}`;
  image.src = `data:image/svg+xml,${encodeURIComponent(answer.svg[shade])}`;
  keyed(figure, keys);
}
function atomTable(parent, answer) {
  const card = make("section", "card", parent);
  const { kind, unit } = answer.explanation, isNumber = kind === "regression";
  make("h3", "", card, `Change of the ${isNumber ? "number" : "probability"} without an atom or a bond`);
  const table = make("table", "", make("div", "scroll", card)), head = make("tr", "", make("thead", "", table));
  for (const text of ["atom or bond", "attention", isNumber ? unit || "units" : "points"]) make("th", "", head, text);
  const body = make("tbody", "", table);
  for (const [name, attention, effect] of answer.rows.slice(0, 12)) {
    const row = make("tr", "", body);
    for (const text of [name, percent(attention), `${effect > 0 ? "+" : ""}${isNumber ? effect.toFixed(2) : (100 * effect).toFixed(1)}`]) make("td", "", row, text);
  }
}

// Completion of names.
let active = -1, typed = 0, search = byId("search"), hits = byId("hits");
function close() { hits.hidden = true; active = -1; search.setAttribute("aria-expanded", "false"); search.removeAttribute("aria-activedescendant"); }
function mark(number) {
  const items = [...hits.querySelectorAll("[role=option]")];
  active = items.length ? (number + items.length) % items.length : -1;
  items.forEach((item, i) => item.setAttribute("aria-selected", String(i === active)));
  if (active >= 0) { items[active].scrollIntoView({ block: "nearest" }); search.setAttribute("aria-activedescendant", items[active].id); }
}
function choose(name) {
  close();
  const hash = `#${encodeURIComponent(name)}`;
  if (location.hash === hash) askKnown(name); else location.hash = hash;
  byId("tab-known").click();
}
async function complete() {
  const mine = ++typed, wanted = search.value.trim().slice(0, 200);
  if (!wanted) return close();
  try {
    const found = (await request(`/search?q=${encodeURIComponent(wanted)}`)).nodes;
    if (mine !== typed) return;
    hits.replaceChildren();
    found.forEach(({ name, title }, i) => {
      const item = make("li", "", hits, title || name.replace(/^<|>$/g, ""));
      item.id = `hit-${i}`;
      item.setAttribute("role", "option");
      item.dataset.name = name;
      if (title) make("small", "", item, name.replace(/^<|>$/g, ""));
      item.addEventListener("pointerdown", (event) => { event.preventDefault(); choose(name); });
    });
    if (!found.length) make("li", "none", hits, "No node has this in its name or title.");
    hits.hidden = false;
    search.setAttribute("aria-expanded", "true");
    mark(0);
  } catch (error) { complain(error.message); }
}
search.addEventListener("input", complete);
search.addEventListener("blur", close);
search.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); mark(active + (event.key === "ArrowDown" ? 1 : -1)); }
  if (event.key === "Escape") close();
});
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (model.kind === "molecules") return void (location.hash = `#${encodeURIComponent(byId("smiles").value.trim())}`);
  if (!byId("new").hidden) return void askNew();
  const chosen = hits.querySelector("[aria-selected=true]");
  if (!hits.hidden && chosen) choose(chosen.dataset.name);
  else if (search.value.trim()) choose(search.value.trim());
});
for (const name of ["known", "new"])
  byId(`tab-${name}`).addEventListener("click", () => {
    for (const other of ["known", "new"]) {
      byId(other).hidden = other !== name;
      byId(`tab-${other}`).setAttribute("aria-selected", String(other === name));
    }
    complain();
  });

// The address keeps what is shown, so that it can be sent to others.
function arrive() {
  let wanted = "";
  try { wanted = decodeURIComponent(location.hash.slice(1)); } catch { /* not an address of this page */ }
  byId("hint").hidden = Boolean(wanted) || !model.examples.length;
  if (!wanted) return;
  if (model.kind === "nodes") { search.value = wanted.replace(/^<|>$/g, ""); askKnown(wanted); }
  else { byId("smiles").value = wanted; askMolecule(wanted); }
}
addEventListener("hashchange", arrive);

const tip = byId("tip");
document.addEventListener("pointermove", (event) => {
  const text = event.target.closest?.("[data-tip]")?.dataset.tip ?? "";
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 16, innerHeight - box.height - 4))}px`;
});

// Colour theme: as in the system, light or dark; remembered if the browser allows it.
const theme = document.querySelector(".theme"), themes = ["system", "light", "dark"];
function paint(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  theme.ariaLabel = theme.textContent = `Colours: ${name}`;
  theme.value = name;
}
paint("system");
try { if (themes.includes(localStorage.getItem("rgat-theme"))) paint(localStorage.getItem("rgat-theme")); } catch { /* private windows have no storage */ }
theme.addEventListener("click", () => {
  paint(themes[(themes.indexOf(theme.value) + 1) % themes.length]);
  try { localStorage.setItem("rgat-theme", theme.value); } catch { /* see above */ }
});

request("/model").then((answer) => { model = answer; introduce(); arrive(); }, (error) => complain(error.message));
