// What a pointer reaches, a keyboard reaches as well.
{
  // A term's explanation shows while the pointer or the focus is on it. Without this script it is the
  // link's title, which only a pointer brings up.
  document.querySelectorAll("a.term").forEach((link) => {
    link.dataset.means = link.title;
    link.ariaDescription = link.title;
    link.removeAttribute("title");
  });

  // Code and output that are wider than the page are scrolled by arrow keys once they have the focus.
  const reachWideBlocks = () => {
    document.querySelectorAll("pre").forEach((block) => {
      if (block.scrollWidth > block.clientWidth) block.tabIndex = 0;
      else block.removeAttribute("tabindex");
    });
  };
  reachWideBlocks();
  addEventListener("resize", reachWideBlocks);
}
