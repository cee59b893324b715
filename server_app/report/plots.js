// Plotly.js is in this page, compressed: nothing is loaded from anywhere.
document.documentElement.classList.add("js");
async function plotly() {
  const packed = atob(document.getElementById("plotly-gz").textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}
function categories(trace) {
  // Names of the categories in place of their numbers, for hovering.
  const rows = trace.y.length, columns = trace.x.length;
  const codes = Uint8Array.from(atob(trace.z.bdata), (letter) => letter.charCodeAt(0));
  trace.text = Array.from({ length: rows }, (_, row) =>
    Array.from({ length: columns }, (_, column) => trace.meta[codes[row * columns + column]]));
}
function plot(place, spec) {
  // Draws, or draws anew what is there already.
  spec.data.filter((trace) => trace.meta).forEach(categories);
  return Plotly.react(place, spec.data, spec.layout, {
    responsive: true, displaylogo: false,
    // By default a button offers to send the data to a server of Plotly's.
    showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d"],
  });
}
