"""Serving: engine, gRPC front end, command line. Only this package has flags and sockets."""
