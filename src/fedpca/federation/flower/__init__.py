"""Flower: owners on machines of their own, connected over TLS. See docs/how-to/hospitals-on-flower.md.

`client_app:app` and `server_app:app` are the two parts of a Flower app; they need the extra "flower".
"""
