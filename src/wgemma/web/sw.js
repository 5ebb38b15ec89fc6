// Keeps the page working offline: page, Python, engine and the embedded model.
//
// The server (and `wgemma app --export`) fills SHELL with all files and their hashes, so any changed file changes this
// script and the browser reinstalls it. The cache is keyed by content: an update fetches only what changed, the old
// version stays complete until no page uses it, and a half-updated server installs nothing.
//
// Pages register it with `navigator.serviceWorker.register("./sw.js", { updateViaCache: "none" })`.
// The page's files come from the cache first; the list of models and the embedded model come from the server first, so
// that the two match. Without a server, a Range request for it is answered with all of it, so that a download that was
// interrupted starts again from here. Other models are never cached here: opfs.js stores them.

/** @type {{version: string, files: Record<string, string>, models: object[]}} */
// @ts-expect-error: the server fills it in
const SHELL = null;
const CACHE = "wgemma-shell";
const worker = /** @type {ServiceWorkerGlobalScope} */ (/** @type {unknown} */ (self));
const SCOPE = worker.registration.scope;

/** A file's URL in the cache, made unique by its hash. @param {string} address */
function place(address) {
  const url = new URL(address, SCOPE);
  url.search = `?${encodeURIComponent(SHELL.files[address])}`;
  return url.href;
}

/** A request's path relative to the site's root; null for other sites. @param {Request} request */
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
  await Promise.all(addresses.filter(isModel).map(keep)); // last: it is the largest, and the page is fetching it, too
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

/** @type {Record<string, string>} paths that people open → files */
const PAGES = { "": "", "index.html": "", "bench.html": "bench.html" };

let asked = false; // the version that is waiting to take over

/**
 * A page. If an update is waiting and this is the only window, the update takes over first.
 * @param {string} address @param {Request} request
 */
async function page(address, request) {
  const isUpdated = worker.registration.waiting && !asked;
  if (!isUpdated || (await worker.clients.matchAll({ type: "window" })).length > 1) return fromShell(address, request);
  asked = true; // if it does not, this version goes on
  const script = new URL("ui/take_over.js", SCOPE).pathname;
  const headers = { "Content-Type": "text/html", "Content-Security-Policy": "default-src 'none'; script-src 'self'" };
  return new Response(`<!doctype html><title>wgemma</title><script type="module" src="${script}"></script>`, { headers });
}

/**
 * The server's answer, or `otherwise` if there is none.
 * @param {Request} request @param {() => Response | Promise<Response>} otherwise
 */
async function fromServer(request, otherwise) {
  try {
    const answer = await fetch(request);
    if (answer.ok) return answer;
  } catch {
    // offline
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
  if (request.method !== "GET") return;
  const address = addressOf(request);
  if (address === null || (request.headers.has("range") && !isModel(address))) return;
  if (new URL(request.url).searchParams.has("token")) return; // for the server, which answers with a cookie
  const opens = request.mode === "navigate" && Object.hasOwn(PAGES, address);
  if (opens) event.respondWith(page(PAGES[address], request));
  else if (address === "models.json") event.respondWith(fromServer(request, () => Response.json(SHELL.models)));
  else if (!Object.hasOwn(SHELL.files, address)) return;
  else if (isModel(address)) event.respondWith(fromServer(request, () => fromShell(address, request)));
  else event.respondWith(fromShell(address, request));
});
