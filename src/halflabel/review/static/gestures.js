// Zoom by click, the key x or two fingers, and swipe on a touch screen: right is yes, left is no, up is unsure.
import { $ } from "/screen.js";

const FAR = 70; // pixels from which on a swipe is an answer
const NEAR = 2.6; // how much a click enlarges
const NEAREST = 8;

const zooms = new WeakMap(); // stage -> {scale, x, y}; x and y in percent of the photo

const isZoomed = (stage) => stage.classList.contains("zoomed");
const within = (value, low, high) => Math.min(Math.max(value, low), high);

function setZoom(stage, scale, x, y) {
  const zoom = { scale: within(scale, 1, NEAREST), x: within(x, 0, 100), y: within(y, 0, 100) };
  zooms.set(stage, zoom);
  stage.classList.toggle("zoomed", zoom.scale > 1.02);
  stage.style.setProperty("--scale", zoom.scale.toFixed(3));
  stage.style.setProperty("--x", `${zoom.x.toFixed(1)}%`);
  stage.style.setProperty("--y", `${zoom.y.toFixed(1)}%`);
}

/** The place of a pointer in percent of the stage; its middle without one. */
function placeIn(stage, point) {
  const box = stage.getBoundingClientRect();
  return point?.clientX ? [100 * (point.clientX - box.left) / box.width, 100 * (point.clientY - box.top) / box.height] : [50, 50];
}

export function toggleZoom(stage, event) {
  if (stage.querySelector("img")) setZoom(stage, isZoomed(stage) ? 1 : NEAR, ...placeIn(stage, event));
}

const distance = ([one, other]) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) || 1;
const middle = ([one, other]) => ({ clientX: (one.clientX + other.clientX) / 2, clientY: (one.clientY + other.clientY) / 2 });

for (const stage of [$("photo"), $("photo-large")]) {
  let before = null; // the fingers at the last event
  stage.addEventListener("click", (event) => toggleZoom(stage, event));
  stage.addEventListener("pointermove", (event) => {
    if (isZoomed(stage) && event.pointerType === "mouse") setZoom(stage, zooms.get(stage).scale, ...placeIn(stage, event));
  });
  stage.addEventListener("touchstart", (event) => { before = [...event.touches]; }, { passive: true });
  stage.addEventListener("touchmove", (event) => {
    const touches = [...event.touches];
    const { scale, x, y } = isZoomed(stage) ? zooms.get(stage) : { scale: 1, x: 50, y: 50 };
    if (touches.length === 2 && before?.length === 2) {
      const at = isZoomed(stage) ? [x, y] : placeIn(stage, middle(touches));
      setZoom(stage, scale * distance(touches) / distance(before), ...at);
    } else if (touches.length === 1 && before?.length === 1 && isZoomed(stage)) {
      const moved = ([low, high], size) => -100 * (high - low) / ((scale - 1) * size); // the photo follows the finger
      setZoom(stage, scale, x + moved([before[0].clientX, touches[0].clientX], stage.clientWidth),
        y + moved([before[0].clientY, touches[0].clientY], stage.clientHeight));
    } else return;
    before = touches;
    if (event.cancelable) event.preventDefault();
  }, { passive: false });
  stage.addEventListener("touchend", (event) => { before = [...event.touches]; });
}

/** Call `onAnswer` with a value when the photo is swiped. */
export function startSwipes(onAnswer) {
  const stage = $("photo");
  let start = null;
  const follow = (x, y, value) => {
    stage.dataset.swipe = value ?? "";
    for (const picture of stage.querySelectorAll("img")) picture.style.translate = x || y ? `${x}px ${y}px` : "";
  };
  stage.addEventListener("touchstart", (event) => {
    if (event.touches.length > 1) follow(0, 0, null); // a second finger zooms instead
    start = event.touches.length === 1 && !isZoomed(stage) ? event.touches[0] : null;
  }, { passive: true });
  stage.addEventListener("touchmove", (event) => {
    if (!start || event.touches.length !== 1) return;
    const [x, y] = [event.touches[0].clientX - start.clientX, event.touches[0].clientY - start.clientY];
    if (Math.abs(x) < 10 && y > -10) return;
    if (event.cancelable) event.preventDefault();
    follow(x, Math.min(y, 0), direction(x, y));
  }, { passive: false });
  const end = (event) => {
    if (!start) return;
    const touch = event.changedTouches[0];
    const value = direction(touch.clientX - start.clientX, touch.clientY - start.clientY);
    start = null;
    follow(0, 0, null);
    if (value !== null && event.type === "touchend") onAnswer(value);
  };
  stage.addEventListener("touchend", end);
  stage.addEventListener("touchcancel", end);
}

function direction(x, y) {
  if (Math.abs(x) >= FAR && Math.abs(x) > Math.abs(y)) return x > 0 ? 1 : -1;
  return y <= -FAR ? 0 : null;
}
