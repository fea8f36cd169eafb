// The connection to the server: API calls with the token, a cache of photos, and an outbox of unconfirmed answers.
import { showTrouble } from "/screen.js";
import { lockName, newKey, tab } from "/tab.js";

// The token is in the address after #, which browsers never send; it is sent as a header.
// &class=… after it opens the photos of a class.
const [givenToken, givenClass] = location.hash.slice(1).split("&class=");
export const token = givenToken;
export const wantedClass = givenClass;

/** The server refused a request; has the reason and the HTTP status. */
export class Refused extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

// If the server is down or its disk is full, the same request may succeed later.
const isTemporary = (error) => !(error instanceof Refused) || error.status >= 500;
export const reason = (error) => (
  error instanceof Refused ? error.message : "The server does not answer; is it still running?"
);

/** Wait some ms, or until the browser is online again. */
const waitOrOnline = (wait) => new Promise((done) => {
  setTimeout(done, wait);
  addEventListener("online", done, { once: true });
});

/** Repeat a request until it succeeds; null once it is no longer `wanted`. Calls `onFailure` after each failure. */
export async function retry(request, wanted, onFailure) {
  for (let wait = 500; ; wait = Math.min(2 * wait, 8000)) {
    try {
      const reply = await request();
      if (!outbox.length && !expired) showTrouble(""); // an expired page stays expired, even if a cached photo could be shown
      return reply;
    } catch (error) {
      if (!wanted()) return null;
      if (!isTemporary(error)) throw error;
      onFailure(error);
      await waitOrOnline(wait);
      if (!wanted()) return null;
    }
  }
}

// ---- who answers: asked once per browser where several people use the server

const NAME_PLACE = "halflabel-reviewer";
export let reviewer = localStorage.getItem(NAME_PLACE) ?? "";

/** Answer under this name from now on, and in other tabs of this browser once they are loaded. */
export function setReviewer(name) {
  reviewer = name;
  localStorage.setItem(NAME_PLACE, name);
}

export async function call(path, body) {
  const reply = await fetch(path, {
    method: body ? "POST" : "GET",
    headers: { "X-Halflabel-Token": token, "X-Halflabel-Reviewer": encodeURIComponent(reviewer), ...(body ? { "Content-Type": "application/json" } : {}) },
    body: body ? JSON.stringify(body) : undefined,
  });
  if (reply.status === 401) {
    expired = new Refused("This address is out of date. Open the address shown in the terminal.", 401);
    reportTrouble(expired);
    onExpired(expired);
    throw expired;
  }
  if (!reply.ok) {
    const content = await reply.json().catch(() => ({}));
    throw new Refused(content.error || `The server refused this (${reply.status}).`, reply.status);
  }
  return reply;
}

const images = new Map(); // address -> promise of a blob URL of the decoded image

export function loadImage(address) {
  let loading = images.get(address);
  if (loading) images.delete(address); // inserted again at the end: most recently used
  else {
    loading = call(address).then(async (reply) => {
      if (reply.headers.get("Content-Type")?.startsWith("application/json")) throw new Refused((await reply.json()).nothing);
      return reply.blob();
    }).then(async (blob) => {
      const url = URL.createObjectURL(blob);
      const picture = new Image();
      picture.src = url;
      await picture.decode().catch(() => { throw new Refused("the browser cannot show it"); });
      return url;
    });
    loading.catch(() => images.delete(address));
  }
  images.set(address, loading);
  while (images.size > 150) {
    const [oldest, promise] = images.entries().next().value;
    images.delete(oldest);
    promise.then((url) => URL.revokeObjectURL(url), () => {});
  }
  return loading;
}

export const largePhoto = (question) => loadImage(`/api/image/${question.image}?size=large`);
export const smallPhoto = (question) => loadImage(`/api/image/${question.image}?size=small`);

// ---- answers: shown at once, sent in order, kept in the browser until the server has stored them

const PAST = "halflabel-undo"; // the answers that can be undone, in localStorage
let project = "";
let outboxKey = ""; // of the outbox in localStorage
let undoStack = []; // [{keys, questions}]
let outbox = []; // steps that the server has not confirmed yet
let sending = false;
let expired = null; // the refusal after which no answer can be sent: a restarted server has another token
let onProgress = () => {}; // called with the progress after each reply
let onExpired = () => {}; // called when no answer can be sent any more

export const isReady = () => project !== "" && !expired;
export const unsent = () => outbox.map((step) => step.entry);

