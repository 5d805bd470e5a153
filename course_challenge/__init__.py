"""The challenge: who writes the fastest all-reduce for a given network?"""

from course_challenge.judging import bounds, judge
from course_challenge.leaderboard import board

__all__ = ["board", "bounds", "judge"]
