// Draws many dots quickly: each is stamped into the pixels of a canvas, so that 20,000 take a few milliseconds.

/** The pixels of a dot: rows, columns and coverage (0 to 1) of each. */
function makeStamp(radius) {
  const reach = Math.ceil(radius);
  const stamp = [];
  for (let row = -reach; row <= reach; row += 1) {
    for (let column = -reach; column <= reach; column += 1) {
      const cover = Math.min(1, radius + 0.5 - Math.hypot(row, column));
      if (cover > 0) stamp.push([row, column, cover]);
    }
  }
  return stamp;
}

/** A colour of the style sheet as a pixel, such as "--link". */
export function cssPixel(name) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name).trim() || name;
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(pen.fillStyle.slice(at, at + 2), 16));
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}

export const cssText = (pixel) => `rgb(${pixel & 255} ${(pixel >>> 8) & 255} ${(pixel >>> 16) & 255})`;

/** `steps` colours from one pixel to another. */
export const ramp = (from, to, steps) => Array.from({ length: steps }, (_, step) => mixPixel(from, to, step / (steps - 1)));

export class Dots {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d", { alpha: false });
  }

  /** Fit the pixels to the size on the screen; false if nothing changed. */
  resize() {
    const ratio = Math.min(devicePixelRatio, 2);
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight].map((side) => Math.max(1, Math.round(side * ratio)));
    if (this.image && this.image.width === width && this.image.height === height) return false;
    this.canvas.width = width;
    this.canvas.height = height;
    this.ratio = ratio;
    this.image = this.pen.createImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    return true;
  }

  /** Draw points (0 to 1) in an order, each with a colour of the palette, as `view` {x, y, scale} shows them. */
  draw({ x, y, order, colour, palette, background, radius }, view) {
    const { width, height } = this.image;
    const { pixels, ratio } = this;
    const stamp = makeStamp(radius * ratio);
    const size = stamp.length;
    const offsets = new Int32Array(stamp.map(([row, column]) => row * width + column));
    const covers = new Float32Array(stamp.map(([, , cover]) => cover));
    const reach = Math.ceil(radius * ratio);
    const scale = view.scale * ratio;
    pixels.fill(background);
    for (const point of order) {
      const column = Math.round((x[point] - view.x) * scale);
      const row = Math.round((y[point] - view.y) * scale);
      if (column < reach || row < reach || column >= width - reach || row >= height - reach) continue;
      const pixel = palette[colour[point]];
      const at = row * width + column;
      for (let part = 0; part < size; part += 1) {
        const place = at + offsets[part];
        pixels[place] = covers[part] === 1 ? pixel : mixPixel(pixels[place], pixel, covers[part]);
      }
    }
    this.pen.putImageData(this.image, 0, 0);
  }
}

// It runs a million times per frame.
function mixPixel(under, over, share) {
  const red = (under & 255) + ((over & 255) - (under & 255)) * share;
  const green = ((under >> 8) & 255) + (((over >> 8) & 255) - ((under >> 8) & 255)) * share;
  const blue = ((under >> 16) & 255) + (((over >> 16) & 255) - ((under >> 16) & 255)) * share;
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}
