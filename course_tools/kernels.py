"""What is set for the kernels that the course's own commands start."""

import zmq
from traitlets.config import Config

# Where nobody can listen a kernel does not warn that somebody could.
ENCRYPTION = "auto" if zmq.has("curve") else "disabled"
QUIET = Config(KernelManager={"transport_encryption": ENCRYPTION})
