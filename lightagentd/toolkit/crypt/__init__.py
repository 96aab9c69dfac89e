"""What the tool `crypto` is made of: encodings, signatures, certificates, TLS handshakes."""
