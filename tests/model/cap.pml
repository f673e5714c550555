/* cap.pml - the hard cap as a Spin model: every interleaving, every death, within small bounds.
 *
 * What is being checked
 *
 *     A cap is one word that everybody swaps and, for each slot, four words that make the slot's operations
 *     recoverable. The word alone would be easy: a compare-and-swap either happened or did not. What is hard is
 *     the owner who is killed right after its swap and before it wrote down what it now holds. Its successor must
 *     learn whether that swap happened, and by then the word may have been overwritten a hundred times. The answer
 *     of the design is that nobody overwrites an operation that is still pending without first leaving a note
 *     (`helped`) that it did happen. This file asks whether that note is always there when it is needed, never there
 *     when it would be a lie, and whether everything else (the refusal, the reclaim, the audit) may lean on it.
 *
 * What a step is
 *
 *     Each access to a shared word is one atomic step, and a process may be killed before each of its steps: mortal()
 *     stands at the head of every one. Memory is sequentially consistent; why real machines may be taken for
 *     that is argued in cap.h. Three things are folded into a neighbouring step, because no other process can tell the
 *     difference: a decision on local variables; a read of a word that only the reader may write (op, held and next of
 *     the slot it acts for: a slot has one master at a time, its owner or its reclaimer); and the loop that raises
 *     helped, which takes effect at one instant. While nobody changes the limit, reading it is no step either.
 *
 * Who takes part
 *
 *     Worker       owns a slot; reserves and releases as it pleases, OPS times; may be killed, and is then followed
 *                  by a new owner, who goes on counting where the dead one stopped.
 *     Reclaimer    finds a slot whose owner is dead, takes the right to reclaim it by a swap of the owner word,
 *                  settles the pending operation, gives back what was held (in the slot's own name and by the same
 *                  code as its owner would), frees the slot, and audits. It may be killed too; the next one, under an
 *                  identity of its own, finds the slot in dead hands and begins again.
 *     Auditor      audits at any time (-DAUDITS=n).
 *     Limiter      lowers the limit, raises it, lowers it, ... (-DSET_LIMIT=n changes).
 *     Monitor      only watches. Its guards are the invariants' negations, so it adds no states.
 *
 * What must hold
 *
 *     Ghosts are written in the very step of the linearization point, and the algorithm never reads them: mine[s] is
 *     what slot s has truly been granted, cause[s] whether the call running in s has seen an instant without room.
 *
 *     never_over       what is granted never exceeds the limit (with SET_LIMIT: the highest limit since the call began)
 *     never_in_vain    a refusal has a cause
 *     nothing_lost     in every state the total is the sum of all grants, so none is lost and none counted twice;
 *                      a slot without a pending operation has written down what it was granted; a free one has none
 *     none_forgotten   when all has come to rest, no slot is in dead hands
 *     no_drift         an audit never finds anything to repair
 *     no_wrap          no tag is used twice: the bounds are within what the algorithm promises to be exact
 *
 *     A tag of TAG_BITS bits wraps all the same if it is told to: -DWRAP lets it, and -DDRIFT also puts up with
 *     what comes of it, as long as never_over holds and the total does not fall below what is owed
 *     (never_too_few_counted).
 *
 * That it can fail
 *
 *     Each -DMUTATE_... takes one guard away. For each there are bounds in which the model then fails, and passes
 *     without it. run_model.py knows them all; README.md says what they mean.
 */

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef OPS
#define OPS 2 /* operations of each first owner (refusals count) */
#endif
#ifndef OPS_OTHERS
#define OPS_OTHERS OPS /* ... of those in the slots after the first */
#endif
#ifndef OPS_LATER
#define OPS_LATER OPS /* ... of an owner that follows a dead one */
#endif
#ifndef KILLS
#define KILLS 2 /* of workers, in all */
#endif
#ifndef RECLAIMERS
#define RECLAIMERS 1
#endif
#ifndef RECLAIMER_KILLS
#define RECLAIMER_KILLS 1
#endif
#ifndef RESPAWNS
#define RESPAWNS 1 /* how often a slot finds a new owner */
#endif
#ifndef TAG_BITS
#define TAG_BITS 4
#endif
#ifndef LIMIT
#define LIMIT 2
#endif
#ifndef MAX_UNITS
#define MAX_UNITS 1 /* a call asks for 1 to MAX_UNITS, at most 2 */
#endif

