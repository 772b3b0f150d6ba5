"""What people and machines read: pages, saved values, annotations; one file a format."""
