/** The names of models in parts: NAME-00001-of-00005.gguf and so on. Whether parts fit, Python says (files/parts.py). */

const PART = /^(.*)-(\d{5})-of-(\d{5})(\.gguf)$/is;
const MOST = 256;

/** The names of all parts in order, given any; only the name itself if it is not a part's. @param {string} name */
export function partNames(name) {
  const [, stem, number, of, end] = PART.exec(name) ?? [];
  const count = Number(of);
  if (!(count >= 2 && count <= MOST && Number(number) >= 1 && Number(number) <= count)) return [name];
  return Array.from({ length: count }, (_, i) => `${stem}-${String(i + 1).padStart(5, "0")}-of-${of}${end}`);
}

/** The name that all parts share: model-00001-of-00003.gguf → model.gguf. @param {string} name */
export function wholeName(name) {
  return partNames(name).length > 1 ? name.replace(PART, "$1$4") : name;
}

/** The URLs of all parts, given any of them. @param {string} url */
export function partUrls(url) {
  const { pathname } = new URL(url);
  const [name = ""] = pathname.split("/").slice(-1);
  return partNames(name).map((other) => {
    const part = new URL(url);
    if (other !== name) part.pathname = pathname.slice(0, pathname.length - name.length) + other;
    return part.href;
  });
}
