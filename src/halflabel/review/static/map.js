// The map: photos laid out by similarity; a line drawn round some of them opens the grid with these photos.
import { $, announce, el, startTurn, showOnly, toggle } from "/screen.js";
import { call, retry, smallPhoto } from "/connection.js";
import { showStopped, showWaiting } from "/questions.js";
import { Dots, cssPixel, cssText } from "/dots.js";
import { colourPhotos } from "/map_colours.js";

const MOST = 2000; // photos that a selection holds
const SHOWN_PHOTOS = 40; // with so few in view, photos are drawn instead of dots
const PHOTO_SIDE = 84;

const canvas = $("map-canvas");
const dots = new Dots(canvas);
const view = { x: 0, y: 0, scale: 1 };
const pointers = new Map(); // the fingers or the mouse on the map: id -> place
let photos = null; // {images, names, x, y}
let colours = null; // the reply of the server for the class that is chosen
let scene = null; // what Dots.draw takes
let lasso = null; // the line being drawn
let moved = false; // since the pointer came down
let drawing = 0;
let hovered = -1;
const pictures = new Map(); // index -> decoded photo, null while it is loading
let report = () => {};

/** Call a function with {text, options} for the grid when photos were selected. */
export function onSelect(listener) { report = listener; }

export function leaveMap() { $("map-tip").hidden = true; }

export async function openMap() {
  const isCurrent = startTurn();
  try {
    showOnly("view-map");
    $("map-box").classList.toggle("waits", !scene);
    while (!photos) {
      const reply = await retry(async () => (await call("/api/points")).json(), isCurrent, showWaiting);
      if (!isCurrent()) return;
      if (reply.ready) photos = { ...reply, x: Float32Array.from(reply.x, scaled), y: Float32Array.from(reply.y, scaled) };
      $("map-wait").hidden = reply.ready;
      $("map-wait").textContent = `Arranging ${reply.photos.toLocaleString("en")} photos by similarity; this is done once.`;
      if (!reply.ready) await new Promise((done) => { setTimeout(done, 400); });
    }
    const query = new URLSearchParams({ label: $("filter-class").value });
    colours = await retry(async () => (await call(`/api/colours?${query}`)).json(), isCurrent, showWaiting);
    if (!isCurrent()) return;
    showOnly("view-map");
    if (dots.resize() || view.scale === 1) fit();
    recolour();
    $("map-box").classList.remove("waits");
    announce(`The map has ${photos.images.length.toLocaleString("en")} photos.`);
  } catch (error) { if (isCurrent()) showStopped(error); }
}

const scaled = (value) => value / 65535;

function fit() {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const [right, bottom] = [photos.x, photos.y].map((places) => places.reduce((a, b) => Math.max(a, b), 0.1) + 0.03);
  view.scale = Math.min(width / right, height / bottom);
  view.x = (right - width / view.scale) / 2;
  view.y = (bottom - height / view.scale) / 2;
  draw();
}

function recolour() {
  $("map-colour").hidden = Boolean(colours.best);
  const isKnown = $("map-colour").getAttribute("aria-pressed") === "true";
  const { key, ...dressed } = colourPhotos(colours, $("filter-class").value, isKnown);
  $("map-key").replaceChildren(...key.map(([pixel, text]) => {
    const chip = el("span", { class: "chip", "aria-hidden": "true" });
    chip.style.background = cssText(pixel);
    return el("li", {}, chip, text);
  }));
  scene = { x: photos.x, y: photos.y, ...dressed, background: cssPixel("--card"), radius: 3 };
  draw();
}

// ---- drawing

function draw() {
  if (!drawing) drawing = requestAnimationFrame(paint);
}

