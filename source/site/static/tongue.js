// The switch of languages leads to the cell or heading that is being read.
{
  const LINE = 100; // below the top of the window, where site.css lets a target stop
  const seen = (part) => part.getClientRects().length && part.getBoundingClientRect().top < LINE;
  document.querySelectorAll("a.tongue").forEach((link) => {
    const plain = link.getAttribute("href");
    const here = () => {
      const last = [...document.querySelectorAll("[id^=cell-], [id^=part-]")].filter(seen).pop();
      link.href = plain + location.search + (last && scrollY ? `#${last.id}` : "");
    };
    for (const event of ["pointerdown", "focus", "click"]) link.addEventListener(event, here);
  });
}
