/**
 * WebGPU as gpu/browser.py wants it: buffers and kernels are numbers, and a tape is replayed by one call.
 *
 * A call from Python costs a microsecond or two and a descriptor ten, so nothing here takes descriptors, and nothing a
 * token needs takes more than one call. What WebGPU reports late (no memory, a shader that does not compile, a lost
 * device) is kept here until Python asks at `confirm`, `read` or `wait`.
 */

const SMALL = 1 << 16; // readings up to this size share staging buffers
const KEPT = 8; // staging buffers that wait for the next reading: four steps in flight, with log-probabilities
const LARGE = 1 << 20; // writes from this size on are staged here, up to this one:
const STAGE = 32 << 20;
const STAGES = 6; // staging buffers for them
const LEISURE = 2000; // milliseconds without such a write, after which their memory is given back
/** @type {GPUFeatureName[]} */
const FEATURES = ["shader-f16", "subgroups", "timestamp-query"];

/** Our limits, by WebGPU's names for them. */
const LIMITS = /** @type {const} */ ({
  binding: "maxStorageBufferBindingSize",
  buffer: "maxBufferSize",
  storage_buffers: "maxStorageBuffersPerShaderStage",
  workgroup_memory: "maxComputeWorkgroupStorageSize",
  invocations: "maxComputeInvocationsPerWorkgroup",
  workgroups: "maxComputeWorkgroupsPerDimension",
  offset_alignment: "minStorageBufferOffsetAlignment",
});
const ALSO = /** @type {const} */ (["maxComputeWorkgroupSizeX"]); // wanted at its best, but nobody asks for its value
const MARGIN = 1 << 20; // an adapter may refuse a buffer of exactly its own maximum (SwiftShader's 1 GiB)

/** What to raise in Python. */
class Trouble extends Error {
  /** @param {"lost" | "out-of-memory" | "validation" | "missing"} kind @param {string} message */
  constructor(kind, message) {
    super(message);
    this.name = "Trouble";
    this.kind = kind;
  }
}

/**
 * Opens the best adapter with all it has; `plain` leaves its optional features out.
 * @param {{plain?: boolean}} [options]
 * @returns {Promise<Gpu>}
 */
export async function openGpu({ plain = false } = {}) {
  const adapter = await requestAdapter();
  const features = plain ? [] : FEATURES.filter((name) => adapter.features.has(name));
  /** @type {Record<string, number>} */
  const requiredLimits = {};
  for (const name of [...Object.values(LIMITS), ...ALSO]) {
    const value = adapter.limits[name];
    if (value !== undefined) requiredLimits[name] = value;
  }
  try {
    const device = await adapter.requestDevice({ requiredFeatures: features, requiredLimits });
    return new Gpu(adapter, device, features);
  } catch (error) {
    throw new Trouble("missing", `the GPU cannot be opened: ${messageOf(error)}`);
  }
}

/** The adapter; after a crash of the browser's GPU process there is none for a moment. */
async function requestAdapter() {
  if (!navigator.gpu) throw new Trouble("missing", "this browser has no WebGPU");
  for (const pause of [0, 100, 400, 1500]) {
    await new Promise((done) => setTimeout(done, pause));
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
    if (adapter) return adapter;
  }
  throw new Trouble("missing", "this browser gives no WebGPU adapter");
}

/**
 * @typedef {{layout: GPUBindGroupLayout, pipeline: GPUComputePipeline | null, now: () => GPUComputePipeline}} Kernel
 * @typedef {{copy: [GPUBuffer, number, GPUBuffer, number, number]}} Copy
 * @typedef {{copy: null, kernel: Kernel, pipeline: GPUComputePipeline | null, group: GPUBindGroup,
 *   x: number, y: number, z: number}} Dispatch
 */

class Gpu {
  #device;
  #queue;
  /** @type {Map<number, GPUBuffer>} */ #buffers = new Map();
  /** @type {Kernel[]} */ #kernels = [];
  #numbers = 0;
  /** @type {GPUBuffer[]} staging buffers */ #spare = [];
  /** @type {Promise<Trouble | null | void>[]} */ #unconfirmed = [];
  /** @type {Trouble | null} the first one that nobody was asked about */ #uncaptured = null;
  /** @type {Promise<void> | null} what was submitted up to the last `pace` is done */ #paced = null;
  /** @type {GPUBuffer[]} for large writes, mapped and ready to be filled */ #ready = [];
  #stages = 0; // how many of them there are
  #leisure = 0; // the timer after which they are given back
  #fresh = 0; // bytes written since the last `flush`
  /** @type {{bytes: number, done: Promise<void>}[]} what was written before each `flush`, oldest first */ #onTheWay = [];
  #lost = "";

