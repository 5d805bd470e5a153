"""Machines to launch on: two hosts on this machine, and a Slurm with two nodes."""

from course_cluster.hosts import two_hosts

__all__ = ["two_hosts"]
