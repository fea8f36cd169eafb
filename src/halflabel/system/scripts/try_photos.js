// The page of `halflabel serve`: photos are dropped or chosen, sent one by one, and decided by the slider.
const zone = document.querySelector("#drop");
const chooser = document.querySelector("#files");
const slider = document.querySelector("#threshold");
const results = document.querySelector("#results");
const LEAST = 5; // classes shown of a photo, or more if more are present
const MOST = 40;
const SENDING = 3; // photos sent at a time
const thresholds = new Map(Object.entries(JSON.parse(slider.dataset.thresholds)));
let moved = false; // until then each class has its own threshold
const waiting = [];
let sending = 0;
const cards = []; // {box, list, labels}

const make = (name, attributes = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const thresholdOf = (name) => (moved ? Number(slider.value) / 100 : thresholds.get(name) ?? 0.5);
// A probability is never certain: it is not rounded to 0 or 100 %.
const percent = (p) => (p < 0.005 ? "< 1 %" : p > 0.995 ? "> 99 %" : `${Math.round(100 * p)} %`);

function draw(card) {
  const isPresent = (label) => label.probability >= thresholdOf(label.class);
  const present = card.labels.filter(isPresent).length;
  const shown = card.labels.filter((label, index) => isPresent(label) || index < LEAST).slice(0, MOST);
  card.list.replaceChildren(...shown.map((label) => {
    const on = isPresent(label);
    const fill = make("span", { class: "fill" });
    fill.style.width = `${100 * label.probability}%`;
    const mark = make("span", { class: "at" });
    mark.style.left = `${100 * thresholdOf(label.class)}%`;
    return make("li", { class: on ? "called" : "" }, make("span", { class: "name" }, label.class),
      make("span", { class: "track", "aria-hidden": "true" }, fill, mark),
      make("span", { class: "number" }, percent(label.probability)),
      make("span", { class: "unseen" }, on ? "present" : "not called present"));
  }));
  card.box.querySelector(".count").textContent = present === 1 ? "1 class" : `${present || "no"} classes`;
}

function drawAll() {
  document.querySelector("#threshold-value").textContent = moved ? (Number(slider.value) / 100).toFixed(2) : slider.dataset.text;
  document.querySelector("#reset").hidden = !moved;
  for (const card of cards) if (card.labels) draw(card);
}

function add(files) {
  for (const file of files) {
    const picture = make("img", { alt: "" });
    picture.src = URL.createObjectURL(file);
    picture.addEventListener("error", () => picture.replaceWith(make("p", { class: "none" }, "Your browser cannot show this format.")));
    const list = make("ul", { class: "bars" });
    const box = make("article", { class: "result", "aria-label": file.name }, picture,
      make("p", {}, make("b", { class: "name" }, file.name), " ", make("span", { class: "muted count", role: "status" }, "…")), list);
    results.prepend(box);
    const card = { box, list, file, labels: null };
    cards.push(card);
    waiting.push(card);
  }
  next();
}

async function next() {
  if (sending >= SENDING || !waiting.length) return;
  const card = waiting.shift();
  sending += 1;
  next();
  try {
    const form = new FormData();
    form.append("files", card.file);
    const reply = await fetch("predict?all=true", { method: "POST", body: form });
    const content = await reply.json().catch(() => ({ detail: `the server refused it (${reply.status})` }));
    if (!reply.ok) throw new Error(content.detail);
    card.labels = content.images[0].labels;
    draw(card);
  } catch (error) {
    card.box.querySelector(".count").textContent = "";
    const text = error instanceof TypeError ? "The server does not answer." : `Refused: ${error.message}.`;
    card.list.replaceWith(make("p", { class: "warn", role: "alert" }, text));
  }
  sending -= 1;
  next();
}

chooser.addEventListener("change", () => { add(chooser.files); chooser.value = ""; });
slider.addEventListener("input", () => { moved = true; drawAll(); });
document.querySelector("#reset").addEventListener("click", () => { moved = false; slider.value = slider.dataset.start; drawAll(); slider.focus(); });
for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, (event) => { event.preventDefault(); zone.classList.add("over"); });
}
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) zone.classList.remove("over"); });
document.addEventListener("drop", (event) => {
  event.preventDefault();
  zone.classList.remove("over");
  add(event.dataTransfer.files);
});
document.addEventListener("paste", (event) => add(event.clipboardData.files));
drawAll();
