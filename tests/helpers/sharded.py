"""Chapter 13's sharded wrapper outside of its notebook: `from sharded import Sharded`."""

import labs

PATH = labs.ROOT / "source/lessons/13_hold_less.py"
CLASSES = ("OurDDP(", "Shards(", "Zero1(", "Gather(", "Freeing(", "Zero2(", "Sharded(")
# Cells with these, the one of imports first, and some with functions that tests call.
WANTED = ["import torch\n", *(f"class {n}" for n in CLASSES), "def train_stack", "def FSDP2"]
WANTED += ["def train_gpt", "def on_the_wire"]
lesson = labs.defined(PATH, WANTED)
Sharded = lesson["Sharded"]
