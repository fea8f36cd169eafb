// Talking to the server: calls with the token, photos held ready, and answers kept until they are on its disk.

// The token stands in the address after #, which browsers never send; it goes out as a header.
export const token = location.hash.slice(1);
export const $ = (id) => document.getElementById(id);

function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children); // strings become text, never markup
  return made;
}

/** The server has answered, but not what was asked for: why, in words, and as an HTTP status. */
export class Refused extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

// Where it is down, or its disk is full, the same may go well a moment later.
const mayPass = (error) => !(error instanceof Refused) || error.status >= 500;
export const reason = (error) => (
  error instanceof Refused ? error.message : "The server does not answer; is it still running?"
);

/** Ask until the server answers, as long as the answer is `wanted`, else null; each failure is told to `stalled`. */
export async function insist(ask, wanted, stalled) {
  for (let wait = 500; ; wait = Math.min(2 * wait, 8000)) {
    try {
      const reply = await ask();
      if (!outbox.length) trouble("");
      return reply;
    } catch (error) {
      if (!wanted()) return null;
      if (!mayPass(error)) throw error;
      stalled(error);
      await new Promise((done) => setTimeout(done, wait));
      if (!wanted()) return null;
    }
  }
}

export async function call(path, body) {
  const reply = await fetch(path, {
    method: body ? "POST" : "GET",
    headers: { "X-Halflabel-Token": token, ...(body ? { "Content-Type": "application/json" } : {}) },
    body: body ? JSON.stringify(body) : undefined,
  });
  if (reply.status === 401) throw new Refused("This address is out of date. Open the one that the terminal shows.", 401);
  if (!reply.ok) {
    const said = await reply.json().catch(() => ({}));
    throw new Refused(said.error || `The server refused this (${reply.status}).`, reply.status);
  }
  return reply;
}

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

const photos = new Map(); // address -> a promise of a decoded picture's blob address

export function photo(address) {
  let found = photos.get(address);
  if (found) photos.delete(address); // put at the end: used last
  else {
    found = call(address).then(async (reply) => {
      if (reply.headers.get("Content-Type")?.startsWith("application/json")) throw new Refused((await reply.json()).nothing);
      return reply.blob();
    }).then(async (blob) => {
      const url = URL.createObjectURL(blob);
      const picture = new Image();
      picture.src = url;
      await picture.decode().catch(() => { throw new Refused("the browser cannot show it"); });
      return url;
    });
    found.catch(() => photos.delete(address));
  }
  photos.set(address, found);
  while (photos.size > 150) {
    const [oldest, promise] = photos.entries().next().value;
    photos.delete(oldest);
    promise.then((url) => URL.revokeObjectURL(url), () => {});
  }
  return found;
}

export const large = (question) => photo(`/api/picture/${question.image}?size=large`);
export const small = (question) => photo(`/api/picture/${question.image}?size=small`);

// ---- answers: shown at once, sent in order, kept here until the server has them on its disk

let project = "";
let box = "";
let past = []; // what can be taken back: [{keys, questions}]
let outbox = []; // steps the server has not confirmed yet
let sending = false;
let heard = () => {}; // told the progress after each reply

export const tab = newTab();

function newTab() {
  const old = sessionStorage.getItem("halflabel-tab");
  const name = old || newKey();
  sessionStorage.setItem("halflabel-tab", name);
  return name;
}

export const isReady = () => project !== "";
export const unsent = () => outbox.map((step) => step.entry);

/** Begin to take answers for a project: those that an earlier page could not send come first. */
export function begin(name, listener) {
  project = name;
  heard = listener;
  box = `halflabel-${project}-${tab}`;
  past = JSON.parse(sessionStorage.getItem(`halflabel-past-${project}`) || "[]");
  // Sent twice is said once, so it does no harm where the other page is still open.
  for (const key of Object.keys(localStorage).filter((key) => key.startsWith(`halflabel-${project}-`))) {
    try { outbox.push(...JSON.parse(localStorage.getItem(key))); } catch { /* damaged: nothing to adopt */ }
    if (key !== box) localStorage.removeItem(key);
  }
  keep();
  send();
}

function keep() {
  if (outbox.length) localStorage.setItem(box, JSON.stringify(outbox));
  else localStorage.removeItem(box);
  sessionStorage.setItem(`halflabel-past-${project}`, JSON.stringify(past));
}

export async function send() {
  if (sending) return;
  sending = true;
  let wait = 500;
  while (outbox.length) {
    const steps = outbox.slice(0, 100);
    try {
      const reply = await (await call("/api/say", { tab, steps })).json();
      outbox.splice(0, steps.length);
      keep();
      trouble("");
      heard(reply);
      wait = 500;
    } catch (error) {
      const many = outbox.filter((step) => step.kind === "answer").length;
      trouble(`Not saved yet: ${many} ${many === 1 ? "answer" : "answers"}, kept in this browser. ${reason(error)}`);
      await new Promise((done) => setTimeout(done, wait));
      wait = Math.min(wait * 2, 8000);
    }
  }
  sending = false;
}

export function answer(questions, values) {
  const steps = questions.map((question, at) => (
    { kind: "answer", key: newKey(), entry: question.entry, value: values[at] }
  ));
  past = [...past, { keys: steps.map((step) => step.key), questions }].slice(-100);
  outbox.push(...steps);
  keep();
  send();
}

/** Take back what was answered last; its questions, or null where there is nothing. */
export function takeBack() {
  const last = past.pop();
  if (!last) return null;
  outbox.push(...last.keys.map((key, at) => ({ kind: "undo", key, entry: last.questions[at].entry })));
  keep();
  send();
  return last.questions;
}
