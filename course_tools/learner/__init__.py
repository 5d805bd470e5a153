"""What a learner's commands do: copies of the notebooks, progress, the challenge, the doctor."""
