/** Small things the browser remembers by name, where it remembers anything; theme.js reads one of them, too. */

/**
 * What is remembered, or null; with a value, that is remembered instead, and null forgets it.
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
    // a browser that keeps nothing says so where it matters, with the chats
  }
  return null;
}

/** The same for JSON; what cannot be read is null. @param {string} name @returns {any} */
export function rememberedJson(name) {
  try {
    return JSON.parse(remembered(name) ?? "null");
  } catch {
    return null;
  }
}
