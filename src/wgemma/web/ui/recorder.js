/** Records from the microphone and takes pictures with the camera. Both are released afterwards. */

import { h, iconButton } from "./dom.js";

const LONGEST = 5 * 60 * 1000;

/** What to tell the user when a device cannot be used. @param {unknown} error @param {string} device */
export function deviceSentence(error, device) {
  const { name, message } = /** @type {Partial<Error>} */ (error ?? {});
  if (name === "NotAllowedError")
    return `The browser blocked the ${device}. Allow it in the address bar, then try again.`;
  if (name === "NotFoundError") return `No ${device} was found. Connect one, or attach a file instead.`;
  return `The ${device} cannot be used: ${message || error}. Attach a file instead.`;
}

/** A running recording. `stop` returns the file, `cancel` discards it. */
export class Recording {
  /** @param {MediaStream} stream @param {() => void} onLimit called at the maximum length */
  constructor(stream, onLimit) {
    this.stream = stream;
    this.began = performance.now();
    /** @type {Blob[]} */
    this.pieces = [];
    this.recorder = new MediaRecorder(stream);
    this.recorder.ondataavailable = (event) => this.pieces.push(event.data);
    this.recorder.start(1000);
    this.limit = setTimeout(onLimit, LONGEST);
  }

  /** @param {() => void} onLimit */
  static async start(onLimit) {
    return new Recording(await navigator.mediaDevices.getUserMedia({ audio: true }), onLimit);
  }

  get seconds() {
    return (performance.now() - this.began) / 1000;
  }

  /** @returns {Promise<File>} */
  stop() {
    return new Promise((resolve) => {
      this.recorder.onstop = () => {
        const type = this.recorder.mimeType.split(";")[0].replace("video/", "audio/") || "audio/webm";
        const name = `Recording ${new Date().toLocaleTimeString()}`;
        this.cancel();
        resolve(new File(this.pieces, name, { type }));
      };
      this.recorder.stop();
    });
  }

  cancel() {
    clearTimeout(this.limit);
    for (const track of this.stream.getTracks()) track.stop();
  }
}

/**
 * Shows the camera until a picture is taken or the dialog is closed.
 * @param {HTMLDialogElement} dialog @returns {Promise<File | null>}
 */
export async function takePicture(dialog) {
  const stream = await navigator.mediaDevices.getUserMedia({
    video: { facingMode: "environment", width: { ideal: 1600 } },
  });
  const video = h("video", { autoplay: true, playsinline: true, muted: true, "aria-label": "Camera preview" });
  video.srcObject = stream;
  const shutter = h("button", { type: "button", class: "primary", "data-testid": "shutter" }, "Take the picture");
  const close = iconButton("close", "Close", { onclick: () => dialog.close() });
  dialog.replaceChildren(h("header", {}, h("h2", {}, "Camera"), close), video, h("footer", {}, shutter));
  dialog.showModal();
  try {
    return await new Promise((resolve) => {
      dialog.addEventListener("close", () => resolve(null), { once: true });
      shutter.addEventListener("click", async () => resolve(await still(video)));
    });
  } finally {
    for (const track of stream.getTracks()) track.stop();
    dialog.close();
    dialog.replaceChildren();
  }
}

/** @param {HTMLVideoElement} video @returns {Promise<File>} */
async function still(video) {
  const canvas = new OffscreenCanvas(video.videoWidth || 640, video.videoHeight || 480);
  canvas.getContext("2d")?.drawImage(video, 0, 0);
  const blob = await canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 });
  return new File([blob], `Picture ${new Date().toLocaleTimeString()}.jpg`, { type: "image/jpeg" });
}
