"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// Checkboxes: hide the unchecked studies and models in tables, charts and contents.
function pick() {
  for (const kind of ["study", "model"]) {
    const boxes = all(`input[data-pick="${kind}"]`);
    const off = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
    for (const element of all(`[data-${kind}]`))
      element.classList.toggle("off", off.has(element.dataset[kind]) || (kind === "model" && off.has(element.dataset.other)));
  }
  for (const row of all("tr.group")) {
    let next = row.nextElementSibling, some = false;
    for (; next && !next.matches(".group"); next = next.nextElementSibling) some ||= !next.matches(".off");
    row.classList.toggle("off", !some);
  }
}
all("input[data-pick]").forEach((box) => box.addEventListener("change", pick));

// Sort buttons: descending, ascending, then back to the order of the paper.
for (const table of all("table")) {
  const body = table.tBodies[0], original = [...body.rows], heads = all("thead th", table);
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const order = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort ?? "none"];
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    if (order === "none") return body.append(...original), original.forEach((row) => (row.hidden = false));
    head.setAttribute("aria-sort", order);
    const key = (row) => row.cells[column].dataset.value;
    const rows = original.filter((row) => !row.matches(".group")).sort((a, b) => {
      const x = key(a), y = key(b), sign = order === "ascending" ? 1 : -1;
      if (x !== undefined && y !== undefined) return sign * (x - y);
      if (x !== undefined || y !== undefined) return x === undefined ? 1 : -1;
      return sign * a.cells[column].textContent.localeCompare(b.cells[column].textContent);
    });
    original.forEach((row) => (row.hidden = row.matches(".group")));
    body.append(...rows);
  }));
}

// Hovering: show the tip of a mark; on a chart of lines, show the values at the nearest point of a visible line.
const tip = document.getElementById("tip");
const points = new WeakMap();
function pointsOf(line) {
  if (!points.has(line)) {
    const numbers = line.querySelector("path").getAttribute("d").match(/-?[\d.]+/g).map(Number);
    points.set(line, numbers);
  }
  return points.get(line);
}
function value(position, scale, log) {
  const [p0, p1, v0, v1] = scale.split(" ").map(Number), share = (position - p0) / (p1 - p0);
  return log ? v0 * (v1 / v0) ** share : v0 + share * (v1 - v0);
}
function nearest(svg, event) {
  const here = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  let best = { distance: 40 };
  for (const line of all("[data-line]:not(.off)", svg)) {
    const xy = pointsOf(line);
    for (let i = 0; i < xy.length; i += 2) {
      const distance = Math.hypot(xy[i] - here.x, xy[i + 1] - here.y);
      if (distance < best.distance) best = { distance, line, x: xy[i], y: xy[i + 1] };
    }
  }
  if (!best.line) return "";
  const { x, y, xlabel, ylabel, yscale } = svg.dataset, short = (number) => +number.toPrecision(4);
  return `${best.line.dataset.line}: ${xlabel} ${short(value(best.x, x))}, ${ylabel} ${short(value(best.y, y, yscale === "log"))}`;
}
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest?.("[data-tip]"), svg = event.target.closest?.("svg[data-x]");
  const text = mark ? mark.dataset.tip : svg ? nearest(svg, event) : "";
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = tip.getBoundingClientRect(), { innerWidth, innerHeight } = window;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 16, innerHeight - box.height - 4))}px`;
});

// Colour theme: as in the system, light or dark; remembered if the browser allows it.
const theme = document.querySelector(".theme"), themes = ["system", "light", "dark"];
function paint(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  theme.textContent = `Colours: ${name}`;
  theme.setAttribute("aria-label", theme.textContent);
  theme.value = name;
}
let stored = null;
try { stored = localStorage.getItem("rgat-theme"); } catch { /* private windows have no storage */ }
paint(themes.includes(stored) ? stored : "system");
theme.addEventListener("click", () => {
  paint(themes[(themes.indexOf(theme.value) + 1) % themes.length]);
  try { localStorage.setItem("rgat-theme", theme.value); } catch { /* see above */ }
});

// On a phone, start with the menu closed.
if (matchMedia("(max-width: 60rem)").matches) document.querySelector(".menu").open = false;
pick();
