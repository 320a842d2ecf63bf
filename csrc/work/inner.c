#include "work/inner.h"

#include "work/channel.h"

static uint8_t inner_code(const struct us_heap *h, const struct us_op *op)
{
    bool shared = op->flags & US_OPF_SHARED;

    if (op->op == US_OP_ALLOC)
        return shared ? X_ALLOC_SHARED : us_heap_is_special(h, op) ? X_ALLOC_SPECIAL : US_OP_ALLOC;
    if (shared && op->op == US_OP_FREE)
        return X_FREE_SHARED;
    return shared && op->op == US_OP_TOUCH ? X_TOUCH_SHARED : op->op;
}

struct us_op *us_inner_ops(const struct us_heap *h, const struct us_program_task *task)
{
    struct us_op *ops = malloc((task->nops + 1) * sizeof(*ops));
    uint16_t loops = 0;

    if (!ops)
        return NULL;
    for (size_t i = 0; i < task->nops; i++) {
        ops[i] = task->op[i];
        ops[i].op = inner_code(h, &task->op[i]);
        if (task->op[i].op == US_OP_REPEAT)
            ops[i].cache = loops++;
    }
    ops[task->nops] = (struct us_op){.op = X_END};
    return ops;
}

const char *us_inner_name(const struct us_op *op)
{
    switch (op->op) {
    case X_ALLOC_SPECIAL:
    case X_ALLOC_SHARED:
        return "ALLOC";
    case X_FREE_SHARED:
        return "FREE";
    case X_TOUCH_SHARED:
        return "TOUCH";
    default:
        return us_op_name(op->op);
    }
}

const char *us_inner_no_memory(const struct us_heap *h, const struct us_op *op, struct us_error *e)
{
    const struct us_heap_cache *c = &h->cache[op->cache];

    if (h->kind != US_HEAP_ALLOCATOR)
        return "malloc returned NULL";
    us_cache_explain_failure(c->cache ? c->cache : h->allocator->large, c->size, e);
    return e->text;
}

static void raise_to(uint64_t *peak, uint64_t value)
{
    *peak = value > *peak ? value : *peak;
}

void us_inner_peak(struct us_allocator *a, struct us_account *peak)
{
    struct us_memory_account memory;
    struct us_account now;

    us_allocator_account(a, &now, &memory);
    raise_to(&peak->live, now.live);
    raise_to(&peak->queued, now.queued);
    raise_to(&peak->free_in_slabs, now.free_in_slabs);
    raise_to(&peak->waste, now.waste);
    raise_to(&peak->reserved, now.reserved);
    raise_to(&peak->live_objects, now.live_objects);
}

void us_inner_free(const struct us_heap *h, uint64_t word)
{
    if (word != 0 && word != US_EMPTY_MESSAGE && !h->cache[us_word_cache(word)].gone)
        us_heap_free(h->kind, h, word);
}
