/* sheaf_x86.h - restartable operations on the main sheaf of the CPU at hand, and the swap of a
 * word.
 *
 * Word 0 leads to the sheaf, whose header is committed in one store. The plain forms in region.c
 * say what each does; tests/c/test_sheaf_pair.c holds the two equal.
 */
#ifndef US_SHEAF_X86_H
#define US_SHEAF_X86_H

#include "machine/native/ring_x86.h"

_Static_assert(offsetof(struct us_words, sheaf) == 0 && offsetof(struct us_words, base) == 32 &&
                   offsetof(struct us_words, length) == 40 &&
                   offsetof(struct us_sheaf, header) == 0 &&
                   offsetof(struct us_sheaf, capacity) == 8 &&
                   offsetof(struct us_sheaf, object) == 32,
               "the sequences name these offsets");
_Static_assert(US_MAIN == 0, "the sequences take the first word for the main sheaf");

/* One instruction a line. */
/* clang-format off */

/* 1 = popped; 0 = empty, closed, aborted too often, or the pop count would wrap. */
US_INLINE int us_seq_main_pop(void **table, void **out)
{
    int tries = US_SEQ_TRIES, missed;
    void *object;

    __asm__ volatile(
        US_SEQ_BEGIN("%[tries]", US_SEQ_MISS_CARRY)
        US_SEQ_REGION(US_SEQ_MAIN_POP)
        "movq (%%rax), %%rax\n\t"
        "movq (%%rax), %%rcx\n\t"
        "movl %%ecx, %%edx\n\t"
        "andl $0x3fff, %%edx\n\t"
        "jz 9b\n\t"
        "movq 24(%%rax,%%rdx,8), %[object]\n\t" /* the last: object[size - 1] */
        "addq $0xfffffff, %%rcx\n\t"
        "jc 9b\n\t"
        US_SEQ_AT(US_SEQ_MAIN_POP, US_SEQ_READY)
        "movq %%rcx, (%%rax)\n"
        US_SEQ_COMMITTED
        US_SEQ_END
        : [object] "=&r"(object), [tries] "+r"(tries), "=@ccc"(missed)
        : [area] "r"(us_rseq_offset), [table] "r"(table)
        : "rdx", US_SEQ_CLOBBERS);
    if (US_UNLIKELY(missed))
        return 0;
    *out = object;
    return 1;
}

/* 1 = pushed; 0 = full, of another node, closed, or aborted too often. */
US_INLINE int us_seq_main_push(void **table, void *object)
{
    __asm__ volatile goto(
        "movl $" US_SEQ_TEXT(US_SEQ_TRIES) ", %%r8d\n\t"
        US_SEQ_BEGIN("%%r8d", US_SEQ_MISS_GOTO)
        US_SEQ_REGION(US_SEQ_MAIN_PUSH)
        "movq %[object], %%rdx\n\t"
        "subq 32(%%rax), %%rdx\n\t"
        "cmpq 40(%%rax), %%rdx\n\t"
        "jae 9b\n\t"
        "movq (%%rax), %%rax\n\t"
        "movq (%%rax), %%rcx\n\t"
        "movl %%ecx, %%edx\n\t"
        "andl $0x3fff, %%edx\n\t"
        "cmpl 8(%%rax), %%edx\n\t"
        "jae 9b\n\t"
        "movq %[object], 32(%%rax,%%rdx,8)\n\t"
        "incq %%rcx\n\t"
        US_SEQ_AT(US_SEQ_MAIN_PUSH, US_SEQ_READY)
        "movq %%rcx, (%%rax)\n"
        US_SEQ_COMMITTED
        :
        : [area] "r"(us_rseq_offset), [table] "r"(table), [object] "r"(object)
        : "rdx", "r8", US_SEQ_CLOBBERS
        : miss);
    return 1;
miss:
    return 0;
}

/* ---- batches; us_batch.seen, last and wrap are not used --------------------------------------- */

