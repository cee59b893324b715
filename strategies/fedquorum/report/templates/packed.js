// Plotly.js is in this page, compressed: the page loads nothing.
async function plotly() {
  const packed = atob(document.getElementById("plotly-gz").textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}
if ("DecompressionStream" in window && figures().length) plotly().then(drawNear);
