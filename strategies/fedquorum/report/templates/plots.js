function categories(trace) {
  // Writes category names in place of their codes, for hovering.
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
function swatch({ color, dash }) {
  const box = dash === "box", drawn = shape("svg", { width: box ? 14 : 30, height: 12 });
  if (box) drawn.append(shape("rect", { x: 1, y: 1, width: 11, height: 10, fill: color, stroke: "#444" }));
  else if (dash === "points") drawn.append(shape("circle", { cx: 15, cy: 6, r: 4, fill: color }));
  else drawn.append(shape("line", {
    x1: 0, x2: 30, y1: 6, y2: 6, stroke: color, "stroke-width": 2, "stroke-dasharray": DASHES[dash],
  }));
  return drawn;
}
function fillLegend(place, spec) {
  // Skips an unchanged legend. A click hides a label in all panels, a double click all others.
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
      const onlyThis = others.every((label) => hidden.has(label));
      hidden.clear();
      if (!onlyThis) others.forEach((label) => hidden.add(label));
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
  // Draws a panel, or updates it. On a narrow screen the legend names the lines.
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
