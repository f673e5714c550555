/* atomics.h - the operations of a plain shared word, for programs that build something of their own from them.
 *
 * All are sequentially consistent: whoever combines several words may reason as if there were one order of all these
 * calls. The exceptions are peek and poke, which are what buf[i] and buf[i] = v mean: enough for a value to be seen
 * with everything its writer did before, at the price of an ordinary load and store.
 */
#ifndef GATECOUNT_ATOMICS_H
#define GATECOUNT_ATOMICS_H

#include <stdbool.h>

#include "layout.h"

/* Read a word. Acquire; pairs with the release in atomics_poke. */
static inline int64_t atomics_peek(const _Atomic int64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

/* Write a word. Release; pairs with the acquire in atomics_peek. */
static inline void atomics_poke(_Atomic int64_t *word, int64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

/* Read a word. Sequentially consistent. */
static inline int64_t atomics_load(const _Atomic int64_t *word)
{
    return atomic_load_explicit(word, memory_order_seq_cst);
}

/* Write a word. Sequentially consistent. */
static inline void atomics_store(_Atomic int64_t *word, int64_t value)
{
    atomic_store_explicit(word, value, memory_order_seq_cst);
}

/* Add to a word, wrapping, and return what it was. Sequentially consistent. */
static inline int64_t atomics_fetch_add(_Atomic int64_t *word, int64_t n)
{
    return atomic_fetch_add_explicit(word, n, memory_order_seq_cst);
}

/* Replace a word and return what it was. Sequentially consistent. */
static inline int64_t atomics_exchange(_Atomic int64_t *word, int64_t value)
{
    return atomic_exchange_explicit(word, value, memory_order_seq_cst);
}

/* Replace a word if it is as expected, and tell whether it was. Sequentially consistent. */
static inline bool atomics_compare_exchange(_Atomic int64_t *word, int64_t expected, int64_t desired)
{
    return atomic_compare_exchange_strong_explicit(word, &expected, desired, memory_order_seq_cst,
                                                   memory_order_seq_cst);
}

#endif
