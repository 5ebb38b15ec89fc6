/**
 * Incremental SHA-256 (FIPS 180-4): the browser's own digest needs all bytes at once.
 *
 *   const hash = new Sha256(); hash.update(piece); …; hash.hex()
 */

/**
 * The first 32 bits of the fractional parts of `root` of the first primes.
 * @param {(n: number) => number} root @param {number} count
 */
function fractions(root, count) {
  const words = [];
  for (let n = 2; words.length < count; n++) {
    let prime = true;
    for (let d = 2; d * d <= n; d++) if (n % d === 0) prime = false;
    if (prime) words.push(((root(n) % 1) * 2 ** 32) | 0);
  }
  return Int32Array.from(words);
}

const ROUNDS = fractions(Math.cbrt, 64);
const START = fractions(Math.sqrt, 8);
const BLOCK = 64;
const STEP = 1 << 16; // bytes per call of `compress`: JITs optimise what is called often
const w = new Int32Array(64); // the message schedule

export class Sha256 {
  #state = START.slice();
  #rest = new Uint8Array(BLOCK); // bytes of an incomplete block
  #length = 0;

  /** @param {Uint8Array} bytes */
  update(bytes) {
    let at = 0;
    const held = this.#length % BLOCK;
    this.#length += bytes.length;
    if (held) {
      const taken = Math.min(BLOCK - held, bytes.length);
      this.#rest.set(bytes.subarray(0, taken), held);
      if (held + taken < BLOCK) return;
      compress(this.#state, this.#rest, 0, BLOCK);
      at = taken;
    }
    const end = bytes.length - ((bytes.length - at) % BLOCK);
    for (; at < end; at += STEP) compress(this.#state, bytes, at, Math.min(at + STEP, end));
    this.#rest.set(bytes.subarray(end));
  }

  /** The digest in hexadecimal; `update` must not be called afterwards. */
  hex() {
    const length = this.#length;
    const padding = new Uint8Array(((length % BLOCK < 56 ? 56 : 120) - (length % BLOCK)) + 8);
    padding[0] = 0x80;
    const view = new DataView(padding.buffer);
    view.setUint32(padding.length - 8, Math.floor(length / 2 ** 29));
    view.setUint32(padding.length - 4, (length % 2 ** 29) * 8);
    this.update(padding);
    return Array.from(this.#state, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }
}

/**
 * Compresses the blocks of bytes[begin, end) into the state. Hot, so it works on locals.
 * @param {Int32Array} state @param {Uint8Array} bytes @param {number} begin @param {number} end
 */
function compress(state, bytes, begin, end) {
  let a = state[0];
  let b = state[1];
  let c = state[2];
  let d = state[3];
  let e = state[4];
  let f = state[5];
  let g = state[6];
  let h = state[7];
  for (let at = begin; at < end; at += BLOCK) {
    for (let i = 0, j = at; i < 16; i++, j += 4) {
      w[i] = (bytes[j] << 24) | (bytes[j + 1] << 16) | (bytes[j + 2] << 8) | bytes[j + 3];
    }
    for (let i = 16; i < 64; i++) {
      const p = w[i - 15];
      const q = w[i - 2];
      const s0 = ((p >>> 7) | (p << 25)) ^ ((p >>> 18) | (p << 14)) ^ (p >>> 3);
      const s1 = ((q >>> 17) | (q << 15)) ^ ((q >>> 19) | (q << 13)) ^ (q >>> 10);
      w[i] = (((w[i - 16] + s0) | 0) + ((w[i - 7] + s1) | 0)) | 0;
    }
    const before = [a, b, c, d, e, f, g, h];
    for (let i = 0; i < 64; i++) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (((h + s1) | 0) + (((g ^ (e & (f ^ g))) + ((ROUNDS[i] + w[i]) | 0)) | 0)) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) | (c & (a | b)))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + t2) | 0;
    }
    a = (a + before[0]) | 0;
    b = (b + before[1]) | 0;
    c = (c + before[2]) | 0;
    d = (d + before[3]) | 0;
    e = (e + before[4]) | 0;
    f = (f + before[5]) | 0;
    g = (g + before[6]) | 0;
    h = (h + before[7]) | 0;
  }
  state.set([a, b, c, d, e, f, g, h]);
}
