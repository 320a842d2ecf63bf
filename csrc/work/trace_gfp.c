#include "work/trace_gfp.h"

#include "work/trace_scan.h"

/* Bit values of 6.x kernels: words become a number first, so that both ways of printing end alike.
 */
enum {
    K_DMA = 0x1,
    K_HIGHMEM = 0x2,
    K_DMA32 = 0x4,
    K_MOVABLE = 0x8,
    K_RECLAIMABLE = 0x10,
    K_HIGH = 0x20,
    K_IO = 0x40,
    K_FS = 0x80,
    K_ZERO = 0x100,
    K_DIRECT_RECLAIM = 0x400,
    K_KSWAPD_RECLAIM = 0x800,
    K_WRITE = 0x1000,
    K_NOWARN = 0x2000,
    K_RETRY_MAYFAIL = 0x4000,
    K_NOFAIL = 0x8000,
    K_NORETRY = 0x10000,
    K_MEMALLOC = 0x20000,
    K_COMP = 0x40000,
    K_NOMEMALLOC = 0x80000,
    K_HARDWALL = 0x100000,
    K_THISNODE = 0x200000,
    K_ACCOUNT = 0x400000,
    K_RECLAIM = K_DIRECT_RECLAIM | K_KSWAPD_RECLAIM,
    K_NOIO_SET = K_RECLAIM,
    K_NOFS_SET = K_RECLAIM | K_IO,
    K_KERNEL_SET = K_RECLAIM | K_IO | K_FS,
    K_USER_SET = K_KERNEL_SET | K_HARDWALL,
};

/* Names without their leading "__": the tables before 4.6 printed single bits without it. */
static const struct {
    const char *name;
    uint32_t bits;
} words[] = {
    {"GFP_KERNEL", K_KERNEL_SET},
    {"GFP_KERNEL_ACCOUNT", K_KERNEL_SET | K_ACCOUNT},
    {"GFP_NOFS", K_NOFS_SET},
    {"GFP_NOIO", K_NOIO_SET},
    {"GFP_ATOMIC", K_HIGH | K_KSWAPD_RECLAIM},
    {"GFP_NOWAIT", K_KSWAPD_RECLAIM},
    {"GFP_USER", K_USER_SET},
    {"GFP_HIGHUSER", K_USER_SET | K_HIGHMEM},
    {"GFP_HIGHUSER_MOVABLE", K_USER_SET | K_HIGHMEM | K_MOVABLE},
    {"GFP_TEMPORARY", K_KERNEL_SET | K_RECLAIMABLE},
    {"GFP_TRANSHUGE", K_USER_SET | K_HIGHMEM | K_MOVABLE | K_COMP | K_NOMEMALLOC | K_NOWARN},
    {"GFP_TRANSHUGE_LIGHT",
     K_HARDWALL | K_IO | K_FS | K_HIGHMEM | K_MOVABLE | K_COMP | K_NOMEMALLOC | K_NOWARN},
    {"GFP_DMA", K_DMA},
    {"GFP_DMA32", K_DMA32},
    {"GFP_HIGHMEM", K_HIGHMEM},
    {"GFP_HIGH", K_HIGH},
    {"GFP_WAIT", K_RECLAIM},
    {"GFP_IO", K_IO},
    {"GFP_FS", K_FS},
    {"GFP_NOWARN", K_NOWARN},
    {"GFP_REPEAT", K_RETRY_MAYFAIL},
    {"GFP_RETRY_MAYFAIL", K_RETRY_MAYFAIL},
    {"GFP_NOFAIL", K_NOFAIL},
    {"GFP_NORETRY", K_NORETRY},
    {"GFP_COMP", K_COMP},
    {"GFP_ZERO", K_ZERO},
    {"GFP_NOMEMALLOC", K_NOMEMALLOC},
    {"GFP_MEMALLOC", K_MEMALLOC},
    {"GFP_HARDWALL", K_HARDWALL},
    {"GFP_THISNODE", K_THISNODE},
    {"GFP_RECLAIMABLE", K_RECLAIMABLE},
    {"GFP_MOVABLE", K_MOVABLE},
    {"GFP_ACCOUNT", K_ACCOUNT},
    {"GFP_WRITE", K_WRITE},
    {"GFP_RECLAIM", K_RECLAIM},
    {"GFP_DIRECT_RECLAIM", K_DIRECT_RECLAIM},
    {"GFP_KSWAPD_RECLAIM", K_KSWAPD_RECLAIM},
};

/* "none", GFP_COLD and words of later kernels carry nothing that a replay could use. */
static uint32_t word_bits(struct us_text word)
{
    uint64_t number = 0;
    const char *end = word.at + word.len;
    const char *hex = us_scan_literal(word.at, end, "0x");

    if (us_scan_hex(hex ? hex : word.at, end, &number) == end)
        return (uint32_t)number;
    if (us_scan_literal(word.at, end, "__")) {
        word.at += 2;
        word.len -= 2;
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (us_text_is(word, words[i].name))
            return words[i].bits;
    }
    return 0;
}

static uint32_t own_bits(uint32_t k)
{
    static const struct {
        uint32_t kernel, own;
    } same[] = {
        {K_ZERO, US_TRACE_GFP_ZERO},
        {K_ACCOUNT, US_TRACE_GFP_ACCOUNT},
        {K_THISNODE, US_TRACE_GFP_THISNODE},
        {K_NOWARN, US_TRACE_GFP_NOWARN},
        {K_NORETRY, US_TRACE_GFP_NORETRY},
        {K_RETRY_MAYFAIL, US_TRACE_GFP_RETRY_MAYFAIL},
        {K_NOFAIL, US_TRACE_GFP_NOFAIL},
        {K_MEMALLOC, US_TRACE_GFP_MEMALLOC},
        {K_NOMEMALLOC, US_TRACE_GFP_NOMEMALLOC},
        {K_COMP, US_TRACE_GFP_COMP},
        {K_HARDWALL, US_TRACE_GFP_HARDWALL},
        {K_RECLAIMABLE, US_TRACE_GFP_RECLAIMABLE},
        {K_MOVABLE, US_TRACE_GFP_MOVABLE},
        {K_DMA, US_TRACE_GFP_DMA},
        {K_DMA32, US_TRACE_GFP_DMA32},
        {K_HIGHMEM, US_TRACE_GFP_HIGHMEM},
        {K_WRITE, US_TRACE_GFP_WRITE},
    };
    uint32_t own = 0;

    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        own |= k & same[i].kernel ? same[i].own : 0;
    if (!(k & K_DIRECT_RECLAIM))
        return own | US_TRACE_GFP_NOWAIT | (k & K_HIGH ? US_TRACE_GFP_ATOMIC : 0);
    if (!(k & K_IO))
        return own | US_TRACE_GFP_NOIO | US_TRACE_GFP_NOFS;
    return k & K_FS ? own : own | US_TRACE_GFP_NOFS;
}

uint32_t us_trace_gfp_decode(struct us_text text)
{
    const char *p = text.at, *end = p + text.len;
    uint32_t kernel = 0;

    while (p < end) {
        const char *bar = memchr(p, '|', (size_t)(end - p));
        const char *stop = bar ? bar : end;

        kernel |= word_bits((struct us_text){p, (size_t)(stop - p)});
        p = bar ? bar + 1 : end;
    }
    return own_bits(kernel);
}
