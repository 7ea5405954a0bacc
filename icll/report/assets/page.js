"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const NS = "http://www.w3.org/2000/svg";

// Elements, in one call: name, attributes, children.
const make = (space) => (name, attributes = {}, ...children) => {
  const node = space ? document.createElementNS(NS, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined));
  return node;
};
const html = make(false), svg = make(true);
const number = (x, digits = 3) => (x === null || x === undefined ? "" : x.toFixed(digits));
const short = (x) => x >= 1e6 ? `${(x / 1e6).toPrecision(3)}M` : x >= 1e4 ? `${Math.round(x / 1e3)}k` : `${Math.round(x)}`;

// --- light and dark ---
const system = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
const dark = () => (chosen === null ? system.matches : chosen === "dark");
const colour = (i) => (dark() ? data.dark_colours : data.colours)[i % data.colours.length];
const redraws = [];
function theme() {
  document.documentElement.dataset.theme = dark() ? "dark" : "light";
  redraws.forEach((redraw) => redraw());
}
$("theme").addEventListener("click", () => { chosen = dark() ? "light" : "dark"; theme(); });
system.addEventListener("change", theme);

// --- what is under the pointer ---
const tip = $("tip");
function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 4))}px`;
  tip.style.top = `${event.clientY + 14 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 14}px`;
}
const hideTip = () => { tip.hidden = true; };
const tipped = (node, text) => {
  for (const kind of ["pointermove", "click"]) node.addEventListener(kind, (event) => showTip(event, text)); // a tap is a click
  node.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hideTip(); });
  node.dataset.tip = text;
  return node;
};
document.addEventListener("pointerdown", (event) => { if (!event.target.closest("[data-tip]")) hideTip(); });
// A picture that the keyboard can read: arrows go from mark to mark, and the tip, which is announced, tells each.
function readable(picture) {
  let at = -1;
  picture.setAttribute("tabindex", 0);
  picture.addEventListener("keydown", (event) => {
    const marks = [...picture.querySelectorAll("[data-tip]")], move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") hideTip();
    if (!move || !marks.length || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    at = at < 0 && move < 0 ? marks.length - 1 : (at + move + marks.length) % marks.length;
    const box = marks[at].getBoundingClientRect();
    showTip({ clientX: box.right, clientY: box.top + box.height / 2 }, marks[at].dataset.tip);
    picture.querySelectorAll(".current").forEach((node) => node.classList.remove("current"));
    marks[at].classList.add("current");
  });
  picture.addEventListener("blur", () => { hideTip(); picture.querySelectorAll(".current").forEach((node) => node.classList.remove("current")); });
  return picture;
}

// --- explorer ---
const ex = data.explorer;
const V = ex.symbols.length;
const cache = new Map();
function probs(p, k) { // Float64Array [L * V] of predictor k on problem p
  const key = `${p}/${k}`;
  if (!cache.has(key)) {
    const bytes = Uint8Array.from(atob(ex.problems[p].probs[k]), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const out = new Float64Array(bytes.length / 2);
    for (let i = 0; i < out.length; i++) out[i] = view.getUint16(2 * i, true) / ex.scale;
    cache.set(key, out);
  }
  return cache.get(key);
}
const tvds = new Map();
function tvd(p, k) { // distance to the truth at each token, and its mean over scored tokens so far
  const key = `${p}/${k}`;
  if (!tvds.has(key)) {
    const a = probs(p, k), truth = probs(p, 0), L = ex.problems[p].tokens.length;
    const here = new Float64Array(L), soFar = new Float64Array(L);
    let sum = 0, count = 0;
    for (let t = 0; t < L; t++) {
      let d = 0;
      for (let v = 0; v < V; v++) d += Math.abs(a[t * V + v] - truth[t * V + v]);
      here[t] = d / 2;
      if (ex.problems[p].scored[t]) { sum += here[t]; count += 1; }
      soFar[t] = count ? sum / count : NaN;
    }
    tvds.set(key, { here, soFar });
  }
  return tvds.get(key);
}
const state = { p: 0, t: 60, n: 2, off: new Set(), timer: null };
const problem = () => ex.problems[state.p];

function arrowHead(id) {
  return svg("marker", { id, viewBox: "0 0 10 10", refX: 8.5, refY: 5, markerWidth: 0.17, markerHeight: 0.17, markerUnits: "userSpaceOnUse", orient: "auto-start-reverse" },
    svg("path", { d: "M0 0.8 L10 5 L0 9.2 z", fill: "context-stroke" }));
}
let drawings = 0;
function drawAutomaton(a, lit, taken) {
  const mark = `head${drawings++}`;
  const leaving = (s) => a.arrows.filter((e) => e.from === s).map((e) => `${e.symbols} to ${e.to}`);
  const name = lit === undefined ? "automaton" : `automaton in state ${lit}: ${leaving(lit).join("; ")}`;
  const root = svg("svg", { viewBox: a.box.join(" "), role: "img", "aria-label": name }, svg("defs", {}, arrowHead(mark)));
  const line = (from, middle, to, kind) => svg("path", { class: `arrow ${kind}`, d: `M${from} Q${middle} ${to}`, "marker-end": `url(#${mark})` });
  root.append(svg("path", { class: "arrow", d: `M${a.start[0]} L${a.start[1]}`, "marker-end": `url(#${mark})` }));
  for (const e of a.arrows) {
    const kind = taken && e.from === taken[0] && e.to === taken[1] && e.symbols.split(",").includes(taken[2]) ? "taken" : e.from === lit ? "open" : "";
    root.append(line(e.start, e.control, e.end, kind));
  }
  for (const e of a.arrows) root.append(svg("text", { class: "symbol halo", x: e.label[0], y: e.label[1] + 0.07, "text-anchor": "middle", style: "font-size:0.22px" }, e.symbols));
  a.places.forEach(([x, y], s) => {
    root.append(tipped(svg("circle", { class: s === lit ? "state lit" : "state", cx: x, cy: y, r: 0.22, "data-state": s }), `state ${s}\n${leaving(s).join("\n")}`),
      svg("text", { x, y: y + 0.075, "text-anchor": "middle", style: "font-size:0.22px;pointer-events:none" }, String(s)));
  });
  return root;
}

