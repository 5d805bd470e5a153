"""Recordings, replays and tensors drawn, each picture with its words."""