function paint() {
  drawing = 0;
  if (!scene || $("view-map").hidden) return;
  dots.resize();
  const near = Math.min(3, Math.sqrt(view.scale / Math.min(canvas.clientWidth, canvas.clientHeight)));
  scene.radius = (photos.images.length > 5000 ? 2 : 3) * Math.max(1, near);
  dots.draw(scene, view);
  const { pen, ratio } = dots;
  const visible = inView();
  if (visible.length <= SHOWN_PHOTOS) for (const index of visible) paintPhoto(index);
  if (hovered >= 0) {
    pen.strokeStyle = cssText(cssPixel("--ink"));
    pen.lineWidth = 2 * ratio;
    pen.beginPath();
    pen.arc((photos.x[hovered] - view.x) * view.scale * ratio, (photos.y[hovered] - view.y) * view.scale * ratio, (scene.radius + 3) * ratio, 0, 7);
    pen.stroke();
  }
  if (lasso) {
    const link = cssText(cssPixel("--link"));
    pen.strokeStyle = pen.fillStyle = link;
    pen.lineWidth = 2 * ratio;
    pen.beginPath();
    for (const [x, y] of lasso) pen.lineTo(x * ratio, y * ratio);
    pen.closePath();
    pen.stroke();
    pen.globalAlpha = 0.12;
    pen.fill();
    pen.globalAlpha = 1;
  }
}

function inView() {
  const [right, bottom] = [view.x + canvas.clientWidth / view.scale, view.y + canvas.clientHeight / view.scale];
  const indices = [];
  for (let index = 0; index < photos.images.length; index += 1) {
    const [x, y] = [photos.x[index], photos.y[index]];
    if (x >= view.x && x < right && y >= view.y && y < bottom) indices.push(index);
  }
  return indices;
}

function paintPhoto(index) {
  const picture = pictures.get(index);
  if (picture === undefined) {
    if (pictures.size > 300) pictures.clear();
    pictures.set(index, null);
    smallPhoto({ image: photos.images[index] }).then(async (url) => {
      const image = Object.assign(new Image(), { src: url });
      await image.decode();
      pictures.set(index, image);
      draw();
    }).catch(() => {});
  }
  if (!picture) return;
  const { pen, ratio } = dots;
  const shrink = PHOTO_SIDE * ratio / Math.max(picture.width, picture.height);
  const [width, height] = [picture.width * shrink, picture.height * shrink];
  const [left, top] = [(photos.x[index] - view.x) * view.scale * ratio - width / 2, (photos.y[index] - view.y) * view.scale * ratio - height / 2];
  pen.drawImage(picture, left, top, width, height);
  pen.strokeStyle = cssText(scene.palette[scene.colour[index]]);
  pen.lineWidth = 3 * ratio;
  pen.strokeRect(left, top, width, height);
}

function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const scale = Math.min(Math.max(view.scale * factor, 120), 200_000);
  view.x += x / view.scale - x / scale;
  view.y += y / view.scale - y / scale;
  view.scale = scale;
  draw();
}

function move(x, y) {
  view.x -= x / view.scale;
  view.y -= y / view.scale;
  draw();
}

// ---- selection

function select(chosen) {
  if (!chosen.length) return announce("There is no photo.");
  const within = chosen.slice(0, MOST).map((index) => photos.images[index]);
  const count = within.length === 1 ? "1 photo" : `${within.length.toLocaleString("en")} photos`;
  report({ text: `From the map: ${count}, those without an answer.`, options: { within, label: askedClass(chosen) } });
}

/** The class to ask for: the chosen one, or the one that most of these photos show. */
function askedClass(chosen) {
  if (!colours.best) return $("filter-class").value;
  const counts = new Map();
  for (const index of chosen) counts.set(colours.best[index], (counts.get(colours.best[index]) ?? 0) + 1);
  counts.delete(-1);
  const [best] = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
  return best === undefined ? "" : colours.classes[best];
}

function selectLasso() {
  const shape = new Path2D();
  for (const [x, y] of lasso) shape.lineTo(x, y);
  const pen = document.createElement("canvas").getContext("2d");
  select(inView().filter((index) => pen.isPointInPath(shape, (photos.x[index] - view.x) * view.scale, (photos.y[index] - view.y) * view.scale)));
}

const takeView = () => { if (photos) select(inView()); };

// ---- pointers and keys

const place = (event) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};

