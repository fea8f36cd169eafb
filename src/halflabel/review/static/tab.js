// The name of this browser tab, under which its questions are reserved and its unsent answers are stored.
// It survives a reload. A duplicated tab starts with a copy of the session storage and needs a new name.

export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const PLACE = "halflabel-tab";
const WAIT = 150; // ms: time for a reloading page to release the name, or for another page to answer

/** The name of the lock that the page of a tab holds while it is open. */
export const lockName = (name) => `${PLACE}-${name}`;

/** Reserve a name for the lifetime of this page; false if another page has it. */
async function claim(name) {
  if (!navigator.locks) return claimByAsking(name); // not available over plain http from another machine
  return new Promise((done) => {
    const hold = () => {
      done(true);
      return new Promise(() => {}); // held until the page is closed
    };
    navigator.locks.request(lockName(name), { signal: AbortSignal.timeout(WAIT) }, hold).catch(() => done(false));
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
  claim(name); // random, so nobody else has it: no need to wait
  return name;
}

export const tab = await newTab();
