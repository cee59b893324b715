"use strict";
// All that comes from a run is put into the page as text, never as HTML.
{% include "plots.js" %}
const INTERVAL = 1000;
const PATIENCE = 30000;
let drawn = "";
let shown = null;
let canDraw = false;
let answered = new Date();

const at = (id) => document.getElementById(id);

function put(node, text) {
  // Untouched where nothing is new, so that a selection and the scroll position stay.
  if (node.textContent !== text) node.textContent = text;
}
function tell(id, text) {
  put(at(id), text ?? "");
  at(id).hidden = !text;
}
function resize(parent, count, make) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(make());
}
function element(tag, name = "") {
  const made = document.createElement(tag);
  made.className = name;
  return made;
}
function fillRow(row, tag, texts) {
  resize(row, texts.length, () => element(tag));
  texts.forEach((text, place) => put(row.children[place], text));
}
function fillTable(id, table) {
  const place = at(id), body = place.querySelector("tbody");
  place.hidden = false;
  put(place.querySelector("caption"), table.title);
  fillRow(place.querySelector("thead tr"), "th", table.headings);
  resize(body, table.rows.length, () => element("tr"));
  table.rows.forEach((texts, row) => fillRow(body.children[row], "td", texts));
}
function fillParagraphs(id, name, texts) {
  resize(at(id), texts.length, () => element("p", name));
  texts.forEach((text, place) => put(at(id).children[place], text));
}
function fillRuns(table) {
  at("others").hidden = table === null;
  if (table === null) return;
  tell("unsearched", table.problem);
  // The first cell of a row is a link, kept while the run is the same.
  const rows = at("runs").querySelector("tbody").children;
  const names = table.rows.map((texts) => texts[0]);
  fillTable("runs", table);
  names.forEach((name, place) => {
    const cell = rows[place].firstElementChild;
    if (cell.querySelector("a")?.textContent === name) return;
    const link = element("a");
    link.textContent = name;
    link.href = "#" + new URLSearchParams({ run: name });
    cell.replaceChildren(link);
  });
}
function makeFigure(id) {
  const section = element("section"), figure = element("figure");
  section.id = id;
  figure.append(element("div", "plots"), element("figcaption"));
  section.append(element("h2"), figure);
  at("charts").append(section);
  return section;
}
async function fillCharts(charts) {
  const names = charts.map((chart) => "chart-" + chart.id);
  for (const section of Array.from(at("charts").children)) {
    if (!names.includes(section.id)) section.remove();
  }
  for (const [place, chart] of charts.entries()) {
    const section = at(names[place]) ?? makeFigure(names[place]);
    put(section.querySelector("h2"), chart.title);
    put(section.querySelector("figcaption"), chart.note);
    // While this stays the same, so does the zoom.
    for (const panel of chart.panels) panel.layout.uirevision = shown;
    await drawChart(section.querySelector(".plots"), chart);
  }
}
async function show(data) {
  tell("waiting", data.waiting);
  at("run").hidden = data.run === null;
  fillRuns(data.runs);
  shown = data.run;
  if (data.run === null) return;
  document.title = data.progress + " - " + data.title;
  put(at("title"), data.title);
  put(at("status"), data.status);
  put(at("progress"), data.progress);
  put(at("directory"), data.directory);
  at("share").value = data.share;
  fillParagraphs("problems", "warning", data.problems);
  fillParagraphs("notes", "note", data.notes);
  for (const table of data.tables) fillTable(table.id, table);
  fillTable("clients", data.clients);
  if (data.charts !== null && canDraw) {
    await fillCharts(data.charts);
    drawn = data.drawn;
  }
}
async function ask() {
  const chosen = new URLSearchParams(location.hash.slice(1)).get("run");
  const query = new URLSearchParams({ run: chosen ?? "", drawn });
  const reply = await fetch("/data?" + query, { signal: AbortSignal.timeout(PATIENCE) });
  if (!reply.ok) throw new Error(await reply.text());
  return reply.json();
}
async function follow() {
  let wait = INTERVAL;
  if (!document.hidden) {
    try {
      const data = await ask();
      await show(data);
      if (data.complete === false) wait = 0;
      answered = new Date();
      tell("lost", null);
    } catch (error) {
      tell("lost", "No answer since " + answered.toLocaleTimeString() + ": " + error.message);
    }
  }
  setTimeout(follow, wait);
}
async function start() {
  if ("DecompressionStream" in window) {
    await plotly();
    canDraw = true;
  }
  follow();
}
start();
