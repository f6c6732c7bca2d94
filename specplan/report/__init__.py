"""Render results: tables for people, JSON for programs, pictures where people would look."""
