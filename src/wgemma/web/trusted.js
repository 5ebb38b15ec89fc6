// The page's Trusted Types policy: strings never become HTML or scripts. Only script URLs of this origin pass, for Workers
// and the service worker. Must be loaded first.
globalThis.trustedTypes?.createPolicy("default", {
  createScriptURL: (url) => (new URL(url, document.baseURI).origin === location.origin ? url : null),
});