function contextMatches(tokens, t, n) { // earlier ends k < t of the n tokens that end at t
  const found = [];
  if (t + 1 < n) return found;
  for (let k = n - 1; k < t; k++) {
    let same = true;
    for (let i = 0; i < n && same; i++) same = tokens[k - i] === tokens[t - i];
    if (same) found.push(k);
  }
  return found;
}

let spans = [];
function showProblem() {
  const box = $("tokens");
  spans = problem().tokens.map((token, i) => html("span", { "data-i": i }, ex.symbols[token]));
  box.replaceChildren(...spans);
  $("slider").max = problem().tokens.length - 1;
  $("problem").value = state.p;
  step(Math.min(state.t, problem().tokens.length - 1));
}
function step(t) {
  const { tokens, states } = problem();
  state.t = Math.max(0, Math.min(tokens.length - 1, t));
  t = state.t;
  const n = state.n, ends = contextMatches(tokens, t, n);
  const kinds = new Array(tokens.length).fill("");
  for (let i = t + 1; i < tokens.length; i++) kinds[i] = "ahead";
  const followers = {};
  for (const k of ends) {
    for (let i = 0; i < n; i++) kinds[k - i] = "match";
  }
  for (const k of ends) {
    kinds[k + 1] = "follow";
    const name = ex.symbols[tokens[k + 1]];
    followers[name] = (followers[name] || 0) + 1;
  }
  for (let i = 0; i < n && i <= t; i++) if (kinds[t - i] === "" || kinds[t - i] === "match") kinds[t - i] = "match";
  spans.forEach((span, i) => { span.className = i === t ? "now" : kinds[i]; });
  const box = $("tokens"), at = spans[t].offsetTop;
  if (at < box.scrollTop + 20 || at > box.scrollTop + box.clientHeight - 50) box.scrollTop = at - box.clientHeight / 2;
  $("slider").value = t;
  $("where").textContent = `${t + 1} of ${tokens.length}`;
  const context = t + 1 < n ? "" : tokens.slice(t + 1 - n, t + 1).map((x) => ex.symbols[x]).join("");
  const counts = Object.entries(followers).sort((a, b) => b[1] - a[1]).map(([name, count]) => `${name} ${count}×`).join(", ");
  $("matches").textContent = context ? `“${context}” occurred ${ends.length} times before${counts ? `, followed by ${counts}` : ""}.` : "";
  const before = t ? states[t - 1] : 0;
  const symbol = tokens[t] === ex.separator ? null : ex.symbols[tokens[t]];
  refill($("automaton"), [readable(drawAutomaton(problem().automaton, states[t], symbol ? [before, states[t], symbol] : null))]);
  showCards();
}
function refill(box, children) { // the keyboard's focus stays at its place
  const pictures = () => [...box.querySelectorAll("[tabindex]")], at = pictures().indexOf(document.activeElement);
  box.replaceChildren(...children);
  if (at >= 0) pictures()[at]?.focus({ preventScroll: true });
}
function showCards() {
  const { p, t } = state, truth = probs(p, 0);
  const used = new Set(problem().tokens.filter((x) => x !== ex.separator));
  const symbols = [];
  for (let v = 1; v < V; v++) if (used.has(v) || (v !== ex.separator && truth[t * V + v] > 0)) symbols.push(v);
  const width = 220, height = 84, base = height - 16, room = width / symbols.length;
  refill($("cards"), ex.predictors.map((predictor, k) => {
    if (state.off.has(k)) return null;
    const a = probs(p, k), distance = tvd(p, k);
    const said = symbols.filter((v) => a[t * V + v] >= 0.005).map((v) => `${ex.symbols[v]} ${a[t * V + v].toFixed(2)}`).join(", ");
    const picture = readable(svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Next token by ${predictor.name}: ${said}` }));
    symbols.forEach((v, i) => {
      const value = a[t * V + v], legal = truth[t * V + v] > 0, x = i * room + room * 0.14, tall = (base - 4) * value;
      const bar = svg("rect", { x, y: base - tall, width: room * 0.72, height: tall, fill: legal ? colour(k === 0 ? 2 : 0) : colour(1), "fill-opacity": legal ? 1 : 0.6, "data-symbol": ex.symbols[v], "data-p": value.toFixed(4) });
      const area = svg("rect", { x: i * room, y: 0, width: room, height, fill: "transparent" });
      picture.append(bar);
      if (k) { const y = base - (base - 4) * truth[t * V + v]; if (legal) picture.append(svg("line", { x1: i * room, x2: (i + 1) * room, y1: y, y2: y, stroke: colour(2), "stroke-width": 2 })); }
      picture.append(svg("text", { x: (i + 0.5) * room, y: height - 3, "text-anchor": "middle", class: legal ? "" : "soft", style: `font-size:11px;${legal ? "font-weight:700" : ""}` }, ex.symbols[v]));
      picture.append(tipped(area, `${predictor.name}\n${ex.symbols[v]}: ${value.toFixed(3)} (truth ${truth[t * V + v].toFixed(3)})`));
    });
    picture.append(svg("line", { x1: 0, x2: width, y1: base, y2: base, class: "axis" }));
    let rest = 0;
    for (let v = 0; v < V; v++) if (!symbols.includes(v)) rest += a[t * V + v];
    const line = k === 0 ? "the language itself" : `TVD ${distance.here[t].toFixed(3)} · so far ${Number.isFinite(distance.soFar[t]) ? number(distance.soFar[t]) : "–"}`;
    return html("article", { class: "card", "data-predictor": predictor.name, "data-tvd": distance.here[t].toFixed(4), "data-so-far": distance.soFar[t].toFixed(4) },
      html("h4", {}, predictor.name), picture, html("p", {}, line), rest > 0.0005 ? html("p", {}, `${rest.toFixed(3)} elsewhere`) : null);
  }).filter(Boolean));
}
function stringStart(direction) { // of this string or the one before; or of the next
  const { tokens } = problem();
  let t = state.t + direction;
  while (t > 0 && t < tokens.length - 1 && tokens[t] !== ex.separator) t += direction;
  return t;
}
function play(on) {
  clearInterval(state.timer);
  state.timer = on ? setInterval(() => { if (state.t >= problem().tokens.length - 1) play(false); else step(state.t + 1); }, 450) : null;
  $("play").textContent = on ? "pause" : "play";
  $("play").setAttribute("aria-label", on ? "Pause" : "Play");
}
function pick(p) { state.p = (p + ex.problems.length) % ex.problems.length; state.t = 0; play(false); showProblem(); }

function startExplorer() {
  if (!ex.problems.length) { $("explorer").hidden = true; return; }
  ex.problems.forEach((one, i) => $("problem").append(html("option", { value: i }, `${one.number} (${one.automaton.places.length} states, ${one.tokens.length} tokens)`)));
  ex.predictors.forEach((predictor, k) => $("predictors").append(toggle(predictor.name, null, (on) => { if (on) state.off.delete(k); else state.off.add(k); showCards(); })));
  $("problem").addEventListener("change", (event) => pick(Number(event.target.value)));
  $("context").addEventListener("change", (event) => { state.n = Number(event.target.value); step(state.t); });
  $("slider").addEventListener("input", (event) => { play(false); step(Number(event.target.value)); });
  $("tokens").addEventListener("click", (event) => { const i = event.target.dataset.i; if (i !== undefined) { play(false); step(Number(i)); $("tokens").focus({ preventScroll: true }); } });
  const buttons = { first: () => step(0), back: () => step(state.t - 1), forward: () => step(state.t + 1), last: () => step(1e9) };
  for (const [id, act] of Object.entries(buttons)) $(id).addEventListener("click", () => { play(false); act(); });
  $("play").addEventListener("click", () => play(state.timer === null));
  const anywhere = { ArrowLeft: () => step(state.t - 1), ArrowRight: () => step(state.t + 1), "[": () => pick(state.p - 1), "]": () => pick(state.p + 1) };
  const inside = { ...anywhere, ArrowUp: () => step(stringStart(-1)), ArrowDown: () => step(stringStart(1)), Home: () => step(0), End: () => step(1e9) }; // outside these scroll the page
  document.addEventListener("keydown", (event) => {
    const keys = $("explorer").contains(event.target) ? inside : anywhere;
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.id !== "slider") return;
    const box = $("explorer").getBoundingClientRect();
    if (box.bottom < 80 || box.top > innerHeight - 80) return; // out of sight: the keys scroll, as always
    event.preventDefault();
    play(false);
    keys[event.key]();
  });
  redraws.push(() => step(state.t));
  showProblem();
}
function toggle(name, swatch, act) {
  const button = html("button", { type: "button", "aria-pressed": "true", "data-name": name }, swatch, name);
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    act(on);
  });
  return button;
}

// --- figures ---
const MARKS = [
  (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (x, y, r) => `M${x} ${y - r}l${r} ${1.8 * r}h${-2 * r}z`,
  (x, y, r) => `M${x} ${y - 1.2 * r}l${1.2 * r} ${1.2 * r}l${-1.2 * r} ${1.2 * r}l${-1.2 * r} ${-1.2 * r}z`,
  (x, y, r) => `M${x} ${y + r}l${r} ${-1.8 * r}h${-2 * r}z`,
  (x, y, r) => `M${x - r} ${y - r / 3}h${r * 0.67}v${-r * 0.67}h${r * 0.67}v${r * 0.67}h${r * 0.67}v${r * 0.67}h${-r * 0.67}v${r * 0.67}h${-r * 0.67}v${-r * 0.67}h${-r * 0.67}z`,
  (x, y, r) => `M${x - r} ${y - r}l${r} ${r * 0.6}l${r} ${-r * 0.6}l${-r * 0.6} ${r}l${r * 0.6} ${r}l${-r} ${-r * 0.6}l${-r} ${r * 0.6}l${r * 0.6} ${-r}z`,
  (x, y, r) => `M${x} ${y - 1.3 * r}l${0.4 * r} ${0.9 * r}l${0.9 * r} ${0.4 * r}l${-0.9 * r} ${0.4 * r}l${-0.4 * r} ${0.9 * r}l${-0.4 * r} ${-0.9 * r}l${-0.9 * r} ${-0.4 * r}l${0.9 * r} ${-0.4 * r}z`,
];
function ticks(low, high, count = 5) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const out = [];
  for (let x = Math.ceil(low / unit - 1e-9) * unit; x <= high + unit * 1e-6; x += unit) out.push(Math.abs(x) < unit * 1e-6 ? 0 : x);
  return out;
}
const plain = (x) => Number(x.toFixed(6)).toLocaleString("en");

// A panel that can be enlarged: `draw(view, width)` returns an svg and the plot's rectangle in it, [left, top, width, height].
function zoomable(holder, whole, draw) {
  let view = whole.map((pair) => [...pair]), plot = null, picture = null, from = null, band = null;
  const tools = html("span", { class: "zoom" });
  const redraw = () => {
    const made = draw(view, Math.max(280, holder.clientWidth || 420));
    plot = made.plot;
    const focused = picture !== null && picture === document.activeElement;
    if (picture) picture.replaceWith(made.picture); else holder.append(made.picture);
    picture = readable(made.picture);
    if (focused) picture.focus({ preventScroll: true });
    picture.addEventListener("keydown", shift, true);
    picture.addEventListener("pointerdown", begin);
    picture.addEventListener("dblclick", reset);
  };
  const reset = () => { view = whole.map((pair) => [...pair]); redraw(); };
  const fit = ([a, b], i) => { // within the whole, and not so narrow that numbers on the axis are all the same
    const range = whole[i][1] - whole[i][0], middle = (a + b) / 2, half = Math.max(range * 1e-3, Math.min(b - a, range)) / 2;
    const low = Math.max(whole[i][0], Math.min(middle - half, whole[i][1] - 2 * half));
    return [low, low + 2 * half];
  };
  const scale = (factor) => {
    view = view.map(([a, b], i) => fit([(a + b) / 2 - (factor * (b - a)) / 2, (a + b) / 2 + (factor * (b - a)) / 2], i));
    redraw();
  };
  const shift = (event) => { // a quarter of what is seen, before `readable` takes the arrows
    const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [1, 1], ArrowDown: [1, -1] }[event.key];
    if (!event.shiftKey || !by) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const [i, sign] = by, quarter = (sign * (view[i][1] - view[i][0])) / 4;
    view[i] = fit(view[i].map((x) => x + quarter), i);
    redraw();
  };
  const place = (event) => { const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(picture.getScreenCTM().inverse()); return [p.x, p.y]; };
  const pixel = () => 1 / picture.getScreenCTM().a; // in the picture's units
  const between = (to, i) => [from[i], to[i]].map((x) => Math.max(plot[i], Math.min(x, plot[i] + plot[i + 2]))).sort((a, b) => a - b);
  function begin(event) {
    if (event.button !== 0 || event.pointerType === "touch") return; // a finger scrolls; it has the buttons
    from = place(event);
    const move = (e) => {
      const to = place(e);
      if (Math.hypot(to[0] - from[0], to[1] - from[1]) < 6 * pixel()) return;
      hideTip();
      if (!band) { band = svg("rect", { fill: colour(0), "fill-opacity": 0.15, stroke: colour(0), "vector-effect": "non-scaling-stroke" }); picture.append(band); }
      const [x0, x1] = between(to, 0), [y0, y1] = between(to, 1);
      band.setAttribute("x", x0); band.setAttribute("width", x1 - x0); band.setAttribute("y", y0); band.setAttribute("height", y1 - y0);
    };
    const end = (e) => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
      removeEventListener("pointercancel", end);
      if (!band) return;
      band.remove();
      band = null;
      if (e.type === "pointercancel") return;
      const to = place(e), [x0, x1] = between(to, 0), [y0, y1] = between(to, 1);
      const at = (x, [a, b]) => a + ((x - plot[0]) / plot[2]) * (b - a), down = (y, [a, b]) => b - ((y - plot[1]) / plot[3]) * (b - a);
      if (x1 - x0 > 8 * pixel()) view[0] = fit([at(x0, view[0]), at(x1, view[0])], 0);
      if (y1 - y0 > 8 * pixel()) view[1] = fit([down(y1, view[1]), down(y0, view[1])], 1);
      redraw();
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
    addEventListener("pointercancel", end);
  }
  for (const [text, label, act] of [["+", "Enlarge", () => scale(0.6)], ["−", "Shrink", () => scale(1 / 0.6)], ["all", "Show all", reset]]) tools.append(html("button", { type: "button", "aria-label": label, onclick: act }, text));
  holder.append(tools);
  redraw();
  return { redraw, reset };
}

function linesPanel(panel, hidden) {
  const to = panel.log_x ? Math.log10 : (x) => x, back = panel.log_x ? (x) => 10 ** x : (x) => x;
  const xs = panel.series.flatMap((s) => s.x).map(to), ys = panel.series.flatMap((s) => s.y).filter((y) => y !== null);
  const pad = (Math.max(...xs) - Math.min(...xs)) * 0.05 || 0.5;
  const top = panel.y_label.startsWith("accuracy") ? 1.02 : Math.max(...ys) * 1.08;
  const whole = [[Math.min(...xs) - pad, Math.max(...xs) + pad], [0, top]];
  const at = [...new Set(panel.series.flatMap((s) => s.x))].sort((a, b) => a - b);
  return [whole, (view, width) => {
    const height = Math.min(400, Math.max(270, width * 0.72)), left = 46, right = 12, upper = 30, lower = 42;
    const plot = [left, upper, width - left - right, height - upper - lower];
    const X = (x) => plot[0] + ((to(x) - view[0][0]) / (view[0][1] - view[0][0])) * plot[2];
    const Y = (y) => plot[1] + plot[3] - ((y - view[1][0]) / (view[1][1] - view[1][0])) * plot[3];
    const clip = `clip${drawings++}`;
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": panel.y_label }, svg("defs", {}, svg("clipPath", { id: clip }, svg("rect", { x: plot[0], y: plot[1] - 12, width: plot[2] + 6, height: plot[3] + 18 }))));
    root.append(svg("text", { x: 0, y: 15, style: "font-weight:600" }, panel.y_label));
    for (const y of ticks(...view[1])) root.append(svg("line", { class: "axis", x1: plot[0], x2: plot[0] + plot[2], y1: Y(y), y2: Y(y) }), svg("text", { class: "soft", x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, plain(y)));
    let last = -1e9;
    const shown = at.filter((x) => to(x) >= view[0][0] && to(x) <= view[0][1]);
    for (const x of shown.length ? shown : ticks(...view[0]).map(back)) {
      if (X(x) - last < 44) continue;
      last = X(x);
      root.append(svg("text", { class: "soft", x: X(x), y: plot[1] + plot[3] + 18, "text-anchor": "middle" }, plain(x)));
    }
    root.append(svg("text", { class: "soft", x: plot[0] + plot[2] / 2, y: height - 6, "text-anchor": "middle" }, panel.x_label));
    const inside = svg("g", { "clip-path": `url(#${clip})` });
    root.append(inside);
    const visible = panel.series.filter((s) => !hidden.has(s.name) && !(s.role === "paper" && hidden.has("the paper's")));
    let above = 1e9; // names of levels stand apart, from the lowest up
    const nameAt = new Map(), names = svg("g", { "pointer-events": "none" }); // over the curves, with a rim that parts them from those
    for (const s of visible.filter((s) => !s.x.length).sort((a, b) => a.y[0] - b.y[0])) { above = Math.min(Y(s.y[0]) - 3, above - 11); nameAt.set(s.name, above); }
    for (const s of visible) {
      if (!s.x.length) {
        const level = svg("g", { "data-series": s.name }, svg("line", { x1: plot[0], x2: plot[0] + plot[2], y1: Y(s.y[0]), y2: Y(s.y[0]), stroke: "currentColor", "stroke-opacity": 0.5, "stroke-dasharray": "2 3" }));
        inside.append(tipped(level, `${s.name}: ${number(s.y[0])}\n${s.notes[0] || ""}`));
        names.append(svg("text", { class: "soft", x: plot[0] + plot[2], y: nameAt.get(s.name), "text-anchor": "end", style: "font-size:10px; paint-order:stroke; stroke:var(--paper); stroke-width:3px" }, s.name));
        continue;
      }
      const stroke = colour(s.look[0]), paper = s.role === "paper", wired = s.name.includes("wiring");
      const points = s.x.map((x, i) => [x, s.y[i], i]).filter(([, y]) => y !== null);
      const group = svg("g", { "data-series": s.name, "data-role": s.role, opacity: paper ? 0.6 : 1 });
      if (!paper && s.low.length && points.length > 1) group.append(svg("path", { d: `M${points.map(([x, , i]) => `${X(x)} ${Y(s.high[i])}`).join("L")}L${[...points].reverse().map(([x, , i]) => `${X(x)} ${Y(s.low[i])}`).join("L")}z`, fill: stroke, "fill-opacity": 0.12 }));
      group.append(svg("path", { d: `M${points.map(([x, y]) => `${X(x)} ${Y(y)}`).join("L")}`, fill: "none", stroke, "stroke-width": paper ? 1.2 : 2, "stroke-dasharray": paper ? "5 4" : wired ? "8 3 2 3" : null }));
      for (const [x, y, i] of points) {
        const text = `${s.name}${paper ? " (the paper's)" : ""}\n${panel.x_label} ${plain(x)}: ${number(y)}${s.low.length ? ` [${number(s.low[i])}, ${number(s.high[i])}]` : ""}${s.notes[i] ? `\n${s.notes[i]}` : ""}`;
        group.append(tipped(svg("path", { d: MARKS[s.look[1]](X(x), Y(y), 4.2), fill: paper ? "var(--paper)" : stroke, stroke, "stroke-width": 1.2 }), text));
      }
      inside.append(group);
    }
    inside.append(names);
    return { picture: root, plot };
  }];
}

function barsPanel(panel, hidden) {
  const top = Math.max(...panel.series.flatMap((s) => [...s.y, ...s.high]).filter((y) => y !== null)) * 1.12;
  return [[[0, top], [0, 1]], (view, width) => {
    const series = panel.series.filter((s) => !hidden.has(s.name) && s.y.some((y) => y !== null));
    const rows = panel.categories.map((name, i) => [name, i]).filter(([name]) => !hidden.has(name));
    const left = Math.min(Math.max(90, 7.4 * Math.max(...panel.categories.map((c) => c.length)) + 12), width * 0.42), right = 44, upper = 30;
    const bar = 13, gap = 9, each = Math.max(1, series.length) * bar + gap, height = upper + rows.length * each + 30;
    const plot = [left, upper, width - left - right, rows.length * each];
    const X = (x) => plot[0] + ((x - view[0][0]) / (view[0][1] - view[0][0])) * plot[2];
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": panel.x_label });
    root.append(svg("text", { x: 0, y: 15, style: "font-weight:600" }, panel.x_label));
    for (const x of ticks(...view[0], 4)) root.append(svg("line", { class: "axis", x1: X(x), x2: X(x), y1: upper, y2: height - 22 }), svg("text", { class: "soft", x: X(x), y: height - 8, "text-anchor": "middle" }, plain(x)));
    rows.forEach(([name, i], row) => {
      const y0 = upper + row * each;
      const limit = Math.floor((left - 10) / 7.2);
      root.append(tipped(svg("text", { x: left - 7, y: y0 + (each - gap) / 2 + 5, "text-anchor": "end" }, name.length > limit ? `${name.slice(0, limit - 1)}…` : name), name));
      series.forEach((s, j) => {
        if (s.y[i] === null) return;
        const paper = s.role === "paper", y = y0 + j * bar, end = Math.min(Math.max(X(s.y[i]), plot[0]), plot[0] + plot[2]);
        const note = `${name}, ${s.name}: ${number(s.y[i])}${s.low.length ? ` [${number(s.low[i])}, ${number(s.high[i])}]` : ""}${s.notes[i] ? `\n${s.notes[i]}` : ""}`;
        const index = panel.series.indexOf(s);
        root.append(tipped(svg("rect", { x: plot[0], y: y + 1, width: Math.max(0, end - plot[0]), height: bar - 2, fill: paper ? "var(--paper)" : colour(index), stroke: paper ? "currentColor" : colour(index), "data-bar": name, "data-series": s.name }), note));
        if (s.low.length && s.low[i] !== null) { const [a, b] = [s.low[i], s.high[i]].map((v) => Math.min(Math.max(X(v), plot[0]), plot[0] + plot[2])); root.append(svg("line", { x1: a, x2: b, y1: y + bar / 2, y2: y + bar / 2, stroke: "currentColor" })); }
        const beyond = Math.max(end, s.high.length ? Math.min(X(s.high[i]), plot[0] + plot[2]) : 0);
        root.append(svg("text", { x: beyond + 4, y: y + bar - 3, style: "font-size:10.5px", class: paper ? "soft" : "" }, number(s.y[i])));
      });
    });
    return { picture: root, plot };
  }];
}

// Black or white, whichever is easier to read on a colour that lets so much of the page through.
function inkOn(front, page) {
  const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255), [above, below] = [parts(front), parts(page)];
  const light = (rgb) => rgb.map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)).reduce((sum, x, i) => sum + [0.2126, 0.7152, 0.0722][i] * x, 0);
  return (opacity) => { const l = light(above.map((x, i) => opacity * x + (1 - opacity) * below[i])); return (l + 0.05) ** 2 > 1.05 * 0.05 ? "#000000" : "#ffffff"; };
}

