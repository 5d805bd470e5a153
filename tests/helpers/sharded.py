"""Chapter 12's sharded wrapper outside of its notebook: `from sharded import Sharded`."""

import labs

(PATH,) = (
    path
    for path in sorted((labs.ROOT / "source/lessons").glob("12*.py"))
    if "class Sharded(" in path.read_text(encoding="utf-8")
)
CLASSES = ("OurDDP(", "Shards(", "Zero1(", "Gather(", "Freeing(", "Zero2(", "Sharded(")
lesson = labs.defined(PATH, ["import torch\n", *(f"class {name}" for name in CLASSES)])
OurDDP, Zero1, Zero2, Sharded = (lesson[n] for n in ("OurDDP", "Zero1", "Zero2", "Sharded"))
