// The page: buttons, states and messages. What it shows and plays is in the modules below.

import { Gateway } from "./gateway.js";
import { Latency, median } from "./latency.js";
import { LiveStream } from "./live.js";
import { openMicrophone } from "./microphone.js";
import { Player } from "./player.js";
import { Problem } from "./problem.js";
import { download, wav } from "./saving.js";
import { Settings } from "./settings.js";
import { Speaking } from "./speaking.js";
import { TranscriptView, clock } from "./transcript.js";

const KEPT_S = 3600; // of a recording, to be played: some 350 MB
const DRAWN_BYTES = 64e6; // of a file, which the browser decodes at once for the wave form
const RETRY_MS = 3000;
const TYPES = { txt: "text/plain", srt: "application/x-subrip", vtt: "text/vtt", json: "application/json" };

const find = (id) => document.getElementById(id);
const gateway = new Gateway();
const settings = new Settings(find);
const speaking = new Speaking(gateway);
const transcript = new TranscriptView({
  list: find("segments"),
  partial: find("partial"),
  turn: find("turn"),
  nothing: find("nothing"),
  announcer: find("announcer"),
  onPlay: (position_s) => player.playFrom(position_s),
});
const player = new Player(
  {
    audio: find("audio"),
    play: find("play"),
    seek: find("seek"),
    now: find("now"),
    length: find("length"),
    empty: find("wave-empty"),
    canvas: find("canvas"),
  },
  transcript,
);

const page = {
  state: "waiting", // waiting for the gateway, idle, listening, stopping, sending
  able: { live: false, files: false },
  recording: null, // the microphone's: {microphone, stream, latency, chunks, …}
  upload: null, // AbortController of a file under way
  name: "recording",
  unreachable: false,
};

// ---- what the page says ----

function say(text) {
  find("status").textContent = text;
}

function show(problem) {
  if (!(problem instanceof Problem)) console.error(problem);
  find("problem-text").textContent = problem.message;
  find("problem").hidden = false;
  if (problem.key) askForKey();
}

function clearProblem() {
  find("problem").hidden = true;
}

function askForKey() {
  find("key-form").hidden = false;
  find("key").focus();
}

function health(state, text) {
  find("health").dataset.state = state;
  find("health").textContent = text;
}

function enter(state) {
  page.state = state;
  const listening = state === "listening";
  find("microphone").disabled = !(listening || (state === "idle" && page.able.live));
  find("microphone").setAttribute("aria-pressed", listening);
  find("microphone-text").textContent = listening ? "Stop microphone" : "Start microphone";
  find("choose").disabled = !(state === "sending" || (state === "idle" && page.able.files));
  find("choose").textContent = state === "sending" ? "Cancel" : "Open a file";
  const quiet = state === "idle" && transcript.parts.length > 0;
  for (const button of document.querySelectorAll("[data-save], #copy")) button.disabled = !quiet;
}

function figure(id, value, unit = "") {
  const small = Object.assign(document.createElement("small"), { textContent: unit && ` ${unit}` });
  find(id).replaceChildren(value ?? "–", ...(value === null ? [] : [small]));
}

function showLatency(latency) {
  for (const [id, values] of [["first-partial", latency.first], ["final-text", latency.final]]) {
    const middle = median(values);
    figure(id, middle === null ? null : String(Math.round(middle)), "ms");
  }
}

function begin(name) {
  clearProblem();
  player.clear();
  transcript.clear();
  page.name = name;
  find("name").textContent = name;
  for (const id of ["first-partial", "final-text", "audio-length", "speed"]) figure(id, null);
}

// ---- the gateway ----

async function connect() {
  try {
    page.able = settings.fill(await gateway.models());
    offer(await gateway.voices());
  } catch (error) {
    page.able = { live: false, files: false };
    health("gone", error.key ? "Key needed" : error.gone ? "Gateway not reachable" : "Not ready");
    enter("waiting");
    page.unreachable = true;
    // The first time a field for the key says enough.
    if (error.key && !gateway.key) askForKey();
    else if (find("problem").hidden) show(error);
    if (!error.key) setTimeout(connect, RETRY_MS);
    return;
  }
  find("key-form").hidden = true;
  if (page.unreachable) clearProblem();
  page.unreachable = false;
  health("ready", "Connected");
  if (page.state === "waiting") enter("idle");
}

