"""What lessons work on: digits, a novel and a small GPT that reads it, recordings of real GPUs.

Nothing here knows of ranks, and nothing imports `course_utils`, which launches them.
"""