function heatPanel(panel, hidden) {
  const limit = Math.max(...panel.values.flat().filter((v) => v !== null));
  return [[[0, 1], [0, 1]], (view, width) => {
    let rows = panel.rows.map((name, i) => [name, i]).filter(([name]) => !hidden.has(name)), columns = panel.columns.map((name, i) => [name, i]).filter(([name]) => !hidden.has(name));
    const cut = (list, [a, b]) => list.slice(Math.floor(a * list.length + 1e-6), Math.max(Math.floor(a * list.length + 1e-6) + 1, Math.ceil(b * list.length - 1e-6)));
    columns = cut(columns, view[0]);
    rows = cut(rows, [1 - view[1][1], 1 - view[1][0]]);
    if (!rows.length || !columns.length) return { picture: svg("svg", { viewBox: `0 0 ${width} 30`, role: "group", "aria-label": panel.title || "matrix" }), plot: [0, 0, width, 30] };
    const longest = Math.max(...rows.map(([name]) => name.length), ...columns.map(([name]) => name.length));
    const left = Math.min(7.4 * longest + 8, width * 0.34), upper = 30, cell = Math.min(54, (width - left - 6) / columns.length), deep = Math.min(7.4 * longest + 8, 120);
    const height = upper + cell * rows.length + deep, plot = [left, upper, cell * columns.length, cell * rows.length];
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": panel.title || "matrix" });
    root.append(svg("text", { x: 0, y: 15, style: "font-weight:600" }, panel.title));
    const size = Math.max(6, Math.min(12, cell * 0.75));
    const ink = inkOn(colour(0), dark() ? "#16181c" : "#ffffff");
    rows.forEach(([name, i], r) => {
      root.append(svg("text", { x: left - 5, y: upper + (r + 0.5) * cell + size / 3, "text-anchor": "end", style: `font-size:${size}px` }, name));
      columns.forEach(([other, j], c) => {
        const value = panel.values[i][j];
        if (value === null) return;
        const strength = Math.min(1, value / limit);
        root.append(tipped(svg("rect", { x: left + c * cell, y: upper + r * cell, width: cell - 0.5, height: cell - 0.5, fill: colour(0), "fill-opacity": 0.04 + 0.96 * strength, "data-cell": `${name}|${other}` }), `${panel.row_label ? panel.row_label + " " : ""}${name}, ${panel.column_label ? panel.column_label + " " : ""}${other}: ${number(value)}`));
        if (panel.show_values && cell > 24) { const label = svg("text", { x: left + (c + 0.5) * cell, y: upper + (r + 0.5) * cell + 4, "text-anchor": "middle", style: `font-size:${Math.min(12, cell / 3.2)}px;pointer-events:none;fill:${ink(0.04 + 0.96 * strength)}` }, value.toFixed(2)); root.append(label); }
      });
    });
    columns.forEach(([name], c) => root.append(svg("text", { transform: `translate(${left + (c + 0.5) * cell + size / 3} ${upper + rows.length * cell + 6}) rotate(-90)`, "text-anchor": "end", style: `font-size:${size}px` }, name)));
    return { picture: root, plot };
  }];
}