// After an error nothing goes on. Where the gateway is gone, it is asked until it is there again.
function failed(problem) {
  enter(problem.gone ? "waiting" : "idle");
  show(problem);
  if (problem.gone) connect();
}

// ---- microphone ----

async function listen() {
  const asked = settings.asked;
  begin("microphone");
  enter("stopping"); // until the browser has asked for the microphone
  say("Waiting for the microphone");
  const latency = new Latency();
  const recording = { latency, chunks: [], kept: 0, microphone: null, stream: null, early: [] };
  try {
    recording.microphone = await openMicrophone({
      clean: asked.clean,
      onSamples: (samples) => heard(recording, samples),
      onLost: () => finish("The microphone went away; the recording ends here."),
    });
    recording.stream = await LiveStream.open(gateway, asked, recording.microphone.rate, {
      onEvent: (event) => arrived(recording, event),
      onLost: (problem) => abandon(recording, problem),
    });
  } catch (error) {
    await recording.microphone?.stop();
    say("");
    failed(error);
    return;
  }
  page.recording = recording;
  player.wave.live = true;
  enter("listening");
  for (const samples of recording.early.splice(0)) heard(recording, samples);
}

function heard(recording, samples) {
  const { latency, microphone, stream } = recording;
  if (!stream || !microphone) {
    recording.early.push(samples); // spoken while the stream was being opened
    return;
  }
  latency.heard(samples.length, microphone.rate);
  stream.send(samples);
  if (recording.kept < KEPT_S * microphone.rate) {
    recording.chunks.push(samples);
    recording.kept += samples.length;
  }
  player.add(samples, microphone.rate);
  if (page.state === "listening") say(`Listening ${clock(latency.samples / microphone.rate)}`);
}

function arrived(recording, event) {
  const { latency } = recording;
  const words = event.words ?? [];
  if (event.turn || event.type === "resumed" || event.type === "speech_started") transcript.turn(event);
  if (event.type === "speech_started") latency.speech(event.segment, event.time_s);
  if (event.type === "speech_stopped") latency.silence(event.segment, event.time_s);
  if (event.type === "partial") {
    transcript.partial(event.text, event.settled, event.words);
    if (event.text) latency.partial(event.segment, words);
  }
  if (event.type === "final") {
    transcript.add(event);
    latency.finished(event.segment, words);
  }
  showLatency(latency);
}

async function finish(message = "") {
  const recording = page.recording;
  if (page.state !== "listening" || !recording) return;
  enter("stopping");
  say("Writing the rest");
  await recording.microphone.stop();
  recording.latency.stop();
  try {
    await recording.stream.finish();
  } catch (error) {
    await keep(recording);
    failed(error);
    return;
  }
  await keep(recording);
  enter("idle");
  say(message || "Done");
}

// The stream ended before it was told to: what was heard and written is kept.
async function abandon(recording, problem) {
  if (page.recording !== recording || page.state !== "listening") return;
  enter("stopping");
  await recording.microphone.stop();
  await keep(recording);
  failed(problem);
}

async function keep({ chunks, microphone, latency, kept }) {
  page.recording = null;
  transcript.partial("");
  const audio_s = latency.samples / microphone.rate;
  figure("audio-length", clock(audio_s, 1));
  if (kept) await player.load(wav(chunks, microphone.rate), kept / microphone.rate);
  say("");
}

// ---- files ----

async function send(file) {
  const asked = settings.asked;
  begin(file.name);
  page.upload = new AbortController();
  enter("sending");
  say("Sending the file");
  const drawn = draw(file);
  const started = performance.now();
  let audio_s = 0;
  try {
    for await (const part of gateway.transcribe(file, asked, page.upload.signal)) {
      transcript.add(part);
      audio_s = Math.max(audio_s, part.audio_s ?? 0, part.words?.at(-1)?.end_s ?? 0);
      say(`Transcribed to ${clock(audio_s)}`);
    }
    const took_s = (performance.now() - started) / 1000;
    await drawn;
    audio_s = player.wave.duration_s || audio_s;
    figure("audio-length", clock(audio_s, 1));
    figure("speed", (audio_s / took_s).toFixed(audio_s / took_s < 10 ? 1 : 0), "× real time");
    enter("idle");
    say(transcript.parts.length ? "Done" : "Done: no words were recognised");
  } catch (error) {
    await drawn;
    say(error.name === "AbortError" ? "Cancelled" : "");
    if (error.name === "AbortError") enter("idle");
    else failed(error);
  } finally {
    page.upload = null;
  }
}

