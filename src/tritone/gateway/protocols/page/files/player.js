// Playing the recording: button, position, wave form and the word that is heard.

import { clock } from "./transcript.js";
import { Waveform } from "./waveform.js";

export class Player {
  constructor({ audio, play, seek, now, length, empty, canvas }, transcript) {
    Object.assign(this, { audio, button: play, seek, now, length, empty, transcript });
    this.wave = new Waveform(canvas);
    this.url = null;
    play.addEventListener("click", () => (audio.paused ? audio.play() : audio.pause()));
    seek.addEventListener("input", () => this.go(Number(seek.value)));
    seek.addEventListener("keydown", (event) => this.key(event));
    for (const name of ["play", "pause", "ended"]) audio.addEventListener(name, () => this.follow());
    audio.addEventListener("seeked", () => this.show());
  }

  clear() {
    this.audio.pause();
    this.audio.removeAttribute("src");
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = null;
    this.wave.clear();
    this.ready(0);
    this.empty.hidden = false;
  }

  // Sound of the recording under way; nothing of it can be played yet.
  add(samples, rate) {
    this.empty.hidden = true;
    this.wave.add(samples, rate, 32768);
    this.length.textContent = clock(this.wave.duration_s, 1);
  }

  // What can be played: a WAV file, or whatever the browser knows. Returns whether it does.
  async load(blob, duration_s) {
    this.url = URL.createObjectURL(blob);
    this.wave.live = false;
    const known = await new Promise((resolve) => {
      this.audio.addEventListener("loadedmetadata", () => resolve(true), { once: true });
      this.audio.addEventListener("error", () => resolve(false), { once: true });
      this.audio.src = this.url;
    });
    const length_s = duration_s || (known && Number.isFinite(this.audio.duration) ? this.audio.duration : 0);
    this.ready(known ? length_s : 0);
    this.length.textContent = clock(length_s, 1);
    return known;
  }

  ready(length_s) {
    this.length_s = length_s;
    this.seek.max = length_s;
    this.seek.disabled = this.button.disabled = !length_s;
    this.audio.currentTime = 0;
    this.show();
  }

  go(position_s) {
    if (!this.length_s) return;
    this.audio.currentTime = Math.min(position_s, this.length_s);
    this.show();
  }

  playFrom(position_s) {
    if (!this.length_s) return;
    this.go(position_s);
    this.audio.play();
  }

  key(event) {
    const here = this.audio.currentTime;
    const to = {
      ArrowRight: () => this.transcript.beside(here, true) ?? this.length_s,
      ArrowLeft: () => this.transcript.beside(here, false) ?? 0,
      PageUp: () => here + 5,
      PageDown: () => Math.max(0, here - 5),
    }[event.key];
    if (!to || !this.transcript.words.length) return;
    event.preventDefault();
    this.go(to());
  }

  follow() {
    const playing = !this.audio.paused && !this.audio.ended;
    this.button.dataset.playing = playing;
    this.button.setAttribute("aria-label", playing ? "Pause" : "Play");
    this.show();
    if (playing) requestAnimationFrame(() => this.follow());
  }

  show() {
    const position_s = this.audio.currentTime || 0;
    const word = this.transcript.mark(this.length_s && (position_s || !this.audio.paused) ? position_s : null);
    this.now.textContent = clock(position_s, 1);
    this.seek.value = position_s;
    this.seek.setAttribute("aria-valuetext", `${position_s.toFixed(1)} seconds${word ? `, ${word.text}` : ""}`);
    this.wave.spans = this.transcript.words;
    this.wave.move(position_s);
  }
}
