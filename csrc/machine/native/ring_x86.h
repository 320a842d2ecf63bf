/* ring_x86.h - restartable operations on the ring of the CPU at hand. The plain forms in region.c
 * say what each does; tests/c/test_pair.c holds the two equal. */
#ifndef US_RING_X86_H
#define US_RING_X86_H

#include "machine/native/seq_x86.h"

_Static_assert(offsetof(struct us_ring, header) == 0 && offsetof(struct us_ring, mask) == 8 &&
                   offsetof(struct us_ring, capacity) == 12 &&
                   offsetof(struct us_ring, base) == 16 && offsetof(struct us_ring, length) == 24 &&
                   offsetof(struct us_ring, seen) == 32 && offsetof(struct us_ring, object) == 64,
               "the sequences name these offsets");
_Static_assert(US_SIZE_BITS == 14 && US_HEAD_SHIFT == 14 && US_POPS_SHIFT == 28,
               "the sequences name these widths");

/* One instruction a line. */
/* clang-format off */

/* 1 = popped; 0 = empty, closed, aborted too often, or the pop count would wrap. */
US_INLINE int us_seq_pop(void **table, void **out)
{
    int tries = US_SEQ_TRIES, missed;
    void *object;

    __asm__ volatile(
        US_SEQ_BEGIN("%[tries]", US_SEQ_MISS_CARRY)
        US_SEQ_REGION(US_SEQ_POP)
        "movq (%%rax), %%rcx\n\t"
        "movl %%ecx, %%edx\n\t"
        "andl $0x3fff, %%edx\n\t"
        "jz 9b\n\t"
        "movl %%ecx, %%r8d\n\t"
        "shrl $14, %%r8d\n\t"
        "leal -1(%%r8,%%rdx), %%edx\n\t"
        "andl 8(%%rax), %%edx\n\t"
        "movq 64(%%rax,%%rdx,8), %[object]\n\t"
        "addq $0xfffffff, %%rcx\n\t"
        "jc 9b\n\t"
        US_SEQ_AT(US_SEQ_POP, US_SEQ_READY)
        "movq %%rcx, (%%rax)\n"
        US_SEQ_COMMITTED
        US_SEQ_END
        : [object] "=&r"(object), [tries] "+r"(tries), "=@ccc"(missed)
        : [area] "r"(us_rseq_offset), [table] "r"(table)
        : "rdx", "r8", US_SEQ_CLOBBERS);
    if (US_UNLIKELY(missed))
        return 0;
    *out = object;
    return 1;
}

/* 1 = pushed; 0 = full, of another node, closed, or aborted too often. */
US_INLINE int us_seq_push(void **table, void *object)
{
    __asm__ volatile goto(
        "movl $" US_SEQ_TEXT(US_SEQ_TRIES) ", %%r9d\n\t"
        US_SEQ_BEGIN("%%r9d", US_SEQ_MISS_GOTO)
        US_SEQ_REGION(US_SEQ_PUSH)
        "movq %[object], %%rdx\n\t"
        "subq 16(%%rax), %%rdx\n\t"
        "cmpq 24(%%rax), %%rdx\n\t"
        "jae 9b\n\t"
        "movq (%%rax), %%rcx\n\t"
        "movl %%ecx, %%edx\n\t"
        "andl $0x3fff, %%edx\n\t"
        "cmpl 12(%%rax), %%edx\n\t"
        "jae 9b\n\t"
        "movl %%ecx, %%r8d\n\t"
        "shrl $14, %%r8d\n\t"
        "addl %%r8d, %%edx\n\t"
        "andl 8(%%rax), %%edx\n\t"
        "movq %[object], 64(%%rax,%%rdx,8)\n\t"
        "incq %%rcx\n\t"
        US_SEQ_AT(US_SEQ_PUSH, US_SEQ_READY)
        "movq %%rcx, (%%rax)\n"
        US_SEQ_COMMITTED
        :
        : [area] "r"(us_rseq_offset), [table] "r"(table), [object] "r"(object)
        : "rdx", "r8", "r9", US_SEQ_CLOBBERS
        : miss);
    return 1;
miss:
    return 0;
}

/* ---- batches: slow paths and bulk calls ------------------------------------------------------ */

/* What a batch met: how many it moved, or one of */
enum {
    US_SEQ_ABORTED = -1, /* too often */
    US_SEQ_MOVED = -2,   /* this is not the CPU that was meant */
    US_SEQ_WRAPS = -3,   /* the pop count would wrap, which the caller did not allow */
};