/* The state word: total | slot | tag. */
#define NOBODY SLOTS
#define NAMES (SLOTS + 1)
#define TAGS (1 << TAG_BITS)
#define WORD(total, slot, tag) (((total) * NAMES + (slot)) * TAGS + (tag))
#define TOTAL(w) ((w) / (NAMES * TAGS))
#define SLOT(w) (((w) / TAGS) % NAMES)
#define TAG(w) ((w) % TAGS)

/* The word op: operation number and pending bit. Numbers begin at 1, because helped begins at 0. */
#define PENDING(o) ((o) & 1)
#define NUMBER(o) ((o) >> 1)
#ifdef MUTATE_FIRST_NUMBER
#define FIRST 0
#else
#define FIRST 1
#endif

#if !defined(MUTATE_NEXT_AFTER_PENDING) && !defined(MUTATE_NEXT_AFTER_SWAP)
#define NEXT_FIRST
#endif

/* Identities, which are never used twice: 0 is nobody (a free slot), then each life of each worker, then reclaimers. */
#define FREE 0
#define WORKER(slot, life) (1 + (slot) * (RESPAWNS + 1) + (life))
#define RECLAIMER(r, life) (1 + SLOTS * (RESPAWNS + 1) + (r) * (RECLAIMER_KILLS + 1) + (life))
#define DEAD(id) ((gone >> (id)) & 1)

/* Shared memory. */
short state = WORD(0, NOBODY, 0);
byte limit = LIMIT;
byte op[SLOTS] = FIRST * 2;
byte held[SLOTS];
byte next[SLOTS];
byte helped[SLOTS];
byte owner[SLOTS];
byte repairs;

/* The world: who is dead, and how many in each role may still die. */
#define OWNING 0
#define RECLAIMING 1
#define AUDITING 2
int gone;
byte kills[3];

/* What must hold. Always 0: asserting one of these is how a property is reported broken by its name. */
hidden byte never_over, never_in_vain, nothing_lost, none_forgotten, no_drift, no_wrap, never_too_few_counted;

/* Ghosts. asked[s] is what a reserve running in slot s wants; 0 outside of one. */
short mine[SLOTS];
byte asked[SLOTS];
bit cause[SLOTS];
#ifdef SET_LIMIT
byte most[SLOTS]; /* the highest limit in force since the call began */
#endif

/* After a wrap a dead slot can give back more than it had: that takes nothing from what others have. */
#define FLOOR(s) (mine[s] > 0 -> mine[s] : 0)
#if SLOTS == 2
#define GRANTED (mine[0] + mine[1])
#define OWED (FLOOR(0) + FLOOR(1))
#define ANY(f) (f(0) || f(1))
#elif SLOTS == 3
#define GRANTED (mine[0] + mine[1] + mine[2])
#define OWED (FLOOR(0) + FLOOR(1) + FLOOR(2))
#define ANY(f) (f(0) || f(1) || f(2))
#else
#error "SLOTS is 2 or 3"
#endif

/* What every process has; all back to 0 when it means nothing, lest it multiply the states. */
#define VARIABLES                                                                                              \
    byte self;   /* identity */                                                                                \
    byte life;   /* how many have died before it */                                                            \
    byte n;      /* units of the call */                                                                       \
    bit up;      /* reserve, not release */                                                                    \
    short w;     /* the state word as last seen */                                                             \
    byte o;      /* an op, or an owner word, as seen */                                                        \
    byte i, sum; /* how far an audit is, and what it found */

inline must(condition, property)
{
    if
    :: condition
    :: else -> assert(property)
    fi
}

inline end_ghosts() /* of a call in slot me */
{
    asked[me] = 0;
    cause[me] = 0
#ifdef SET_LIMIT
    ; most[me] = 0
#endif
}

inline die()
{
    d_step {
        kills[role]--;
        gone = gone | (1 << self);
        if
        :: role == OWNING -> end_ghosts()
        :: else
        fi;
        self = 0; n = 0; up = 0; w = 0; o = 0; i = 0; sum = 0
    };
    goto died
}

