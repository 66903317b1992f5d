"""A mover that kills itself: python -m langgraph_moving.killed SOURCE TARGET CHECKPOINT"""

import os
import signal
import sys

from langgraph_moving.graphs import Ticket
from outlive.adapters.langgraph import cargo
from outlive.adapters.langgraph.moving import import_langgraph

cargo._CHUNK_BYTES = 2_000  # so that chunks go ahead of their records
source, target, last = sys.argv[1], sys.argv[2], int(sys.argv[3])


def tell(done, total):
    if done >= last:
        os.kill(os.getpid(), signal.SIGKILL)


import_langgraph(source, target, types=[Ticket], progress=tell)
