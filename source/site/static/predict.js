// Predictions: asked before the answer is unfolded, kept in this browser and nowhere else.
{
  const KEY = "ddp-course";
  const read = () => JSON.parse(localStorage.getItem(KEY) ?? "{}");
  const write = (told) => localStorage.setItem(KEY, JSON.stringify(told));
  const thousands = /(\d),(?=\d{3}\b)/g;
  const split = (text) => text.replace(/[[\](){}'"]/g, " ").split(/[,;，、；\s]+/).filter(Boolean);
  // Where so many are wanted: 1,000 is one number, unless only two make enough of them.
  const parts = (text, count = 0) => {
    const likely = split(text.replace(thousands, "$1")), plain = split(text);
    return likely.length !== count && plain.length === count ? plain : likely;
  };
  const isNumber = (text) => text !== "" && !Number.isNaN(Number(text));

  function same(wanted, got, within) {
    if (isNumber(wanted) && isNumber(got)) {
      const printed = Number.isInteger(Number(wanted)) ? 1e-9 : 0.005; // to three digits
      return Math.abs(wanted - got) <= Math.max(within, printed) * Math.abs(wanted);
    }
    const plain = (text) => text.toLowerCase().replace(/^yes$/, "true").replace(/^no$/, "false");
    return plain(wanted) === plain(got);
  }

  function verdict(measured, answer, within) {
    if (!measured) return "";
    const list = measured.startsWith("[");
    const wanted = list ? parts(measured) : [measured.replace(/(\d),(?=\d{3})/g, "$1")];
    const got = list ? parts(answer, wanted.length) : [answer.trim().replace(/(\d),(?=\d{3}\b)/g, "$1")];
    const hits = wanted.filter((one, k) => same(one, got[k] ?? "", within)).length;
    if (hits === wanted.length && got.length === hits) return "right";
    if (list) return say("{0} of {1} right", hits, wanted.length);
    const times = got[0] / wanted[0];
    const no = say("not so");
    if (!Number.isFinite(times) || times <= 0) return no;
    return times > 10 || times < 0.1 ? say("{0} times as much", times.toPrecision(2)) : no;
  }

  // What is wrong with the number of answers, if so many are wanted; else nothing.
  function miscounted(answer, count) {
    const got = parts(answer, count);
    if (!count || got.length === count) return "";
    return say("Read as {0}: that makes {1}, and {2} are wanted.", got.join(", "), got.length, count);
  }

  function tell(form, answer) {
    const { measured, within, number } = form.dataset;
    const said = verdict(measured, answer, Number(within));
    const judged = said === "right" ? `✓ ${say("right")}` : `✗ ${said}`;
    form.querySelector("output").textContent = measured
      ? say("You: {0}. Measured: {1}. {2}", answer, measured, judged)
      : say("You: {0}. It is noted.", answer);
    form.classList.add("answered");
    document.querySelectorAll(`.tag_tells-${number} details`).forEach((fold) => {
      if (fold.querySelector(".cell_output")) fold.open = true;
    });
    return said;
  }

  // A slider beside a number: of any size, so it counts in powers of ten, from a thousandth on.
  function slide(form) {
    const [field, slider] = form.querySelectorAll("[name=answer], input[type=range]");
    if (slider?.type !== "range") return;
    slider.addEventListener("input", () => {
      field.value = Number((10 ** (slider.value / 10 - 3)).toPrecision(2));
    });
  }

  document.querySelectorAll("form.ask").forEach((form) => {
    const { chapter, number } = form.dataset, field = form.elements.answer;
    const known = read()[chapter]?.[number];
    if (known) {
      field.value = known.answer;
      tell(form, known.answer);
    }
    slide(form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const problem = miscounted(field.value, Number(form.dataset.count));
      if (problem) {
        form.querySelector("output").textContent = problem;
        return;
      }
      const told = read(), verdict = tell(form, field.value);
      const { question, measured } = form.dataset;
      (told[chapter] ??= {})[number] = { answer: field.value, verdict, question, measured };
      write(told);
      progress();
    });
  });

  function progress() {
    const told = read();
    const own = (chapter) => Object.values(told[chapter] ?? {});
    document.querySelectorAll(".tick").forEach((tick) => {
      const done = own(tick.dataset.chapter).length, all = Number(tick.dataset.of);
      tick.textContent = done >= all ? "✓" : say("{0} of {1}", done, all);
      tick.title = say("{0} of {1} predictions made", done, all);
      tick.classList.toggle("done", done >= all);
    });
    document.querySelectorAll(".score").forEach((score) => {
      const made = own(score.dataset.chapter), all = document.querySelectorAll("form.ask").length;
      const right = made.filter((one) => one.verdict === "right").length;
      score.textContent = say("{0} of {1} predictions made on this page, {2} of them right.", made.length, all, right);
    });
    document.querySelectorAll(".progress").forEach((line) => {
      const made = Object.keys(told).flatMap(own);
      line.textContent = `${say("{0} predictions made, kept in this browser only.", made.length)} `;
      const button = (name, act) => {
        const made = line.appendChild(document.createElement("button"));
        made.textContent = name;
        made.addEventListener("click", act);
      };
      button(say("Report"), () => download("ddp-course-report.html", report(told), "text/html"));
      button(say("Export"), () => download("ddp-course-predictions.json", JSON.stringify(told, null, 1)));
      button(say("Reset"), () => {
        if (!confirm(say("Forget all predictions made on this site?"))) return;
        localStorage.removeItem(KEY);
        progress();
      });
    });
  }

  function download(name, text, type = "application/json") {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
  }

  // A page of its own, to be kept, printed or handed in: chapter by chapter what was predicted.
  // It is made of elements, whose text needs no escaping.
  function report(told) {
    const page = document.implementation.createHTMLDocument(say("My predictions"));
    const add = (parent, name, text) => {
      const element = parent.appendChild(page.createElement(name));
      element.textContent = text;
      return element;
    };
    page.documentElement.lang = document.documentElement.lang;
    page.head.appendChild(page.createElement("meta")).setAttribute("charset", "utf-8");
    add(page.head, "style", "body{font-family:sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}" +
      "table{border-collapse:collapse;width:100%}th,td{border:1px solid #999;padding:.3rem .6rem;text-align:left}");
    add(page.body, "h1", page.title);
    add(page.body, "p", new Date().toLocaleString(document.documentElement.lang));
    for (const tick of document.querySelectorAll(".tick")) {
      const { chapter, of } = tick.dataset;
      const answers = Object.values(told[chapter] ?? {});
      const right = answers.filter((answer) => answer.verdict === "right").length;
      add(page.body, "h2", tick.parentElement.querySelector("a").textContent);
      add(page.body, "p", say("{0} of {1} predictions made, {2} of them right.", answers.length, of, right));
      if (answers.length) answersTable(add(page.body, "table", ""), answers, add);
    }
    add(page.body, "p", say("Which exercises pass is told in JupyterLab, by the panel and by make progress."));
    return `<!DOCTYPE html>\n${page.documentElement.outerHTML}`;
  }

  function answersTable(table, answers, add) {
    const head = add(table, "tr", "");
    for (const name of [say("question"), say("predicted"), say("measured"), ""]) add(head, "th", name);
    for (const { question, answer, measured, verdict } of answers) {
      const row = add(table, "tr", "");
      const mark = verdict === "right" ? `✓ ${say("right")}` : verdict;
      for (const text of [question, answer, measured ?? "", mark]) add(row, "td", text);
    }
  }

  progress();
}
