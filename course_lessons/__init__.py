"""What chapters show their results with: pictures and small machines that teach nothing themselves.

A cell imports from here what would otherwise be folded up. Chapters 00, 02, 03, 07 and 15 have a
module of their own; `racing`, `twins` and `device_zero` belong to chapter 01.
"""
