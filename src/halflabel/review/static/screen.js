// The screen: which view is open, words in place of photos, and small help for making elements.

export const $ = (id) => document.getElementById(id);
export const WORDS = new Map([[1, "yes"], [-1, "no"], [0, "unsure"]]);

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children); // strings become text, never markup
  return made;
}

export const brief = (name) => ([...name].length > 40 ? `${[...name].slice(0, 39).join("")}…` : name); // where it is only named again

export function title(heading, place, name) {
  $(place).textContent = name;
  $(heading).classList.toggle("long", name.length > 40);
}

export function toggle(button, on) { button.setAttribute("aria-pressed", String(on)); }

export function trouble(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
}

export function say(text) {
  const place = $("status");
  place.textContent = text;
  place.classList.remove("fresh"); // on a phone it is shown for a while: from the beginning again
  void place.offsetWidth;
  place.classList.toggle("fresh", text !== "");
}

export let view = "one"; // or grid, missing, wrong

export function setView(name) { view = name; }

let turn = 0;

/** To be called when what is shown changes; tells later whether that still is what is shown, or a reply comes too late. */
export function newTurn() {
  const mine = ++turn;
  return () => mine === turn;
}

/** Whether what is shown now still is. */
export function thisTurn() {
  const mine = turn;
  return () => mine === turn;
}

export function showOnly(id) {
  for (const name of ["view-one", "view-grid", "view-gallery", "view-none"]) $(name).hidden = name !== id;
}

/** Words instead of photos, and a button where there is something to do about it. */
export function none(title, said, word = "", act = null) {
  $("none-title").textContent = title;
  $("none-said").textContent = said;
  $("none-act").hidden = !act;
  $("none-act").textContent = word;
  $("none-act").onclick = act;
  $("grid-tiles").replaceChildren(); // none of an earlier grid is left to be marked
  showOnly("view-none");
}
