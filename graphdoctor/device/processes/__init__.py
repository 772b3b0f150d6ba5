"""A process of its own to run a step in: whatever happens there, this process goes on.

A process does one job: a module's `do(job: bytes) -> bytes`, which may raise `Failed`. It is started
in one of two ways: `process` starts an interpreter that waits for a start signal, `forked` forks a
server that has imported torch once for all.
"""
