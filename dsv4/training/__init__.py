"""Training of the tiny model that the package ships: data, loss, loop, evaluation."""
