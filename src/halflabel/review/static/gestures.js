// Zoom by click or the key x, and swipe on a touch screen: right is yes, left is no, up is unsure.
import { $ } from "/screen.js";

const FAR = 70; // pixels from which on a swipe is an answer

export function toggleZoom(stage, event) {
  const picture = stage.querySelector("img");
  if (!picture) return;
  const on = stage.classList.toggle("zoomed");
  if (on) moveZoom(stage, event);
}

function moveZoom(stage, event) {
  const box = stage.getBoundingClientRect();
  const x = event?.clientX ? (event.clientX - box.left) / box.width : 0.5;
  const y = event?.clientY ? (event.clientY - box.top) / box.height : 0.5;
  for (const picture of stage.querySelectorAll("img")) picture.style.transformOrigin = `${(100 * x).toFixed(1)}% ${(100 * y).toFixed(1)}%`;
}

for (const stage of [$("photo"), $("photo-large")]) {
  stage.addEventListener("click", (event) => toggleZoom(stage, event));
  stage.addEventListener("pointermove", (event) => { if (stage.classList.contains("zoomed")) moveZoom(stage, event); });
}

/** Call `onAnswer` with a value when the photo is swiped. */
export function startSwipes(onAnswer) {
  const stage = $("photo");
  let start = null;
  stage.addEventListener("touchstart", (event) => {
    start = event.touches.length === 1 && !stage.classList.contains("zoomed") ? event.touches[0] : null;
  }, { passive: true });
  stage.addEventListener("touchmove", (event) => {
    if (!start || event.touches.length !== 1) return;
    const [x, y] = [event.touches[0].clientX - start.clientX, event.touches[0].clientY - start.clientY];
    if (Math.abs(x) < 10 && y > -10) return;
    if (event.cancelable) event.preventDefault();
    stage.dataset.swipe = direction(x, y) ?? "";
    for (const picture of stage.querySelectorAll("img")) picture.style.translate = `${x}px ${Math.min(y, 0)}px`;
  }, { passive: false });
  const end = (event) => {
    if (!start) return;
    const touch = event.changedTouches[0];
    const value = direction(touch.clientX - start.clientX, touch.clientY - start.clientY);
    start = null;
    stage.dataset.swipe = "";
    for (const picture of stage.querySelectorAll("img")) picture.style.translate = "";
    if (value !== null && event.type === "touchend") onAnswer(value);
  };
  stage.addEventListener("touchend", end);
  stage.addEventListener("touchcancel", end);
}

function direction(x, y) {
  if (Math.abs(x) >= FAR && Math.abs(x) > Math.abs(y)) return x > 0 ? 1 : -1;
  return y <= -FAR ? 0 : null;
}
