"""The protocols of model servers, one module each, behind `dialect.Dialect`."""
