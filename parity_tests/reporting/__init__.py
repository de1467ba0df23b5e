"""How a verdict is told: table, JSON, JUnit XML, annotations of GitHub, one HTML page.

``parity_tests.report`` is the front of it.
"""
