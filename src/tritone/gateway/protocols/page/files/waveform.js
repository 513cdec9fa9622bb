// The wave form: the loudest sample of every 20 ms, and its picture with words and playhead.

const PEAKS_PER_S = 50;
const LIVE_S = 20; // of a recording under way the newest are shown

export class Waveform {
  constructor(canvas) {
    this.canvas = canvas;
    this.live = false;
    this.spans = []; // of words: {start_s, end_s}
    this.position_s = 0;
    this.clear();
    this.waiting = false;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  clear() {
    this.peaks = [];
    this.peak = 0;
    this.counted = 0;
    this.duration_s = 0;
    this.spans = [];
    this.position_s = 0;
    this.draw();
  }

  // `scale`: the value of full loudness.
  add(samples, rate, scale) {
    const step = rate / PEAKS_PER_S;
    for (const sample of samples) {
      const size = Math.abs(sample) / scale;
      if (size > this.peak) this.peak = size;
      if (++this.counted >= step * (this.peaks.length + 1)) {
        this.peaks.push(this.peak);
        this.peak = 0;
      }
    }
    this.duration_s = this.counted / rate;
    this.draw();
  }

  move(position_s) {
    this.position_s = position_s;
    this.draw();
  }

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  paint() {
    const { canvas, peaks } = this;
    const ratio = devicePixelRatio || 1;
    const width = Math.round(canvas.clientWidth * ratio);
    const height = Math.round(canvas.clientHeight * ratio);
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, width, height);
    if (!peaks.length) return;
    const style = getComputedStyle(canvas);
    const start_s = this.live ? Math.max(0, this.duration_s - LIVE_S) : 0;
    const shown_s = this.live ? LIVE_S : this.duration_s;
    const x = (time_s) => ((time_s - start_s) / shown_s) * width;
    pen.fillStyle = style.getPropertyValue("--wash");
    for (const span of this.spans) pen.fillRect(x(span.start_s), 0, Math.max(1, x(span.end_s) - x(span.start_s)), height);
    const bar = Math.round(3 * ratio);
    const loudest = peaks.slice(this.live ? -LIVE_S * PEAKS_PER_S : 0).reduce((a, b) => Math.max(a, b), 0.1);
    for (let left = 0; left < width; left += bar) {
      const from = Math.floor((start_s + (left / width) * shown_s) * PEAKS_PER_S);
      const to = Math.max(from + 1, Math.floor((start_s + ((left + bar) / width) * shown_s) * PEAKS_PER_S));
      let peak = -1;
      for (let at = from; at < to && at < peaks.length; at++) peak = Math.max(peak, peaks[at]);
      if (peak < 0) break;
      const size = Math.max(ratio, Math.min(1, peak / loudest) * (height - 12 * ratio));
      const played = !this.live && start_s + (left / width) * shown_s < this.position_s;
      pen.fillStyle = style.getPropertyValue(played ? "--accent" : "--wave");
      pen.fillRect(left, (height - size) / 2, bar - ratio, size);
    }
    if (!this.live) {
      pen.fillStyle = style.getPropertyValue("--ink");
      pen.fillRect(Math.min(width - 2 * ratio, x(this.position_s)), 0, 2 * ratio, height);
    }
  }
}