inline mortal() /* at the head of each step: may be the end */
{
    if
    :: kills[role] > 0 -> die()
    :: true
    fi
}

#define NOTICE(s)                                                                                              \
    if                                                                                                         \
    :: asked[s] > 0 && GRANTED + asked[s] > limit -> cause[s] = 1                                              \
    :: else                                                                                                    \
    fi

inline notice_causes() /* in each step that takes room away */
{
    NOTICE(0);
    NOTICE(1)
#if SLOTS > 2
    ; NOTICE(2)
#endif
}

inline note_change() /* ghosts, in the step of the swap that succeeded */
{
    if
    :: up ->
        mine[me] = mine[me] + n;
#ifdef SET_LIMIT
        must(GRANTED <= most[me], never_over);
#endif
        end_ghosts();
        notice_causes()
    :: else -> mine[me] = mine[me] - n
    fi
}

/* cap_reserve (up) and cap_release: one code, n units in the name of slot me. It begins with begin(), in a step of the
 * caller's, and ends with a jump to `over`, which the caller has. */
inline begin()
{
    if
    :: up -> load()
    :: else ->
#ifdef NEXT_FIRST
        write_next();
#endif
        goto declare
    fi
}

inline load()
{
    w = state;
    weigh()
}

inline weigh() /* where to go with the w just loaded */
{
    if
#ifdef SET_LIMIT
    :: up -> goto test
#else
    :: up && TOTAL(w) + n > limit -> goto refuse
#endif
    :: else -> proceed()
    fi
}

inline proceed() /* there is room */
{
    if
    :: !PENDING(op[me]) -> goto intend
    :: else -> help_or_swap()
    fi
}

inline help_or_swap()
{
    if
#ifndef MUTATE_NO_HELP
    :: SLOT(w) != me && SLOT(w) != NOBODY -> goto help
#endif
    :: else -> goto swap
    fi
}

inline help_or_load() /* the intent stands; a release has not looked at state before */
{
    if
    :: up -> help_or_swap()
    :: else
    fi
}

inline write_next()
{
    next[me] = (up -> held[me] + n : held[me] - n)
}

inline write_pending()
{
#ifndef WRAP
    must(NUMBER(op[me]) < TAGS, no_wrap);
#endif
    op[me]++
}

inline end_call()
{
    n = 0;
    up = 0;
    goto over
}

inline change()
{
    false; /* not this way: begin() has jumped to one of these labels */
#ifdef SET_LIMIT
test:
    atomic { mortal();
        if
        :: TOTAL(w) + n > limit -> goto refuse
        :: else -> proceed()
        fi };
#endif

#ifdef NEXT_FIRST
intend:
    atomic { mortal(); write_next() };
declare:
    atomic { mortal(); write_pending(); help_or_load() };
#else
intend:
declare:
    atomic { mortal(); write_pending();
#ifdef MUTATE_NEXT_AFTER_PENDING
             skip };
    atomic { mortal(); write_next();
#endif
             help_or_load() };
#endif
    atomic { mortal(); load() };

    /* cap_help: w is about to be overwritten. If the operation that made it is still pending, say that it happened. */
help:
    atomic { mortal();
        o = op[SLOT(w)];
        if
        :: PENDING(o) && NUMBER(o) % TAGS == TAG(w)
        :: else -> o = 0; goto swap
        fi };
#ifndef MUTATE_NO_RECHECK
    atomic { mortal();
        if
        :: state == w
        :: else -> o = 0; goto swap /* where it will fail */
        fi };
#endif
    atomic { mortal();
        if
#ifdef MUTATE_PLAIN_HELPED
        :: true -> helped[SLOT(w)] = NUMBER(o)
#else
        :: helped[SLOT(w)] < NUMBER(o) -> helped[SLOT(w)] = NUMBER(o)
        :: else
#endif
        fi;
        o = 0 };

swap: /* the linearization point */
    atomic { mortal();
        if
        :: state == w ->
            must(up || TOTAL(w) >= n, nothing_lost);
            state = WORD((up -> TOTAL(w) + n : TOTAL(w) - n), me, NUMBER(op[me]) % TAGS);
            w = 0;
            note_change()
#ifdef MUTATE_NO_RETEST
        :: else -> w = state; help_or_swap()
#else
        :: else -> load()
#endif
        fi };

#ifdef MUTATE_NEXT_AFTER_SWAP
    atomic { mortal(); write_next() };
#endif
#ifdef MUTATE_HELD_AFTER_IDLE
    atomic { mortal(); op[me]++ };
    atomic { mortal(); held[me] = next[me]; end_call() };
#else
    atomic { mortal(); held[me] = next[me] };
    atomic { mortal(); op[me]++; end_call() }; /* from pending to idle, with the next number */
#endif

refuse:
    atomic { mortal();
        if
#ifdef MUTATE_NO_REREAD
        :: true ->
#else
        :: state == w ->
#endif
#ifndef DRIFT
            must(cause[me], never_in_vain);
#endif
            end_ghosts();
            w = 0;
            if
            :: PENDING(op[me])
            :: else -> end_call()
            fi
#ifndef MUTATE_NO_REREAD
        :: else -> load()
#endif
        fi };
    atomic { mortal(); op[me]--; end_call() } /* idle, with the same number */
}

