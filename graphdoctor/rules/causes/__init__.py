"""What rules share: how values reach the host, and where iterations part."""
