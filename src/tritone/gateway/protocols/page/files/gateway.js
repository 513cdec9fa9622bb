// Talking to the gateway that served this page: models, recordings, captions.

import { Problem } from "./problem.js";

export const GONE = "The gateway does not answer. Check that it runs and that this device is on its network.";

export class Gateway {
  constructor(root = new URL("../", import.meta.url)) {
    this.root = root;
    this.key = "";
  }

  // A browser's WebSockets have no headers: the key goes where OpenAI's clients have theirs.
  get subprotocols() {
    return ["tritone", ...(this.key ? [`openai-insecure-api-key.${this.key}`] : [])];
  }

  // {models: [{name, kind}], live, files, vad}: the last three are the gateway's own choices.
  async models() {
    return (await this.fetch("page/models")).json();
  }

  // Finished parts of a recording, in order.
  async *transcribe(file, asked, signal) {
    const options = encodeURIComponent(JSON.stringify(recorded(asked)));
    const channels = asked.channels ? "&channels=each" : "";
    const answer = await this.fetch(`page/transcribe?options=${options}${channels}`, { method: "POST", body: file, signal });
    for await (const line of lines(answer.body)) {
      const part = JSON.parse(line);
      if (part.error) throw new Problem(part.error.message);
      yield part;
    }
  }

  // Who can speak texts: [{id, model, language}].
  async voices() {
    return (await (await this.fetch("v1/audio/voices")).json()).voices;
  }

  // The samples of a text that is spoken, as they come: 16 bits at 24 kHz.
  async speech({ text, model, voice, speed }, signal) {
    const body = JSON.stringify({ input: text, model, voice, speed, response_format: "pcm" });
    const headers = { "Content-Type": "application/json" };
    return (await this.fetch("v1/audio/speech", { method: "POST", body, headers, signal })).body;
  }

  // A transcript as captions: srt or vtt.
  async written(format, transcript) {
    const body = JSON.stringify(transcript);
    return (await this.fetch(`page/written/${format}`, { method: "POST", body })).text();
  }

  async fetch(path, options = {}) {
    const headers = { ...options.headers, ...(this.key && { Authorization: `Bearer ${this.key}` }) };
    let answer;
    try {
      answer = await fetch(new URL(path, this.root), { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(GONE, { gone: true });
    }
    if (answer.ok) return answer;
    const said = (await answer.json().catch(() => ({}))).error?.message;
    throw this.refusal(answer.status, said ?? `the gateway answered ${answer.status} ${answer.statusText}`);
  }

  refusal(status, said) {
    if (status === 401 && !this.key) return new Problem("This gateway asks for a key.", { key: true });
    if (status === 401 || status === 403) return new Problem(`The gateway refused the key: ${said}`, { key: true });
    return new Problem(`${said[0].toUpperCase()}${said.slice(1)}${/[.!?]$/.test(said) ? "" : "."}`);
  }
}

// What is asked of a recording, in the words of docs/applications/gateway-websocket.md.
function recorded(asked, model = asked.files) {
  const search = asked.search(model);
  return {
    model,
    words: true,
    search: {
      ...(search && { search }),
      ...(asked.hotwords && { hotwords: asked.hotwords }),
    },
    texts: { punctuate: asked.punctuate, numbers: asked.numbers, profanity: asked.profanity },
    speakers: asked.speakers,
  };
}

const MAY_END = 0.2; // the probability from which the page says that a turn may be over

// What is asked of a stream.
export function spoken(asked) {
  return {
    ...recorded(asked, asked.live),
    vad: asked.vad ? { model: asked.vad } : false,
    turns: asked.turns ? { eager_threshold: MAY_END } : false,
    final_model: asked.finalModel,
  };
}

async function* lines(stream) {
  const decoder = new TextDecoder();
  const reader = stream.getReader();
  let rest = "";
  for (;;) {
    let read;
    try {
      read = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(GONE, { gone: true });
    }
    rest += decoder.decode(read.value, { stream: !read.done });
    const whole = rest.split("\n");
    rest = whole.pop();
    yield* whole.filter(Boolean);
    if (read.done) break;
  }
  if (rest) throw new Problem("The gateway ended its answer in the middle. Send the file again.");
}
