/**
 * WebGPU for gpu/browser.py: buffers and kernels are numbers, and one call replays a tape.
 *
 * A call from Python costs a microsecond or two and a descriptor ten, so nothing here takes descriptors, and each thing
 * a token needs takes one call. Errors that WebGPU reports late (out of memory, a shader that does not compile, a lost
 * device) are held until Python calls `confirm`, `read` or `wait`.
 */

const SMALL = 1 << 16; // reads up to this size share staging buffers
const KEPT = 8; // idle staging buffers to keep: for four steps in flight, with log-probabilities
const LARGE = 1 << 20; // writes of LARGE to STAGE bytes go through our own staging buffers
const STAGE = 32 << 20;
const STAGES = 6; // how many of those
const LEISURE = 2000; // milliseconds without such a write until they are freed
/** @type {GPUFeatureName[]} */
const FEATURES = ["shader-f16", "subgroups", "timestamp-query"];

/** Our names for limits → WebGPU's. */
const LIMITS = /** @type {const} */ ({
  binding: "maxStorageBufferBindingSize",
  buffer: "maxBufferSize",
  storage_buffers: "maxStorageBuffersPerShaderStage",
  workgroup_memory: "maxComputeWorkgroupStorageSize",
  invocations: "maxComputeInvocationsPerWorkgroup",
  workgroups: "maxComputeWorkgroupsPerDimension",
  offset_alignment: "minStorageBufferOffsetAlignment",
});
const ALSO = /** @type {const} */ (["maxComputeWorkgroupSizeX"]); // requested, but not reported
const MARGIN = 1 << 20; // adapters may refuse a buffer of exactly their maximum (SwiftShader's 1 GiB)

/** Becomes an exception in Python. */
class Trouble extends Error {
  /** @param {"lost" | "out-of-memory" | "validation" | "missing"} kind @param {string} message */
  constructor(kind, message) {
    super(message);
    this.name = "Trouble";
    this.kind = kind;
  }
}

/**
 * Opens the best adapter with all its features and limits; `plain` leaves optional features out.
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

/** Retries: after a crash of the browser's GPU process there is no adapter for a moment. */
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
  /** @type {Trouble | null} the first error outside any error scope */ #uncaptured = null;
  /** @type {Promise<void> | null} resolves when everything before the last `pace` is done */ #paced = null;
  /** @type {GPUBuffer[]} for large writes, mapped */ #ready = [];
  #stages = 0; // how many of those exist
  #leisure = 0; // timer that frees them
  #fresh = 0; // bytes written since the last `flush`
  /** @type {{bytes: number, done: Promise<void>}[]} writes in flight, one entry per `flush`, oldest first */ #onTheWay = [];
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

  /** Makes a zeroed buffer and returns its number; `confirm` says whether there was memory for it. @param {number} size @param {string} label */
  buffer(size, label) {
    this.check();
    const { STORAGE, UNIFORM, COPY_SRC, COPY_DST } = GPUBufferUsage;
    const usage = STORAGE | UNIFORM | COPY_SRC | COPY_DST;
    const what = `${label} (${Math.round(size / 1e6)} MB)`;
    const made = this.#scoped(what, () => this.#device.createBuffer({ label, size, usage }));
    this.#buffers.set(++this.#numbers, made);
    return this.#numbers;
  }

  /** Frees a buffer at once. @param {number} number */
  free(number) {
    this.#buffers.get(number)?.destroy();
    this.#buffers.delete(number);
  }

  /** Drops a buffer; programs that use it keep it alive. @param {number} number */
  forget(number) {
    this.#buffers.delete(number);
  }

  /**
   * Writes bytes [from, from + size) of a Uint8Array, or of a Python object with a buffer. `offset` and `size` are
   * multiples of four.
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
   * Writes through a mapped staging buffer, three times as fast as writeBuffer; false if none is free.
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
        return false; // out of host memory; `confirm` reports out of GPU memory
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

  /** Resolves when at most `most` of the bytes written so far are in flight. @param {number} most */
  async flush(most) {
    const done = this.#queue.onSubmittedWorkDone().catch(() => {}); // `check` reports a lost device
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
   * Reads a span as it is after everything submitted so far. `offset` and `size` are multiples of four.
   * @param {number} number @param {number} offset @param {number} size @returns {Promise<Uint8Array>}
   */
  read(number, offset, size) {
    this.check();
    const staging = (size <= SMALL && this.#spare.pop()) || this.#staging(Math.max(size, SMALL));
    const encoder = this.#device.createCommandEncoder();
    encoder.copyBufferToBuffer(this.#buffer(number), offset, staging, 0, size);
    this.#queue.submit([encoder.finish()]);
    const reading = this.#mapped(staging, size);
    reading.catch(() => {}); // nobody may be waiting when it fails
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
   * Compiles a shader in the background and returns its number; `confirm` reports errors. A replay that comes first
   * compiles it synchronously.
   * @param {string} name @param {string} code
   * @param {Iterable<number>} indices of its bindings @param {Iterable<GPUBufferBindingType>} types of its bindings
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

  // -- late errors

  /** Throws if the device is lost. */
  check() {
    if (this.#lost) throw new Trouble("lost", this.#lost);
  }

  /** Resolves when all buffers and kernels made so far are known to be good; throws the first error otherwise. */
  async confirm() {
    const troubles = await Promise.all(this.#unconfirmed.splice(0));
    this.check();
    const first = troubles.find((trouble) => trouble);
    if (first) throw first;
    this.#complain();
  }

  /** Resolves when everything submitted before the previous `pace` is done. */
  async pace() {
    const before = this.#paced;
    this.#paced = this.#queue.onSubmittedWorkDone().catch(() => {}); // `check` reports a lost device
    await before;
    this.check();
  }

  /** Resolves when the GPU is idle. */
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
   * Runs `make` inside error scopes; `confirm` reports what they catch.
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
        this.#unconfirmed.push(caught.catch(() => null)); // `check` reports a lost device
      }
    }
  }

  /** Throws an uncaptured error, once. */
  #complain() {
    const trouble = this.#uncaptured;
    this.#uncaptured = null;
    if (trouble) throw trouble;
  }

  /** Why WebGPU rejected a promise; `device.lost` may resolve a little later. @param {unknown} error */
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
