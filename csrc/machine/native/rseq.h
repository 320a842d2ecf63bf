/* rseq.h - whether restartable sequences can be used, their fence, and the slow forms of
 * operations. */
#ifndef US_RSEQ_H
#define US_RSEQ_H

#include "machine/machine.h"
#include "machine/region.h"

struct us_local;

/* Decides for a new machine: RSEQ or SLOT. False when UNISLAB_RSEQ has no value that is known. */
bool us_rseq_choose(enum us_mode *mode, struct us_error *error);
/* The CPU id of the calling thread, negative when it is not registered. Only in RSEQ mode. */
int us_rseq_cpu(void);
/* Restarts every sequence that runs on the CPU, or on any for -1. */
void us_rseq_fence(int cpu);
/* In a fork child: it is a new process to the kernel. */
void us_rseq_register_fences_again(void);

#ifdef US_HAVE_RSEQ
/* From the thread pointer to the rseq area that the C library registered, the same in all threads.
 */
extern ptrdiff_t us_rseq_offset __attribute__((visibility("hidden")));

/* As their namesakes in local.h. */
int us_rseq_pop(struct us_local *l, void **out, unsigned *cpu);
int us_rseq_push(struct us_local *l, void *object, unsigned *cpu);
unsigned us_rseq_pop_batch(struct us_local *l, void **out, unsigned n);
unsigned us_rseq_push_batch(struct us_local *l, void *const *in, unsigned n, uint64_t base);
unsigned us_rseq_take_oldest(struct us_local *l, void **out, unsigned n, enum us_seen seen,
                             unsigned *cpu);
void us_rseq_touch(struct us_local *l, uint64_t base);
unsigned us_rseq_add(struct us_local *l, void **in, unsigned n, uint64_t base, enum us_seen seen,
                     unsigned *cpu);
int us_rseq_main_pop(struct us_local *l, void **out);
int us_rseq_main_push(struct us_local *l, void *object);
unsigned us_rseq_main_take(struct us_local *l, void **out, unsigned n);
unsigned us_rseq_main_put(struct us_local *l, void *const *in, unsigned n, uint64_t base);
int us_rseq_swap(struct us_local *l, unsigned w, unsigned cpu, struct us_sheaf *from,
                 struct us_sheaf *to);
struct us_list *us_rseq_detach(struct us_local *l, unsigned w, unsigned *cpu);
int us_rseq_install(struct us_local *l, unsigned w, unsigned cpu, struct us_list *list);
int us_rseq_list_pop(struct us_local *l, unsigned w, void **out, unsigned *cpu);
int us_rseq_list_push(struct us_local *l, unsigned w, struct us_list *owner, void *object,
                      unsigned *cpu);
int us_rseq_counted_pop(struct us_local *l, unsigned w, void **out, unsigned *cpu);
int us_rseq_counted_push(struct us_local *l, unsigned w, void *object, unsigned *cpu);
#endif

#endif