struct us_batch {
    void **table;         /*  0 */
    void *const *objects; /*  8: where from, or (cast) where to */
    uint64_t base;        /* 16: of the node that the objects are of */
    int64_t cpu;          /* 24: the CPU that is meant */
    uint32_t n;           /* 32: <= US_BATCH_MAX */
    uint32_t seen;        /* 36: enum us_seen */
    uint32_t last;        /* 40: all ones = the last of objects[] are added when not all fit */
    uint32_t wrap;        /* 44: the pop count may wrap */
};
_Static_assert(offsetof(struct us_batch, base) == 16 && offsetof(struct us_batch, cpu) == 24 &&
                   offsetof(struct us_batch, n) == 32 && offsetof(struct us_batch, seen) == 36 &&
                   offsetof(struct us_batch, last) == 40 && offsetof(struct us_batch, wrap) == 44,
               "the sequences name these offsets");

#define US_BATCH_REGION(sequence)       \
    US_SEQ_AT(sequence, US_SEQ_BEGUN)   \
    "movl $-2, %[done]\n\t"             \
    "movslq %%fs:4(%[area]), %%rcx\n\t" \
    "cmpq 24(%[b]), %%rcx\n\t"          \
    "jne 6f\n\t"                        \
    "movq (%[b]), %%rax\n\t"            \
    "movq (%%rax,%%rcx,8), %%rax\n\t"   \
    US_SEQ_AT(sequence, US_SEQ_LOADED)  \
    "xorl %[done], %[done]\n\t"

/* `seen` beside the header that is about to be committed, in r9. */
#define US_BATCH_SEEN         \
    "cmpl $1, 36(%[b])\n\t"   \
    "jb 8f\n\t"               \
    "movq $-1, %%r11\n\t"     \
    "cmoveq %%r9, %%r11\n\t"  \
    "movq %%r11, 32(%%rax)\n" \
    "8:\n\t"
_Static_assert(US_SEEN_KEEP == 0 && US_SEEN_COMMIT == 1 && US_SEEN_TOUCH == 2,
               "the sequences compare with 1");

/* Splits n slots from an index on: the index is masked, ecx gets those up to the ring's end and edx
 * those that go on at its start. Both parts are then moved by the string instruction, which an abort
 * leaves half done and a retry begins anew. */
#define US_BATCH_STRAIGHT(index, n)  \
    "andl 8(%%rax), " index "\n\t"  \
    "movl 8(%%rax), %%ecx\n\t"      \
    "incl %%ecx\n\t"                \
    "subl " index ", %%ecx\n\t"     \
    "cmpl " n ", %%ecx\n\t"         \
    "cmoval " n ", %%ecx\n\t"       \
    "movl " n ", %%edx\n\t"         \
    "subl %%ecx, %%edx\n\t"

#define US_BATCH_BEGIN US_SEQ_BEGIN("%[tries]", "movl $-1, %[done]\n\tjmp 6f")

/* Body of a function of a batch: `text` finds what to move and moves it, then one store commits, and
 * the result is in `moved`. */
