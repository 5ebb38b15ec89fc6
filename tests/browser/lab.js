// A Worker of the tests' own: Python with the package, and nothing between it and the test that sends the code.
import { ReadAhead } from "/ahead.js";
import { FileSource } from "/file.js";
import { loadPyodide } from "/pyodide/pyodide.mjs";
import { openGpu } from "/replay.js";

const ready = (async () => {
  const pyodide = await loadPyodide({ indexURL: new URL("/pyodide/", import.meta.url).href });
  pyodide.unpackArchive(await (await fetch("/wgemma.zip")).arrayBuffer(), "zip", { extractDir: "/lib/wgemma" });
  const fileAt = async (url) => new ReadAhead(new FileSource(await (await fetch(url)).blob()));
  pyodide.registerJsModule("lab", { openGpu, fileAt, heap: () => pyodide._module.HEAPU8.length });
  pyodide.runPython("import sys; sys.path.append('/lib/wgemma')");
  return pyodide;
})();

self.onmessage = async ({ data }) => {
  try {
    self.postMessage({ value: await (await ready).runPythonAsync(data) });
  } catch (error) {
    self.postMessage({ error: error.message });
  }
};
