"""How glibc's memory allocator is set in the processes that a benchmark compares."""

# mallopt(3): glibc gives no memory back in a run, as after a validation, which references lack, it does less.
KEEP_FREED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