function nearest([x, y], reach = 12) {
  let [found, least] = [-1, reach * reach];
  for (let index = 0; photos && index < photos.images.length; index += 1) {
    const [a, b] = [(photos.x[index] - view.x) * view.scale - x, (photos.y[index] - view.y) * view.scale - y];
    if (a * a + b * b < least) [found, least] = [index, a * a + b * b];
  }
  return found;
}

function hover(at) {
  const index = at ? nearest(at) : -1;
  if (index === hovered) return;
  hovered = index;
  const tip = $("map-tip");
  tip.hidden = true;
  draw();
  if (index < 0) return;
  smallPhoto({ image: photos.images[index] }).then((url) => {
    if (hovered !== index) return;
    tip.querySelector("img").src = url;
    tip.querySelector("figcaption").textContent = photos.names[index];
    tip.hidden = false;
    const left = at[0] + 190 > canvas.clientWidth ? at[0] - 184 : at[0] + 16;
    const top = Math.min(at[1] + 12, canvas.clientHeight - tip.offsetHeight - 6);
    tip.style.transform = `translate(${Math.max(2, left)}px, ${Math.max(2, top)}px)`;
  }, () => {});
}

canvas.addEventListener("pointerdown", (event) => {
  if (event.pointerType === "mouse" && event.button > 0) return;
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, place(event));
  moved = false;
  hover(null);
  const draws = ($("map-lasso").getAttribute("aria-pressed") === "true") !== event.shiftKey;
  lasso = draws && pointers.size === 1 ? [place(event)] : null; // a second finger zooms instead
});

canvas.addEventListener("pointermove", (event) => {
  const before = pointers.get(event.pointerId);
  const at = place(event);
  if (!before) return event.pointerType === "mouse" && hover(at);
  pointers.set(event.pointerId, at);
  if (Math.hypot(at[0] - before[0], at[1] - before[1]) > 1) moved = true;
  if (pointers.size === 2) {
    const [other] = [...pointers.entries()].filter(([id]) => id !== event.pointerId).map(([, value]) => value);
    const distance = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
    move((at[0] - before[0]) / 2, (at[1] - before[1]) / 2);
    zoom(distance(at) / distance(before), (at[0] + other[0]) / 2, (at[1] + other[1]) / 2);
  } else if (lasso) {
    lasso.push(at);
    draw();
  } else move(at[0] - before[0], at[1] - before[1]);
});

function lift(event) {
  if (!pointers.delete(event.pointerId)) return;
  const line = lasso;
  if (event.type === "pointerup" && line && moved && line.length > 3) selectLasso();
  else if (event.type === "pointerup" && !moved && !pointers.size) {
    const index = nearest(place(event), 16);
    if (index >= 0) report({ text: `Most similar to ${photos.names[index]} first.`, options: { like: photos.images[index], label: askedClass([index]) } });
  }
  lasso = null;
  draw();
}
canvas.addEventListener("pointerup", lift);
canvas.addEventListener("pointercancel", lift);
canvas.addEventListener("pointerleave", () => hover(null));
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  hover(null);
  zoom(Math.exp(-event.deltaY / (event.ctrlKey ? 100 : 400)), ...place(event));
}, { passive: false });
canvas.addEventListener("keydown", (event) => {
  const step = 0.15 * Math.min(canvas.clientWidth, canvas.clientHeight);
  const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
  if (moves[event.key]) move(...moves[event.key]);
  else if (event.key === "+" || event.key === "=") zoom(1.3);
  else if (event.key === "-") zoom(1 / 1.3);
  else if (event.key === "0") fit();
  else if (event.key === "Enter") takeView();
  else return;
  event.preventDefault();
});
$("map-take").addEventListener("click", takeView);
$("map-fit").addEventListener("click", fit);
for (const name of ["map-lasso", "map-colour"]) {
  $(name).addEventListener("click", () => {
    toggle($(name), $(name).getAttribute("aria-pressed") !== "true");
    canvas.classList.toggle("moves", $("map-lasso").getAttribute("aria-pressed") !== "true");
    if (colours) recolour();
  });
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (scene) recolour(); });
new ResizeObserver(draw).observe(canvas);
