"""Runs the test file named on the command line under pytest: main of every Bazel py_test."""

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-q", *sys.argv[1:]]))
