"""Labs handed out, and what comes back graded in a sandbox or by nbgrader."""