function languagePanel(panel) { // y counts upwards in a view, downwards in a picture
  const [x, y, width, height] = panel.automaton.box;
  return [[[x, x + width], [-y - height, -y]], (view) => {
    const picture = drawAutomaton(panel.automaton), plot = [view[0][0], -view[1][1], view[0][1] - view[0][0], view[1][1] - view[1][0]];
    picture.setAttribute("viewBox", plot.join(" "));
    picture.setAttribute("role", "group");
    return { picture, plot };
  }];
}

const KINDS = { lines: linesPanel, bars: barsPanel, heat: heatPanel, language: languagePanel };
function drawChart(chart) {
  const hidden = new Set(), panels = html("div", { class: chart.panels.length > 3 && chart.panels[0].kind === "heat" ? "panels maps" : "panels" }), chips = html("div", { class: "chips", role: "group", "aria-label": "What is shown" });
  const box = html("article", { class: "chart", id: chart.name }, html("h3", {}, chart.title), html("p", { class: "small" }, chart.caption), chips, panels, ...chart.notes.map((note) => html("p", { class: "small" }, note)));
  $("charts").append(box);
  const drawn = [];
  const holders = chart.panels.map(() => html("div", { class: "panel" }));
  panels.append(...holders); // all of them first: each is drawn as wide as it will be
  chart.panels.forEach((panel, i) => {
    const holder = holders[i];
    if (panel.kind === "language") { holder.classList.add("language"); holder.append(html("p", { class: "small" }, panel.title)); }
    const [whole, draw] = KINDS[panel.kind](panel, hidden);
    drawn.push(zoomable(holder, whole, draw));
    if (panel.kind === "language") holder.append(html("pre", {}, panel.text));
  });
  const again = () => {
    hideTip();
    holders.forEach((holder, i) => { holder.hidden = chart.panels[i].kind === "heat" && hidden.has(chart.panels[i].title); }); // maps go as a whole
    drawn.forEach((one, i) => { if (!holders[i].hidden) one.redraw(); });
  };
  redraws.push(again);
  const entries = new Map();
  for (const panel of chart.panels) {
    if (panel.kind === "lines") for (const s of panel.series) { entries.set(s.name, s.x.length ? s.look : null); if (s.role === "paper") entries.set("the paper's", null); }
    if (panel.kind === "bars") { panel.series.forEach((s, i) => { if (s.y.some((y) => y !== null)) entries.set(s.name, s.role === "paper" ? null : [i, -1]); }); panel.categories.forEach((name) => entries.set(name, null)); }
    if (panel.kind === "heat") (panel.show_values ? panel.rows : [panel.title]).forEach((name) => entries.set(name, null));
  }
  for (const [name, look] of entries) {
    const swatch = look === null ? null : svg("svg", { class: "swatch", viewBox: "0 0 22 12", "data-colour": look[0] }, look[1] < 0 ? svg("rect", { x: 5, width: 12, height: 12, rx: 3 }) : svg("path", { d: `M0 5.2H22V6.8H0z${MARKS[look[1]](11, 6, 4.2)}` }));
    chips.append(toggle(name, swatch, (on) => { if (on) hidden.delete(name); else hidden.add(name); again(); }));
  }
  chips.hidden = !entries.size;
  const paint = () => chips.querySelectorAll(".swatch").forEach((node) => { node.style.fill = colour(Number(node.dataset.colour)); });
  paint();
  redraws.push(paint);
}

