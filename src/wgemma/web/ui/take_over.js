/**
 * Lets the waiting version of the service worker take over, and then opens the page.
 *
 * The order matters: browsers may lose a navigation that is under way while one worker replaces another.
 */

const found = await navigator.serviceWorker.getRegistration();
const waiting = found?.waiting;
if (waiting) {
  const settled = new Promise((done) => {
    waiting.addEventListener("statechange", () => {
      if (waiting.state === "activated" || waiting.state === "redundant") done(null);
    });
  });
  waiting.postMessage("take over");
  await settled;
}
location.reload();

export {};
