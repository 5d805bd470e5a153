"""What lessons are made of beside ranks: predictions, digits, a novel and a small GPT, recordings.

Nothing here imports `course_utils`, which launches them and hands `digits` and `predict` on; but
for the learner's language, in which predictions and errors are worded.
"""
