"""What callers can do, one module for each noun. `service.Service` has them all."""
