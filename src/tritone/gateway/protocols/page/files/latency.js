// How long texts took, from when the sound was heard to when they are on the page. Times are milliseconds.

export class Latency {
  constructor() {
    this.zero = Infinity; // when the first sample was heard
    this.samples = 0;
    this.begun = new Map(); // segment -> start of its speech, in seconds of the stream
    this.ended = new Map(); // segment -> end of its speech, as voice activity has it
    this.shown = new Set();
    this.stopped = -Infinity;
    this.first = [];
    this.final = [];
  }

  // Samples arrive late and never early, so the earliest zero is the nearest to the truth.
  heard(samples, rate, now = performance.now()) {
    this.samples += samples;
    this.zero = Math.min(this.zero, now - (1000 * this.samples) / rate);
  }

  stop(now = performance.now()) {
    this.stopped = now;
  }

  speech(segment, start_s) {
    this.begun.set(segment, start_s);
  }

  silence(segment, end_s) {
    this.ended.set(segment, end_s);
  }

  partial(segment, words, now = performance.now()) {
    const start_s = this.begun.get(segment) ?? words[0]?.start_s;
    if (this.shown.has(segment) || start_s === undefined) return;
    this.shown.add(segment);
    this.first.push(now - this.zero - 1000 * start_s);
  }

  // What Stop ends could not have been final before.
  finished(segment, words, now = performance.now()) {
    this.partial(segment, words, now);
    const end_s = this.ended.get(segment) ?? words.at(-1)?.end_s;
    if (end_s !== undefined) this.final.push(Math.max(0, now - Math.max(this.zero + 1000 * end_s, this.stopped)));
  }
}

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  if (!sorted.length) return null;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
