"use strict";
// The picture of a node's reasons: edges as a tree around the node, green for and red against the prediction.
const INVERSE = "inverse of ";
function tree(explanation, most) {
  const edges = new Map(), size = (reason) => Math.abs(reason.log_odds);
  for (const reason of [...explanation.reasons].sort((a, b) => size(b) - size(a))) {
    const ends = [reason.source, reason.target].sort(), relation = reason.relation.replace(INVERSE, "");
    const key = JSON.stringify([...ends, relation]);
    if (edges.has(key)) edges.get(key).attention += reason.attention;
    else if (edges.size < most) edges.set(key, { ...reason, relation });
  }
  const root = { name: explanation.node, children: [] }, placed = new Map([[explanation.node, root]]);
  const hang = (name, parent, edge) => {
    const child = { name, edge, children: [] };
    parent.children.push(child);
    if (!placed.has(name)) placed.set(name, child);
    return child;
  };
  for (const edge of edges.values()) {
    const other = edge.source === root.name ? edge.target : edge.source;
    if (edge.source === root.name || edge.target === root.name) hang(other, root, edge);
  }
  for (const edge of edges.values()) {
    if (edge.source === root.name || edge.target === root.name) continue;
    const parent = placed.get(edge.target) ?? hang(edge.target, root, null);
    if (parent !== root && !parent.far) hang(edge.source, parent, edge).far = true;
  }
  return root;
}
function leaves(node) { return node.children.length ? node.children.reduce((sum, child) => sum + leaves(child), 0) : 1; }
function picture(svg, answer) {
  const { explanation, shown } = answer, box = svg.getBoundingClientRect();
  const width = Math.max(280, box.width), height = Math.max(340, box.height), root = tree(explanation, width < 480 ? 9 : 16);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const cx = width / 2, cy = height / 2, rx = Math.max(80, width / 2 - Math.min(130, width * 0.22)), ry = height / 2 - 40;
  const total = leaves(root), deep = root.children.some((child) => child.children.length), marks = [];
  const most = Math.max(1e-9, ...explanation.reasons.map((reason) => Math.abs(reason.log_odds)));
  const lines = draw("g", {}, svg), short = (name) => shown[name] ?? name;
  let slot = 0;
  const place = (node, depth, parent) => {
    const first = slot;
    if (!node.children.length) slot += 1;
    const middle = first + (node.children.length ? leaves(node) : 1) / 2;
    const angle = (2 * Math.PI * middle) / total - Math.PI / 2, far = depth === 0 ? 0 : depth === 1 && deep && node.children.length ? 0.5 : depth === 1 && deep ? 0.72 : 1;
    Object.assign(node, { x: cx + far * rx * Math.cos(angle), y: cy + far * ry * Math.sin(angle), side: Math.cos(angle) });
    if (parent) {
      const edge = node.edge, kind = !edge ? "plain" : edge.log_odds <= 0 ? "for" : "against";
      const line = draw("line", { x1: parent.x, y1: parent.y, x2: node.x, y2: node.y, class: kind, "stroke-width": edge ? 1.2 + 7 * Math.abs(edge.log_odds) / most : 1.2, "stroke-opacity": 0.75 }, lines);
      if (edge) line.dataset.tip = `${short(edge.source)} \u2192 ${short(edge.target)}\n${short(edge.relation)}\nwithout it, log-odds ${edge.log_odds > 0 ? "+" : ""}${edge.log_odds.toFixed(2)}; attention ${percent(edge.attention)}`;
    }
    marks.push([node, depth]);
    for (const child of node.children) place(child, depth + 1, node);
  };
  place(root, 0, null);
  for (const [node, depth] of marks) {
    const group = draw("g", { tabindex: 0, role: "button", "aria-label": short(node.name), transform: `translate(${node.x} ${node.y})` }, svg);
    group.dataset.tip = node.name;
    draw("circle", { r: depth === 0 ? 11 : depth === 1 ? 7 : 5, class: depth === 0 ? "root" : "" }, group);
    const flat = depth === 0 || Math.abs(node.side) < 0.12 || node.children.length, up = node.y < cy;
    const room = flat ? 24 : Math.max(5, Math.floor((node.side > 0 ? width - node.x - 14 : node.x - 14) / 6.4));
    const dy = depth === 0 ? 27 : flat ? (up ? -15 : 19) : 4;
    draw("text", { x: flat ? 0 : node.side > 0 ? 12 : -12, y: dy, "text-anchor": flat ? "middle" : node.side > 0 ? "start" : "end", class: depth === 0 ? "centre" : "" }, group, cut(short(node.name), Math.min(room, 30)));
    const visit = () => { if (model.kind === "nodes" && !answer.isNew) choose(node.name); };
    group.addEventListener("click", visit);
    group.addEventListener("keydown", (event) => { if (event.key === "Enter") visit(); });
  }
}
