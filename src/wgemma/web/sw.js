// Keeps the page working when its server is gone: page, Python, engine and the embedded model.
//
// The server (and `wgemma app --export`) puts the list of files with their hashes into SHELL, so any change of any file
// changes this script, and the browser installs it anew. Files are kept by content: a new version fetches only what is
// different, the old one stays whole until no page uses it, and a half-updated server installs nothing.
//
// Pages register it with `navigator.serviceWorker.register("./sw.js", { updateViaCache: "none" })`.
// What the page is made of comes from here first; the models and their list come from the server first, so that the two
// belong together. Other models than the embedded one are never kept here, and requests for a Range are never answered:
// those are for the server, or for the page's own storage.

/** @type {{version: string, files: Record<string, string>, models: object[]}} */
// @ts-expect-error: the server fills it in
const SHELL = null;
const CACHE = "wgemma-shell";
const worker = /** @type {ServiceWorkerGlobalScope} */ (/** @type {unknown} */ (self));
const SCOPE = worker.registration.scope;

/** Where the cache keeps a file of the shell: its address, made unique by its hash. @param {string} address */
function place(address) {
  const url = new URL(address, SCOPE);
  url.search = `?${encodeURIComponent(SHELL.files[address])}`;
  return url.href;
}

/** The address a request is about, relative to the site's root; null for anything elsewhere. @param {Request} request */
function addressOf(request) {
  const url = new URL(request.url);
  if (!(url.origin + url.pathname).startsWith(SCOPE)) return null;
  return (url.origin + url.pathname).slice(SCOPE.length);
}

/** @param {string} address */
const isModel = (address) => address.startsWith("models/");

async function install() {
  const cache = await caches.open(CACHE);
  const keep = async (/** @type {string} */ address) => {
    if (await cache.match(place(address))) return;
    const answer = await fetch(new URL(address, SCOPE), { integrity: SHELL.files[address], cache: "no-cache" });
    if (!answer.ok) throw new Error(`${address}: the server says ${answer.status}`);
    await cache.put(place(address), answer);
  };
  const addresses = Object.keys(SHELL.files);
  await Promise.all(addresses.filter((address) => !isModel(address)).map(keep));
  await Promise.all(addresses.filter(isModel).map(keep)); // the largest, and the page is fetching it, too
}

async function forgetOldFiles() {
  const cache = await caches.open(CACHE);
  const kept = new Set(Object.keys(SHELL.files).map(place));
  for (const request of await cache.keys()) {
    if (!kept.has(request.url)) await cache.delete(request);
  }
}

/** @param {string} address @param {Request} request */
async function fromShell(address, request) {
  const cache = await caches.open(CACHE);
  return (await cache.match(place(address))) ?? fetch(request);
}

/** @type {Record<string, string>} where the pages are, as people open them */
const PAGES = { "": "", "index.html": "", "bench.html": "bench.html" };

/** A page. If a newer version waits and this is the only window, it takes over first. @param {string} address @param {Request} request */
async function page(address, request) {
  const waiting = worker.registration.waiting;
  if (waiting && (await worker.clients.matchAll({ type: "window" })).length < 2) {
    waiting.postMessage("take over");
    return new Response("", { headers: { "Content-Type": "text/html", Refresh: "0" } });
  }
  return fromShell(address, request);
}

/**
 * What the server says now; `otherwise` when it does not answer.
 * @param {Request} request @param {() => Response | Promise<Response>} otherwise
 */
async function fromServer(request, otherwise) {
  try {
    const answer = await fetch(request);
    if (answer.ok) return answer;
  } catch {
    // no server
  }
  return otherwise();
}

worker.addEventListener("install", (event) => event.waitUntil(install()));

worker.addEventListener("activate", (event) => event.waitUntil(forgetOldFiles().then(() => worker.clients.claim())));

worker.addEventListener("message", (event) => {
  if (event.data === "take over") worker.skipWaiting();
});

worker.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || request.headers.has("range")) return;
  const address = addressOf(request);
  if (address === null) return;
  const opens = request.mode === "navigate" && Object.hasOwn(PAGES, address);
  if (opens) event.respondWith(page(PAGES[address], request));
  else if (address === "models.json") event.respondWith(fromServer(request, () => Response.json(SHELL.models)));
  else if (!Object.hasOwn(SHELL.files, address)) return;
  else if (isModel(address)) event.respondWith(fromServer(request, () => fromShell(address, request)));
  else event.respondWith(fromShell(address, request));
});
