/* Fuzz target of the local queues: any program of operations does to them what it does to the
 * model.
 *
 * The input: mode, capacity and beginning, then two bytes an operation (tests/c/ring_model.h).
 *
 * With clang:  clang -g -O1 -fsanitize=fuzzer,address,undefined -Icsrc -Icsrc/include -Itests/c
 *              tests/fuzz/fuzz_ring.c csrc/machine/[*].c csrc/machine/native/[*].c   (plain stars)
 * Without:     add -DUS_FUZZ_MAIN -pthread; the program takes a seed and a number of rounds. For
 * the model, add -DUS_MODEL and take csrc/machine/model instead; UNISLAB_RSEQ=0 runs the fallback.
 */
#include "local_subject.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct us_machine *machine;
static unsigned cpu;

static void begin(void)
{
    machine = machine_of(1, 1);
    cpu = us_cpu_now(machine);
    REQUIRE(us_machine_on_cpu(machine, (int)cpu, NULL) >= 0);
}

/* The counts tell what the subject did; what lay there before counts as done before. */
static void check_counts(struct us_local *l, const struct subject *s, uint64_t before)
{
    uint64_t pops, pushes;

    us_local_counts(l, cpu, &pops, &pushes);
    CHECK_EQ(pops, before + s->popped);
    CHECK_EQ(pushes, before + s->pushed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t next = 0, before;
    struct ring_model m = {0};
    struct us_flight f;
    struct us_local l;
    struct subject s;
    struct us_ring *r;

    if (size < 3)
        return 0;
    if (machine == NULL)
        begin();
    m.capacity = data[1];
    s = (struct subject){.l = &l, .f = &f, .cpu = cpu, .fast_first = data[0] & 2};
    make_local(&l, machine, data[0] & 1 ? US_MODE_CONTROL : machine->mode, US_REGION_RING, 0,
               m.capacity, true);
    r = us_local_ring(&l, cpu);
    if (data[2] & 1)
        atomic_store(&r->header, model_near_wrap(&m));
    before = m.pops;
    us_flight_enter(machine, &f);
    for (size_t i = 3; i + 1 < size; i += 2) {
        if (!model_step(&m, r, &operations, &s, data[i], data[i + 1], &next))
            break;
        check_counts(&l, &s, before);
    }
    us_flight_leave(&f);
    drop_local(&l);
    if (atomic_load(&check_failures) > 0)
        abort();
    return 0;
}

#ifdef US_FUZZ_MAIN
int main(int argc, char **argv)
{
    uint64_t state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    long rounds = argc > 2 ? strtol(argv[2], NULL, 10) : 1000;
    uint8_t data[1024];

    for (long i = 0; i < rounds; i++) {
        size_t size = model_random(&state) % sizeof data;

        for (size_t j = 0; j < size; j++)
            data[j] = (uint8_t)(model_random(&state) % (j > 2 && j % 2 == 0 && i % 2 ? 9 : 256));
        LLVMFuzzerTestOneInput(data, size);
    }
    return 0;
}
#endif
