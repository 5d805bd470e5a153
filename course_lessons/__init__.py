"""What chapters show their results with: pictures and small machines that teach nothing themselves.

A cell imports from here what would otherwise be folded up, and checks of what a learner writes.
`chapter_NN` belongs to chapter NN; `racing`, `twins` and `device_zero` to 01, `ddp_exercises` to
04, `torchrun_jobs` to 08, `versions_16` to lab 16, `tensor_parallel` to
chapter and lab 17, `pipeline` to chapter 18, `scaling` to 19 and to a page of the site. `finished`
shows our form of an exercise once the learner's has passed, `drawing` runs an answer in ranks to
draw what it does, right or wrong.
"""
