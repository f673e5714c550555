/* wait.pml - waiting for room as a Spin model: every interleaving, every death, and nobody left asleep.
 *
 * What is being checked
 *
 *     A waiter that is refused falls asleep; whoever makes room wakes it, and looks at one word only to know
 *     whether anybody is there (wait.h). Between the refusal and the sleep, and between the making of room and the look,
 *     there are gaps. This file asks whether a wake-up can be lost in one of them.
 *
 * What a step is
 *
 *     Each access to a shared word is one atomic step, before which a process may be killed. To compare turn and to
 *     fall asleep is one step, for the kernel does it under a lock; so is the waking of all. Reserve and release are
 *     one step each: cap.pml has checked that they are as good as that. Memory is sequentially consistent; adding 0 to
 *     state, which sees to that on a real machine (wait.h), is therefore no step of its own.
 *
 * Who takes part
 *
 *     Waiter       waits for one unit, holds it, gives it back, ROUNDS times: so it makes room for the others, too.
 *                  It may be killed before any step, and asleep.
 *     Limiter      raises the limit by one (-DRAISES).
 *     Reclaimer    gives back what the dead held and wakes everybody. In C it is whoever comes to be refused, and at
 *                  the latest a sleeper after WAIT_SLICE. It may be killed, too: then the next one begins anew.
 *
 * A sleep has no end of its own here: what is checked is that the wake-ups come, not that nobody relies on them.
 *
 * What must hold
 *
 *     never_over         no more is granted than the limit
 *     none_stranded      when nothing moves any more, nobody is asleep
 *
 * That it can fail: each -DMUTATE_... takes one guard away. run_model.py knows them all; README.md says what they mean.
 */

#ifndef WAITERS
#define WAITERS 3
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef LIMIT
#define LIMIT 1
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef RECLAIMER_KILLS
#define RECLAIMER_KILLS 0
#endif

/* Shared memory. */
byte granted, limit = LIMIT, turn;
bit waiters;

/* The kernel's. */
bit asleep[WAITERS];

/* What is true of each waiter. */
bit holds[WAITERS], dead[WAITERS];
byte kills = KILLS, reclaimer_kills = RECLAIMER_KILLS;

/* What must hold. Always 0: asserting one of these is how a property is reported broken by its name. */
hidden byte never_over, none_stranded;

inline mortal() /* at the head of each step of a waiter: may be the end */
{
    if
    :: kills > 0 -> kills--; dead[me] = 1; goto died
    :: true
    fi
}

inline mortal_reclaimer()
{
    if
    :: reclaimer_kills > 0 -> reclaimer_kills--; goto anew
    :: true
    fi
}

inline wake_all()
{
    asleep[0] = 0;
    asleep[1] = 0;
#if WAITERS > 2
    asleep[2] = 0;
#endif
}

/* What wait_wake does, each step begun by `risk`. */
#ifdef MUTATE_CLEAR_LATE
#define WAKE(risk)                                                                                             \
    atomic { risk(); turn++ };                                                                                 \
    atomic { risk(); waiters = 0 };                                                                            \
    atomic { risk(); wake_all() }
#else
#define WAKE(risk)                                                                                             \
    atomic { risk(); waiters = 0 };                                                                            \
    atomic { risk(); turn++ };                                                                                 \
    atomic { risk(); wake_all() }
#endif

#define LOOK(risk) atomic { risk(); look = waiters }

#define WAKE_IF_SEEN(risk)                                                                                     \
    if                                                                                                         \
    :: look == 1 -> WAKE(risk)                                                                                 \
    :: else                                                                                                    \
    fi

proctype Waiter(byte me)
{
    byte seen, left = ROUNDS;
    bit look;

again:
#ifndef MUTATE_TURN_LATE
    atomic { mortal(); seen = turn };
#endif
#ifndef MUTATE_FLAG_LATE
    atomic { mortal(); waiters = 1 };
#endif
    atomic {
        mortal();
        if
        :: granted < limit -> granted++; holds[me] = 1; goto got
        :: else
        fi
    };
#ifdef MUTATE_FLAG_LATE
    atomic { mortal(); waiters = 1 };
#endif
#ifdef MUTATE_TURN_LATE
    atomic { mortal(); seen = turn };
#endif
    atomic {
        mortal();
        if
        :: turn == seen -> asleep[me] = 1
        :: else -> goto again
        fi
    };
    if
    :: atomic { asleep[me] == 0 -> goto again }
    :: atomic { asleep[me] == 1 && kills > 0 -> kills--; dead[me] = 1; asleep[me] = 0; goto died }
    fi;

got:
#ifdef MUTATE_LOOK_EARLY
    LOOK(mortal);
#endif
#ifdef MUTATE_WAKE_EARLY
    LOOK(mortal);
    WAKE_IF_SEEN(mortal);
#endif
    atomic { mortal(); granted--; holds[me] = 0 };
#ifndef MUTATE_WAKE_EARLY
#ifndef MUTATE_LOOK_EARLY
    LOOK(mortal);
#endif
    WAKE_IF_SEEN(mortal);
#endif
    left--;
    if
    :: left > 0 -> goto again
    :: else
    fi;
died:
    skip
}

#ifdef RAISES
inline immortal() { skip }

proctype Limiter()
{
    bit look;
    limit++;
#ifndef MUTATE_SILENT_LIMIT
    LOOK(immortal);
    WAKE_IF_SEEN(immortal)
#endif
}
#endif

#define TO_RECLAIM (dead[0] || dead[1] || (WAITERS > 2 && dead[WAITERS - 1]))

proctype Reclaimer()
{
    byte slot;
    bit look;
anew:
end_of_watch:
    atomic {
        TO_RECLAIM;
        if
        :: dead[0] -> slot = 0
        :: dead[1] -> slot = 1
#if WAITERS > 2
        :: dead[2] -> slot = 2
#endif
        fi
    };
    if
    :: holds[slot] ->
        atomic { mortal_reclaimer(); granted--; holds[slot] = 0 };
        LOOK(mortal_reclaimer);
        WAKE_IF_SEEN(mortal_reclaimer)
    :: else
    fi;
#ifndef MUTATE_NO_RECLAIM_WAKE
    WAKE(mortal_reclaimer);
#endif
    atomic { mortal_reclaimer(); dead[slot] = 0 }; /* the slot is free again */
    goto anew
}

proctype Monitor()
{
end_of_watch:
    do
    :: granted > limit -> assert(never_over)
    :: timeout && (asleep[0] || asleep[1] || asleep[WAITERS - 1]) -> assert(none_stranded)
    od
}

init
{
    atomic {
        run Waiter(0);
        run Waiter(1);
#if WAITERS > 2
        run Waiter(2);
#endif
#ifdef RAISES
        run Limiter();
#endif
        run Reclaimer();
        run Monitor() /* the last is tried first: what is broken is found where it breaks */
    }
}
