/**
 * The app: opens chats, sends messages, and connects the parts of the page. It reaches the model only through Engine,
 * which wraps wgemma.js.
 *
 * @typedef {import("./ui/store.js").Chat} Chat
 * @typedef {import("./ui/store.js").Message} Message
 * @typedef {import("./ui/models.js").Entry} Entry
 */

import { bench } from "./bench.js";
import { Adapters } from "./ui/adapters.js";
import { Addresses } from "./ui/attachments.js";
import { Answering, recover } from "./ui/answering.js";
import { exportChats, importChats } from "./ui/backup.js";
import { Composer } from "./ui/composer.js";
import { Conversation } from "./ui/conversation.js";
import { announce, part, placeIcons } from "./ui/dom.js";
import { Engine, LEARNING } from "./ui/engine.js";
import { Finetune } from "./ui/finetune.js";
import { excerpt, plural, whole } from "./ui/format.js";
import { hasCommandKey, listenToDrops, listenToFiles, listenToKeys } from "./ui/input.js";
import { ModelPicker } from "./ui/model_picker.js";
import { notice, toast, withdraw } from "./ui/notices.js";
import { fillUnsupported, fillWelcome, showHelp } from "./ui/pages.js";
import { remembered } from "./ui/remembered.js";
import { keepSettings, lastSettings, options } from "./ui/settings.js";
import { SettingsPanel } from "./ui/settings_panel.js";
import { Sidebar } from "./ui/sidebar.js";
import { StatusLine } from "./ui/status_line.js";
import { freshId, openStore, storageSentence } from "./ui/store.js";
import { themeButton } from "./ui/theme_button.js";
import { forModel, Tree } from "./ui/thread.js";
import { hideToken } from "./ui/token.js";

const CHAT = "wgemma.chat"; // the chat open in this tab

const byId = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
const fine = () => matchMedia("(pointer: fine)").matches; // on a phone, focus would open the keyboard

