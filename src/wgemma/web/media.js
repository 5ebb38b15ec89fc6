/**
 * Decodes pictures and sounds for the model, with the browser's decoders. On the page's thread: Workers have no audio
 * decoder. The engine gets pixels and samples.
 *
 *   a picture   {width, height, rgba, key}   straight alpha, row by row; the key is a hash of the pixels
 *   a sound     Float32Array                 16 kHz, mono
 */

/**
 * @typedef {import("./wgemma").Message} Message
 * @typedef {import("./wgemma").ContentPart} ContentPart
 */

import { WgemmaError } from "./trouble.js";

export const RATE = 16_000;
const MAX_PIXELS = 100_000_000;
const MAX_SECONDS = 600; // samples go through Python's memory, 64 KB a second

/**
 * Messages with every picture and sound decoded, and the buffers to transfer instead of copying.
 * @param {Message[]} messages
 */
export async function decoded(messages) {
  /** @type {Transferable[]} */
  const transfer = [];
  if (!Array.isArray(messages)) throw new WgemmaError("settings", "messages must be a list.");
  const ready = await Promise.all(
    messages.map(async (message) => {
      if (!Array.isArray(message?.content)) return message;
      return { ...message, content: await Promise.all(message.content.map((part) => decodedPart(part, transfer))) };
    }),
  );
  return { messages: ready, transfer };
}

/** @param {ContentPart} part @param {Transferable[]} transfer */
async function decodedPart(part, transfer) {
  if (part?.type === "image" && part.image !== undefined) {
    const image = await picture(part.image);
    transfer.push(image.rgba.buffer);
    return { ...part, image };
  }
  if (part?.type === "audio" && part.audio !== undefined) return { ...part, audio: await sound(part.audio) };
  return part;
}

// -- pictures

/** @param {Blob | ImageBitmap | ImageData} source */
export async function picture(source) {
  const image = source instanceof ImageData ? source : await pixelsOf(source);
  const rgba = new Uint8Array(image.data); // a copy, because it will be transferred
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", rgba));
  const key = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { width: image.width, height: image.height, rgba, key };
}

/** @param {Blob | ImageBitmap} source */
async function pixelsOf(source) {
  let bitmap;
  try {
    // Pixels as in the file, without colour management or premultiplied alpha; EXIF orientation is applied.
    bitmap = await createImageBitmap(source, { premultiplyAlpha: "none", colorSpaceConversion: "none" });
  } catch {
    const name = source instanceof File ? source.name : "the picture";
    throw new WgemmaError("media", `${name} cannot be read as a picture. Give a PNG, JPEG, WebP or GIF.`);
  }
  const { width, height } = bitmap;
  if (width * height > MAX_PIXELS) {
    bitmap.close();
    throw new WgemmaError("media", `a picture of ${width} × ${height} is too large: at most ${MAX_PIXELS / 1e6} million pixels.`);
  }
  const canvas = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (canvas); // "2d" is never null
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return context.getImageData(0, 0, width, height);
}

// -- sounds

/** @param {Blob | AudioBuffer | Float32Array} source @returns {Promise<Float32Array>} */
export async function sound(source) {
  const samples = source instanceof Float32Array ? source.slice() : mono(await atRate(source));
  if (!samples.length) throw new WgemmaError("media", "the sound is empty.");
  if (samples.length > MAX_SECONDS * RATE) {
    const minutes = (samples.length / RATE / 60).toFixed(1);
    throw new WgemmaError("media", `the sound is too long: ${minutes} minutes; at most ${MAX_SECONDS / 60}. Cut it first.`);
  }
  return samples;
}

/**
 * A sound at 16 kHz: an audio context resamples what it decodes or plays.
 * @param {Blob | AudioBuffer} source
 */
async function atRate(source) {
  if (source instanceof Blob) {
    try {
      return await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await source.arrayBuffer());
    } catch {
      const name = source instanceof File ? source.name : "the sound";
      throw new WgemmaError("media", `${name} cannot be read as a sound. Give a WAV, MP3, Ogg or M4A.`);
    }
  }
  if (!(source instanceof AudioBuffer)) {
    throw new WgemmaError("media", "a sound is a Blob, an AudioBuffer, or a Float32Array of 16 kHz.");
  }
  if (source.sampleRate === RATE) return source;
  const context = new OfflineAudioContext(source.numberOfChannels, Math.ceil(source.duration * RATE), RATE);
  const player = new AudioBufferSourceNode(context, { buffer: source });
  player.connect(context.destination);
  player.start();
  return context.startRendering();
}

/** The mean of all channels. @param {AudioBuffer} buffer */
function mono(buffer) {
  const samples = buffer.getChannelData(0).slice();
  for (let channel = 1; channel < buffer.numberOfChannels; channel++) {
    const other = buffer.getChannelData(channel);
    for (let i = 0; i < samples.length; i++) samples[i] += other[i];
  }
  if (buffer.numberOfChannels > 1) {
    for (let i = 0; i < samples.length; i++) samples[i] /= buffer.numberOfChannels;
  }
  return samples;
}