  /** @param {GPUAdapter} adapter @param {GPUDevice} device @param {GPUFeatureName[]} features */
  constructor(adapter, device, features) {
    this.#device = device;
    this.#queue = device.queue;
    /** @type {Partial<GPUAdapterInfo>} */
    const info = adapter.info ?? {};
    this.name = info.description || [info.vendor, info.architecture].filter(Boolean).join(" ") || "a WebGPU adapter";
    this.kind = info.isFallbackAdapter || info.architecture === "swiftshader" ? "CPU" : "";
    this.features = features;
    this.subgroupSize = features.includes("subgroups") ? info.subgroupMinSize || 4 : 1;
    const names = /** @type {(keyof typeof LIMITS)[]} */ (Object.keys(LIMITS));
    const limits = names.map((name) => [name, device.limits[LIMITS[name]]]);
    /** @type {Record<keyof typeof LIMITS, number>} */
    this.limits = Object.fromEntries(limits);
    this.limits.buffer -= MARGIN;
    this.limits.binding = Math.min(this.limits.binding, this.limits.buffer);
    device.addEventListener("uncapturederror", ({ error }) => (this.#uncaptured ??= troubleOf(error)));
    device.lost.then(({ message }) => (this.#lost ||= message || "the browser gave it up"));
  }

  // -- buffers

  /** @param {number} number */
  #buffer(number) {
    const found = this.#buffers.get(number);
    if (!found) throw new Trouble("validation", `there is no buffer ${number}`);
    return found;
  }

  /** A zeroed buffer's number; whether there was room for it is known at `confirm`. @param {number} size @param {string} label */
  buffer(size, label) {
    this.check();
    const { STORAGE, UNIFORM, COPY_SRC, COPY_DST } = GPUBufferUsage;
    const usage = STORAGE | UNIFORM | COPY_SRC | COPY_DST;
    const what = `${label} (${Math.round(size / 1e6)} MB)`;
    const made = this.#scoped(what, () => this.#device.createBuffer({ label, size, usage }));
    this.#buffers.set(++this.#numbers, made);
    return this.#numbers;
  }

  /** Gives a buffer's memory back at once. @param {number} number */
  free(number) {
    this.#buffers.get(number)?.destroy();
    this.#buffers.delete(number);
  }

  /** Lets go of a buffer; programs that use it keep it. @param {number} number */
  forget(number) {
    this.#buffers.delete(number);
  }

  /**
   * Puts whole words into a buffer: bytes [from, from + size) of a Uint8Array, or of a Python object with a buffer.
   * Offset and size are multiples of four.
   * @param {number} number @param {number} offset @param {Uint8Array<ArrayBuffer> | PyArray} data
   * @param {number} from @param {number} size
   */
  write(number, offset, data, from, size) {
    this.check();
    this.#fresh += size;
    const target = this.#buffer(number);
    const view = data instanceof Uint8Array ? { data, release() {} } : data.getBuffer("u8");
    const bytes = view.data.subarray(from, from + size);
    try {
      if (size < LARGE || !this.#stage(target, offset, bytes)) this.#queue.writeBuffer(target, offset, bytes);
    } finally {
      view.release();
    }
  }

  /**
   * Writes through mapped memory of our own, which is three times as fast as writeBuffer; false when there is none free.
   * @param {GPUBuffer} target @param {number} offset @param {Uint8Array} bytes
   */
  #stage(target, offset, bytes) {
    if (bytes.length > STAGE) return false;
    let free = this.#ready.pop();
    if (!free && this.#stages < STAGES) {
      const how = { size: STAGE, usage: GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC, mappedAtCreation: true };
      try {
        free = this.#scoped("staging memory", () => this.#device.createBuffer(how));
      } catch {
        return false; // the page has no memory for it; if the GPU has none, `confirm` says so
      }
      this.#stages++;
    }
    if (!free) return false;
    const staging = free;
    new Uint8Array(staging.getMappedRange(0, bytes.length)).set(bytes);
    staging.unmap();
    const encoder = this.#device.createCommandEncoder();
    encoder.copyBufferToBuffer(staging, 0, target, offset, bytes.length);
    this.#queue.submit([encoder.finish()]);
    staging.mapAsync(GPUMapMode.WRITE).then(() => this.#ready.push(staging), () => {});
    clearTimeout(this.#leisure);
    this.#leisure = setTimeout(() => this.#unstage(), LEISURE);
    return true;
  }

  #unstage() {
    this.#stages -= this.#ready.length;
    for (const staging of this.#ready.splice(0)) staging.destroy();
  }

  /** Returns when at most `most` of the bytes written so far are still on their way. @param {number} most */
  async flush(most) {
    const done = this.#queue.onSubmittedWorkDone().catch(() => {}); // a lost device shows elsewhere
    this.#onTheWay.push({ bytes: this.#fresh, done });
    this.#fresh = 0;
    let left = this.#onTheWay.reduce((sum, { bytes }) => sum + bytes, 0);
    while (left > most) {
      const oldest = this.#onTheWay.shift();
      if (!oldest) break;
      await oldest.done;
      left -= oldest.bytes;
    }
    this.check();
  }

  /**
   * Asks now for whole words as they are after everything submitted so far; offset and size are multiples of four.
   * @param {number} number @param {number} offset @param {number} size @returns {Promise<Uint8Array>}
   */
  read(number, offset, size) {
    this.check();
    const staging = (size <= SMALL && this.#spare.pop()) || this.#staging(Math.max(size, SMALL));
    const encoder = this.#device.createCommandEncoder();
    encoder.copyBufferToBuffer(this.#buffer(number), offset, staging, 0, size);
    this.#queue.submit([encoder.finish()]);
    const reading = this.#mapped(staging, size);
    reading.catch(() => {}); // it may be nobody's any more when it fails
    return reading;
  }

  /** @param {number} size */
  #staging(size) {
    return this.#device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  }

  /** @param {GPUBuffer} staging @param {number} size */
  async #mapped(staging, size) {
    try {
      await staging.mapAsync(GPUMapMode.READ, 0, size);
    } catch (error) {
      throw await this.#reason(error);
    }
    const bytes = new Uint8Array(staging.getMappedRange(0, size).slice(0));
    staging.unmap();
    if (staging.size === SMALL && this.#spare.length < KEPT) this.#spare.push(staging);
    else staging.destroy();
    this.#complain();
    return bytes;
  }

  // -- kernels

  /**
   * A shader's number. It is compiled beside others, and whether it can be is known at `confirm`; a replay that comes
   * before that compiles it on the spot.
   * @param {string} name @param {string} code
   * @param {Iterable<number>} indices of its bindings @param {Iterable<GPUBufferBindingType>} types of them, in WebGPU's words
   */
  kernel(name, code, indices, types) {
    this.check();
    const kinds = [...types];
    const entries = [...indices].map((binding, i) => {
      return { binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: kinds[i] } };
    });
    const { layout, descriptor } = this.#scoped(name, () => {
      const layout = this.#device.createBindGroupLayout({ entries });
      const module = this.#device.createShaderModule({ label: name, code });
      const all = this.#device.createPipelineLayout({ bindGroupLayouts: [layout] });
      return { layout, descriptor: { label: name, layout: all, compute: { module, entryPoint: "main" } } };
    });
    const now = () => (kernel.pipeline ??= this.#scoped(name, () => this.#device.createComputePipeline(descriptor)));
    /** @type {Kernel} */
    const kernel = { layout, pipeline: null, now };
    const compiled = this.#device.createComputePipelineAsync(descriptor).then(
      (pipeline) => void (kernel.pipeline ??= pipeline),
      (error) => new Trouble("validation", `${name}: ${error.message}`),
    );
    this.#unconfirmed.push(compiled);
    return this.#kernels.push(kernel) - 1;
  }

  // -- programs

  /**
   * A recorded tape as one function. `spec` is a Python array of doubles, command after command:
   *   kernel, x, y, z, count, count × (binding, buffer, offset, size)      a dispatch
   *   −1, source, offset, target, offset, size                             a copy
   * @param {PyArray} spec
   */
  program(spec) {
    this.check();
    const view = spec.getBuffer("f64");
    try {
      return this.#replayer(this.#steps(view.data));
    } finally {
      view.release();
    }
  }

  /** @param {Float64Array} words */
  #steps(words) {
    /** @type {(Copy | Dispatch)[]} */
    const steps = [];
    for (let at = 0; at < words.length; ) {
      if (words[at] < 0) {
        const [source, from, target, to, size] = words.subarray(at + 1, at + 6);
        steps.push({ copy: [this.#buffer(source), from, this.#buffer(target), to, size] });
        at += 6;
        continue;
      }
      const kernel = this.#kernels[words[at]];
      const [x, y, z, count] = words.subarray(at + 1, at + 5);
      at += 5;
      const entries = [];
      for (const end = at + 4 * count; at < end; at += 4) {
        const [binding, buffer, offset, size] = words.subarray(at, at + 4);
        entries.push({ binding, resource: { buffer: this.#buffer(buffer), offset, size } });
      }
      const group = this.#device.createBindGroup({ layout: kernel.layout, entries });
      steps.push({ copy: null, kernel, pipeline: null, group, x, y, z });
    }
    return steps;
  }

  /** Each replay records a fresh command buffer, as WebGPU demands. @param {(Copy | Dispatch)[]} steps */
  #replayer(steps) {
    let compiled = false;
    return () => {
      this.check();
      if (!compiled) for (const step of steps) if (!step.copy) step.pipeline = step.kernel.now();
      compiled = true;
      const encoder = this.#device.createCommandEncoder();
      let pass = null;
      for (const step of steps) {
        if (step.copy) {
          pass?.end();
          pass = null;
          encoder.copyBufferToBuffer(...step.copy);
          continue;
        }
        pass ??= encoder.beginComputePass();
        pass.setPipeline(/** @type {GPUComputePipeline} */ (step.pipeline));
        pass.setBindGroup(0, step.group);
        pass.dispatchWorkgroups(step.x, step.y, step.z);
      }
      pass?.end();
      this.#queue.submit([encoder.finish()]);
    };
  }

  // -- what is known late

  /** Throws when the device is gone. */
  check() {
    if (this.#lost) throw new Trouble("lost", this.#lost);
  }

  /** Returns when all buffers and kernels made so far are known to be good; throws the first trouble otherwise. */
  async confirm() {
    const troubles = await Promise.all(this.#unconfirmed.splice(0));
    this.check();
    const first = troubles.find((trouble) => trouble);
    if (first) throw first;
    this.#complain();
  }

  /** Returns when no more than one call's submissions are left to do besides those since the last one. */
  async pace() {
    const before = this.#paced;
    this.#paced = this.#queue.onSubmittedWorkDone().catch(() => {}); // a lost device shows elsewhere
    await before;
    this.check();
  }

  /** Returns when the GPU has nothing left to do. */
  async wait() {
    try {
      await this.#queue.onSubmittedWorkDone();
    } catch (error) {
      throw await this.#reason(error);
    }
    this.check();
    this.#complain();
  }

  close() {
    this.#lost ||= "it was closed";
    this.#device.destroy();
    this.#buffers.clear();
    this.#spare.length = 0;
  }

  /**
   * Carries `make` out between error scopes; what they catch waits for `confirm`.
   * @template T @param {string} what @param {() => T} make
   */
  #scoped(what, make) {
    this.#device.pushErrorScope("out-of-memory");
    this.#device.pushErrorScope("validation");
    try {
      return make();
    } finally {
      for (let i = 0; i < 2; i++) {
        const caught = this.#device.popErrorScope().then((error) => error && troubleOf(error, what));
        this.#unconfirmed.push(caught.catch(() => null)); // a lost device answers no more: `check` says so
      }
    }
  }

  /** Throws, once, what went wrong where nobody was looking. */
  #complain() {
    const trouble = this.#uncaptured;
    this.#uncaptured = null;
    if (trouble) throw trouble;
  }

  /** Why a promise of WebGPU's was rejected: a device that is being lost says so a little later. @param {unknown} error */
  async #reason(error) {
    await Promise.race([this.#device.lost, new Promise((done) => setTimeout(done, 500))]);
    if (this.#lost) return new Trouble("lost", this.#lost);
    return this.#uncaptured ?? new Trouble("validation", messageOf(error));
  }
}

/** @param {unknown} error */
function messageOf(error) {
  return /** @type {Error} */ (error).message;
}

/** @param {GPUError} error */
function troubleOf(error, what = "") {
  const full = error instanceof GPUOutOfMemoryError;
  return new Trouble(full ? "out-of-memory" : "validation", full ? what : [what, error.message].filter(Boolean).join(": "));
}
