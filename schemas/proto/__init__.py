"""Protocol buffers for the gateway's gRPC side. Made from the `.proto` files beside them."""
