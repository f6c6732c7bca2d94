"""What people import: each command as one call that takes names, paths or objects and returns a frozen answer."""