/** Start sending answers of a project; answers that an earlier page could not send come first. */
export function startSending(name, progressListener, expiredListener) {
  project = name;
  onProgress = progressListener;
  onExpired = expiredListener;
  outboxKey = `halflabel-${project}-${tab}`;
  undoStack = JSON.parse(localStorage.getItem(`${PAST}-${project}-${tab}`) || "[]");
  if (!undoStack.length) adoptUndo();
  // An answer that is sent twice is stored once, so this is safe while the other page is open.
  for (const key of Object.keys(localStorage).filter((key) => key.startsWith(`halflabel-${project}-`))) {
    try { outbox.push(...JSON.parse(localStorage.getItem(key))); } catch { /* damaged: nothing to adopt */ }
    if (key !== outboxKey) localStorage.removeItem(key);
  }
  saveOutbox();
  send();
  listener();
}

/** Take over the answers of pages that are closed, so that undo and the last answers outlive a closed page. */
async function adoptUndo() {
  if (!navigator.locks) return; // whether a page is open is not known
  const open = (await navigator.locks.query()).held.map((lock) => lock.name);
  const prefix = `${PAST}-${project}-`;
  for (const key of Object.keys(localStorage).filter((key) => key.startsWith(prefix))) {
    if (open.includes(lockName(key.slice(prefix.length)))) continue;
    try { undoStack = [...JSON.parse(localStorage.getItem(key)), ...undoStack].slice(-100); } catch { /* damaged */ }
    localStorage.removeItem(key);
  }
  saveOutbox();
  listener();
}

function saveOutbox() {
  if (outbox.length) localStorage.setItem(outboxKey, JSON.stringify(outbox));
  else localStorage.removeItem(outboxKey);
  if (undoStack.length) localStorage.setItem(`${PAST}-${project}-${tab}`, JSON.stringify(undoStack));
  else localStorage.removeItem(`${PAST}-${project}-${tab}`);
}

/** Show what is wrong, and which answers are not saved because of it. */
export function reportTrouble(error) {
  const count = outbox.filter((step) => step.kind === "answer").length;
  const what = count ? `${count} ${count === 1 ? "answer" : "answers"}` : "your undo";
  const unsaved = `Not saved yet: ${what}, kept in this browser.`;
  if (!outbox.length) showTrouble(reason(error));
  else if (!expired) showTrouble(`${unsaved} ${reason(error)}`);
  else if (localStorage.getItem(outboxKey)) showTrouble(`${unsaved} ${reason(error)} Use this browser: it then saves them.`);
  else showTrouble("This address is out of date. Another page has taken over the unsaved answers: you can close this one.");
}

// A page at the new address takes over the outbox.
addEventListener("storage", (event) => { if (expired && event.key === outboxKey) reportTrouble(expired); });

async function send() {
  if (sending || expired) return;
  sending = true;
  let wait = 500;
  while (outbox.length) {
    const steps = outbox.slice(0, 100);
    try {
      const reply = await (await call("/api/answers", { tab, steps })).json();
      outbox.splice(0, steps.length);
      saveOutbox();
      showTrouble("");
      onProgress(reply);
      wait = 500;
    } catch (error) {
      reportTrouble(error);
      if (expired) break;
      await waitOrOnline(wait);
      wait = Math.min(wait * 2, 8000);
    }
  }
  sending = false;
}

/** Answer questions; `chosen` says that the person chose what to answer, so that it is no random check. */
export function answer(questions, values, chosen = false) {
  const steps = questions.map((question, index) => (
    // A question with `answers` is a conflict.
    { kind: "answer", key: newKey(), entry: question.entry, value: values[index], chosen, settles: Boolean(question.answers), who: reviewer }
  ));
  undoStack = [...undoStack, { keys: steps.map((step) => step.key), questions, values }].slice(-100);
  outbox.push(...steps);
  saveOutbox();
  send();
  listener();
}

/** The last answers of this tab that hold, newest first: one per entry. */
export function recentAnswers(most) {
  const entries = new Map();
  for (const { questions, values } of [...undoStack].reverse()) {
    if (!values) continue;
    questions.forEach((question, index) => {
      if (!entries.has(question.entry)) entries.set(question.entry, { question, value: values[index] });
    });
    if (entries.size >= most) break;
  }
  return [...entries.values()].slice(0, most);
}

let listener = () => {};

/** Call a function after each answer and undo. */
export function onAnswers(call) { listener = call; }

/** Undo the last answers; returns their questions and values, or null if there are none. */
export function undoLast() {
  const last = undoStack.pop();
  if (!last) return null;
  outbox.push(...last.keys.map((key, index) => ({ kind: "undo", key, entry: last.questions[index].entry, who: reviewer })));
  saveOutbox();
  send();
  listener();
  return last;
}
