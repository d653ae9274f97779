"""Tests that every task, sync strategy and cluster passes, from whatever package it comes.

pytest --pyargs mlbench.contract --task my_task --sync my_sync --cluster my_cluster
"""
