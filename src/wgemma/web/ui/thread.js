/**
 * A chat as a tree of messages: branches, versions of a message, and what the model gets. Pure.
 *
 * @typedef {import("./store.js").Message} Message
 */

export class Tree {
  /** @type {Map<string, Message>} */ byId = new Map();
  /** @type {Map<string | null, Message[]>} children of a message, oldest first */ #followers = new Map();

  /** @param {Message[]} messages */
  constructor(messages) {
    for (const message of messages.sort((a, b) => a.created - b.created)) this.add(message);
  }

  /** @param {Message} message newer than all others */
  add(message) {
    this.byId.set(message.id, message);
    const beside = this.#followers.get(message.parent);
    if (beside) beside.push(message);
    else this.#followers.set(message.parent, [message]);
  }

  /** From the first message to `head`. @param {string | null} head @returns {Message[]} */
  branch(head) {
    /** @type {Set<Message>} */
    const out = new Set();
    for (let id = head; id !== null;) {
      const message = this.byId.get(id);
      if (!message || out.has(message)) break;
      out.add(message);
      id = message.parent;
    }
    return [...out].reverse();
  }

  /** All versions of a message, itself included, oldest first. @param {Message} message */
  versions(message) {
    return (this.#followers.get(message.parent) ?? []).filter((other) => other.role === message.role);
  }

  /** The end of the branch through a message, following the newest child each time. @param {string} id */
  headThrough(id) {
    let head = id;
    for (let steps = this.byId.size; steps > 0; steps--) {
      const next = this.#followers.get(head)?.at(-1);
      if (!next) break;
      head = next.id;
    }
    return head;
  }
}

const NO_RESULT = "There is no result.";

/**
 * Messages for `model.chat`. A tool call without a result gets a result that says so.
 * @param {Message[]} said
 * @param {string} system
 * @param {(id: string) => Promise<Blob | undefined>} medium
 */
export async function forModel(said, system, medium) {
  /** @type {import("../wgemma").Message[]} */
  const out = system.trim() ? [{ role: "system", content: system }] : [];
  for (const [i, message] of said.entries()) {
    if (message.role === "user") out.push({ role: "user", content: await content(message, medium) });
    else if (message.role === "tool") out.push(...(message.results ?? []).map(result));
    else {
      const calls = (message.calls ?? []).filter((call) => !call.error);
      out.push({
        role: "assistant",
        content: message.content,
        ...(message.thinking && { thinking: message.thinking }),
        ...(calls.length && { tool_calls: calls.map((c) => ({ function: { name: c.name, arguments: c.arguments } })) }),
      });
      if (calls.length && said[i + 1]?.role !== "tool") {
        out.push(...calls.map(({ name }) => result({ name, content: NO_RESULT })));
      }
    }
  }
  return out;
}

/**
 * Media come before the text about them.
 * @param {Message} message @param {(id: string) => Promise<Blob | undefined>} medium
 */
async function content(message, medium) {
  if (!message.attachments?.length) return message.content;
  /** @type {import("../wgemma").ContentPart[]} */
  const parts = [];
  for (const { id, kind } of message.attachments) {
    const blob = await medium(id);
    if (blob) parts.push(kind === "image" ? { type: kind, image: blob } : { type: kind, audio: blob });
  }
  if (message.content.trim()) parts.push({ type: "text", text: message.content });
  return parts;
}

/**
 * A result that is a JSON object is sent as one.
 * @param {{name: string, content: string}} given @returns {import("../wgemma").Message}
 */
function result({ name, content }) {
  try {
    const value = JSON.parse(content);
    if (value && typeof value === "object" && !Array.isArray(value)) return { role: "tool", name, content: value };
  } catch {
    // not JSON
  }
  return { role: "tool", name, content };
}
