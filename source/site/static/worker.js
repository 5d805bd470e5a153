// Python in the page, beside it: started when the first slider is touched, it replays recordings.
const python = (async () => {
  const { loadPyodide } = await import("../live/pyodide/pyodide.mjs");
  const [pyodide, wheel] = await Promise.all([
    loadPyodide({ indexURL: new URL("../live/pyodide/", import.meta.url).href }),
    fetch(new URL("../live/WHEEL", import.meta.url)).then((reply) => reply.arrayBuffer()),
  ]);
  pyodide.unpackArchive(wheel, "whl");
  return pyodide.pyimport("live");
})();
const learnt = {};

async function learn(place) {
  const told = await fetch(new URL(`../live/recordings/${place}.json`, import.meta.url));
  (await python).learn(place, await told.text());
}

onmessage = async ({ data: { number, place, settings } }) => {
  try {
    await (learnt[place] ??= learn(place));
    const live = await python;
    const start = performance.now();
    const drawn = live.redraw(place, settings);
    postMessage({ number, drawn, ms: performance.now() - start });
  } catch (error) {
    postMessage({ number, error: String(error) });
  }
};