/* cap_recover, for a pending operation of slot me; ends with a jump to `over`. */
inline recover()
{
#ifndef MUTATE_RECOVERY_ORDER
    read_state();
    read_helped();
#else
    read_helped();
    read_state();
#endif
    atomic { mortal(); op[me]--; goto over }; /* it never happened */
redo:
    atomic { mortal(); held[me] = next[me] };
    atomic { mortal(); op[me]++; goto over }
}

inline read_state()
{
    atomic { mortal();
        if
        :: SLOT(state) == me && TAG(state) == NUMBER(op[me]) % TAGS -> goto redo
        :: else
        fi }
}

inline read_helped()
{
    atomic { mortal();
        if
        :: helped[me] == NUMBER(op[me]) -> goto redo
        :: else
        fi }
}

/* cap_audit. It begins with begin_audit() and ends with a jump to `audited`. It reads op before held: held is then what
 * the idle slot held, or else the slot has moved since, and so has state. */
inline begin_audit()
{
    w = state;
    goto ledger
}

inline audit()
{
    false; /* not this way: begin_audit() has jumped */
ledger:
#ifdef MUTATE_AUDIT_HELD_FIRST
    atomic { mortal(); sum = sum + held[i] };
    atomic { mortal(); check_idle(); next_ledger() };
#else
    atomic { mortal(); check_idle() };
    atomic { mortal(); sum = sum + held[i]; next_ledger() };
#endif
reread:
    atomic { mortal();
        if
        :: state == w && sum != TOTAL(w) /* nothing was pending, nothing moved */
        :: else -> end_audit()
        fi };
    atomic { mortal();
        if
        :: state == w ->
#ifndef DRIFT
            assert(no_drift);
#endif
            repairs++;
            state = WORD(sum, NOBODY, repairs % TAGS)
        :: else
        fi;
        end_audit() }
}

inline check_idle()
{
    if
#ifndef MUTATE_AUDIT_PENDING
    :: PENDING(op[i]) -> end_audit()
#endif
    :: else
    fi
}

inline next_ledger()
{
    i++;
    if
    :: i < SLOTS -> goto ledger
    :: else -> i = 0; goto reread
    fi
}

inline end_audit()
{
    w = 0;
    i = 0;
    sum = 0;
    goto audited
}

proctype Worker(byte me; byte left)
{
    byte role = OWNING;
    VARIABLES
    self = WORKER(me, 0);
over:
end_of_life:
    atomic {
        if
        :: kills[role] > 0 -> die()
        :: left > 0 ->
            left--;
            if
            :: up = 1; n = 1
            :: MAX_UNITS > 1 -> up = 1; n = 2
#ifndef NO_RELEASE
            :: held[me] > 0 -> n = 1
            :: held[me] > 1 -> n = held[me]
#endif
            fi;
            if
            :: up ->
                asked[me] = n;
                cause[me] = GRANTED + n > limit;
#ifdef SET_LIMIT
                most[me] = limit
#endif
            :: else
            fi;
            begin()
        fi };
    change();
died:
end_of_line: /* owner_claim, by somebody new */
    atomic {
        life < RESPAWNS && owner[me] == FREE ->
        life++;
#ifndef MUTATE_SAME_IDENTITY
        self = WORKER(me, life);
#else
        self = WORKER(me, 0);
        gone = gone & ~(1 << self);
#endif
        owner[me] = self;
        left = OPS_LATER;
        goto over }
}