// Wave form and player of a file, as far as this browser can decode it.
async function draw(file) {
  player.empty.hidden = true;
  const known = await player.load(file, 0);
  if (file.size > DRAWN_BYTES) return;
  const context = new AudioContext();
  try {
    const decoded = await context.decodeAudioData(await file.arrayBuffer());
    const drawn = decoded.getChannelData(0);
    for (let channel = 1; channel < decoded.numberOfChannels; channel++) {
      const other = decoded.getChannelData(channel);
      drawn.forEach((sample, at) => (drawn[at] = sample + other[at]));
    }
    player.wave.add(drawn.map((sample) => sample / decoded.numberOfChannels), decoded.sampleRate, 1);
    if (known) player.ready(decoded.duration);
    player.length.textContent = clock(decoded.duration, 1);
  } catch {
    find("name").textContent = `${file.name} (this browser cannot play it)`;
  } finally {
    await context.close();
  }
}

// ---- speech out ----

function offer(voices) {
  const before = find("voice").selectedIndex;
  page.voices = voices;
  find("speech").hidden = !voices.length;
  find("voice").replaceChildren(
    ...voices.map(({ id, language }, number) => new Option(language ? `${id} (${language})` : id, number)),
  );
  if (before >= 0 && before < voices.length) find("voice").selectedIndex = before;
}

async function speak() {
  const text = find("speech-text").value.trim();
  const tell = (words) => (find("speech-status").textContent = words);
  if (!text) {
    tell("Write something first");
    find("speech-text").focus();
    return;
  }
  if (page.state === "idle") begin("speech");
  find("speak").textContent = "Stop";
  tell("Asking for speech");
  try {
    const asked = { text, voice: page.voices[find("voice").value], speed: Number(find("voice-speed").value) };
    const { file, length_s } = await speaking.say(asked, (ms) => tell(`First sound after ${Math.round(ms)} ms`));
    if (page.state === "idle") await player.load(file, length_s);
    tell(`Spoken, ${clock(length_s, 1)}`);
  } catch (error) {
    tell(error.name === "AbortError" ? "Stopped" : "");
    if (error.name !== "AbortError") show(error);
  } finally {
    find("speak").textContent = "Speak";
  }
}

// ---- saving ----

async function save(format) {
  const whole = transcript.whole(player.wave.duration_s);
  const name = `${page.name.replace(/\.[^.]*$/, "") || "transcript"}.${format}`;
  try {
    let text;
    if (format === "txt") text = `${transcript.text}\n`;
    else if (format === "json") text = `${JSON.stringify(whole, null, 2)}\n`;
    else text = await gateway.written(format, whole);
    download(name, text, TYPES[format]);
    say(`Saved ${name}`);
  } catch (error) {
    show(error);
  }
}

// ---- what people do ----

find("microphone").addEventListener("click", () => (page.state === "listening" ? finish() : listen()));
find("choose").addEventListener("click", () => (page.upload ? page.upload.abort() : find("file").click()));
find("file").addEventListener("change", ({ target }) => {
  const [file] = target.files;
  target.value = "";
  if (file) send(file);
});
find("speak").addEventListener("click", () => (speaking.active ? speaking.stop() : speak()));
find("problem-close").addEventListener("click", () => {
  clearProblem();
  find("microphone").focus();
});
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  gateway.key = find("key").value.trim();
  clearProblem();
  connect();
});
find("options").addEventListener("submit", (event) => event.preventDefault());
for (const button of document.querySelectorAll("[data-save]")) {
  button.addEventListener("click", () => save(button.dataset.save));
}
find("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(transcript.text);
    say("Copied");
  } catch {
    show(new Problem("The browser does not allow copying here. Save the text instead."));
  }
});

const drop = document.body;
drop.addEventListener("dragover", (event) => {
  event.preventDefault();
  drop.classList.add("over");
});
drop.addEventListener("dragleave", ({ relatedTarget }) => relatedTarget || drop.classList.remove("over"));
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  const [file, ...others] = event.dataTransfer.files;
  if (!file) return;
  if (page.state === "idle" && page.able.files) {
    send(file);
    if (others.length) show(new Problem(`One file at a time: this is ${file.name}, the others were not sent.`));
  } else show(new Problem("A recording is under way, or no model takes files. Stop it, then drop the file again."));
});

// On a phone the settings come last and closed.
if (matchMedia("(max-width: 56rem)").matches) find("settings").open = false;
connect();
