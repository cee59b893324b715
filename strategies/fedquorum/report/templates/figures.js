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
// Draws each figure when it scrolls near, so that a page with many opens at once.
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((e) => e.isIntersecting)) {
    seen.unobserve(entry.target);
    draw(entry.target);
  }
}, { rootMargin: "600px" });
function drawNear() {
  figures().forEach((figure) => placeOf(figure).chart ? draw(figure) : seen.observe(figure));
}
// Draws all figures for print, two panels in the width of a page, which is zoomed.
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
