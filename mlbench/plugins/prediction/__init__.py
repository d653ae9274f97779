"""From runs on a few workers to time, speed-up and cost on many."""
