/* charge.h - how the core's declarations (machine.h) reach the virtual CPU that runs, if one does.
 *
 * Charges only add time: nothing else runs before the next op ends, a lock is taken, a fence or a
 * flight begins (sim.h). Scripted calls, outside of a run, cost nothing.
 */
#ifndef US_CHARGE_H
#define US_CHARGE_H

struct us_vcpu;

/* The one that runs now; a process models one machine at a time. NULL: nobody. */
extern struct us_vcpu *us_running;

enum us_access { US_READ, US_WRITE, US_UPDATE, US_PREFETCH };

void us_charge_lines(const void *base, size_t bytes, enum us_access access);
void us_charge_instructions(uint64_t n);
void us_charge_provider(bool alloc);
void us_charge_zeroing(size_t bytes);
void us_charge_fault(void);
enum us_phase us_charge_phase(enum us_phase phase);
bool us_maps(struct us_machine *m, const void *base, size_t bytes, unsigned node_shift);

US_INLINE void us_reads(const void *base, size_t bytes)
{
    if (us_running)
        us_charge_lines(base, bytes, US_READ);
}
US_INLINE void us_writes(const void *base, size_t bytes)
{
    if (us_running)
        us_charge_lines(base, bytes, US_WRITE);
}
US_INLINE void us_updates(const void *base, size_t bytes)
{
    if (us_running)
        us_charge_lines(base, bytes, US_UPDATE);
}
US_INLINE void us_prefetches(const void *base)
{
    if (us_running)
        us_charge_lines(base, 1, US_PREFETCH);
}
US_INLINE void us_runs(uint64_t n)
{
    if (us_running)
        us_charge_instructions(n);
}
US_INLINE void us_provides(bool alloc)
{
    if (us_running)
        us_charge_provider(alloc);
}
US_INLINE void us_zeroes(size_t bytes)
{
    if (us_running)
        us_charge_zeroing(bytes);
}
US_INLINE void us_faults(void)
{
    if (us_running)
        us_charge_fault();
}
US_INLINE enum us_phase us_phase_set(enum us_phase phase)
{
    return us_running ? us_charge_phase(phase) : phase;
}

#endif
