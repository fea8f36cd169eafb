// Galleries: pages of photos, and a click or Enter enlarges a photo; the arrow keys go to the next one.
const PAGE = 24;
const dialog = document.createElement("dialog");
let opened = null; // the tile in the dialog

const visibleTiles = (gallery) => [...gallery.querySelectorAll(".tile:not([data-off])")];

for (const gallery of document.querySelectorAll(".gallery")) {
  let first = 0;
  const bar = document.createElement("div");
  bar.className = "pager";
  const text = document.createElement("span");
  text.setAttribute("role", "status");
  const buttons = [["Previous", -PAGE], ["Next", PAGE]].map(([name, step]) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: name, className: "plain" });
    button.addEventListener("click", () => {
      first += step;
      show();
      gallery.scrollIntoView({ block: "start" });
      if (button.disabled) buttons.find((other) => other !== button).focus(); // a disabled button loses the focus
    });
    return button;
  });
  bar.append(buttons[0], text, buttons[1]);
  gallery.append(bar);
  const show = () => {
    const tiles = visibleTiles(gallery);
    tiles.forEach((tile, index) => { tile.hidden = index < first || index >= first + PAGE; });
    gallery.hidden = !tiles.length;
    bar.hidden = tiles.length <= PAGE;
    text.textContent = `${first + 1} to ${Math.min(first + PAGE, tiles.length)} of ${tiles.length}`;
    buttons[0].disabled = first === 0;
    buttons[1].disabled = first + PAGE >= tiles.length;
  };
  document.addEventListener("classchange", () => { first = 0; show(); });
  show();
}

function enlarge(tile) {
  opened = tile;
  const copy = tile.querySelector("svg.photo").cloneNode(true);
  for (const part of copy.querySelectorAll("[id]")) part.removeAttribute("id");
  copy.querySelector(".map")?.remove();
  copy.removeAttribute("tabindex");
  copy.setAttribute("role", "img");
  const close = Object.assign(document.createElement("button"), { type: "button", textContent: "Close", className: "plain" });
  dialog.replaceChildren(copy, tile.querySelector("figcaption")?.cloneNode(true) ?? "", close);
  if (!dialog.open) dialog.showModal();
}

dialog.className = "enlarged";
dialog.setAttribute("aria-label", "Photo");
dialog.addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => opened?.querySelector("svg").focus());
dialog.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const tiles = visibleTiles(opened.closest(".gallery"));
  const next = step && tiles[tiles.indexOf(opened) + step];
  if (next) enlarge(next);
  if (next) dialog.querySelector("button").focus();
});
document.body.append(dialog);
for (const photo of document.querySelectorAll(".tile svg.photo")) {
  photo.setAttribute("tabindex", "0");
  photo.setAttribute("role", "button");
  photo.addEventListener("click", () => enlarge(photo.closest(".tile")));
  photo.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    enlarge(photo.closest(".tile"));
  });
}
