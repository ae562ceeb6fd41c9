"""Language models: trained, evaluated and read from, word by word."""
