"""Reads studies back: tables, charts, reports. Imports no torch."""
