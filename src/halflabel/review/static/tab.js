// The tab's name: its questions and its unsent answers go by it.
// Kept over a reload. A duplicated tab begins with a copy of the other's storage, and needs a name of its own.

export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const PLACE = "halflabel-tab";
const WAIT = 150; // ms: time for a page that is being reloaded to let go, or for another one to answer

/** Hold a name as long as this page lives; false where another page has it. */
async function claim(name) {
  if (!navigator.locks) return claimByAsking(name); // there are none over plain http from another machine
  return new Promise((done) => {
    const hold = () => {
      done(true);
      return new Promise(() => {}); // never given back before the page goes
    };
    navigator.locks.request(`${PLACE}-${name}`, { signal: AbortSignal.timeout(WAIT) }, hold).catch(() => done(false));
  });
}

async function claimByAsking(name) {
  const pages = new BroadcastChannel(`${PLACE}-${name}`);
  const isFree = await new Promise((done) => {
    pages.onmessage = ({ data }) => { if (data === "taken") done(false); };
    pages.postMessage("asked");
    setTimeout(() => done(true), WAIT);
  });
  if (isFree) pages.onmessage = ({ data }) => { if (data === "asked") pages.postMessage("taken"); };
  else pages.close();
  return isFree;
}

async function newTab() {
  const old = sessionStorage.getItem(PLACE);
  if (old && await claim(old)) return old;
  const name = newKey();
  sessionStorage.setItem(PLACE, name);
  claim(name); // nobody else can have it: not waited for
  return name;
}

export const tab = await newTab();
