// Speaking a text: samples are played as they come, and kept for the player.

import { wav } from "./saving.js";

const RATE = 24000; // of samples without a header, as OpenAI's clients expect
const AHEAD_S = 0.05; // between the coming of the first samples and their sound

export class Speaking {
  constructor(gateway) {
    this.gateway = gateway;
    this.stopping = null;
  }

  get active() {
    return this.stopping !== null;
  }

  stop() {
    this.stopping?.abort();
  }

  // Speaks, and returns a WAV file and its length when all was heard. `onFirst`: called with the milliseconds that the
  // first samples took.
  async say({ text, voice, speed }, onFirst) {
    this.stopping = new AbortController();
    const { signal } = this.stopping;
    const context = new AudioContext({ sampleRate: RATE });
    const begun = performance.now();
    const chunks = [];
    let at = 0; // when the next samples sound, by the context's clock
    try {
      const body = await this.gateway.speech({ text, voice: voice.id, model: voice.model, speed }, signal);
      for await (const samples of sounds(body, signal)) {
        if (!chunks.length) onFirst(performance.now() - begun);
        chunks.push(samples);
        at = this.play(context, samples, Math.max(at, context.currentTime + AHEAD_S));
      }
      await this.silence(context, at, signal);
    } finally {
      this.stopping = null;
      await context.close();
    }
    const length = chunks.reduce((sum, samples) => sum + samples.length, 0);
    return { file: wav(chunks, RATE), length_s: length / RATE };
  }

  play(context, samples, at) {
    const buffer = context.createBuffer(1, samples.length, RATE);
    buffer.copyToChannel(Float32Array.from(samples, (sample) => sample / 32768), 0);
    const source = new AudioBufferSourceNode(context, { buffer });
    source.connect(context.destination);
    source.start(at);
    return at + buffer.duration;
  }

  // Waits until everything was heard.
  async silence(context, at, signal) {
    const left_ms = Math.max(0, at - context.currentTime) * 1000;
    await new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, left_ms);
      signal.addEventListener("abort", () => {
        clearTimeout(timer);
        reject(new DOMException("stopped", "AbortError"));
      });
    });
  }
}

// Samples of 16 bits; a piece of the answer may end in the middle of one.
async function* sounds(stream, signal) {
  const reader = stream.getReader();
  signal.addEventListener("abort", () => reader.cancel());
  let rest = new Uint8Array(0);
  for (;;) {
    const { done, value } = await reader.read();
    signal.throwIfAborted();
    if (done) return;
    const bytes = new Uint8Array(rest.length + value.length);
    bytes.set(rest);
    bytes.set(value, rest.length);
    const whole = bytes.length - (bytes.length % 2);
    rest = bytes.slice(whole);
    if (whole) yield new Int16Array(bytes.buffer.slice(0, whole));
  }
}
