/** Formats numbers, sizes and times. */

/** 7 162 394 016 → "7.2 GB", in powers of ten as `wgemma list` prints them. @param {number} count */
export function bytes(count) {
  let size = count;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < 1000) return unit === "B" || size >= 100 ? `${Math.round(size)} ${unit}` : `${size.toFixed(1)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}

/** 12345 → "12 345", with narrow no-break spaces. @param {number} value */
export const whole = (value) =>
  Math.round(value)
    .toString()
    .replace(/\B(?=(\d{3})+$)/g, "\u202f");

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60
    ? `${minutes} min ${Math.round(seconds % 60)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** 75 → "1:15" @param {number} seconds */
export const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

/** "1 chat", "3 chats" @param {number} count @param {string} word */
export const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;

/** The heading a chat is listed under. @param {number} time @param {number} [now] */
export function period(time, now = Date.now()) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  const day = 86_400_000;
  if (time >= midnight) return "Today";
  if (time >= midnight - day) return "Yesterday";
  if (time >= midnight - 7 * day) return "Last week";
  if (time >= midnight - 30 * day) return "Last month";
  return new Date(time).toLocaleDateString(undefined, { month: "long", year: "numeric" });
}

/** The first line of a text, cut at a word. @param {string} text @param {number} [length] */
export function excerpt(text, length = 60) {
  const line = text
    .trim()
    .slice(0, 4 * length)
    .replace(/\s+/g, " ");
  if (line.length <= length) return line;
  const cut = line.slice(0, length);
  return `${cut.slice(0, cut.lastIndexOf(" ") > length / 2 ? cut.lastIndexOf(" ") : length)}…`;
}
