// The page with plans: looks up what course_lessons.scaling has computed, and judges tasks.
// say.js comes after this script, which only this page loads.
addEventListener("DOMContentLoaded", () => document.querySelectorAll("section.plan").forEach((section) => {
  const KEY = "ddp-course-plans";
  const won = new Set(JSON.parse(localStorage.getItem(KEY) ?? "[]"));
  const { parts, scores } = PLANS; // written by course_tools.site.plans
  const value = (name) => section.querySelector(`[name=${name}]`).value;
  const power = (name) => 2 ** Number(value(name));

  function chosen() {
    const [dp, tp, pp, microbatches] = ["dp", "tp", "pp", "microbatches"].map(power);
    const plan = { model: value("model"), zero: Number(value("zero")), dp, tp, pp, microbatches };
    plan.chips = dp * tp * pp;
    const key = [dp, tp, pp, microbatches, plan.zero].join(" ");
    const found = scores[plan.model][key];
    if (found) parts.forEach((name, k) => (plan[name] = found[k]));
    plan.known = Boolean(found);
    return plan;
  }

  function keeps(plan, { model, least = {}, most = {} }) {
    if (!plan.known || plan.gb > 80 || plan.model !== model) return false;
    const enough = Object.entries(least).every(([name, bound]) => plan[name] >= bound);
    return enough && Object.entries(most).every(([name, bound]) => plan[name] <= bound);
  }

  function told(plan) {
    const chips = plan.chips.toLocaleString("en");
    if (plan.chips > 1024) return say("{0} chips: the cluster has 1,024.", chips);
    if (!plan.known) return say("1,024 sequences are too few for {0} copies with {1} microbatches each.", plan.dp, plan.microbatches);
    const fits = plan.gb > 80 ? say("It doesn't fit.") : say("It fits.");
    const mfu = (100 * plan.mfu).toFixed(1), step = plan.step_s.toPrecision(3);
    const gap = document.documentElement.lang.startsWith("zh") ? "" : " ";
    return say("{0} chips, a step of {1} s, an MFU of {2}%.", chips, step, mfu) + gap + fits;
  }

  function draw(plan) {
    const rows = section.querySelectorAll(".parts > div");
    ["compute_s", "tensor_s", "bubble_s", "data_s", "gb"].forEach((name, k) => {
      const share = name === "gb" ? plan.gb / 80 : plan[name] / plan.step_s;
      rows[k].querySelector("i").style.width = plan.known ? `${Math.min(100, 100 * share)}%` : "0";
      const unit = name === "gb" ? "GB" : "s";
      rows[k].querySelector("output").textContent = plan.known ? `${plan[name].toPrecision(3)} ${unit}` : "";
      rows[k].classList.toggle("over", name === "gb" && plan.gb > 80);
    });
  }

  function judge(plan) {
    const task = section.querySelector("[name=task]:checked");
    if (task && keeps(plan, JSON.parse(task.dataset.bounds))) won.add(task.value);
    localStorage.setItem(KEY, JSON.stringify([...won]));
    section.querySelectorAll("[name=task]").forEach((one) => {
      one.closest("div").querySelector("output").textContent = won.has(one.value) ? `✓ ${say("won")}` : "";
    });
    const all = section.querySelectorAll("[name=task]").length;
    section.querySelector(".won").textContent = say("{0} of {1} tasks won.", won.size, all);
  }

  function show() {
    section.querySelectorAll("[type=range]").forEach((slider) => {
      const number = String(power(slider.name));
      slider.previousElementSibling.textContent = number;
      slider.setAttribute("aria-valuetext", number);
    });
    const plan = chosen();
    section.querySelector(".told").textContent = told(plan);
    draw(plan);
    judge(plan);
  }

  section.addEventListener("input", show);
  show();
}));