class App {
  /** @param {import("./ui/store.js").Store} store */
  constructor(store) {
    this.store = store;
    this.engine = new Engine();
    /** @type {Chat} */ this.chat = this.#blankChat();
    this.tree = new Tree([]);
    /** @type {{chat: Chat, tree: Tree, answering: Answering, over: Promise<void>} | null} */ this.live = null;
    this.addresses = new Addresses();
    /** @type {Map<string, Blob>} media of this visit, saved or not */ this.media = new Map();
    this.others = new BroadcastChannel("wgemma");
    this.composer = new Composer({
      send: (text, attachments) => this.send(text, attachments),
      stop: () => this.stop(),
      think: (on) => this.setSettings({ ...this.chat.settings, think: on }),
    });
    this.conversation = new Conversation({
      regenerate: (message) => this.regenerate(message),
      edit: (message, text) => this.edit(message, text),
      show: (message) => this.showVersion(message),
      answerCalls: (message, results) => this.answerCalls(message, results),
      medium: (id) => this.address(id),
    });
    this.sidebar = new Sidebar(store, {
      open: (id) => this.open(id),
      rename: (chat, title) => this.rename(chat, title),
      remove: (chat) => this.remove(chat),
      save: async (chat) => exportChats([await this.#whole(chat)]),
    });
    this.picker = new ModelPicker(this.engine, { stop: () => this.stop(), settings: () => this.openSettings() });
    this.adapters = new Adapters(this.engine);
    this.finetune = new Finetune(this.engine, this.adapters, {
      system: () => this.picker.chosen?.system ?? "",
      closed: () => this.#closedView(),
    });
    this.status = new StatusLine();
    this.panel = new SettingsPanel({
      change: (settings) => this.setSettings(settings),
      context: (tokens) => (this.picker.context = tokens),
      bench: (tell, signal) => this.bench(tell, signal),
    });
  }

  // -- start

  async start() {
    placeIcons();
    for (const key of document.querySelectorAll("[data-mod]")) key.prepend(hasCommandKey ? "⌘" : "Ctrl ");
    this.#listen();
    themeButton();
    // Before, a click would have been lost.
    for (const place of document.querySelectorAll("[inert]")) place.removeAttribute("inert");
    this.engine.addEventListener("change", () => this.#drawState());
    this.#drawState();
    if (!this.store.lasting) notice("storage", this.store.sentence);
    await recover(this.store).catch(() => {});
    const last = remembered(CHAT, undefined, true);
    if (!last || !(await this.open(last))) this.newChat();
    await Promise.all([this.engine.start(), this.picker.list()]);
    if (this.engine.state === "unsupported") fillUnsupported(this.engine.reason);
    this.#drawState();
    const { chosen } = this.picker;
    if (chosen?.embedded && this.engine.state === "empty") this.picker.load(chosen);
  }

  #listen() {
    part("new-chat").addEventListener("click", () => this.newChat());
    part("settings").addEventListener("click", () => this.openSettings());
    part("finetune").addEventListener("click", () => this.sidebar.slide(false));
    part("help").addEventListener("click", () => showHelp(this.#about()));
    part("export").addEventListener("click", () => this.exportAll());
    listenToFiles("import", (files) => files.forEach((file) => this.import(file)));
    listenToDrops((files) => this.take(files));
    listenToKeys({
      stop: () => {
        if (this.sidebar.isOut) this.sidebar.slide(false);
        else if (this.finetune.isOpen) this.finetune.close();
        else this.stop();
      },
      newChat: () => this.newChat(),
      settings: () => this.openSettings(),
      search: () => this.sidebar.find(),
      help: () => showHelp(this.#about()),
      editLast: () => this.#editLast(),
    });
    this.others.addEventListener("message", () => this.sidebar.refresh());
  }

  /** Routes dropped files to where they belong. @param {File[]} files */
  take(files) {
    const named = (/** @type {string} */ suffix) => files.filter((file) => file.name.toLowerCase().endsWith(suffix));
    const lists = named(".json");
    const adapter = [...named(".safetensors"), ...lists.filter((file) => file.name === "adapter_config.json")];
    const both = this.finetune.isOpen ? [...named(".jsonl"), ...lists] : named(".jsonl");
    const lessons = both.filter((file) => !adapter.includes(file));
    const chats = lists.filter((file) => !adapter.includes(file) && !lessons.includes(file));
    const models = named(".gguf");
    if (models.length) this.picker.open(models);
    if (adapter.length) this.adapters.open(adapter);
    if (lessons.length) this.#teach(lessons[0]);
    for (const file of chats) this.import(file);
    const known = new Set([...models, ...adapter, ...lessons, ...chats]);
    const rest = files.filter((file) => !known.has(file));
    if (rest.length) this.composer.attach(rest);
  }

  /** @param {File} lessons */
  #teach(lessons) {
    if (!this.finetune.isOpen) this.finetune.open();
    this.finetune.take(lessons);
  }

  #closedView() {
    this.conversation.toEnd();
    if (fine()) this.composer.prompt.focus();
  }

  #editLast() {
    const mine = this.tree.branch(this.chat.head).findLast((message) => message.role === "user");
    if (mine) this.conversation.view(mine.id)?.edit();
    return mine !== undefined;
  }

  // -- the model's state

  #drawState() {
    this.status.show(this.engine, this.live !== null);
    this.picker.show();
    this.composer.busy(this.live !== null);
    this.composer.able(this.picker.abilities);
    this.panel.bench.able(this.#notNow());
    byId("unsupported").hidden = this.engine.state !== "unsupported";
    this.#drawWelcome();
  }

  #drawWelcome() {
    fillWelcome(this.picker.chosen?.embedded ?? false, (text) => this.composer.write(text));
    byId("welcome").hidden = this.tree.byId.size > 0 || this.engine.state === "unsupported";
  }

  /** One line about the model and the GPU. */
  #about() {
    const { info } = this.engine;
    if (!info) return "No model is loaded.";
    return [info.name, info.quantisation, `context ${whole(info.context)}`, info.adapter].filter(Boolean).join(" · ");
  }