#define US_BATCH(batch, sequence, store, moved, text)                                     \
    int tries = US_SEQ_TRIES, done;                                                       \
                                                                                          \
    __asm__ volatile(                                                                     \
        US_BATCH_BEGIN                                                                    \
        US_BATCH_REGION(sequence)                                                         \
        text                                                                              \
        US_SEQ_AT(sequence, US_SEQ_READY)                                                 \
        store "\n"                                                                        \
        US_SEQ_COMMITTED                                                                  \
        "movl " moved ", %[done]\n\t"                                                     \
        US_SEQ_END                                                                        \
        : [done] "=&r"(done), [tries] "+r"(tries)                                         \
        : [area] "r"(us_rseq_offset), [b] "r"(batch)                                      \
        : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");   \
    return done

/* Up to n hottest into objects[], the hottest first; counted as pops. */
US_INLINE int us_seq_take_hot(const struct us_batch *b)
{
    US_BATCH(b, US_SEQ_TAKE_HOT, "movq %%r9, (%%rax)", "%%r8d",
        "movq (%%rax), %%rcx\n\t"
        "movl %%ecx, %%r8d\n\t"
        "andl $0x3fff, %%r8d\n\t" /* size */
        "movl %%ecx, %%edx\n\t"
        "shrl $14, %%edx\n\t"
        "leal -1(%%rdx,%%r8), %%edx\n\t" /* index of the hottest */
        "movl 32(%[b]), %%r9d\n\t"
        "cmpl %%r9d, %%r8d\n\t"
        "cmoval %%r9d, %%r8d\n\t" /* how many */
        "testl %%r8d, %%r8d\n\t"
        "jz 6f\n\t"
        "movq 8(%[b]), %%r10\n\t"
        "xorl %%r9d, %%r9d\n"
        "7:\tandl 8(%%rax), %%edx\n\t"
        "movq 64(%%rax,%%rdx,8), %%r11\n\t"
        "movq %%r11, (%%r10,%%r9,8)\n\t"
        "decl %%edx\n\t"
        "incl %%r9d\n\t"
        "cmpl %%r8d, %%r9d\n\t"
        "jb 7b\n\t"
        "shlq $28, %%r9\n\t"
        "subq %%r8, %%r9\n\t"
        "addq %%rcx, %%r9\n\t" /* so many pops more, objects less */
        "jnc 8f\n\t"
        "movl $-3, %[done]\n\t"
        "cmpl $0, 44(%[b])\n\t"
        "je 6f\n"
        "8:\n\t");
}

/* Up to n oldest into objects[], the oldest first; not counted as pops. */
US_INLINE int us_seq_take_oldest(const struct us_batch *b)
{
    US_BATCH(b, US_SEQ_TAKE_OLDEST, "movq %%r9, (%%rax)", "%%r8d",
        "movq (%%rax), %%rcx\n\t"
        "movl %%ecx, %%r8d\n\t"
        "andl $0x3fff, %%r8d\n\t" /* size */
        "movl 32(%[b]), %%r9d\n\t"
        "cmpl %%r9d, %%r8d\n\t"
        "cmoval %%r9d, %%r8d\n\t" /* how many */
        "testl %%r8d, %%r8d\n\t"
        "jz 6f\n\t"
        "movq %%rcx, %%r11\n\t"
        "movl %%ecx, %%esi\n\t"
        "shrl $14, %%esi\n\t" /* index of the oldest */
        "movq 8(%[b]), %%rdi\n\t"
        US_BATCH_STRAIGHT("%%esi", "%%r8d")
        "leaq 64(%%rax,%%rsi,8), %%rsi\n\t"
        "rep movsq\n\t"
        "movl %%edx, %%ecx\n\t"
        "leaq 64(%%rax), %%rsi\n\t"
        "rep movsq\n\t"
        "movq %%r11, %%rcx\n\t"
        "movl %%ecx, %%edx\n\t"
        "shrl $14, %%edx\n\t"
        "addl %%r8d, %%edx\n\t"
        "andl $0x3fff, %%edx\n\t"
        "shll $14, %%edx\n\t" /* head, moved on */
        "movq %%rcx, %%r9\n\t"
        "shrq $28, %%r9\n\t"
        "shlq $28, %%r9\n\t" /* pops, as they were */
        "orq %%rdx, %%r9\n\t"
        "andl $0x3fff, %%ecx\n\t"
        "subl %%r8d, %%ecx\n\t"
        "orq %%rcx, %%r9\n\t"
        US_BATCH_SEEN);
}

/* As many of objects[0..n) as there is room for, in ring order; the first ones, or the last. */
US_INLINE int us_seq_add(const struct us_batch *b)
{
    US_BATCH(b, US_SEQ_ADD, "movq %%r9, (%%rax)", "%%edx",
        "movq 16(%[b]), %%rdx\n\t"
        "cmpq 16(%%rax), %%rdx\n\t"
        "jne 6f\n\t"
        "movq (%%rax), %%rcx\n\t"
        "movl %%ecx, %%r8d\n\t"
        "andl $0x3fff, %%r8d\n\t" /* size */
        "movl 12(%%rax), %%edx\n\t"
        "subl %%r8d, %%edx\n\t" /* room */
        "jbe 6f\n\t"
        "movl 32(%[b]), %%r9d\n\t"
        "cmpl %%r9d, %%edx\n\t"
        "cmoval %%r9d, %%edx\n\t" /* how many */
        "testl %%edx, %%edx\n\t"
        "jz 6f\n\t"
        "subl %%edx, %%r9d\n\t"
        "andl 40(%[b]), %%r9d\n\t" /* how many are passed over */
        "movq 8(%[b]), %%rsi\n\t"
        "leaq (%%rsi,%%r9,8), %%rsi\n\t"
        "movq %%rcx, %%r11\n\t"
        "movl %%edx, %%r9d\n\t"
        "movl %%ecx, %%edi\n\t"
        "shrl $14, %%edi\n\t"
        "addl %%r8d, %%edi\n\t" /* index of the first free slot */
        US_BATCH_STRAIGHT("%%edi", "%%r9d")
        "leaq 64(%%rax,%%rdi,8), %%rdi\n\t"
        "rep movsq\n\t"
        "movl %%edx, %%ecx\n\t"
        "leaq 64(%%rax), %%rdi\n\t"
        "rep movsq\n\t"
        "movl %%r9d, %%edx\n\t"
        "movq %%r11, %%rcx\n\t"
        "leaq (%%rcx,%%rdx), %%r9\n\t"
        US_BATCH_SEEN);
}

/* Marks the ring touched, if it is of the node at b->base (the closed ring is of none). */
US_INLINE int us_seq_touch(const struct us_batch *b)
{
    US_BATCH(b, US_SEQ_ADD, "movq $-1, 32(%%rax)", "$1",
        "movq 16(%[b]), %%rdx\n\t"
        "cmpq 16(%%rax), %%rdx\n\t"
        "jne 6f\n\t");
}

/* clang-format on */

#endif
