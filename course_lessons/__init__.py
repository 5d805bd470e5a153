"""What chapters show their results with: pictures and small machines that teach nothing themselves.

A module for each chapter that needs one. A cell imports from it what would otherwise be folded up.
"""
