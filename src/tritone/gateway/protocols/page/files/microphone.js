// The microphone: mono 16-bit samples at the rate of the device, as they are spoken.

import { Problem } from "./problem.js";

const BLOCK_S = 0.04;

const REFUSED = {
  NotAllowedError: "The browser does not allow the microphone here. Allow it beside the address of this page, then start again.",
  NotFoundError: "No microphone was found. Connect one and start again, or open a file.",
  NotReadableError: "The microphone is in use by another program, or its driver failed. Close the other program and start again.",
  OverconstrainedError: "No microphone has what was asked for. Clear “Reduce noise in the browser” and start again.",
};

// Starts it; `onSamples` gets Int16Arrays, `onLost` is called when the device goes away.
export async function openMicrophone({ clean, onSamples, onLost }) {
  if (!window.isSecureContext || !navigator.mediaDevices) {
    throw new Problem("Browsers give the microphone to https:// and to localhost only. Open this page at such an address, or open a file.");
  }
  const wanted = { channelCount: 1, noiseSuppression: clean, echoCancellation: clean, autoGainControl: clean };
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: wanted });
  } catch (error) {
    throw new Problem(REFUSED[error.name] ?? `The microphone cannot be used: ${error.message}`);
  }
  const context = new AudioContext();
  const free = () => {
    for (const track of stream.getTracks()) track.stop();
    return context.close();
  };
  try {
    await context.audioWorklet.addModule(new URL("capture.js", import.meta.url));
  } catch (error) {
    await free();
    throw new Problem(`The gateway did not send a part of this page. Reload it. (${error.message})`);
  }
  const node = new AudioWorkletNode(context, "capture", {
    numberOfOutputs: 0,
    processorOptions: { samples: Math.round(BLOCK_S * context.sampleRate) },
  });
  const ended = new Promise((resolve) => {
    node.port.onmessage = ({ data }) => (data === null ? resolve() : onSamples(data));
  });
  stream.getAudioTracks()[0].addEventListener("ended", onLost);
  context.createMediaStreamSource(stream).connect(node);
  await context.resume();
  return {
    rate: context.sampleRate,
    // Ends the recording; the last samples have been handed over when this is done.
    async stop() {
      node.port.postMessage("end");
      await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, 1000))]);
      await free();
    },
  };
}
