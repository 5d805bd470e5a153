# What a terminal of JupyterLab reads: a learner's own settings, and then the course's programs first,
# which those may have put behind others.
if [ -f ~/.bashrc ]; then . ~/.bashrc; fi
export PATH="$COURSE_PROGRAMS:$PATH"
