/* os.c - memory, clock and fork of the system, for both machines. */
#define _GNU_SOURCE
#include "machine/machine.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

void *us_os_reserve(size_t bytes, bool accessible, bool huge)
{
    int protection = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
    void *base = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (base == MAP_FAILED)
        return NULL;
    if (!huge)
        (void)madvise(base, bytes, MADV_NOHUGEPAGE); /* a kernel without them refuses: as wished */
    return base;
}

void us_os_release(void *base, size_t bytes)
{
    if (base != NULL)
        munmap(base, bytes);
}

bool us_os_commit(void *base, size_t bytes)
{
    return mprotect(base, bytes, PROT_READ | PROT_WRITE) == 0;
}

void us_os_purge(void *base, size_t bytes)
{
    if (madvise(base, bytes, MADV_DONTNEED) != 0)
        memset(base, 0, bytes); /* locked memory cannot be given back, yet must read as zero */
}

void us_os_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
    (void)pthread_atfork(prepare, parent, child);
}

uint64_t us_clock_real(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
