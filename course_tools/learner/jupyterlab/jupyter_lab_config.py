"""What `make lab` sets up in JupyterLab's server, beside a learner's own settings.

What it sets up on the page stands in overrides.json, and in custom/custom.css.
"""

import atexit
import importlib
import os
import shutil
import sys
from pathlib import Path

import zmq

HERE = Path(__file__).resolve().parent
c = get_config()  # noqa: F821 - Jupyter's word for "the settings that I am to fill in"


sys.path.append(str(HERE))  # of the server, not of its kernels
course_ending = importlib.import_module("course_ending")
atexit.register(course_ending.leave_nothing)
course_ending.end_with_the_terminal()
c.KernelManager.shutdown_wait_time = course_ending.KERNEL_S
c.ServerApp.answer_yes = True  # Ctrl-C ends it, without a question that a second one answers
c.ContentsManager.pre_save_hook = "course_saving.keep_pictures"
c.ContentsManager.post_save_hook = "course_saving.renew_course_map"
c.ServerApp.ip = "127.0.0.1"  # this machine only
# The last lines in the terminal are the address, not a list of programs that nobody asked for.
c.LanguageServerManager.autodetect = False
c.LabApp.custom_css = True
c.LabApp.app_settings_dir = str(HERE)
c.LabApp.extra_labextensions_path = [str(HERE / "labextensions")]
# What a kernel says goes over TCP; it warns where others on the machine could listen.
c.KernelManager.transport_encryption = "disabled"
if zmq.has("curve"):
    c.KernelManager.transport_encryption = "auto"
preferred_shell = Path(os.environ.get("SHELL", "bash"))
if shutil.which("bash") and preferred_shell.name == "bash":
    programs = Path(sys.executable).parent
    os.environ["COURSE_PROGRAMS"] = str(programs)
    shell = ["bash", "--rcfile", str(HERE / "terminal.bashrc"), "-i"]
    c.ServerApp.terminado_settings = {"shell_command": shell}
newer = importlib.import_module("course_newer")
c.ServerApp.tornado_settings = {
    "page_config_data": {
        "courseNewer": newer.notices(os.environ),
        **newer.texts_of_page(os.environ),
        "buildAvailable": False,  # it would ask for Node.js, and say that there is none
        "buildCheck": False,
    },
    "static_custom_path": [str(HERE / "custom")],
    # Of its default Jupyter thinks in milliseconds and Tornado in seconds, which warns. No ping is
    # needed here: the end of a connection within one machine is always noticed.
    "ws_ping_interval": 0,
}
