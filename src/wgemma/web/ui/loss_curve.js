/** The loss curve: like the command line's (train/curve.py), but live and as wide as its container. */

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 260;
const [LEFT, RIGHT, TOP, BOTTOM] = [46, 14, 30, 40];
const POINTS = 800; // more than there are pixels
const SMOOTHING = 0.9;

/** @typedef {[step: number, loss: number]} Point */

export class LossCurve {
  /** @type {number[]} */ losses = [];
  /** @type {Point[]} */ validation = [];
  /** planned */ steps = 1;
  #drawn = 0;

  constructor() {
    this.element = shape("svg", { class: "curve", role: "img", "data-testid": "finetune-curve", height: HEIGHT });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** @param {number} steps */
  begin(steps) {
    this.losses = [];
    this.validation = [];
    this.steps = steps;
    this.draw();
  }

  /** @param {{loss: number, step: number, steps: number, validation?: number | null}} told */
  add({ loss, step, steps, validation }) {
    this.losses.push(loss);
    this.steps = steps;
    if (typeof validation === "number") this.validation.push([step, validation]);
    cancelAnimationFrame(this.#drawn);
    this.#drawn = requestAnimationFrame(() => this.draw());
  }

  draw() {
    const { element, losses, validation } = this;
    const width = element.clientWidth;
    if (!width) return; // hidden
    element.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const finite = (/** @type {Point[]} */ points) => points.filter(([, loss]) => Number.isFinite(loss));
    const points = finite(losses.map((loss, i) => [i + 1, loss]));
    const held = finite(validation);
    /** @type {Point[]} */
    const smooth = smoothed(points.map(([, loss]) => loss)).map((loss, i) => [points[i][0], loss]);
    const chart = new Chart([...points, ...held], this.steps, width);
    element.setAttribute("aria-label", spoken(points));
    element.replaceChildren(
      ...chart.axes(),
      chart.line("each", points),
      chart.line("smooth", smooth),
      ...held.map((point) => dot(...chart.place(point))),
      ...(points.length === 1 ? [dot(...chart.place(points[0]), "alone")] : []),
      ...legend(width, held.length > 0),
    );
  }
}

/** @param {Point[]} points */
function spoken(points) {
  if (!points.length) return "Loss by step: nothing yet";
  const said = ([step, loss] = points[0]) => `${loss.toPrecision(3)} at step ${step}`;
  return points.length === 1 ? `Loss by step: ${said()}` : `Loss by step: ${said()}, ${said(points.at(-1))}`;
}

/** Exponential moving average with bias correction. @param {number[]} values */
export function smoothed(values) {
  let [mean, weight] = [0, 0];
  return values.map((value) => {
    mean = SMOOTHING * mean + (1 - SMOOTHING) * value;
    weight = SMOOTHING * weight + (1 - SMOOTHING);
    return mean / weight;
  });
}

/**
 * Round numbers from below `low` to above `high`: steps of 1, 2 or 5 times a power of ten.
 * @param {number} low @param {number} high
 */
export function ticks(low, high, most = 6) {
  const span = Math.max(high - low, 1e-6 * Math.abs(high), 1e-9);
  const power = 10 ** Math.floor(Math.log10(span / (most - 1)));
  const size = power * ([1, 2, 5, 10, 20].find((factor) => span / (power * factor) <= most - 1) ?? 20);
  const first = Math.floor(low / size + 1e-9);
  const last = Math.max(Math.ceil(high / size - 1e-9), first + 1);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * size).toPrecision(12)));
}

/** Maps steps and losses to coordinates. */
class Chart {
  /** @param {Point[]} points @param {number} steps @param {number} width */
  constructor(points, steps, width) {
    const losses = points.length ? points.map(([, loss]) => loss) : [0, 1];
    const high = Math.max(...losses);
    this.width = width;
    this.losses = ticks(Math.min(Math.min(...losses), 0.9 * high), high, 5);
    this.last = Math.max(steps, 1);
    this.steps = ticks(0, this.last, width < 500 ? 5 : 8).filter((tick) => Number.isInteger(tick) && tick <= this.last);
  }

  /** @param {Point} point @returns {[number, number]} */
  place([step, loss]) {
    const [low, high] = [this.losses[0], this.losses.at(-1) ?? 1];
    return [
      LEFT + ((this.width - LEFT - RIGHT) * step) / this.last,
      HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (loss - low)) / (high - low),
    ];
  }

  axes() {
    const right = this.width - RIGHT;
    const losses = this.losses.flatMap((loss) => {
      const [, y] = this.place([0, loss]);
      return [line("grid", LEFT, y, right, y), text(LEFT - 8, y + 4, String(loss), "end")];
    });
    const steps = this.steps.flatMap((step) => {
      const [x] = this.place([step, this.losses[0]]);
      const y = HEIGHT - BOTTOM;
      return [line("grid", x, y, x, y + 5), text(x, y + 19, String(step), "middle")];
    });
    return [...losses, ...steps, text(LEFT + (right - LEFT) / 2, HEIGHT - 4, "step", "middle")];
  }

  /** @param {string} kind @param {Point[]} points */
  line(kind, points) {
    const every = Math.max(1, Math.ceil(points.length / POINTS));
    const shown = points.filter((_, i) => i % every === 0 || i === points.length - 1);
    const places = shown.map((point) => this.place(point).map((value) => value.toFixed(1)));
    return shape("polyline", { class: kind, points: places.join(" ") });
  }
}

/** @param {number} width @param {boolean} validated */
function legend(width, validated) {
  const x = width - RIGHT - (validated ? 224 : 134);
  const shown = [line("smooth", x, 12, x + 18, 12), text(x + 24, 16, "training, smoothed")];
  return validated ? [...shown, dot(x + 150, 12), text(x + 160, 16, "validation")] : shown;
}

/** @param {number} x @param {number} y @param {string} [kind] */
const dot = (x, y, kind = "held") =>
  shape("circle", { class: kind, r: kind === "held" ? 4 : 2.5, cx: x.toFixed(1), cy: y.toFixed(1) });

/** @param {string} kind @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 */
const line = (kind, x1, y1, x2, y2) => shape("line", { class: kind, x1, y1, x2, y2 });

/** @param {number} x @param {number} y @param {string} words @param {string} [anchor] */
function text(x, y, words, anchor = "start") {
  const element = shape("text", { x, y, "text-anchor": anchor });
  element.textContent = words;
  return element;
}

/** @param {string} name @param {Record<string, string | number>} properties */
function shape(name, properties) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(properties)) element.setAttribute(key, String(value));
  return element;
}
