"""Flower: a federation of owners on machines of their own, over TLS. See docs/how-to/hospitals-on-flower.md.

`client_app:app` and `server_app:app` are the two halves of a Flower app; they need the extra "flower".
"""
