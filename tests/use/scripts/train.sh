# The way in which many repositories start their script.
export PYTHONPATH=lib
exec python streams.py
