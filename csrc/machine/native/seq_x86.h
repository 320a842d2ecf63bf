/* seq_x86.h - the frame of a restartable sequence on x86-64.
 *
 *     5:  descriptor address -> rseq_cs      (again after each abort)
 *     1:  loads, tests, copies               (from here the kernel restarts us)
 *         one committing store
 *     2:
 *     4:  abort, out of line: one try less, back to 5 or give up
 *
 * The thread's area is reached through %fs and one offset that all threads share, so a sequence
 * needs no thread-local storage of its own. CPU ids are sign-extended: a thread that is not
 * registered (-1, -2) finds the closed region below the table. The id and the table's entry are
 * read inside.
 *
 * Every test jumps to 9, out of line as well, which reports the miss. No sequence is an `asm goto`
 * with register outputs: gcc 12.2 spoils a value that lives in the same register on the way of the
 * jump, even where success is a separate result. Popping reports by the carry flag, which every
 * test of its success has cleared; pushing has no output and jumps to a label of C.
 *
 * With US_TESTING each sequence can be interrupted at three places: us_inject[3 * sequence +
 * place], when positive, spins that often (so that preemption strikes there), and when negative
 * traps, so that a signal is delivered exactly there. Not with US_DUMMY_RSEQ: that build counts
 * instructions.
 */
#ifndef US_SEQ_X86_H
#define US_SEQ_X86_H

#include "machine/native/rseq.h"

#define US_SEQ_TRIES 8 /* aborts in a row, then the slow path (debuggers step for ever) */

/* Sequences, as numbers that the assembler can read. */
#define US_SEQ_POP          0
#define US_SEQ_PUSH         1
#define US_SEQ_TAKE_HOT     2
#define US_SEQ_TAKE_OLDEST  3
#define US_SEQ_ADD          4
#define US_SEQ_LIST_POP     5
#define US_SEQ_LIST_PUSH    6
#define US_SEQ_DETACH       7
#define US_SEQ_INSTALL      8
#define US_SEQ_COUNTED_POP  9
#define US_SEQ_COUNTED_PUSH 10
#define US_SEQ_MAIN_POP     11
#define US_SEQ_MAIN_PUSH    12
#define US_SEQ_MAIN_TAKE    13
#define US_SEQ_MAIN_PUT     14
#define US_SEQ_SWAP         15
#define US_SEQ_COUNT        16
#define US_SEQ_BEGUN        0 /* places: before the id is read, */
#define US_SEQ_LOADED       1 /* with the region at hand, */
#define US_SEQ_READY        2 /* before the committing store */

#if defined(US_TESTING) && !defined(US_DUMMY_RSEQ)
#define US_SEQ_INJECT 1
#endif
#define US_SEQ_TEXT_(x) #x
#define US_SEQ_TEXT(x)  US_SEQ_TEXT_(x)

/* One instruction a line. */
/* clang-format off */

#ifdef US_SEQ_INJECT
extern volatile int us_inject[3 * US_SEQ_COUNT] __attribute__((visibility("hidden")));
#define US_SEQ_POINT(sequence, place) \
    "us_inject + 12 * " US_SEQ_TEXT(sequence) " + 4 * " US_SEQ_TEXT(place)
#define US_SEQ_AT(sequence, place)                                   \
    "movl " US_SEQ_POINT(sequence, place) "(%%rip), %%r11d\n\t"      \
    "testl %%r11d, %%r11d\n\t"                                       \
    "jz 93f\n\t"                                                     \
    "js 92f\n"                                                       \
    "91:\tdecl %%r11d\n\t"                                           \
    "jnz 91b\n\t"                                                    \
    "jmp 93f\n"                                                      \
    "92:\tint3\n"                                                    \
    "93:\n\t"
#define US_SEQ_CLOBBERS "rax", "rcx", "r11", "memory", "cc"
#else
#define US_SEQ_AT(sequence, place) ""
#define US_SEQ_CLOBBERS            "rax", "rcx", "memory", "cc"
#endif

/* [area] is the offset of the rseq area, `tries` a register set to US_SEQ_TRIES, `miss` what 9 does. The
 * signature stands before the abort address, behind an opcode that makes it one undefined instruction. */
#define US_SEQ_BEGIN(tries, miss)             \
    ".pushsection __rseq_cs, \"aw\"\n\t"      \
    ".balign 32\n"                            \
    "3:\t.long 0, 0\n\t"                      \
    ".quad 1f, 2f - 1f, 4f\n\t"               \
    ".popsection\n\t"                        \
    ".pushsection .text.unlikely, \"ax\"\n\t" \
    ".byte 0x0f, 0xb9, 0x3d\n\t"              \
    ".long 0x53053053\n"                      \
    "4:\tdecl " tries "\n\t"                  \
    "jnz 5f\n"                                \
    "9:\t" miss "\n\t"                        \
    ".popsection\n"                           \
    "5:\tleaq 3b(%%rip), %%rax\n\t"           \
    "movq %%rax, %%fs:8(%[area])\n"           \
    "1:\n\t"
#define US_SEQ_MISS_CARRY "stc\n\tjmp 6f"
#define US_SEQ_MISS_GOTO  "jmp %l[miss]"

/* The CPU's region, in rax. */
#define US_SEQ_REGION(sequence)               \
    US_SEQ_AT(sequence, US_SEQ_BEGUN)         \
    "movslq %%fs:4(%[area]), %%rax\n\t"       \
    "movq (%[table],%%rax,8), %%rax\n\t"      \
    US_SEQ_AT(sequence, US_SEQ_LOADED)

#define US_SEQ_COMMITTED "2:\n\t"
#define US_SEQ_END       "6:\n\t"

/* clang-format on */

#endif
