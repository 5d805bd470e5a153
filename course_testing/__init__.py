"""Test before you scale: tests that run in real ranks (`plugin`), on one machine, without a GPU."""