  /** Why the benchmark cannot run now; "" if it can. */
  #notNow() {
    const { state, reason } = this.engine;
    if (state === "unsupported") return reason;
    if (state === "training") return LEARNING;
    if (this.live || state === "answering") return "The model is answering. Stop it first, or wait until it is done.";
    return state === "ready" ? "" : "No model is loaded yet.";
  }

  /**
   * Runs the benchmark on the loaded model.
   * @param {(progress: import("./ui/bench_view.js").Progress) => void} onProgress @param {AbortSignal} signal
   */
  async bench(onProgress, signal) {
    const { engine } = this;
    const { model } = engine;
    if (!model) throw new Error("No model is loaded yet.");
    return bench(
      {
        info: model.info,
        chat: (messages, how) => engine.chat(messages, how ?? {}), // handles a lost GPU
        tokenize: (text) => model.tokenize(text),
        stats: () => model.stats(),
      },
      { signal, onProgress },
    );
  }

  // -- chats

  /** @returns {Chat} */
  #blankChat() {
    const now = Date.now();
    return {
      id: freshId(),
      title: "New chat",
      named: false,
      created: now,
      updated: now,
      head: null,
      settings: lastSettings(),
    };
  }

  newChat() {
    this.#become(this.#blankChat(), new Tree([]));
    if (fine()) this.composer.prompt.focus();
  }

  /** @param {string} id */
  async open(id) {
    if (this.live?.chat.id === id) this.#become(this.live.chat, this.live.tree);
    else {
      const found = await this.store.whole(id).catch(() => null);
      const chat = found?.chats[0];
      if (!found || !chat) return false;
      const { messages } = found;
      for (const message of messages) if (message.role === "assistant") message.finish ??= "interrupted";
      this.#become(chat, new Tree(messages));
    }
    if (fine()) this.composer.prompt.focus();
    return true;
  }

  /** @param {Chat} chat @param {Tree} tree */
  #become(chat, tree) {
    this.chat = chat;
    this.tree = tree;
    this.finetune.close();
    this.addresses.release();
    remembered(CHAT, chat.id, true);
    this.sidebar.current = chat.id;
    this.sidebar.slide(false);
    this.sidebar.refresh();
    this.conversation.views.clear();
    this.#drawChat();
    this.conversation.toEnd();
    if (this.live?.chat === chat) this.conversation.view(this.live.answering.message.id)?.begin();
  }

  #drawChat() {
    const branch = this.tree.branch(this.chat.head);
    document.title = this.tree.byId.size ? `${this.chat.title} · wgemma` : "wgemma";
    this.conversation.show(branch, this.tree);
    this.composer.thinks(this.chat.settings.think);
    this.status.count(branch.findLast((message) => message.stats)?.stats);
    this.#drawWelcome();
  }

  /** @param {Chat} chat @param {string} title */
  async rename(chat, title) {
    const own = chat.id === this.chat.id ? this.chat : chat;
    Object.assign(own, { title, named: true });
    await this.#save({ chats: [own] });
    this.sidebar.refresh();
    this.#drawChat();
  }

  /** @param {Chat} chat */
  async remove(chat) {
    if (this.live?.chat.id === chat.id) await this.stop();
    const whole = await this.#whole(chat);
    try {
      await this.store.remove(chat.id);
    } catch (error) {
      toast(storageSentence(error));
      return;
    }
    if (chat.id === this.chat.id) this.newChat();
    this.#changed();
    toast(`Deleted “${excerpt(chat.title, 40)}”.`, {
      label: "Undo",
      act: async () => {
        await this.#save(whole);
        this.#changed();
      },
    });
  }

  /** All records of a chat; for the open one, also those that could not be saved. @param {Chat} chat */
  async #whole(chat) {
    const kept = await this.store.whole(chat.id).catch(() => ({ chats: [], messages: [], media: [] }));
    if (chat.id !== this.chat.id) return kept;
    const messages = [...this.tree.byId.values()];
    const ids = new Set(messages.flatMap((message) => message.attachments?.map((one) => one.id) ?? []));
    const media = await Promise.all(
      [...ids].map(async (id) => {
        const blob = await this.blob(id);
        return blob ? { id, chat: chat.id, blob } : null;
      }),
    );
    return { chats: [this.chat], messages, media: media.filter((one) => one !== null) };
  }

  #changed() {
    this.sidebar.refresh();
    this.others.postMessage("changed");
  }

  /** @param {{chats?: Chat[], messages?: Message[], media?: import("./ui/store.js").Medium[]}} records */
  async #save(records) {
    try {
      await this.store.put(records);
      withdraw("unsaved");
    } catch (error) {
      notice("unsaved", storageSentence(error), { label: "Export", act: () => this.exportAll() });
    }
  }

  /**
   * Saves what was added to a chat, or all of it if it is not stored (another tab may have deleted it).
   * @param {Chat} chat @param {Tree} tree @param {Message[]} added @param {import("./ui/store.js").Medium[]} media
   */
  async #saveNew(chat, tree, added, media) {
    const known = await this.store.get("chats", chat.id).catch(() => chat);
    await this.#save({ chats: [chat], messages: known ? added : [...tree.byId.values()], media });
  }

  /** @param {string} id */
  async blob(id) {
    return this.media.get(id) ?? (await this.store.get("media", id).catch(() => undefined))?.blob;
  }

  /** @param {string} id */
  async address(id) {
    const blob = await this.blob(id);
    return blob && this.addresses.of(id, blob);
  }

  // -- settings

  openSettings() {
    const context = { chosen: this.picker.context, now: this.engine.info?.context ?? null };
    this.panel.open(this.chat.settings, this.picker.chosen, context);
  }

  /** @param {import("./ui/settings.js").Settings} settings */
  setSettings(settings) {
    this.chat.settings = settings;
    keepSettings(settings);
    this.composer.thinks(settings.think);
    if (this.tree.byId.size) this.#save({ chats: [this.chat] });
  }

  // -- messages

  /**
   * Returns whether the message was accepted.
   * @param {string} text @param {import("./ui/attachments.js").Attached[]} attachments
   */
  send(text, attachments) {
    if (this.live) {
      toast("The model is still answering. Press Esc to stop it.");
      return false;
    }
    if (this.engine.state === "unsupported") {
      toast(this.engine.reason);
      return false;
    }
    if (this.engine.state === "training") {
      toast(LEARNING);
      return false;
    }
    const media = attachments.map(({ id, blob }) => ({ id, chat: this.chat.id, blob }));
    for (const { id, blob } of media) this.media.set(id, blob);
    const facts = attachments.map(({ blob: _, ...fact }) => fact);
    if (!this.chat.named && !this.tree.byId.size) this.chat.title = excerpt(text) || facts[0]?.name || "New chat";
    const message = this.#add({
      role: "user",
      parent: this.chat.head,
      content: text,
      ...(facts.length && { attachments: facts }),
    });
    this.answer(message, media);
    return true;
  }

  /** @param {Omit<Message, "id" | "chat" | "created">} said @returns {Message} */
  #add(said) {
    const newest = Math.max(0, ...[...this.tree.byId.values()].slice(-1).map((message) => message.created));
    const message = { ...said, id: freshId(), chat: this.chat.id, created: Math.max(Date.now(), newest + 1) };
    this.tree.add(message);
    this.chat.head = message.id;
    this.chat.updated = Date.now();
    return message;
  }

  /** @param {Message} message */
  async regenerate(message) {
    await this.stop();
    this.chat.head = message.parent;
    const before = message.parent && this.tree.byId.get(message.parent);
    if (before) this.answer(before);
  }

  /** @param {Message} message @param {string} text */
  async edit(message, text) {
    await this.stop();
    const { attachments } = message;
    this.answer(
      this.#add({ role: "user", parent: message.parent, content: text, ...(attachments && { attachments }) }),
    );
  }

  /** @param {Message} message @param {{name: string, content: string}[]} results */
  async answerCalls(message, results) {
    await this.stop();
    this.answer(this.#add({ role: "tool", parent: message.id, content: "", results }));
  }

  /** @param {Message} message one of several versions */
  async showVersion(message) {
    await this.stop();
    this.chat.head = this.tree.headThrough(message.id);
    this.#drawChat();
    this.#save({ chats: [this.chat] });
  }

  /** Starts the answer to a message. @param {Message} question @param {import("./ui/store.js").Medium[]} [media] */
  answer(question, media = []) {
    const { chat, tree } = this;
    const entry = this.picker.chosen;
    const said = tree.branch(question.id);
    const message = this.#add({
      role: "assistant",
      parent: question.id,
      content: "",
      ...(entry && { model: entry.name }),
    });
    const answering = new Answering(message, said.findLast((one) => one.stats)?.stats, {
      grown: (piece) => this.chat === chat && this.conversation.view(message.id)?.grow(piece),
      counted: (stats) => this.chat === chat && this.status.count(stats),
      save: () => this.#save({ messages: [message], chats: [chat] }),
    });
    const asked = this.#saveNew(chat, tree, [question, message], media).then(() => this.#changed());
    const over = answering.run(async (signal) => {
      await asked;
      const parts = await this.#parts(said, chat.settings, entry, signal);
      answering.stats.context = this.engine.info?.context;
      return parts;
    });
    this.live = { chat, tree, answering, over: over.then(() => this.#answered(chat, message, answering)) };
    this.#drawChat();
    this.conversation.view(message.id)?.begin();
    this.conversation.toEnd();
    this.#drawState();
    if (fine()) this.composer.prompt.focus(); // the pressed button may be gone
    announce("Answering.");
  }

  /**
   * @param {Message[]} said @param {import("./ui/settings.js").Settings} settings
   * @param {Entry | null} entry @param {AbortSignal} signal
   */
  async #parts(said, settings, entry, signal) {
    if (this.engine.state === "training") throw new Error(LEARNING);
    if (!entry) throw new Error("No model is chosen. Open a .gguf file with the button at the top of the page.");
    const how = { ...entry.settings, ...options(settings), signal };
    const messages = await forModel(said, settings.system, (id) => this.blob(id));
    await unlessAborted(this.picker.ready(entry), signal);
    return this.engine.chat(messages, { ...how, ...this.adapters.choice });
  }

  /** @param {Chat} chat @param {Message} message @param {Answering} answering */
  #answered(chat, message, answering) {
    this.live = null;
    if (this.chat === chat) {
      this.conversation.view(message.id)?.end();
      this.status.count(message.stats);
    }
    this.#drawState();
    this.#changed();
    if (message.error) announce(message.error);
    else if (message.finish === "cancelled") announce("Stopped.");
    else announce(message.calls?.length ? "The model needs a tool's result." : spoken(message.content));
    if (answering.error) console.warn(answering.error);
  }

  /** Stops the current answer; resolves when it has stopped. */
  async stop() {
    const { live } = this;
    live?.answering.stop.abort();
    await live?.over;
  }

  // -- files

  /** Exports all chats; the open one even if it could not be saved. */
  async exportAll() {
    /** @type {Chat[]} */
    const chats = await this.store.all("chats").catch(() => []);
    if (this.tree.byId.size && !chats.some((chat) => chat.id === this.chat.id)) chats.push(this.chat);
    await exportChats(await Promise.all(chats.map((chat) => this.#whole(chat))));
  }

  /** @param {File} file */
  async import(file) {
    const chats = await importChats(file, this.store);
    this.#changed();
    if (chats.length === 1) this.open(chats[0].id);
  }
}

/** What a screen reader hears when an answer is done: the answer, if it is short. @param {string} content */
function spoken(content) {
  const words = content.replace(/[`*_#>|]/g, "").trim();
  return words.length < 600 ? `Answer: ${words}` : `Answered in ${plural(words.split(/\s+/).length, "word")}.`;
}

/** @template T @param {Promise<T>} promise @param {AbortSignal} signal @returns {Promise<T>} */
function unlessAborted(promise, signal) {
  const aborted = new Promise((_, reject) => {
    const leave = () => reject(signal.reason);
    if (signal.aborted) leave();
    else signal.addEventListener("abort", leave, { once: true });
  });
  return Promise.race([promise, /** @type {Promise<never>} */ (aborted)]);
}

hideToken();
const worker = navigator.serviceWorker?.register("./sw.js", { type: "classic", updateViaCache: "none" });
worker?.catch(() => {}); // the page works without it
const app = new App(await openStore());
await app.start();
