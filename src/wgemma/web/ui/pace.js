/** Long work in slices, so that the page stays responsive. */

const SLICE = 20; // milliseconds

/** A function to await often: it gives the page a turn whenever a slice is over. */
export function pacer() {
  let began = performance.now();
  return async () => {
    if (performance.now() - began < SLICE) return;
    await new Promise((done) => setTimeout(done));
    began = performance.now();
  };
}
