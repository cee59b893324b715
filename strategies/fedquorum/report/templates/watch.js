"use strict";
{% include "plots.js" %}
{% include "figures.js" %}
const INTERVAL = 1000, PATIENCE = 30000;
const report = document.getElementById("report"), lost = document.getElementById("lost");
let version = "";
let answered = new Date();

function patch(old, fresh) {
  // Changes only what differs: selections, scroll positions, zooms and opened details stay.
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
