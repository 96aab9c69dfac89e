"""The parts of the tool `crypto`: encodings, signatures, certificates, TLS handshakes, keys."""