proctype Reclaimer(byte r)
{
    byte me; /* the slot that it looks at, then acts for */
    byte role = RECLAIMING;
    VARIABLES
    self = RECLAIMER(r, 0);
audited:
end_of_work:
    atomic {
        if
        :: DEAD(owner[0]) -> me = 0
        :: DEAD(owner[1]) -> me = 1
#if SLOTS > 2
        :: DEAD(owner[2]) -> me = 2
#endif
        fi;
        o = owner[me] };

    /* owner_reclaim: the right to reclaim is a swap of the owner word. */
    atomic { mortal();
        if
#ifdef MUTATE_RIGHT_BY_STORE
        :: true ->
#else
        :: owner[me] == o ->
#endif
            o = 0;
            owner[me] = self;
            if
            :: PENDING(op[me])
            :: else -> goto over
            fi
#ifndef MUTATE_RIGHT_BY_STORE
        :: else -> o = 0; me = 0; goto audited
#endif
        fi };
    recover();
over:
    atomic { mortal();
        if
        :: held[me] > 0 -> n = held[me]; begin()
        :: else ->
#ifdef MUTATE_OP_RESET
            op[me] = FIRST * 2;
            helped[me] = 0;
#endif
            owner[me] = FREE;
            me = 0
        fi };
#ifdef NO_AUDIT /* to look at the wrap without it */
    goto audited;
#endif
    atomic { mortal(); begin_audit() };

    change();
    audit();
died: /* and followed by another */
    atomic { life++; self = RECLAIMER(r, life); me = 0; goto audited }
}

#ifdef AUDITS
proctype Auditor(byte left)
{
    bit me; /* of no account */
    byte role = AUDITING;
    VARIABLES
audited:
end_of_work:
    atomic { left > 0 -> left--; begin_audit() };
    audit();
died:
    skip
}
#endif

#ifdef SET_LIMIT
#define RAISE(s)                                                                                               \
    if                                                                                                         \
    :: asked[s] > 0 && limit > most[s] -> most[s] = limit                                                      \
    :: else                                                                                                    \
    fi

proctype Limiter(byte left)
{
end_of_work:
    do
    :: d_step {
        left > 0 ->
        left--;
        limit = (limit == LIMIT -> LIMIT - 1 : LIMIT);
        notice_causes();
        RAISE(0);
        RAISE(1);
#if SLOTS > 2
        RAISE(2);
#endif
       }
    od
}
#endif

#define UNTRUE(s) (!PENDING(op[s]) && held[s] != mine[s])
#define HAUNTED(s) (owner[s] == FREE && mine[s] != 0)
#define IN_DEAD_HANDS(s) DEAD(owner[s])

proctype Monitor()
{
end_of_watch:
    do
#ifndef SET_LIMIT
    :: OWED > limit -> assert(never_over)
#endif
#ifdef DRIFT
    :: TOTAL(state) < OWED -> assert(never_too_few_counted)
#else
    :: TOTAL(state) != GRANTED || ANY(UNTRUE) || ANY(HAUNTED) -> assert(nothing_lost)
#endif
    :: timeout && ANY(IN_DEAD_HANDS) -> assert(none_forgotten)
    od
}

init
{
    atomic {
        kills[OWNING] = KILLS;
        kills[RECLAIMING] = RECLAIMER_KILLS;
        owner[0] = WORKER(0, 0);
        owner[1] = WORKER(1, 0);
        run Worker(0, OPS);
        run Worker(1, OPS_OTHERS);
#if SLOTS > 2
        owner[2] = WORKER(2, 0);
        run Worker(2, OPS_OTHERS);
#endif
        run Reclaimer(0);
#if RECLAIMERS > 1
        run Reclaimer(1);
#endif
#ifdef AUDITS
        run Auditor(AUDITS);
#endif
#ifdef SET_LIMIT
        run Limiter(SET_LIMIT);
#endif
        run Monitor(); /* the last is tried first: what is broken is found where it breaks */
    }
}
