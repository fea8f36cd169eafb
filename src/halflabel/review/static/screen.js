// The screen: which view is open, messages in place of photos, and helpers for making elements.

export const $ = (id) => document.getElementById(id);
export const ANSWER_WORDS = new Map([[1, "yes"], [-1, "no"], [0, "unsure"]]);

export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children); // strings become text, never markup
  return element;
}

export const shorten = (name) => ([...name].length > 40 ? `${[...name].slice(0, 39).join("")}…` : name);

export function setTitle(headingId, nameId, name) {
  $(nameId).textContent = name;
  $(headingId).classList.toggle("long", name.length > 40);
}

export function toggle(button, on) { button.setAttribute("aria-pressed", String(on)); }

export function showTrouble(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
}

export function announce(text) {
  const place = $("status");
  place.textContent = text;
  place.classList.remove("fresh"); // restarts the animation that hides the text on a phone
  void place.offsetWidth;
  place.classList.toggle("fresh", text !== "");
}

export let view = "one"; // or photo, grid, map, wrong, conflicts

export function setView(name) { view = name; }

let turn = 0; // counts changes of what is shown

/** Start showing something else; returns a function that tells whether that is still shown when a reply arrives. */
export function startTurn() {
  const started = ++turn;
  return () => started === turn;
}

/** Return a function that tells whether the present content is still shown. */
export function currentTurn() {
  const started = turn;
  return () => started === turn;
}

export function showOnly(id) {
  for (const name of ["view-one", "view-photo", "view-grid", "view-map", "view-gallery", "view-message"]) $(name).hidden = name !== id;
}

/** Show a message instead of photos, with a button where the user can do something. */
export function showMessage(title, text, buttonText = "", onClick = null) {
  $("message-title").textContent = title;
  $("message-text").textContent = text;
  $("message-button").hidden = !onClick;
  $("message-button").textContent = buttonText;
  $("message-button").onclick = onClick;
  $("grid-tiles").replaceChildren(); // no tile of an earlier grid can be marked
  showOnly("view-message");
  announce(`${title}.`);
}
