// Talking to the server: calls with the token, photos held ready, and answers kept until they are on its disk.
import { trouble } from "/screen.js";
import { newKey, tab } from "/tab.js";

// The token stands in the address after #, which browsers never send; it goes out as a header.
export const token = location.hash.slice(1);

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

/** Some time, in ms, or less where the network comes back. */
const patience = (wait) => new Promise((done) => {
  setTimeout(done, wait);
  addEventListener("online", done, { once: true });
});

/** Ask until the server answers, as long as the answer is `wanted`, else null; each failure is told to `stalled`. */
export async function insist(ask, wanted, stalled) {
  for (let wait = 500; ; wait = Math.min(2 * wait, 8000)) {
    try {
      const reply = await ask();
      if (!outbox.length && !over) trouble(""); // what is over stays so, though a photo may be here already
      return reply;
    } catch (error) {
      if (!wanted()) return null;
      if (!mayPass(error)) throw error;
      stalled(error);
      await patience(wait);
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
  if (reply.status === 401) {
    over = new Refused("This address is out of date. Open the one that the terminal shows.", 401);
    tell(over);
    ended(over);
    throw over;
  }
  if (!reply.ok) {
    const said = await reply.json().catch(() => ({}));
    throw new Refused(said.error || `The server refused this (${reply.status}).`, reply.status);
  }
  return reply;
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
let over = null; // the refusal after which nothing more can be said: another start of the server has another token
let heard = () => {}; // told the progress after each reply
let ended = () => {}; // told that no answer can be given any more

export const isReady = () => project !== "" && !over;
export const unsent = () => outbox.map((step) => step.entry);

/** Begin to take answers for a project: those that an earlier page could not send come first. */
export function begin(name, onProgress, onEnd) {
  project = name;
  heard = onProgress;
  ended = onEnd;
  box = `halflabel-${project}-${tab}`;
  past = JSON.parse(sessionStorage.getItem(`halflabel-past-${project}-${tab}`) || "[]");
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
  sessionStorage.setItem(`halflabel-past-${project}-${tab}`, JSON.stringify(past));
}

/** What is wrong, and what is not saved because of it. */
export function tell(error) {
  const many = outbox.filter((step) => step.kind === "answer").length;
  const what = many ? `${many} ${many === 1 ? "answer" : "answers"}` : "what you took back";
  const kept = `Not saved yet: ${what}, kept in this browser.`;
  if (!outbox.length) trouble(reason(error));
  else if (!over) trouble(`${kept} ${reason(error)}`);
  else if (localStorage.getItem(box)) trouble(`${kept} ${reason(error)} It must be this browser: what is kept is saved then.`);
  else trouble("This address is out of date. Another page has taken over what was not saved here: you can close this one.");
}

// A page at the new address takes over what is kept here.
addEventListener("storage", (event) => { if (over && event.key === box) tell(over); });

async function send() {
  if (sending || over) return;
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
      tell(error);
      if (over) break;
      await patience(wait);
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
