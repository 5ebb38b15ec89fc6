/** The token of a server that asks for one: the browser keeps it as a cookie, and nobody should copy it from the address. */

export function hideToken() {
  const url = new URL(location.href);
  if (!url.searchParams.has("token")) return;
  url.searchParams.delete("token");
  history.replaceState(history.state, "", url);
}
