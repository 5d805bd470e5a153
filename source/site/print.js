// Before the course is printed: what is folded, and where links lead, go to the end.
() => {
  const main = document.querySelector("article[role=main]") ?? document.body;
  const end = (title) => {
    const part = main.appendChild(document.createElement("section"));
    part.append(Object.assign(document.createElement("h1"), { textContent: title }));
    return part.appendChild(document.createElement("ol"));
  };
  document.querySelectorAll("img").forEach((image) => {
    image.loading = "eager";
    image.src = image.getAttribute("src").replace("../", "");
  });
  document.querySelectorAll(".live .sliders, .live .note, .live button, .elsewhere, .progress").forEach((own) => own.remove());

  const folded = end("What was folded");
  [...document.querySelectorAll("details")].filter((fold) => main.contains(fold)).forEach((fold, k) => {
    const name = fold.querySelector("summary").innerText.trim().replace("Show the", "the");
    fold.querySelector("summary").remove();
    const item = folded.appendChild(document.createElement("li"));
    item.id = `folded-${k + 1}`;
    item.append(...fold.childNodes);
    const link = document.createElement("a");
    Object.assign(link, { href: `#${item.id}`, textContent: `${name}: see ${k + 1} at the end` });
    fold.replaceWith(link);
  });

  const links = end("Links"), known = new Map();
  main.querySelectorAll("a[href^=http]").forEach((link) => {
    const address = link.getAttribute("href");
    if (!known.has(address)) {
      known.set(address, known.size + 1);
      links.appendChild(document.createElement("li")).textContent = address;
    }
    link.insertAdjacentHTML("afterend", `<sup>[${known.get(address)}]</sup>`);
  });
  return Promise.all([...document.images].map((image) => image.decode().catch(() => image.src))).then(
    (found) => ({ folded: folded.children.length, links: known.size, lost: found.filter(Boolean) }),
  );
}
