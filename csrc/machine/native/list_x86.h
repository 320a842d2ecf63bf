/* list_x86.h - restartable operations on the words of the CPU at hand and the descriptors they
 * name.
 *
 * A word leads to its descriptor. A pop commits {head, count} in one aligned 16-byte store, a push
 * the head in one 8-byte store. Counting costs two instructions, in the pop: the count's load and
 * addition join the next object in one register. US_LIST_UNCOUNTED leaves them out, so that
 * instruction counts can be compared.
 */
#ifndef US_LIST_X86_H
#define US_LIST_X86_H

#include "machine/native/seq_x86.h"

_Static_assert(offsetof(struct us_list, head) == 0 && offsetof(struct us_list, count) == 8 &&
                   offsetof(struct us_words, word) == 0 &&
                   offsetof(struct us_words, installed) == 48,
               "the sequences name these offsets");

/* Added to {next object, count}. */
extern const uint64_t us_list_popped[2] __attribute__((visibility("hidden")));

/* One instruction a line. */
/* clang-format off */

#ifndef US_LIST_UNCOUNTED
#define US_LIST_POP_STEPS                  \
    "movq (%[object],%[link]), %%xmm0\n\t" \
    "movhps 8(%%rax), %%xmm0\n\t"          \
    "paddq %[popped], %%xmm0\n\t"
#define US_LIST_POP_COMMIT "movaps %%xmm0, (%%rax)\n"
#else
#define US_LIST_POP_STEPS  "movq (%[object],%[link]), %%rcx\n\t"
#define US_LIST_POP_COMMIT "movq %%rcx, (%%rax)\n"
#endif
#define US_LIST_PUSH_STEPS    \
    "movq (%%rax), %%r9\n\t" \
    "movq %%r9, (%[object],%[link])\n\t"
#define US_LIST_PUSH_COMMIT "movq %[object], (%%rax)\n"

#define US_LIST_POP(word)                       \
    US_SEQ_BEGIN("%[tries]", US_SEQ_MISS_CARRY) \
    US_SEQ_AT(US_SEQ_LIST_POP, US_SEQ_BEGUN)    \
    "movslq %%fs:4(%[area]), %[cpu]\n\t"        \
    "movq (%[table],%[cpu],8), %%rax\n\t"       \
    US_SEQ_AT(US_SEQ_LIST_POP, US_SEQ_LOADED)   \
    "movq " word ", %%rax\n\t"                  \
    "movq (%%rax), %[object]\n\t"               \
    "testq %[object], %[object]\n\t"            \
    "jz 9b\n\t"                                 \
    US_LIST_POP_STEPS                           \
    US_SEQ_AT(US_SEQ_LIST_POP, US_SEQ_READY)    \
    US_LIST_POP_COMMIT                          \
    US_SEQ_COMMITTED                            \
    US_SEQ_END

#define US_LIST_PUSH(word, cpu, tries, miss)   \
    US_SEQ_BEGIN(tries, miss)                  \
    US_SEQ_AT(US_SEQ_LIST_PUSH, US_SEQ_BEGUN)  \
    "movslq %%fs:4(%[area]), " cpu "\n\t"      \
    "movq (%[table]," cpu ",8), %%rax\n\t"     \
    US_SEQ_AT(US_SEQ_LIST_PUSH, US_SEQ_LOADED) \
    "movq " word ", %%rax\n\t"                 \
    "cmpq %[owner], %%rax\n\t"                 \
    "jne 9b\n\t"                               \
    US_LIST_PUSH_STEPS                         \
    US_SEQ_AT(US_SEQ_LIST_PUSH, US_SEQ_READY)  \
    US_LIST_PUSH_COMMIT                        \
    US_SEQ_COMMITTED                           \
    US_SEQ_END

/* 1 = popped from the descriptor that word w names; 0 = empty, closed, or aborted too often. Word 0,
 * which policies with one word use, is addressed without an index. */
US_INLINE int us_seq_list_pop(void **table, uint64_t w, ptrdiff_t link, void **out, int64_t *cpu)
{
    int tries = US_SEQ_TRIES, missed;
    void *object;
    int64_t id;

    if (__builtin_constant_p(w) && w == 0)
        __asm__ volatile(
            US_LIST_POP("(%%rax)")
            : [object] "=&r"(object), [cpu] "=&r"(id), [tries] "+r"(tries), "=@ccc"(missed)
            : [area] "r"(us_rseq_offset), [table] "r"(table), [link] "r"(link),
              [popped] "m"(us_list_popped)
            : "xmm0", US_SEQ_CLOBBERS);
    else
        __asm__ volatile(
            US_LIST_POP("(%%rax,%[w],8)")
            : [object] "=&r"(object), [cpu] "=&r"(id), [tries] "+r"(tries), "=@ccc"(missed)
            : [area] "r"(us_rseq_offset), [table] "r"(table), [link] "r"(link), [w] "r"(w),
              [popped] "m"(us_list_popped)
            : "xmm0", US_SEQ_CLOBBERS);
    if (US_UNLIKELY(missed))
        return 0;
    *out = object;
    *cpu = id;
    return 1;
}

