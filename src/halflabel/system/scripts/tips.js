// Values of charts beside the pointer, at once; the browser's own tooltips take a second and need a mouse.
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
tip.setAttribute("role", "tooltip");
document.body.append(tip);
for (const title of document.querySelectorAll("svg.chart title")) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
const showTip = (event) => {
  const part = event.target.closest?.("[data-tip]");
  tip.hidden = !part;
  if (!part) return;
  tip.textContent = part.dataset.tip;
  const { clientX: x, clientY: y } = event;
  const left = Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 4));
  tip.style.transform = `translate(${left}px, ${y > 60 ? y - tip.offsetHeight - 10 : y + 16}px)`;
};
document.addEventListener("pointermove", showTip);
document.addEventListener("pointerdown", showTip);
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
