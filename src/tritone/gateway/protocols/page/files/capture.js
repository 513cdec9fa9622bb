// In the audio thread: blocks of float samples become mono 16-bit ones, some tens of milliseconds at a time.

class Capture extends AudioWorkletProcessor {
  constructor(options) {
    super();
    this.size = options.processorOptions.samples;
    this.block = new Int16Array(this.size);
    this.filled = 0;
    this.ended = false;
    this.port.onmessage = () => {
      this.ended = true;
      this.post();
      this.port.postMessage(null);
    };
  }

  post() {
    const samples = this.block.slice(0, this.filled);
    this.filled = 0;
    if (samples.length) this.port.postMessage(samples, [samples.buffer]);
  }

  process([channels]) {
    if (this.ended) return false;
    for (let at = 0; at < (channels[0]?.length ?? 0); at++) {
      let sum = 0;
      for (const channel of channels) sum += channel[at];
      this.block[this.filled++] = Math.max(-32768, Math.min(32767, Math.round((sum / channels.length) * 32768)));
      if (this.filled === this.size) this.post();
    }
    return true;
  }
}

registerProcessor("capture", Capture);
