function placeOf(figure) {
  return document.getElementById(figure.dataset.plot);
}
function draw(figure) {
  const spec = JSON.parse(document.getElementById(figure.dataset.plot + "-data").textContent);
  return drawChart(placeOf(figure), spec);
}
async function start() {
  const figures = Array.from(document.querySelectorAll("figure[data-plot]"));
  if (figures.length === 0) return;
  await plotly();
  // Each is drawn when it comes near: a page of many opens at once.
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((e) => e.isIntersecting)) {
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "600px" });
  figures.forEach((figure) => seen.observe(figure));
  // On paper all are drawn, two panels in the width of a page, which is zoomed.
  addEventListener("beforeprint", () => figures.forEach((figure) => {
    seen.unobserve(figure);
    if (!placeOf(figure).chart) draw(figure);
    const plots = placeOf(figure).querySelectorAll(".plot");
    const width = figure.classList.contains("small") ? 330 : plots.length > 1 ? 420 : 680;
    plots.forEach((plot) => Plotly.relayout(plot, { width }));
  }));
  addEventListener("afterprint", () => figures.forEach((figure) =>
    placeOf(figure).querySelectorAll(".plot").forEach((plot) =>
      Plotly.relayout(plot, { width: null, autosize: true }))));
}
if ("DecompressionStream" in window) start();
