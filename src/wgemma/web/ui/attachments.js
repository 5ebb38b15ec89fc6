/**
 * Attachments: which types are allowed, and whether a file is readable.
 *
 * Only types that are pure pixels or samples; nothing that can contain scripts, such as SVG.
 *
 * @typedef {import("./store.js").Attachment & {blob: Blob}} Attached
 */

import { bytes } from "./format.js";
import { freshId } from "./store.js";

const IMAGES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/avif", "image/bmp"];
const SOUNDS = [
  "audio/wav",
  "audio/x-wav",
  "audio/wave",
  "audio/mpeg",
  "audio/mp3",
  "audio/flac",
  "audio/x-flac",
  "audio/ogg",
  "audio/opus",
  "audio/aac",
  "audio/mp4",
  "audio/x-m4a",
  "audio/webm",
];
const LARGEST = 100 << 20;
const LONGEST_SOUND = 30 * 60; // seconds

/** @param {string} type @returns {"image"|"audio"|null} */
export function kindOf(type) {
  const bare = type.split(";")[0].trim().toLowerCase();
  if (bare === "video/webm" || bare === "video/ogg") return null;
  return IMAGES.includes(bare) ? "image" : SOUNDS.includes(bare) ? "audio" : null;
}

/** @param {string} name */
function typeOf(name) {
  const suffix = name.toLowerCase().split(".").at(-1) ?? "";
  /** @type {Record<string, string>} */
  const known = {
    png: "image/png",
    jpg: "image/jpeg",
    jpeg: "image/jpeg",
    webp: "image/webp",
    gif: "image/gif",
    avif: "image/avif",
    bmp: "image/bmp",
    wav: "audio/wav",
    mp3: "audio/mpeg",
    flac: "audio/flac",
    ogg: "audio/ogg",
    oga: "audio/ogg",
    opus: "audio/ogg",
    m4a: "audio/mp4",
    aac: "audio/aac",
    webm: "audio/webm",
  };
  return Object.hasOwn(known, suffix) ? known[suffix] : "";
}

/** Makes an attachment of a file; throws if the browser cannot decode it. @param {File} file @returns {Promise<Attached>} */
export async function attached(file) {
  const type = kindOf(file.type) ? file.type : typeOf(file.name);
  const kind = kindOf(type);
  const name = file.name || "picture";
  if (!kind)
    throw new Error(
      `${name} is neither a picture nor a sound. Choose a PNG, JPEG, WebP, GIF, WAV, MP3, FLAC or Ogg file.`,
    );
  if (file.size > LARGEST)
    throw new Error(`${name} is too large (${bytes(file.size)}). Choose a file of at most ${bytes(LARGEST)}.`);
  const blob = new Blob([file], { type });
  await (kind === "image" ? tryImage(blob, name) : trySound(blob, name));
  return { id: freshId(), kind, name, type, size: file.size, blob };
}

/** @param {Blob} blob @param {string} name */
async function tryImage(blob, name) {
  try {
    (await createImageBitmap(blob)).close();
  } catch {
    throw new Error(`${name} is not a readable picture. Save it as PNG or JPEG with another program.`);
  }
}

/** @param {Blob} blob @param {string} name */
async function trySound(blob, name) {
  let sound;
  try {
    sound = await new OfflineAudioContext(1, 1, 16000).decodeAudioData(await blob.arrayBuffer());
  } catch {
    throw new Error(`${name} is not a readable sound. Save it as WAV or MP3 and try again.`);
  }
  if (sound.duration > LONGEST_SOUND)
    throw new Error(`${name} is longer than half an hour. Cut it into shorter pieces.`);
}

/** Object URLs: each made once, all revoked together. */
export class Addresses {
  /** @type {Map<string, string>} */ #made = new Map();

  /** @param {string} id @param {Blob} blob */
  of(id, blob) {
    const known = this.#made.get(id) ?? URL.createObjectURL(blob);
    this.#made.set(id, known);
    return known;
  }

  release() {
    for (const address of this.#made.values()) URL.revokeObjectURL(address);
    this.#made.clear();
  }
}