/* Up to n hottest into objects[], as they lie; counted as pops. None when their count would wrap. */
US_INLINE int us_seq_main_take(const struct us_batch *b)
{
    US_BATCH(b, US_SEQ_MAIN_TAKE, "movq %%r9, (%%rax)", "%%r8d",
        "movq (%%rax), %%rax\n\t"
        "movq (%%rax), %%r9\n\t"
        "movl %%r9d, %%edx\n\t"
        "andl $0x3fff, %%edx\n\t" /* size */
        "movl 32(%[b]), %%ecx\n\t"
        "cmpl %%ecx, %%edx\n\t"
        "cmovbl %%edx, %%ecx\n\t" /* how many */
        "testl %%ecx, %%ecx\n\t"
        "jz 6f\n\t"
        "movl %%ecx, %%r8d\n\t"
        "subl %%ecx, %%edx\n\t"
        "leaq 32(%%rax,%%rdx,8), %%rsi\n\t"
        "movq 8(%[b]), %%rdi\n\t"
        "rep movsq\n\t"
        "movq %%r8, %%rdx\n\t"
        "shlq $28, %%rdx\n\t"
        "subq %%r8, %%rdx\n\t"
        "addq %%rdx, %%r9\n\t" /* so many pops more, objects less */
        "jc 6f\n\t");
}

/* As many of objects[0..n) as there is room for, the first ones. */
US_INLINE int us_seq_main_put(const struct us_batch *b)
{
    US_BATCH(b, US_SEQ_MAIN_PUT, "movq %%r9, (%%rax)", "%%r8d",
        "movq 16(%[b]), %%rdx\n\t"
        "cmpq 32(%%rax), %%rdx\n\t"
        "jne 6f\n\t"
        "movq (%%rax), %%rax\n\t"
        "movq (%%rax), %%r9\n\t"
        "movl %%r9d, %%edx\n\t"
        "andl $0x3fff, %%edx\n\t" /* size */
        "movl 8(%%rax), %%r8d\n\t"
        "subl %%edx, %%r8d\n\t" /* room */
        "jbe 6f\n\t"
        "movl 32(%[b]), %%ecx\n\t"
        "cmpl %%ecx, %%r8d\n\t"
        "cmovbl %%r8d, %%ecx\n\t" /* how many */
        "testl %%ecx, %%ecx\n\t"
        "jz 6f\n\t"
        "movl %%ecx, %%r8d\n\t"
        "leaq 32(%%rax,%%rdx,8), %%rdi\n\t"
        "movq 8(%[b]), %%rsi\n\t"
        "rep movsq\n\t"
        "addq %%r8, %%r9\n\t");
}

/* ---- words ------------------------------------------------------------------------------------ */

/* 1 = word w of `cpu` names `to` now; 0 = it does not name `from`, the region is closed, this is
 * another CPU, or aborted too often. An empty word names us_closed_sheaf. */
US_INLINE int us_seq_swap(void **table, uint64_t w, int64_t cpu, const struct us_sheaf *from,
                          const struct us_sheaf *to)
{
    int tries = US_SEQ_TRIES, done;

    __asm__ volatile(
        US_SEQ_BEGIN("%[tries]", "xorl %[done], %[done]\n\tjmp 6f")
        US_SEQ_AT(US_SEQ_SWAP, US_SEQ_BEGUN)
        "movslq %%fs:4(%[area]), %%rax\n\t"
        "cmpq %[meant], %%rax\n\t"
        "jne 9b\n\t"
        "movq (%[table],%%rax,8), %%rax\n\t"
        US_SEQ_AT(US_SEQ_SWAP, US_SEQ_LOADED)
        "leaq %[closed], %%rcx\n\t"
        "cmpq %%rcx, %%rax\n\t"
        "je 9b\n\t"
        "cmpq %[from], (%%rax,%[w],8)\n\t"
        "jne 9b\n\t"
        US_SEQ_AT(US_SEQ_SWAP, US_SEQ_READY)
        "movq %[to], (%%rax,%[w],8)\n"
        US_SEQ_COMMITTED
        "movl $1, %[done]\n\t"
        US_SEQ_END
        : [done] "=&r"(done), [tries] "+r"(tries)
        : [area] "r"(us_rseq_offset), [table] "r"(table), [w] "r"(w), [meant] "r"(cpu),
          [from] "r"(from), [to] "r"(to), [closed] "m"(us_closed_sheaves)
        : US_SEQ_CLOBBERS);
    return done;
}

/* clang-format on */

#endif
