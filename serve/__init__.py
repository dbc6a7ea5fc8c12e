"""Serving: the engine, its gRPC front end and the command line. The only package with flags and sockets of its own."""
