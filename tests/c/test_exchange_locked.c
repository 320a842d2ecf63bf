// machines: native
// needs: slab
// flags: -DUS_EXCHANGE_LOCKED
/* Exchanges under the byte lock, as on processors that cannot exchange 16 bytes at once. */
#include "test_exchange.c"
