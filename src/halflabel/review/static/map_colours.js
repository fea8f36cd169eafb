// The colours of the map: the most likely class of each photo, or the chance or the state of one class.
import { cssPixel, ramp } from "/dots.js";

const CLASS_COLOURS = ["#3b7dd8", "#e07b39", "#3a9d6e", "#b05fb8", "#d3a429", "#d6557a", "#38a3b5"];

function colourByClass({ best, classes }, grey) {
  const counts = new Map();
  for (const column of best) if (column >= 0) counts.set(column, (counts.get(column) ?? 0) + 1);
  const common = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a)).slice(0, CLASS_COLOURS.length);
  const palette = [grey, ...CLASS_COLOURS.map(cssPixel)];
  const colour = best.map((column) => common.indexOf(column) + 1);
  const key = common.map((column, index) => [palette[index + 1], classes[column]]);
  if (colour.includes(0)) key.push([grey, "another class, or none"]);
  return { palette, colour, key, rank: colour };
}

function colourByState({ state }, grey, name) {
  const palette = [cssPixel("--no"), grey, cssPixel("--yes")];
  const key = [[palette[2], `${name}: present`], [palette[0], "absent"], [grey, "unknown"]];
  return { palette, colour: state.map((value) => value + 1), key, rank: state.map(Math.abs) };
}

function colourByChance({ chance }, grey, name) {
  const palette = [grey, ...ramp(cssPixel("--line"), cssPixel("--link"), 101)];
  const key = [0, 50, 100].map((share) => [palette[share + 1], `${share ? "" : `${name}: `}${share} %`]);
  return { palette, colour: chance.map((share) => share + 1), key, rank: chance };
}

/** Return palette, colour and order of the photos, and the key [[pixel, text], …]; `values` are the server's reply. */
export function colourPhotos(values, name, isKnown) {
  const grey = ramp(cssPixel("--line"), cssPixel("--soft"), 5)[1];
  const colourBy = values.best ? colourByClass : isKnown ? colourByState : colourByChance;
  const { palette, colour, key, rank } = colourBy(values, grey, name);
  const order = Uint32Array.from(rank.keys()).sort((a, b) => rank[a] - rank[b]); // what stands out is drawn last
  return { palette, colour: Uint8Array.from(colour), order, key };
}
