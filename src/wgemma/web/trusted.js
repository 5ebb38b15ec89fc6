// The page's policy lets no text become HTML or a script. The one thing allowed is the address of a script, for a Worker
// or a service worker, if it is one of this very site. Loaded before everything else.
globalThis.trustedTypes?.createPolicy("default", {
  createScriptURL: (url) => (new URL(url, document.baseURI).origin === location.origin ? url : null),
});
