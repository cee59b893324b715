"""Made of ``templates/`` by ``python -m server_app.report.generate_templates``."""

TEMPLATES = {
    "content.html": """\
{%- from "table.html" import table -%}
<h1>FedQuorum report</h1>
<p class="note">{{ runs }} run{{ "s" if runs != 1 }}, {{ experiments | length }} experiment{{ "s" if experiments | length != 1 }}.
Values are means ± standard deviations over seeds. A click on a legend's entry hides a method, a double
click all others; hovering tells the numbers.</p>
{%- for line in progress %}
<p class="progress">{{ line }}</p>
{%- endfor %}
{%- for warning in warnings %}
<p class="warning">{{ warning }}</p>
{%- endfor %}
{%- if experiments | length > 1 %}
<nav><ul>
{%- for one in experiments %}
<li><a href="#{{ one.anchor }}">{{ one.name }}</a></li>
{%- endfor %}
</ul></nav>
{%- endif %}
{%- for one in experiments %}
<section id="{{ one.anchor }}">
<h2>{{ one.name }}</h2>
{%- if one.world %}
<p class="note">{{ one.world[0] | upper }}{{ one.world[1:] }}.</p>
{%- endif %}
{%- for warning in one.warnings %}
<p class="warning">{{ warning }}</p>
{%- endfor %}
{%- for sentences in one.lead %}
<p class="lead">{{ sentences | join(" ") }}</p>
{%- endfor %}
<div class="first">{{ table(one.first) }}</div>
<p class="note">Mean by data: weighted by the clients' training rows. Average: every client counts once. Worst and
best 10 %: averages of these clients, at least one. Gini: 0 % where all clients have the same.</p>
{%- for plot in one.plots %}
<h3>{{ plot.title }}</h3>
<figure data-plot="{{ plot.id }}">
<div class="plots{% if plot.full %} full{% endif %}" id="{{ plot.id }}">{% if plot.picture %}<img alt="{{ one.name }}: {{ plot.title }}" src="data:image/webp;base64,{{ plot.picture }}">{% endif %}</div>
<figcaption>{{ plot.note }}</figcaption>
</figure>
<script type="application/json" id="{{ plot.id }}-data">{{ plot.json }}</script>
{%- endfor %}
{%- for own in one.tables %}
{%- if own.rows | length > 16 or own.headings | length > 12 %}
<details><summary>{{ own.title }} ({{ own.rows | length }})</summary>{{ table(own) }}</details>
{%- else %}{{ table(own) }}{% endif %}
{%- endfor %}
{%- if one.shared %}
<details><summary>Settings that are the same in all of these runs ({{ one.shared | length }})</summary>
<p><code>{{ one.shared | join(" ") }}</code></p></details>
{%- endif %}
<details><summary>Runs ({{ one.runs.rows | length }})</summary>{{ table(one.runs) }}</details>
</section>
{%- endfor %}
{%- if clients.rows %}
<section id="clients-now">
<h2>Clients now</h2>
<p class="note">What became of each client the last time that it was asked. A run writes these rows every ten seconds
at most. Late: in how many rounds, and the last late reply, whose time counts from the message.</p>
{{ table(clients) }}
</section>
{%- endif %}
""",
    "figures.js": """\
function figures() {
  return Array.from(document.querySelectorAll("figure[data-plot]"));
}
function placeOf(figure) {
  return document.getElementById(figure.dataset.plot);
}
function draw(figure) {
  const place = placeOf(figure);
  const text = document.getElementById(figure.dataset.plot + "-data").textContent;
  if (place.drawn === text) return;
  place.drawn = text;
  return drawChart(place, JSON.parse(text));
}
// Each is drawn when it comes near: a page of many opens at once.
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((e) => e.isIntersecting)) {
    seen.unobserve(entry.target);
    draw(entry.target);
  }
}, { rootMargin: "600px" });
function drawNear() {
  figures().forEach((figure) => placeOf(figure).chart ? draw(figure) : seen.observe(figure));
}
// On paper all are drawn, two panels in the width of a page, which is zoomed.
addEventListener("beforeprint", () => window.Plotly && figures().forEach((figure) => {
  seen.unobserve(figure);
  draw(figure);
  const plots = placeOf(figure).querySelectorAll(".plot");
  const width = figure.classList.contains("small") ? 330 : plots.length > 1 ? 420 : 680;
  plots.forEach((plot) => Plotly.relayout(plot, { width }));
}));
addEventListener("afterprint", () => window.Plotly && figures().forEach((figure) =>
  placeOf(figure).querySelectorAll(".plot").forEach((plot) =>
    Plotly.relayout(plot, { width: null, autosize: true }))));
""",
    "packed.js": """\
// Plotly.js is in this page, compressed: nothing is loaded from anywhere.
async function plotly() {
  const packed = atob(document.getElementById("plotly-gz").textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}
if ("DecompressionStream" in window && figures().length) plotly().then(drawNear);
""",
    "page.html": """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>FedQuorum report</title>
<style>
{% include "style.css" %}
</style>
</head>
<body>
{% include "content.html" %}
<script type="application/octet-stream" id="plotly-gz">{{ plotly }}</script>
<script>
"use strict";
{% include "plots.js" %}
{% include "figures.js" %}
{% include "packed.js" %}
</script>
</body>
</html>
""",
    "plots.js": """\
function categories(trace) {
  // Names of the categories in place of their numbers, for hovering.
  const rows = trace.y.length, columns = trace.x.length;
  const codes = Uint8Array.from(atob(trace.z.bdata), (letter) => letter.charCodeAt(0));
  trace.text = Array.from({ length: rows }, (_, row) =>
    Array.from({ length: columns }, (_, column) => trace.meta[codes[row * columns + column]]));
}
const SVG = "http://www.w3.org/2000/svg", NARROW = 420;
const DASHES = { solid: "", dash: "7 4", dashdot: "7 3 2 3", longdash: "12 4", dot: "2 3" };
function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
function swatch({ colour, dash }) {
  const box = dash === "box", drawn = shape("svg", { width: box ? 14 : 30, height: 12 });
  if (box) drawn.append(shape("rect", { x: 1, y: 1, width: 11, height: 10, fill: colour, stroke: "#444" }));
  else if (dash === "points") drawn.append(shape("circle", { cx: 15, cy: 6, r: 4, fill: colour }));
  else drawn.append(shape("line", {
    x1: 0, x2: 30, y1: 6, y2: 6, stroke: colour, "stroke-width": 2, "stroke-dasharray": DASHES[dash],
  }));
  return drawn;
}
function fillLegend(place, spec) {
  // Untouched where nothing is new. A click hides a label in all panels, a double click all others.
  const { legend, hidden } = place.chart, entries = JSON.stringify(spec.legend ?? []);
  if (legend.dataset.entries === entries) return;
  legend.dataset.entries = entries;
  legend.replaceChildren(...(spec.legend ?? []).map((entry) => {
    const made = document.createElement(entry.dash === "box" ? "span" : "button");
    made.append(swatch(entry), entry.label);
    if (entry.dash === "box") return made;
    const others = spec.legend.map((one) => one.label).filter((label) => label !== entry.label);
    made.onclick = () => {
      if (!hidden.delete(entry.label)) hidden.add(entry.label);
      refresh(place);
    };
    made.ondblclick = () => {
      const alone = others.every((label) => hidden.has(label));
      hidden.clear();
      if (!alone) others.forEach((label) => hidden.add(label));
      refresh(place);
    };
    return made;
  }));
}
function fillChoices(place, spec) {
  const { select } = place.chart, names = spec.choices ?? [], entries = JSON.stringify(names);
  if (select.dataset.entries === entries) return;
  select.dataset.entries = entries;
  const chosen = names.indexOf(select.value);
  select.hidden = names.length === 0;
  select.replaceChildren(...names.map((name) => new Option(name)));
  if (chosen > 0) select.selectedIndex = chosen;
  select.onchange = () => refresh(place);
}
function plotPanel(plotted, panel, { hidden, legend, select }) {
  // Draws, or draws anew what is there already. On a narrow screen the legend names the lines.
  panel.data.filter((trace) => trace.meta && !trace.text).forEach(categories);
  const data = panel.data.map((trace) => ({ ...trace, visible: !hidden.has(trace.legendgroup) }));
  const layout = { uirevision: `choice ${select.selectedIndex}`, ...panel.layout };
  const named = (layout.annotations ?? []).filter((one) => one.name);
  if (named.length && legend.children.length && plotted.clientWidth < NARROW) {
    layout.annotations = layout.annotations.filter((one) => !one.name);
    layout.margin = { ...layout.margin, r: 14 };
  } else if (named.length) {
    layout.annotations = layout.annotations.map((one) => ({ ...one, visible: !hidden.has(one.name) }));
  }
  return Plotly.react(plotted, data, layout, {
    responsive: true, displaylogo: false,
    // By default a button offers to send the data to a server of Plotly's.
    showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d"],
  });
}
function refresh(place) {
  const { spec, panels, legend, select, hidden } = place.chart;
  for (const button of legend.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", !hidden.has(button.textContent));
  }
  const shown = spec.choices?.length ? [spec.panels[select.selectedIndex]] : spec.panels;
  while (panels.children.length > shown.length) panels.lastElementChild.remove();
  while (panels.children.length < shown.length) {
    panels.append(document.createElement("div"));
    panels.lastElementChild.className = "plot";
  }
  return Promise.all(shown.map((panel, at) => plotPanel(panels.children[at], panel, place.chart)));
}
function drawChart(place, spec) {
  if (!place.chart) {
    const [legend, select, panels] = ["div", "select", "div"].map((tag) => document.createElement(tag));
    legend.className = "legend";
    panels.className = "panels";
    place.replaceChildren(legend, select, panels);
    place.chart = { legend, select, panels, hidden: new Set() };
  }
  place.chart.spec = spec;
  fillLegend(place, spec);
  fillChoices(place, spec);
  return refresh(place);
}
""",
    "study.css": """\
.kind { color: #555; margin: 1.2rem 0 0; overflow-wrap: anywhere; }
h1 { margin: 0 0 .6rem; font-size: 1.35rem; font-weight: 500; }
.verdict { font-size: 1.45rem; line-height: 1.35; font-weight: 600; max-width: 46ch; text-wrap: balance; margin: 0 0 1.2rem; overflow-wrap: anywhere; }
.answer thead th { vertical-align: bottom; max-width: 11rem; }
.answer tbody th { font-weight: 400; white-space: nowrap; position: sticky; left: 0; background: #fff; }
.answer td { text-align: right; }
.answer thead th:not(:first-child) { text-align: right; }
.answer td.words, .answer thead th.words { text-align: left; white-space: normal; min-width: 9rem; }
.answer tbody .marked > * { font-weight: 600; background: #f3f6f9; }
.answer tbody .marked > .words { font-weight: 400; }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .5em; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.caveats { max-width: 80ch; padding-left: 1.2rem; }
.caveats li { margin: .3rem 0; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 0 2rem; align-items: start; }
.charts.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); }
.charts figure { min-width: 0; }
.charts h3 { overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .6rem 0; }
dt { color: #555; }
dd { margin: 0; max-width: 80ch; overflow-wrap: anywhere; }
code { overflow-wrap: anywhere; }
@media (max-width: 600px) {
  .verdict { font-size: 1.2rem; }
  dl { display: block; }
  dd { margin-bottom: .5rem; }
}
@media print {
  .charts { display: block; }
  .charts.small { display: grid; grid-template-columns: 1fr 1fr; }
  .answer { font-size: .62rem; }
  .answer td.words, .answer thead th.words { min-width: 0; }
  .answer th, .answer td { padding: .15rem .3rem; white-space: normal; }
}
""",
    "study.html": """\
{%- from "table.html" import table -%}
{%- macro chart(one, level) %}
<figure data-plot="{{ one.id }}"{% if one.small %} class="small"{% endif %}>
<{{ level }}>{{ one.title }}</{{ level }}>
<div class="plots full" id="{{ one.id }}"><noscript>Drawn by JavaScript.</noscript></div>
<figcaption>{{ one.note }}</figcaption>
</figure>
<script type="application/json" id="{{ one.id }}-data">{{ one.json }}</script>
{%- endmacro -%}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{{ data }}: {{ question }}</title>
<style>
{% include "style.css" %}
{% include "study.css" %}
</style>
</head>
<body>
<p class="kind">FedQuorum study of {{ data }}</p>
<h1>{{ question }}</h1>
<p class="verdict">{{ verdict }}</p>
<div class="wide"><table class="answer">
<caption><span>{{ answers.title }}</span></caption>
<thead><tr>{% for heading in answers.headings %}<th scope="col"{% if heading == tuned %} class="words"{% endif %}>{{ heading }}</th>{% endfor %}</tr></thead>
<tbody>
{%- for row in answers.rows %}
<tr{% if row.marked %} class="marked"{% endif %}><th scope="row"><span class="dot" style="background: {{ row.colour }}"></span>{{ row.name }}</th>
{%- for cell in row.cells %}<td{% if answers.headings[loop.index] == tuned %} class="words"{% endif %}>{{ cell }}</td>{% endfor %}</tr>
{%- endfor %}
</tbody></table></div>
<p class="note">{{ table_note }}</p>
{{- table(left_out) }}
{%- if caveats %}
<h2>Keep in mind</h2>
<ul class="caveats">
{%- for caveat in caveats %}
<li>{{ caveat }}</li>
{%- endfor %}
</ul>
{%- endif %}
{%- if charts %}
<h2>The evidence</h2>
<div class="charts">{% for one in charts %}{{ chart(one, "h3") }}{% endfor %}</div>
{%- endif %}
{%- if tuning %}
<h2>The tuning</h2>
<p class="note">{{ tuning_note }}</p>
<div class="charts small">{% for one in tuning %}{{ chart(one, "h3") }}{% endfor %}</div>
{%- endif %}
<h2>How it was done</h2>
<dl>
{%- for name, fact in facts.items() %}
<dt>{{ name }}</dt><dd>{{ fact }}</dd>
{%- endfor %}
</dl>
<p>Repeat the study: <code>{{ command }}</code></p>
{%- if runs.rows %}
<details><summary>{{ runs.title }} ({{ runs.rows | length }})</summary>{{ table(runs) }}</details>
{%- endif %}
<script type="application/octet-stream" id="plotly-gz">{{ plotly }}</script>
<script>
"use strict";
{% include "plots.js" %}
{% include "figures.js" %}
{% include "packed.js" %}
</script>
</body>
</html>
""",
    "style.css": """\
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 0 auto; max-width: 1320px; padding: 0 1rem 4rem; }
h1 { font-size: 1.5rem; margin: 1.2rem 0 .3rem; }
h1, h2, h3, nav, .warning { overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .2rem; }
a { color: #0072B2; }
p.lead { font-size: 1.05rem; margin: .6rem 0; max-width: 80ch; }
p.note, figcaption { color: #555; font-size: .88rem; margin: .2rem 0; max-width: 80ch; }
figure { margin: .3rem 0 1.5rem; }
figure img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; margin: .5rem 0 1rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
caption span { position: sticky; left: 0; display: inline-block; max-width: min(76rem, calc(100vw - 2rem)); }
td { white-space: nowrap; }
thead th { vertical-align: bottom; }
.number { text-align: right; }
tbody td:first-child { white-space: normal; min-width: 11rem; max-width: 22rem; }
.wide td:first-child, .wide th:first-child { position: sticky; left: 0; background: #fff; padding-left: 0; }
td.text { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; margin: .4rem 0; font-size: .85rem; }
.legend > * { display: flex; align-items: center; gap: .4rem; }
.legend button { all: unset; display: flex; align-items: center; gap: .4rem; cursor: pointer; }
.legend button:focus-visible { outline: 2px solid #0072B2; }
.legend button[aria-pressed="false"] { opacity: .4; text-decoration: line-through; }
.legend svg { flex: none; }
.plots select { font: inherit; font-size: .85rem; max-width: 100%; margin: .3rem 0; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 0 1.5rem; }
.panels > * { min-width: 0; }
.panels > :only-child { max-width: 760px; }
.full .panels > :only-child { max-width: none; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
thead th { border-bottom: 1px solid #444; font-weight: 600; }
tbody tr:hover > * { background: #f3f6f9; }
.warning { border-left: 4px solid #D55E00; background: #fdf3ec; padding: .4rem .8rem; margin: .4rem 0; }
summary { cursor: pointer; margin: .5rem 0; }
code { font-size: .85rem; }
@media (max-width: 600px) {
  th, td { padding: .2rem .35rem; }
  tbody td:first-child { min-width: 6.5rem; max-width: 8.5rem; }
}
@media print {
  body { padding: 0; max-width: none; }
  table { font-size: .66rem; }
  th, td { padding: .15rem .3rem; }
  td, td.text, tbody td:first-child { white-space: normal; min-width: 0; }
  .first table { font-size: .6rem; }
  details table { font-size: .55rem; }
  details th, details td { padding: .1rem .2rem; }
  .first td:not(:first-child) { white-space: nowrap; }
  .first tbody td:first-child { min-width: 7rem; }
  select { appearance: none; border: 0; }
  .wide { overflow: visible; }
  .panels:not(:has(> :only-child)) { grid-template-columns: 1fr 1fr; zoom: .8; }
  figure, tr, .warning { break-inside: avoid; }
  h2, h3, caption { break-after: avoid; }
  .modebar { display: none; }
}
""",
    "table.html": """\
{%- macro table(one) %}
{%- if one.rows %}
<div class="wide"><table>
<caption><span>{{ one.title }}</span></caption>
<thead><tr>{% for heading in one.headings %}<th scope="col"{% if not loop.first and one.rows[0][loop.index0][:1] in "-0123456789" %} class="number"{% endif %}>{{ heading }}</th>{% endfor %}</tr></thead>
<tbody>
{%- for row in one.rows %}
<tr>{% for cell in row %}<td{% if cell | length > 60 %} class="text"{% elif not loop.first and cell[:1] in "-0123456789" %} class="number"{% endif %}>{{ cell | replace("± ", "±\\u00a0") }}</td>{% endfor %}</tr>
{%- endfor %}
</tbody></table></div>
{%- endif %}
{%- endmacro %}
""",
    "watch.css": """\
{% include "style.css" %}
.progress { font-weight: 600; border-left: 4px solid #0072B2; padding: .1rem .8rem; margin: .4rem 0; overflow-wrap: anywhere; }
#clients-now .wide { max-height: 32rem; overflow-y: auto; }
#clients-now thead th { position: sticky; top: 0; background: #fff; box-shadow: 0 1px #444; }
#clients-now td:first-child { min-width: 0; }
""",
    "watch.html": """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>FedQuorum report</title>
<style>{{ style }}</style>
</head>
<body>
<noscript><p class="warning">This page needs JavaScript. The path /metrics has the numbers as text.</p></noscript>
<p class="warning" id="lost" hidden></p>
<main id="report"></main>
<script src="/plotly.js"></script>
<script>{{ script }}</script>
</body>
</html>
""",
    "watch.js": """\
"use strict";
{% include "plots.js" %}
{% include "figures.js" %}
const INTERVAL = 1000, PATIENCE = 30000;
const report = document.getElementById("report"), lost = document.getElementById("lost");
let version = "";
let answered = new Date();

function patch(old, fresh) {
  // Touches only what differs: selections, scroll positions, zooms and opened details stay.
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.matches(".plots")) return;
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of old.getAttributeNames()) {
    if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  let at = old.firstChild;
  for (const node of Array.from(fresh.childNodes)) {
    let same = at;
    if (node.id) while (same && same.id !== node.id) same = same.nextSibling;
    if (same && (node.id || (!same.id && same.nodeName === node.nodeName))) {
      while (at !== same) at = removeNode(at);
      patch(same, node);
      at = same.nextSibling;
    } else {
      old.insertBefore(node, at);
    }
  }
  while (at) at = removeNode(at);
}
function removeNode(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}
async function update() {
  const headers = { "If-None-Match": version }, signal = AbortSignal.timeout(PATIENCE);
  const reply = await fetch("/content", { headers, signal });
  if (reply.status === 304) return;
  const text = await reply.text();
  if (!reply.ok) throw new Error(text);
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const made = fresh.createElement("main");
  made.id = report.id;
  made.append(...fresh.body.childNodes);
  patch(report, made);
  version = reply.headers.get("ETag");
  drawNear();
}
async function follow() {
  if (!document.hidden) {
    try {
      await update();
      answered = new Date();
      lost.hidden = true;
    } catch (error) {
      lost.textContent = "No answer since " + answered.toLocaleTimeString() + ": " + error.message;
      lost.hidden = false;
    }
  }
  setTimeout(follow, INTERVAL);
}
follow();
""",
}
