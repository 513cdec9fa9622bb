// A stream over the gateway's own WebSocket (docs/applications/gateway-websocket.md).

import { GONE, spoken } from "./gateway.js";
import { Problem } from "./problem.js";

const LOST = "The connection to the gateway was lost. What was written so far is kept.";
const MAX_WAITING = 8e6; // bytes that the network did not take: more than a minute

export class LiveStream {
  constructor(socket, { onEvent, onLost }) {
    Object.assign(this, { socket, onEvent, onLost });
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => this.read(JSON.parse(data));
    this.ended = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
    this.ended.catch(() => {}); // whoever waits for the end sees it
    this.over = false;
  }

  // Opens a stream; `rate` of its samples, in Hz. `onEvent` gets the gateway's events, `onLost` a Problem.
  static async open(gateway, asked, rate, callbacks) {
    const address = new URL("v1/stream", gateway.root);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(address, gateway.subprotocols);
    const stream = new LiveStream(socket, callbacks);
    try {
      await new Promise((resolve, reject) => {
        socket.onopen = () => socket.send(JSON.stringify({ type: "start", sample_rate: rate, ...spoken(asked) }));
        socket.onclose = () => reject(new Problem(GONE, { gone: true }));
        stream.opened = { resolve, reject };
      });
    } catch (error) {
      stream.over = true;
      socket.close();
      // A browser does not say why a WebSocket was refused; the gateway says it to a plain request.
      if (error.gone) await gateway.models();
      throw error;
    }
    socket.onclose = () => stream.lose(new Problem(LOST, { gone: true }));
    return stream;
  }

  read(message) {
    if (message.type === "ready") this.opened.resolve();
    else if (message.type === "end") {
      this.over = true;
      this.resolve();
    } else if (message.type === "error") {
      this.opened.reject(new Problem(message.message));
      this.lose(new Problem(message.message));
    } else this.onEvent(message);
  }

  lose(problem) {
    if (this.over) return;
    this.over = true;
    this.reject(problem);
    this.onLost(problem);
  }

  send(samples) {
    if (this.over) return;
    if (this.socket.bufferedAmount > MAX_WAITING) {
      this.lose(new Problem("The network is too slow for the microphone. What was written so far is kept."));
      this.socket.close();
    } else this.socket.send(samples);
  }

  // Ends the stream; done when the last text is there.
  async finish() {
    if (!this.over) this.socket.send(JSON.stringify({ type: "end" }));
    try {
      await this.ended;
    } finally {
      this.socket.close();
    }
  }
}
