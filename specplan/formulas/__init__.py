"""The chapter's formulas: pure functions of arrays, numpy and scipy only.

Index (a test keeps it complete):
"""
