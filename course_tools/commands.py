"""What the command lines of the tools have in common."""

import argparse


def parser_of(documentation: str | None) -> argparse.ArgumentParser:
    """Returns a parser that is described by the first line of a module's docstring."""
    summary, *_ = (documentation or "").split("\n")
    return argparse.ArgumentParser(description=summary)