/* 1 = pushed on `owner`, which word w names; 0 = it names another, closed, or aborted too often. */
US_INLINE int us_seq_list_push(void **table, uint64_t w, ptrdiff_t link, struct us_list *owner,
                               void *object)
{
    if (__builtin_constant_p(w) && w == 0)
        __asm__ volatile goto(
            "movl $" US_SEQ_TEXT(US_SEQ_TRIES) ", %%r8d\n\t"
            US_LIST_PUSH("(%%rax)", "%%rcx", "%%r8d", US_SEQ_MISS_GOTO)
            :
            : [area] "r"(us_rseq_offset), [table] "r"(table), [link] "r"(link), [owner] "r"(owner),
              [object] "r"(object)
            : "r8", "r9", US_SEQ_CLOBBERS
            : miss);
    else
        __asm__ volatile goto(
            "movl $" US_SEQ_TEXT(US_SEQ_TRIES) ", %%r8d\n\t"
            US_LIST_PUSH("(%%rax,%[w],8)", "%%rcx", "%%r8d", US_SEQ_MISS_GOTO)
            :
            : [area] "r"(us_rseq_offset), [table] "r"(table), [link] "r"(link), [w] "r"(w),
              [owner] "r"(owner), [object] "r"(object)
            : "r8", "r9", US_SEQ_CLOBBERS
            : miss);
    return 1;
miss:
    return 0;
}

/* The same for slow paths, which want to know where it happened. */
US_INLINE int us_seq_list_push_at(void **table, uint64_t w, ptrdiff_t link, struct us_list *owner,
                                  void *object, int64_t *cpu)
{
    int tries = US_SEQ_TRIES, missed;
    int64_t id;

    __asm__ volatile(
        US_LIST_PUSH("(%%rax,%[w],8)", "%[cpu]", "%[tries]", US_SEQ_MISS_CARRY)
        : [cpu] "=&r"(id), [tries] "+r"(tries), "=@ccc"(missed)
        : [area] "r"(us_rseq_offset), [table] "r"(table), [link] "r"(link), [w] "r"(w),
          [owner] "r"(owner), [object] "r"(object)
        : "r9", US_SEQ_CLOBBERS);
    if (US_UNLIKELY(missed))
        return 0;
    *cpu = id;
    return 1;
}

/* Stores the closed list over word w and returns what stood there, NULL when nothing did. */
US_INLINE struct us_list *us_seq_detach(void **table, uint64_t w, int64_t *cpu)
{
    int tries = US_SEQ_TRIES;
    struct us_list *list;
    int64_t id;

    __asm__ volatile(
        US_SEQ_BEGIN("%[tries]", "xorl %k[list], %k[list]\n\tjmp 6f")
        US_SEQ_AT(US_SEQ_DETACH, US_SEQ_BEGUN)
        "movslq %%fs:4(%[area]), %[cpu]\n\t"
        "movq (%[table],%[cpu],8), %%rax\n\t"
        US_SEQ_AT(US_SEQ_DETACH, US_SEQ_LOADED)
        "movq (%%rax,%[w],8), %[list]\n\t"
        "cmpq %[closed], %[list]\n\t"
        "je 9b\n\t"
        US_SEQ_AT(US_SEQ_DETACH, US_SEQ_READY)
        "movq %[closed], (%%rax,%[w],8)\n"
        US_SEQ_COMMITTED
        US_SEQ_END
        : [list] "=&r"(list), [cpu] "=&r"(id), [tries] "+r"(tries)
        : [area] "r"(us_rseq_offset), [table] "r"(table), [w] "r"(w), [closed] "r"(&us_closed_list)
        : US_SEQ_CLOBBERS);
    *cpu = id;
    return list;
}

/* 1 = word w of `cpu` names `list` now, of `size` objects; 0 = the word is taken, the region is
 * closed, this is another CPU, or aborted too often. */
US_INLINE int us_seq_install(void **table, uint64_t w, int64_t cpu, struct us_list *list,
                             uint32_t size)
{
    int tries = US_SEQ_TRIES, done;

    __asm__ volatile(
        US_SEQ_BEGIN("%[tries]", "xorl %[done], %[done]\n\tjmp 6f")
        US_SEQ_AT(US_SEQ_INSTALL, US_SEQ_BEGUN)
        "movslq %%fs:4(%[area]), %%rax\n\t"
        "cmpq %[meant], %%rax\n\t"
        "jne 9b\n\t"
        "movq (%[table],%%rax,8), %%rax\n\t"
        US_SEQ_AT(US_SEQ_INSTALL, US_SEQ_LOADED)
        "leaq %[closed_words], %%rcx\n\t"
        "cmpq %%rcx, %%rax\n\t"
        "je 9b\n\t"
        "leaq %[closed_list], %%rcx\n\t"
        "cmpq %%rcx, (%%rax,%[w],8)\n\t"
        "jne 9b\n\t"
        "movl %[size], 48(%%rax,%[w],4)\n\t"
        US_SEQ_AT(US_SEQ_INSTALL, US_SEQ_READY)
        "movq %[list], (%%rax,%[w],8)\n"
        US_SEQ_COMMITTED
        "movl $1, %[done]\n\t"
        US_SEQ_END
        : [done] "=&r"(done), [tries] "+r"(tries)
        : [area] "r"(us_rseq_offset), [table] "r"(table), [w] "r"(w), [meant] "r"(cpu),
          [list] "r"(list), [size] "r"(size), [closed_words] "m"(us_closed_words),
          [closed_list] "m"(us_closed_list)
        : US_SEQ_CLOBBERS);
    return done;
}

/* clang-format on */

#endif
