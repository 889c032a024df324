"""Columns in memory: their layout, raw access, hashing, gathering rows, and exchange with Arrow."""
