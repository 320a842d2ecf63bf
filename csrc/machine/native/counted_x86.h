/* counted_x86.h - restartable pop and push of counted lists (region.h).
 *
 * The old header becomes the link of a pushed object: of a link only the bits of the place count.
 */
#ifndef US_COUNTED_X86_H
#define US_COUNTED_X86_H

#include "machine/native/seq_x86.h"

_Static_assert(offsetof(struct us_counted, header) == 0 &&
                   offsetof(struct us_counted, limit) == 8 &&
                   offsetof(struct us_words, word) == 0 && offsetof(struct us_words, base) == 32 &&
                   offsetof(struct us_words, length) == 40,
               "the sequences name these offsets");
_Static_assert(US_COUNTED_SIZE_BITS == 19 && US_COUNTED_PLACE_SHIFT == 28,
               "the sequences shift and mask by these");

/* One instruction a line. */
/* clang-format off */

#define US_COUNTED_POP(word)                      \
    US_SEQ_BEGIN("%[tries]", US_SEQ_MISS_CARRY)   \
    US_SEQ_AT(US_SEQ_COUNTED_POP, US_SEQ_BEGUN)   \
    "movslq %%fs:4(%[area]), %[cpu]\n\t"          \
    "movq (%[table],%[cpu],8), %%rax\n\t"         \
    US_SEQ_AT(US_SEQ_COUNTED_POP, US_SEQ_LOADED)  \
    "movq 32(%%rax), %%r9\n\t"                    \
    "movq " word ", %%rax\n\t"                    \
    "movq (%%rax), %%rcx\n\t"                     \
    "testl $0x7ffff, %%ecx\n\t"                   \
    "jz 9b\n\t"                                   \
    "movq %%rcx, %[object]\n\t"                   \
    "shrq $28, %[object]\n\t"                     \
    "leaq (%%r9,%[object],8), %[object]\n\t"      \
    "andl $0xfffffff, %%ecx\n\t"                  \
    "addl $0x7ffff, %%ecx\n\t"                    \
    "testl $0x10000000, %%ecx\n\t"                \
    "jnz 9b\n\t"                                  \
    "movq (%[object],%[link]), %%r9\n\t"          \
    "andq $-0x10000000, %%r9\n\t"                 \
    "orq %%r9, %%rcx\n\t"                         \
    US_SEQ_AT(US_SEQ_COUNTED_POP, US_SEQ_READY)   \
    "movq %%rcx, (%%rax)\n"                        \
    US_SEQ_COMMITTED                              \
    US_SEQ_END

/* (The last that touches the flags is an operation that clears carry.) */
#define US_COUNTED_PUSH(word, cpu, tries, miss)     \
    US_SEQ_BEGIN(tries, miss)                       \
    US_SEQ_AT(US_SEQ_COUNTED_PUSH, US_SEQ_BEGUN)    \
    "movslq %%fs:4(%[area]), " cpu "\n\t"           \
    "movq (%[table]," cpu ",8), %%rax\n\t"          \
    US_SEQ_AT(US_SEQ_COUNTED_PUSH, US_SEQ_LOADED)   \
    "movq %[object], %%r9\n\t"                      \
    "subq 32(%%rax), %%r9\n\t"                      \
    "cmpq 40(%%rax), %%r9\n\t"                      \
    "jae 9b\n\t"                                    \
    "movq " word ", %%rax\n\t"                      \
    "movq (%%rax), %%r10\n\t"                       \
    "movl $0x7ffff, %%ecx\n\t"                      \
    "andl %%r10d, %%ecx\n\t"                        \
    "cmpl 8(%%rax), %%ecx\n\t"                      \
    "jae 9b\n\t"                                    \
    "movq %%r10, (%[object],%[link])\n\t"           \
    "shlq $25, %%r9\n\t"                            \
    "andq $-0x10000000, %%r9\n\t"                   \
    "andl $0xfffffff, %%r10d\n\t"                   \
    "leaq 1(%%r9,%%r10), %%r9\n\t"                  \
    US_SEQ_AT(US_SEQ_COUNTED_PUSH, US_SEQ_READY)    \
    "movq %%r9, (%%rax)\n"                           \
    US_SEQ_COMMITTED                                \
    US_SEQ_END

