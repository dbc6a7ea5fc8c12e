"""The gRPC front end: proto, conversion, services and the server that carries them."""
