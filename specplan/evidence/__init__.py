"""Published tables, start-up logs and the source chapter, held beside our figures."""