/* 1 = popped from the list that word w names; 0 = empty, closed, its count of pops about to wrap, or
 * aborted too often. Word 0, which policies with one list use, is addressed without an index. */
US_INLINE int us_seq_counted_pop(void **table, uint64_t w, ptrdiff_t link, void **out, int64_t *cpu)
{
    int tries = US_SEQ_TRIES, missed;
    void *object;
    int64_t id;

    if (__builtin_constant_p(w) && w == 0)
        __asm__ volatile(
            US_COUNTED_POP("(%%rax)")
            : [object] "=&r"(object), [cpu] "=&r"(id), [tries] "+r"(tries), "=@ccc"(missed)
            : [area] "r"(us_rseq_offset), [table] "r"(table), [link] "r"(link)
            : "r9", US_SEQ_CLOBBERS);
    else
        __asm__ volatile(
            US_COUNTED_POP("(%%rax,%[w],8)")
            : [object] "=&r"(object), [cpu] "=&r"(id), [tries] "+r"(tries), "=@ccc"(missed)
            : [area] "r"(us_rseq_offset), [table] "r"(table), [link] "r"(link), [w] "r"(w)
            : "r9", US_SEQ_CLOBBERS);
    if (US_UNLIKELY(missed))
        return 0;
    *out = object;
    *cpu = id;
    return 1;
}

/* 1 = pushed on the list that word w names; 0 = it is at its limit, the object is of another node, the
 * word closed, or aborted too often. */
US_INLINE int us_seq_counted_push(void **table, uint64_t w, ptrdiff_t link, void *object)
{
    if (__builtin_constant_p(w) && w == 0)
        __asm__ volatile goto(
            "movl $" US_SEQ_TEXT(US_SEQ_TRIES) ", %%r8d\n\t"
            US_COUNTED_PUSH("(%%rax)", "%%rcx", "%%r8d", US_SEQ_MISS_GOTO)
            :
            : [area] "r"(us_rseq_offset), [table] "r"(table), [link] "r"(link), [object] "r"(object)
            : "r8", "r9", "r10", US_SEQ_CLOBBERS
            : miss);
    else
        __asm__ volatile goto(
            "movl $" US_SEQ_TEXT(US_SEQ_TRIES) ", %%r8d\n\t"
            US_COUNTED_PUSH("(%%rax,%[w],8)", "%%rcx", "%%r8d", US_SEQ_MISS_GOTO)
            :
            : [area] "r"(us_rseq_offset), [table] "r"(table), [link] "r"(link), [w] "r"(w),
              [object] "r"(object)
            : "r8", "r9", "r10", US_SEQ_CLOBBERS
            : miss);
    return 1;
miss:
    return 0;
}

/* The same for slow paths, which want to know where it happened. */
US_INLINE int us_seq_counted_push_at(void **table, uint64_t w, ptrdiff_t link, void *object,
                                     int64_t *cpu)
{
    int tries = US_SEQ_TRIES, missed;
    int64_t id;

    __asm__ volatile(
        US_COUNTED_PUSH("(%%rax,%[w],8)", "%[cpu]", "%[tries]", US_SEQ_MISS_CARRY)
        : [cpu] "=&r"(id), [tries] "+r"(tries), "=@ccc"(missed)
        : [area] "r"(us_rseq_offset), [table] "r"(table), [link] "r"(link), [w] "r"(w),
          [object] "r"(object)
        : "r9", "r10", US_SEQ_CLOBBERS);
    if (US_UNLIKELY(missed))
        return 0;
    *cpu = id;
    return 1;
}

/* clang-format on */

#endif
