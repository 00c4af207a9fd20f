"""Tests of aorta, mirroring its packages."""
