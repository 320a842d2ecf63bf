/* rseq.c - is there an rseq area, and is there a fence?
 *
 * The area is the one that the C library registered for each thread before user code ran in it. Its
 * place is looked up weakly, so that older C libraries load. What decides is the size it reports
 * and a CPU id that is not negative: under valgrind and in some sandboxes the fence claims to work
 * and the area is not registered. Id fields belong to the kernel and are never written. */
#define _GNU_SOURCE
#include "machine/native/rseq.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "machine/backend.h"

#define PREFIX "fallback: "

/* From the kernel's interface; headers of older systems lack them. */
enum {
    FENCE_RSEQ = 1 << 7,
    REGISTER_FENCE_RSEQ = 1 << 8,
    FENCE_ONE_CPU = 1,
};
struct area {
    uint32_t cpu_id_start;
    int32_t cpu_id;
    uint64_t rseq_cs;
};

#if defined(US_HAVE_RSEQ) && defined(US_DUMMY_RSEQ)

/* Instruction counts: valgrind never sees a registered area, so one thread runs on a CPU id of its
 * own making, which nothing interrupts. */
static struct area dummy __attribute__((aligned(32)));
ptrdiff_t us_rseq_offset;

static const char *missing(void)
{
    us_rseq_offset = (char *)&dummy - (char *)__builtin_thread_pointer();
    return NULL;
}

void us_rseq_fence(int cpu)
{
    (void)cpu;
}

void us_rseq_register_fences_again(void)
{
}

#elif defined(US_HAVE_RSEQ)

extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));
ptrdiff_t us_rseq_offset;

static long membarrier(int command, int flags, int cpu)
{
#ifdef SYS_membarrier
    return syscall(SYS_membarrier, command, flags, cpu);
#else
    errno = ENOSYS;
    return -1;
#endif
}

static bool register_fences(void)
{
    return membarrier(REGISTER_FENCE_RSEQ, 0, 0) == 0 &&
           membarrier(FENCE_RSEQ, FENCE_ONE_CPU, 0) == 0;
}

/* Why sequences cannot be used; NULL when they can. */
static const char *missing(void)
{
    if (&__rseq_size == NULL || &__rseq_offset == NULL || __rseq_size < sizeof(struct area))
        return PREFIX "the C library has no rseq area registered (glibc 2.35 and later do)";
    us_rseq_offset = __rseq_offset;
    if (us_rseq_cpu() < 0)
        return PREFIX "the kernel did not register the rseq area of this thread";
    if (!register_fences())
        return PREFIX "membarrier has no rseq fence here (Linux 5.10 and later have)";
    return NULL;
}

/* A CPU that is offline or that the system does not have runs no sequence. */
void us_rseq_fence(int cpu)
{
    int flags = cpu < 0 ? 0 : FENCE_ONE_CPU, saved = errno;

    while (membarrier(FENCE_RSEQ, flags, cpu < 0 ? 0 : cpu) != 0) {
        if (cpu >= 0 && (errno == EINVAL || errno == ENXIO))
            break;
        if (errno != ENOMEM && errno != EINTR && errno != EAGAIN)
            us_fatal("membarrier refused the fence of CPU %d that it offered before: %s", cpu,
                     strerror(errno));
        sched_yield();
    }
    errno = saved;
}

void us_rseq_register_fences_again(void)
{
    if (!register_fences())
        us_fatal("membarrier refused to register the child of a fork: %s", strerror(errno));
}

#else

static const char *missing(void)
{
    return PREFIX "no sequences are written for this architecture";
}

void us_rseq_fence(int cpu)
{
    (void)cpu;
}

void us_rseq_register_fences_again(void)
{
}

#endif

int us_rseq_cpu(void)
{
#ifdef US_HAVE_RSEQ
    const char *area = (const char *)__builtin_thread_pointer() + us_rseq_offset;

    return *(const volatile int32_t *)(area + offsetof(struct area, cpu_id));
#else
    return -1;
#endif
}

/* ---- the choice -------------------------------------------------------------------------------
 */

#if defined(__SANITIZE_THREAD__)
#define BLIND PREFIX "built with ThreadSanitizer, which does not see sequences"
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define BLIND PREFIX "built with ThreadSanitizer, which does not see sequences"
#endif
#endif
#ifndef BLIND
#define BLIND NULL
#endif

static const char *why_not(void)
{
    const char *asked = getenv("UNISLAB_RSEQ");

    if (asked != NULL && strcmp(asked, "0") == 0)
        return PREFIX "UNISLAB_RSEQ=0";
    return BLIND != NULL ? BLIND : missing();
}

const char *us_machine_mode_reason(void)
{
    const char *reason = why_not();

    return reason == NULL ? "rseq" : reason;
}

bool us_rseq_choose(enum us_mode *mode, struct us_error *error)
{
    const char *asked = getenv("UNISLAB_RSEQ");

    if (asked != NULL && *asked != '\0' && strcmp(asked, "0") != 0 && strcmp(asked, "1") != 0) {
        us_fail(
            error, US_EINVAL,
            "UNISLAB_RSEQ is \"%.40s\": set it to 1 (restartable sequences where the system has "
            "them, as when unset) or to 0 (the fallback)",
            asked);
        return false;
    }
    *mode = why_not() == NULL ? US_MODE_RSEQ : US_MODE_SLOT;
    return true;
}
