"""What the tests need beside the library: servers, a failing network, processes to kill, stores to damage."""