// --- tables ---
function drawBoard() {
  const columns = [
    ["model or learner", (r) => r.label, null], ["TVD", (r) => r.tvd, (r) => `${number(r.tvd)} [${number(r.tvd_range[0])}, ${number(r.tvd_range[1])}]`],
    ["paper's", (r) => r.paper, (r) => number(r.paper)], ["accuracy", (r) => r.accuracy, (r) => number(r.accuracy)],
    ["above floor", (r) => r.above_floor, (r) => (r.above_floor === null ? "" : `${number(r.above_floor)} nats`)],
    ["parameters", (r) => r.parameters, (r) => (r.parameters === null ? "" : r.parameters.toLocaleString("en"))],
    ["FLOPs/token", (r) => r.flops, (r) => (r.flops === null ? "" : short(r.flops))],
    ["state bytes", (r) => r.state_bytes, (r) => (r.state_bytes === null ? "" : short(r.state_bytes))],
    ["CPU time", (r) => r.seconds, (r) => (r.seconds === null ? "" : r.seconds < 90 ? `${Math.round(r.seconds)} s` : r.seconds < 5400 ? `${Math.round(r.seconds / 60)} min` : `${(r.seconds / 3600).toFixed(1)} h`)],
    ["setting", (r) => r.setting, null],
  ];
  let by = 1, sign = 1;
  const sizes = Object.keys(data.boards);
  sizes.forEach((n) => $("size").append(html("option", { value: n }, Number(n).toLocaleString("en"))));
  $("size").value = "2500";
  const heads = columns.map(([title, , text], i) => html("th", { class: text ? "number" : "" }, html("button", { type: "button", onclick: () => { sign = i === by ? -sign : 1; by = i; show(); } }, title)));
  const body = html("tbody");
  $("board").append(html("thead", {}, html("tr", {}, ...heads)), body);
  const show = () => {
    const rows = [...data.boards[$("size").value]].sort((a, b) => {
      const [x, y] = [columns[by][1](a), columns[by][1](b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
    heads.forEach((head, i) => head.setAttribute("aria-sort", i === by ? (sign > 0 ? "ascending" : "descending") : "none"));
    body.replaceChildren(...rows.map((r) => html("tr", { "data-label": r.label }, ...columns.map(([, value, text]) => html("td", { class: text ? "number" : "" }, text ? text(r) : value(r))))));
  };
  $("size").addEventListener("change", show);
  show();
  if (data.differences.length) $("differences").append(html("h3", {}, "Which differences hold beyond these test problems?"), html("p", { class: "small" }, "TVD of the first minus that of the second. Over problems: the same test problems, signs flipped at random 10,000 times; over seeds: an exact permutation test. The first holds the trained models fixed: " + (data.seed_spread === null ? "training again with another seed would also move TVD." : `training again with another seed moved TVD by up to ${number(data.seed_spread)}, so that smaller differences say little of the architectures.`)),
    html("div", { class: "scroll" }, html("table", {}, html("tbody", {}, ...data.differences.map((d) => html("tr", {}, html("td", {}, `${d.a} − ${d.b}`), html("td", {}, d.text)))))));
}
function drawFidelity() {
  const verdicts = [...new Set(data.fidelity.map((r) => r.verdict))].sort(), off = new Set(["not run at this budget"]);
  const body = html("tbody");
  const show = () => {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = data.fidelity.filter((r) => !off.has(r.verdict) && words.every((w) => `${r.where} ${r.what} ${r.verdict} ${r.why}`.toLowerCase().includes(w)));
    body.replaceChildren(...rows.map((r) => html("tr", {}, html("td", {}, r.where), html("td", {}, r.what), html("td", { class: `verdict ${r.verdict.split(" ")[0]}` }, r.verdict), html("td", { class: "number" }, number(r.paper)), html("td", { class: "number" }, number(r.ours)), html("td", { class: "number" }, r.difference === null ? "" : `${r.difference >= 0 ? "+" : "−"}${number(Math.abs(r.difference))}`), html("td", {}, r.why))));
  };
  for (const verdict of verdicts) {
    const count = data.fidelity.filter((r) => r.verdict === verdict).length;
    const button = toggle(`${verdict} (${count})`, null, (on) => { if (on) off.delete(verdict); else off.add(verdict); show(); });
    if (off.has(verdict)) button.setAttribute("aria-pressed", "false");
    $("verdicts").append(button);
  }
  $("search").addEventListener("input", show);
  $("claims").append(html("thead", {}, html("tr", {}, ...["where", "what", "verdict", "paper", "ours", "difference", "what was seen"].map((t, i) => html("th", { class: i > 2 && i < 6 ? "number" : "" }, t)))), body);
  show();
}

// --- begin ---
$("summary").textContent = data.summary + ".";
$("version").textContent = data.version;
document.documentElement.dataset.theme = dark() ? "dark" : "light";
startExplorer();
data.charts.forEach(drawChart);
drawBoard();
drawFidelity();
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraws.forEach((redraw) => redraw()); } });
})();
