/** A button that cycles through system, light and dark theme. theme.js applies the choice on the next visit. */

import { icon, part } from "./dom.js";
import { remembered } from "./remembered.js";

const NEXT = /** @type {const} */ ({ system: "light", light: "dark", dark: "system" });
const LABELS = { system: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

export function themeButton() {
  const button = part("theme");
  const { dataset } = document.documentElement;
  const now = () => /** @type {keyof typeof NEXT} */ (dataset.theme ?? "system");
  const draw = () => {
    button.replaceChildren(icon(now()));
    button.title = LABELS[now()];
    button.setAttribute("aria-label", LABELS[now()]);
  };
  button.addEventListener("click", () => {
    const next = NEXT[now()];
    if (next === "system") delete dataset.theme;
    else dataset.theme = next;
    remembered("wgemma.theme", dataset.theme ?? null);
    draw();
  });
  draw();
}
