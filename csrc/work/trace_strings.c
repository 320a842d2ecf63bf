#include "work/trace_strings.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_SLOTS 256u

static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return h ^ (h >> 29);
}

static uint32_t hash_text(struct us_text text)
{
    uint64_t h = text.len, word;
    const char *p = text.at;
    size_t left = text.len;

    for (; left >= 8; left -= 8, p += 8) {
        memcpy(&word, p, 8);
        h = mix(h, word);
    }
    if (left) {
        word = 0;
        memcpy(&word, p, left);
        h = mix(h, word);
    }
    return (uint32_t)(h >> 32);
}

struct us_text us_strings_get(const struct us_strings *strings, uint32_t id)
{
    size_t start = id ? strings->ends[id - 1] : 0;

    return (struct us_text){strings->bytes + start, strings->ends[id] - start};
}

static bool grow_slots(struct us_strings *s)
{
    uint32_t slots = s->mask ? (s->mask + 1) * 2 : FIRST_SLOTS;
    uint32_t *fresh;

    /* Half full at most: past 2^31 strings the ids would not fit an int32_t anyway. */
    if (slots > UINT32_C(1) << 31)
        return false;
    fresh = calloc(slots, sizeof(*fresh));
    if (!fresh)
        return false;
    for (uint32_t id = 0; id < s->count; id++) {
        uint32_t at = hash_text(us_strings_get(s, id)) & (slots - 1);

        while (fresh[at])
            at = (at + 1) & (slots - 1);
        fresh[at] = id + 1;
    }
    free(s->slots);
    s->slots = fresh;
    s->mask = slots - 1;
    return true;
}

static bool make_room(struct us_strings *s, size_t len)
{
    if (s->room - s->used < len) {
        size_t room = (s->used + len) * 2 + 1024;
        char *bytes = realloc(s->bytes, room);

        if (!bytes)
            return false;
        s->bytes = bytes;
        s->room = room;
    }
    if (s->count == s->limit) {
        uint32_t limit = s->limit ? s->limit * 2 : 64;
        size_t *ends = realloc(s->ends, limit * sizeof(*ends));

        if (!ends)
            return false;
        s->ends = ends;
        s->limit = limit;
    }
    return true;
}

int32_t us_strings_intern(struct us_strings *s, struct us_text text)
{
    uint32_t at;

    if (s->count >= s->mask / 2 && !grow_slots(s))
        return -1;
    for (at = hash_text(text) & s->mask; s->slots[at]; at = (at + 1) & s->mask) {
        struct us_text known = us_strings_get(s, s->slots[at] - 1);

        if (known.len == text.len && (!text.len || !memcmp(known.at, text.at, text.len)))
            return (int32_t)(s->slots[at] - 1);
    }
    if (!make_room(s, text.len))
        return -1;
    if (text.len)
        memcpy(s->bytes + s->used, text.at, text.len);
    s->used += text.len;
    s->ends[s->count] = s->used;
    s->slots[at] = ++s->count;
    return (int32_t)(s->count - 1);
}

void us_strings_free(struct us_strings *s)
{
    free(s->bytes);
    free(s->ends);
    free(s->slots);
    *s = (struct us_strings){0};
}
