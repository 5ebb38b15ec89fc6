/** Small values in local storage. theme.js reads one of them, too. */

/**
 * Reads a value, or null; with a second argument, writes it, and null deletes it.
 * @param {string} name
 * @param {string | null} [value]
 * @param {boolean} [tab] in this tab only
 */
export function remembered(name, value, tab = false) {
  try {
    const place = tab ? sessionStorage : localStorage;
    if (value === undefined) return place.getItem(name);
    if (value === null) place.removeItem(name);
    else place.setItem(name, value);
  } catch {
    // storage is blocked; store.js tells the user
  }
  return null;
}

/** Reads JSON; null if it does not parse. @param {string} name @returns {any} */
export function rememberedJson(name) {
  try {
    return JSON.parse(remembered(name) ?? "null");
  } catch {
    return null;
  }
}
