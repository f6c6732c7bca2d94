"""An engine under load, in virtual time: schedulers, loads, and the search for capacity over them."""
