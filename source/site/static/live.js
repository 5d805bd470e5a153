// Sliders under a recording. The saved picture is there at once; touching a slider starts Python.
{
  const page = document.documentElement, root = new URL(
    page.dataset.content_root + (page.lang.startsWith("zh") ? "../" : ""), location.href,
  );
  const asked = new Map();
  let worker, count = 0;

  function start() {
    if (typeof WebAssembly !== "object" || location.protocol === "file:") throw Error("none");
    worker = new Worker(new URL("_static/worker.js", root), { type: "module" });
    const fail = (error) => asked.forEach((answer) => answer({ error }));
    worker.onerror = fail;
    worker.onmessage = ({ data }) => {
      asked.get(data.number)?.(data);
      asked.delete(data.number);
    };
  }

  function redraw(place, settings) {
    return new Promise((resolve) => {
      asked.set(++count, resolve);
      worker.postMessage({ number: count, place, settings: JSON.stringify(settings) });
    });
  }

  document.querySelectorAll("section.live").forEach((live) => {
    const $ = (selector) => live.querySelector(selector);
    const value = (name) => $(`[name=${name}]`).value;
    const note = $(".note"), unit = Number(live.dataset.unit);
    let axis = Number(live.dataset.axis), ends, ready = false, busy = false, again = false;

    function settings() {
      const link = value("link"), rank = value("rank");
      return {
        case: $("[name=case]")?.value,
        choice: $("input[type=radio]:checked").value,
        latency: Number(value("latency")),
        gbit: Number(value("gbit")),
        link: link ? link.split(",").map(Number) : null,
        link_by: Number(value("link_by")),
        rank: rank ? Number(rank) : null,
        rank_by: Number(value("rank_by")),
        axis_us: axis,
        before: ends,
      };
    }

    function label() {
      const by = Number(value("rank_by"));
      $("[name=link_by]").previousElementSibling.textContent =
        value("link") && `× ${value("link_by")}`;
      $("[name=rank_by]").previousElementSibling.textContent =
        value("rank") && (unit ? say("by {0} µs", Number((by * unit).toPrecision(3))) : `× ${by}`);
      $("[name=link_by]").disabled = !value("link");
      $("[name=rank_by]").disabled = !value("rank");
    }

    function show(drawn) {
      $(".drawing").innerHTML = drawn.svg;
      $(".said").innerHTML = drawn.words;
      $("[name=latency]").previousElementSibling.textContent = drawn.latency;
      $("[name=gbit]").previousElementSibling.textContent = drawn.gbit;
      const times = Object.values(drawn.took).map(([us]) => us);
      const slowest = Math.max(...times), fastest = Math.min(...times);
      live.querySelectorAll(".choices label").forEach((choice) => {
        const name = choice.querySelector("input").value, [us, told] = drawn.took[name];
        choice.classList.toggle("wins", us === fastest);
        choice.querySelector("i").style.width = `${(100 * us) / slowest}%`;
        choice.querySelector("output").textContent = `${told} ${drawn.percent[name] ?? ""}`;
      });
      note.textContent = drawn.cut ? say("▸ The axis ends before they are done: press fit.") : "";
    }

    function stop(error) {
      live.classList.add("still");
      live.querySelectorAll("input, select, button").forEach((field) => (field.disabled = true));
      note.textContent = say(
        "This picture stays as it is: to move it, the page needs WebAssembly, and to come from a web server and not from a file. In the notebook, the same sliders move it.",
      );
      if (error?.message !== "none") console.warn("no Python in this page:", error);
    }

    function begin() {
      if (!worker) start();
      if (!ready) note.textContent = say("Python is on its way into your browser, once (6 to 14 MB) …");
    }

    async function move() {
      if (busy) return void (again = true);
      busy = true;
      const begun = performance.now();
      try {
        begin();
        do {
          again = false;
          const reply = await redraw(live.dataset.place, settings());
          if (reply.error) throw reply.error;
          const drawn = JSON.parse(reply.drawn);
          show(drawn);
          axis = drawn.axis_us;
          live.dataset.pythonMs = reply.ms.toFixed(1);
        } while (again);
        ready = true;
        live.dataset.ms = (performance.now() - begun).toFixed(1);
        live.dataset.redrawn = 1 + Number(live.dataset.redrawn ?? 0);
      } catch (error) {
        stop(error);
      }
      busy = false;
    }

    $(".sliders").addEventListener("pointerdown", () => {
      try {
        begin(); // a drag says what it wants only when it has moved
      } catch (error) {
        stop(error);
      }
    }, { once: true });
    live.addEventListener("input", ({ target }) => {
      if (target.name === "case") axis = null;
      label();
      move();
    });
    $("button.fit").addEventListener("click", () => {
      axis = null;
      move();
    });
    label();
  });
}
